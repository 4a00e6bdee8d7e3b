// SPDX-License-Identifier: BSD-2-Clause
// What every verb says about a tier in each of its states, whether these sentences agree with each
// other and with what happens, and whether docs/operations.md has them.
//
// With SLUICE_UPDATE_DOCS set, it writes them there instead of comparing.
#include <fcntl.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/sysmacros.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <ctime>
#include <filesystem>
#include <fstream>
#include <regex>
#include <sstream>

#include "base/unique_fd.hpp"
#include "tests/mount/tiering.hpp"

namespace sluice::test {
namespace {

constexpr const char* kDocument = SLUICE_SOURCE_DIR "/docs/operations.md";
constexpr const char* kBegin = "<!-- Made by tests/mount/tier_sentences_test.cpp -->\n";
constexpr const char* kEnd = "<!-- end -->\n";

bool has(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

// The lines of `text` that have one of the words.
std::string lines_with(const std::string& text, const std::vector<std::string>& words) {
  std::istringstream in(text);
  std::string out;
  for (std::string line; std::getline(in, line);) {
    if (std::any_of(words.begin(), words.end(), [&](const auto& word) { return has(line, word); }))
      out += line + "\n";
  }
  return out;
}

// What `top` shows below the line of a tier, in one line.
std::string block_of(const std::string& top, const std::string& tier) {
  std::istringstream in(top);
  std::string out;
  bool is_in = false;
  for (std::string line; std::getline(in, line);) {
    if (line.starts_with(tier + " ")) {
      is_in = true;
    } else if (is_in && line.starts_with("           ")) {
      out += (out.empty()       ? ""
              : line[11] == ' ' ? " "
                                : "\n") +
             line.substr(line.find_first_not_of(' '));
    } else {
      is_in = false;
    }
  }
  return out;
}

bool takes_new_files(const nlohmann::json& tier) {
  const std::string takes = tier.at("intake");
  return takes == "open" || takes == "above-watermark" || takes == "full";
}

// What the verbs say about one tier, each in lines.
struct Said {
  std::string status, top, web, plan, explain, move, create, df;
};

class TierSentencesTest : public TieringTest {
 protected:
  void SetUp() override {
    TieringTest::SetUp();
    min_stay_ = "1h";
    policy_ = "value";
  }

  // Passes are automatic, but their window is closed for two hours: so everything is said as on any
  // mount, and files move only when the test says so.
  void start_quietly() {
    const std::time_t later = std::time(nullptr) + 2 * 3600;
    std::tm local{};
    ::localtime_r(&later, &local);
    const auto two = [](int hour) { return (hour < 10 ? "0" : "") + std::to_string(hour) + ":00"; };
    start({"--windows", two(local.tm_hour) + "-" + two((local.tm_hour + 1) % 24)},
          Passes::Automatic);
  }
  Json tiers() { return mount().status().at("tiers"); }
  Json tier(const std::string& name) {
    const Json all = tiers();
    for (const Json& each : all) {
      if (each.at("name") == name) return each;
    }
    throw std::runtime_error("no tier " + name);
  }
  std::string intake(const std::string& name) { return tier(name).at("intake"); }
  void expect_intake(const std::string& name, const std::string& wanted) {
    EXPECT_TRUE(eventually([&] { return intake(name) == wanted; })) << name << " is " << tier(name);
  }

  // Takes room on a tier by a file at `path`, until about `leave` bytes are free.
  void take_room(const std::string& tier, const std::string& path, std::uint64_t leave) {
    const UniqueFd disk(::open(on(tier, "").c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
    const UniqueFd fd(::open(path.c_str(), O_CREAT | O_WRONLY | O_CLOEXEC, 0644));
    struct statvfs fs {};
    if (!fd || ::fstatvfs(disk.get(), &fs) < 0) fail("open " + path);
    off_t at = 0;
    // The filesystem keeps some of what it says is free.
    for (std::uint64_t step = fs.f_bavail * fs.f_frsize; step >= 4096; step /= 2) {
      for (;;) {
        if (::fstatvfs(disk.get(), &fs) < 0) fail("statvfs " + tier);
        const std::uint64_t free = fs.f_bavail * fs.f_frsize;
        if (free <= leave) return;
        const auto more = static_cast<off_t>(std::min(step, free - leave));
        if (::fallocate(fd.get(), 0, at, more) < 0) break;
        at += more;
      }
    }
  }

  // Asks every verb about the tier. `file` is on it; `other` is on another one, and can't leave it.
  Said ask_all(const std::string& name, const std::string& file, const std::string& other);
  // With words in the place of sizes, times and paths, so that two runs say the same.
  std::string without_figures(std::string text) const;
  void check(const std::string& name, const Said& said);
  void check_new_files(const std::string& name, const Said& said);
  void check_passes(const std::string& name, const Said& said);
  void check_df();
  void note(const std::string& state, const Said& said);
  void add(const std::string& state, const std::string& name, const std::string& file,
           const std::string& other) {
    SCOPED_TRACE(state);
    const Said said = ask_all(name, file, other);
    check(name, said);
    note(state, said);
  }

  // The states, one after the other.
  void fill_the_tiers();
  void take_the_middle_one_away();
  void break_all();

  std::string table_;
  int created_ = 0;
  bool can_break_ = false;
  std::string created_on_;  // the tier of the last new file, or an errno
};

Said TierSentencesTest::ask_all(const std::string& name, const std::string& file,
                                const std::string& other) {
  Said said;
  // A plan first: what is said about files that leave is what it found.
  const std::string plan = tell({"plan"}).out;
  said.plan =
      lines_with(plan, {name + " ", "nothing to move", "would move", "not moved yet", "->"});

  const std::string created = *this / ("new" + std::to_string(created_++));
  const UniqueFd fd(::open(created.c_str(), O_CREAT | O_WRONLY | O_CLOEXEC, 0644));
  created_on_ = fd ? tier_of(created.substr(root().size() + 1)) : errno_name(errno);
  said.create = fd ? "the file is on " + created_on_ : std::strerror(errno);
  const std::string bytes(64 << 10, 'x');
  if (fd && ::write(fd.get(), bytes.data(), bytes.size()) < 0)
    said.create += ", and writing it fails: " + std::string(std::strerror(errno));
  else if (fd && tier_of(created.substr(root().size() + 1)) != created_on_)
    said.create += ", and writing it moves it to " + tier_of(created.substr(root().size() + 1));
  ::unlink(created.c_str());

  said.status = lines_with(tell({"status"}).out, {name + ": ", name + "  ", "migration "});
  said.status.erase(said.status.find(';', said.status.find("migration ")));
  const std::string top = tell({"top", "--once", "--interval", "0.1"}).out;
  const Json now = ask({"top", "--once", "--interval", "0.1"});
  for (const Json& each : now.at("tiers")) {
    if (each.at("name") != name) continue;
    for (const Json& state : each.at("states")) {
      const std::string words = state.at("words"), state_name = state.at("name");
      said.web += state_name + ": " + words + "\n";
    }
    if (said.web.empty())
      said.web = each.at("leaves_at").is_null()
                     ? "\n"
                     : "files leave at " + each.at("leaves_at").dump() + "%\n";
  }
  said.top = block_of(top, name);
  const CommandResult explained = sluice({"explain", *this / file});
  said.explain = lines_with(explained.out + explained.err, {"  on ", "offline", "  why ", "  wants",
                                                            "  but", "stays ", " on " + name});
  const CommandResult moved = sluice({"move", "--to", name, *this / other});
  said.move = moved.out + moved.err;
  sluice({"move", "--cancel", *this / other});
  said.df = "the room of";
  const Json all = tiers();
  for (const Json& each : all) {
    if (takes_new_files(each)) said.df += " " + each.at("name").get<std::string>();
  }
  return said;
}

std::string TierSentencesTest::without_figures(std::string text) const {
  const std::vector<std::pair<std::string, std::string>> rules{
      {base_.path() + "/mnt", "/mnt/pool"},
      {base_.path(), ""},
      {"[0-9]{4}-[0-9]{2}-[0-9]{2} [0-9:]{8}", "TIME"},
      {"[0-9.]+ (B|KiB|MiB|GiB)(/s)?", "SIZE$2"},
      {"~?[0-9.]+ ms, ", "MS, "},
      {"[0-9.]+ (s|min|h)( of waiting)? a day", "TIME$2 a day"},
      {"(saves|save|cost)(,? [a-z ,]*)about [0-9.]+ (s|min|h)", "$1$2about TIME"},
      {"[0-9.]+ s/GB", "N s/GB"},
      {"[0-9.]+ (s|min|h|d)\\b( [0-9.]+ (s|min|h)\\b)?", "TIME"},
      {"loop[0-9]+", "DISK"},
      {"found [0-9]+ errors?", "found N errors"},
      {" +", " "},
      {" \n", "\n"},
      {"[0-9]+% SIZE SIZE SIZE [0-9]+", "N% SIZE SIZE SIZE N"},
      {"FROM -> TO [A-Z ]+\n", ""},
      // How many files wait for what depends on how fast the test is.
      {"nothing to move: [^\n]*", "nothing to move"},
      {"not moved yet: [0-9]+ files?, (arrived recently|used only once)[^\n]*\n", ""},
  };
  for (const auto& [pattern, with] : rules)
    text = std::regex_replace(text, std::regex(pattern), with);
  return text;
}

// The rules that no two sentences break.
void TierSentencesTest::check(const std::string& name, const Said& said) {
  const std::string takes = intake(name);
  const bool is_open = takes == "open";
  for (const std::string& text : {said.plan, said.explain}) {
    if (!is_open) {
      EXPECT_FALSE(has(text, name + " has room") || has(text, name + ", where everything has room"))
          << takes << ", but: " << text;
      EXPECT_FALSE(has(lines_with(text, {" on " + name}), "everything has room there")) << text;
    }
  }
  const bool is_said = tier(name).at("states").empty() || has(said.status, name);
  EXPECT_TRUE(is_said) << said.status;
  // Everybody says the same.
  const Json states = tier(name).at("states");
  for (const Json& each : states) {
    const std::string words = each.at("words"), word = each.at("name");
    EXPECT_TRUE(has(said.web, word)) << said.web;
    if (word == "full") continue;  // with the bytes that are free at that moment
    EXPECT_TRUE(has(said.status, words)) << words << " is not in " << said.status;
    EXPECT_TRUE(has(said.web, words)) << words << " is not in " << said.web;
    EXPECT_TRUE(has(said.top, word)) << word << " is not in " << said.top;
  }
  // Only a tier that takes no files refuses moves, and says which.
  const bool is_refused = has(said.move, "sluice: move: ");
  EXPECT_EQ(is_refused, takes == "draining" || takes == "read-only" || takes == "offline")
      << takes << ": " << said.move;
  EXPECT_TRUE(!is_refused || has(said.move, "tier " + name + " ")) << said.move;
  check_new_files(name, said);
  check_passes(name, said);
  check_df();
}

// New files go where it says, and if it says nothing, to the fastest tier that is as it should be.
void TierSentencesTest::check_new_files(const std::string& name, const Said& said) {
  std::string expected;
  std::smatch found;
  const Json all = tiers();
  for (const Json& each : all) {
    if (expected.empty() && each.at("intake") == "open") expected = each.at("name");
  }
  static const std::regex kGoes("new files go to (\\w+)");
  if (has(said.status, "no tier takes new files")) {
    EXPECT_TRUE(created_on_ == "EROFS" || created_on_ == "EIO") << created_on_;
    return;
  }
  if (has(said.status, "new files still come here")) expected = name;
  if (std::regex_search(said.status, found, kGoes)) expected = found[1];
  EXPECT_EQ(created_on_, expected) << said.status;
}

// Files leave if and only if it says so, and a pass does what the plan says.
void TierSentencesTest::check_passes(const std::string& name, const Said& said) {
  const bool is_leaving = has(said.plan, "\n  " + name + " -> ");
  EXPECT_TRUE(is_leaving || !has(said.status, "passes move files to slower tiers"))
      << said.status << said.plan;
  EXPECT_FALSE(is_leaving && has(said.status, "no files leave it")) << said.status << said.plan;
  const bool lacks_room = intake(name) == "full" || intake(name) == "above-watermark";
  if (lacks_room) {
    EXPECT_NE(has(said.status, "passes move files"), has(said.status, "no files leave it"))
        << said.status;
  }
  EXPECT_TRUE(has(said.status, "next pass in at most") || has(said.status, "next pass begins"))
      << said.status;
}

// df has the room of the tiers that take new files.
void TierSentencesTest::check_df() {
  double free = 0, used = 0;
  const Json all = tiers();
  for (const Json& each : all) {
    used += each.at("used").get<double>();
    if (takes_new_files(each)) free += each.at("free").get<double>();
  }
  struct statvfs fs {};
  ASSERT_EQ(::statvfs(root().c_str(), &fs), 0);
  constexpr double kTolerance = 1 << 20;
  EXPECT_NEAR(static_cast<double>(fs.f_bavail * fs.f_frsize), free, kTolerance);
  EXPECT_NEAR(static_cast<double>((fs.f_blocks - fs.f_bfree) * fs.f_frsize), used, kTolerance);
}

void TierSentencesTest::note(const std::string& state, const Said& said) {
  table_ += "\n**" + state + "**\n\n```text\n";
  const std::vector<std::pair<std::string, std::string>> verbs{
      {"status", said.status},   {"top", said.top},   {"web", said.web},       {"plan", said.plan},
      {"explain", said.explain}, {"move", said.move}, {"create", said.create}, {"df", said.df}};
  for (const auto& [verb, text] : verbs) {
    std::istringstream lines(without_figures(text));
    std::string label = verb;
    for (std::string line; std::getline(lines, line);) {
      line.erase(
          0, line.find_first_not_of(' ') == std::string::npos ? 0 : line.find_first_not_of(' '));
      if (line.empty()) continue;
      // Within the columns of a document.
      std::string indent = label + std::string(9 - label.size(), ' ');
      while (indent.size() + line.size() > 118) {
        const std::size_t cut = line.rfind(' ', 118 - indent.size());
        table_ += indent + line.substr(0, cut) + "\n";
        line.erase(0, cut + 1);
        indent = std::string(11, ' ');
      }
      table_ += indent + line + "\n";
      label.clear();
    }
  }
  table_ += "```\n";
}

void TierSentencesTest::fill_the_tiers() {
  read_often("hot", 3);
  read_often("warm", 3);
  add("A pool with room and files that are used", "ssd", "warm", "parked");

  take_room("nvme", *this / "large", 6 * kMiB);
  ASSERT_EQ(tier_of("large"), "nvme");
  expect_intake("nvme", "above-watermark");
  add("nvme is above its high watermark", "nvme", "hot", "parked");
  // What is said comes true.
  run_pass();
  EXPECT_EQ(tier_of("large"), "ssd");
  ASSERT_EQ(::unlink((*this / "large").c_str()), 0);
  expect_intake("nvme", "open");

  // Others on the disk took the room, also what the files that left gave back.
  take_room("nvme", on("nvme", ".sluice/theirs"), 0);
  expect_intake("nvme", "full");
  run_pass();  // what may leave it has left
  take_room("nvme", on("nvme", ".sluice/theirs-too"), 128 << 10);
  add("nvme is full, but not of files that may move", "nvme", "kept", "parked");

  take_room("ssd", on("ssd", ".sluice/theirs"), 0);
  take_room("hdd", on("hdd", ".sluice/theirs"), 0);
  expect_intake("ssd", "full");
  expect_intake("hdd", "full");
  add("Every tier is full: the fastest", "nvme", "kept", "parked");
  add("Every tier is full: the slowest", "hdd", "cold", "kept");
  for (const char* name : {"nvme", "ssd", "hdd"}) {
    ASSERT_EQ(::unlink(on(name, ".sluice/theirs").c_str()), 0);
    ::unlink(on(name, ".sluice/theirs-too").c_str());
    expect_intake(name, "open");
  }
  move("hot", "nvme");
  if (tier_of("warm") != "ssd") move("warm", "ssd");
}

void TierSentencesTest::take_the_middle_one_away() {
  {
    const UniqueFd writer(::open((*this / "warm").c_str(), O_WRONLY | O_CLOEXEC));
    EXPECT_FALSE(tell({"tier", "drain", "ssd"}).ok()) << "its file is open";
    add("ssd is being drained", "ssd", "warm", "parked");
    const CommandResult cancelled = tell({"tier", "drain", "--cancel", "ssd"});
    ASSERT_TRUE(cancelled.ok()) << cancelled.err;
    sluice({"move", "--cancel", *this / "warm"});
  }
  disk("ssd").vanish();
  expect_intake("ssd", "offline");
  add("ssd is offline", "ssd", "warm", "parked");
  ASSERT_TRUE(tell({"tier", "drain", "--lost", "ssd"}).ok());
  add("ssd is given up as lost", "ssd", "warm", "parked");
  disk("ssd").come_back();
  expect_intake("ssd", "open");
}

void TierSentencesTest::break_all() {
  struct stat st {};
  ASSERT_EQ(::stat(disk("ssd").path().c_str(), &st), 0);
  const std::string device =
      std::filesystem::read_symlink("/sys/dev/block/" + std::to_string(major(st.st_dev)) + ":" +
                                    std::to_string(minor(st.st_dev)))
          .filename();
  can_break_ = static_cast<bool>(std::ofstream("/sys/fs/ext4/" + device + "/trigger_fs_error")
                                 << "of the test" << std::flush);
  if (can_break_) add("ssd's filesystem found an error", "ssd", "warm", "parked");

  // As the kernel does if it finds an error, and errors=remount-ro.
  ASSERT_TRUE(run_command({"mount", "-o", "remount,abort", disk("hdd").path()}).ok());
  expect_intake("hdd", "read-only");
  add("hdd became read-only after an error", "hdd", "cold", "kept");

  disk("nvme").shut_down();
  write_file(*this / "first", "x");  // it is noticed by this
  EXPECT_EQ(tier_of("first"), "ssd");
  expect_intake("nvme", "failing");
  add("nvme fails with I/O errors", "nvme", "hot", "warm");
}

// The part of the document that this test makes.
std::string documented() {
  const std::string text = read_file(kDocument);
  const std::size_t begin = text.find(kBegin), end = text.find(kEnd);
  if (begin == std::string::npos || end == std::string::npos) return "";
  const std::size_t from = begin + std::string_view(kBegin).size();
  return text.substr(from, end - from);
}

void write_document(const std::string& table) {
  std::string text = read_file(kDocument);
  const std::size_t begin = text.find(kBegin) + std::string_view(kBegin).size();
  text.replace(begin, text.find(kEnd) - begin, table);
  write_file(kDocument, text);
}

TEST_F(TierSentencesTest, TheSentencesAgreeAndAreInTheDocuments) {
  put("nvme", "hot", pattern(300'000, 1));
  put("ssd", "warm", pattern(300'000, 2));
  put("hdd", "cold", pattern(300'000, 3));
  put("hdd", "parked", pattern(300'000, 4));
  put("nvme", "kept", pattern(300'000, 5));
  start_quietly();
  // It is in use all the time, so requests to move it wait.
  const UniqueFd parked(::open((*this / "parked").c_str(), O_WRONLY | O_CLOEXEC));
  ASSERT_TRUE(sluice({"pin", "nvme", *this / "kept"}).ok());
  add("A pool with room", "nvme", "hot", "parked");
  fill_the_tiers();
  take_the_middle_one_away();
  break_all();
  if (!can_break_) GTEST_SKIP() << "the kernel can't pretend an error of ext4";
  if (!HasFailure() && std::getenv("SLUICE_UPDATE_DOCS") != nullptr) write_document(table_);
  EXPECT_EQ(documented(), table_)
      << "if that is as it should be, run this test with SLUICE_UPDATE_DOCS=1";
}

}  // namespace
}  // namespace sluice::test
