// SPDX-License-Identifier: BSD-2-Clause
// Stamps of files in an origin: what they tell, in every order of calls and between real processes.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/xattr.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <memory>

#include "base/unique_fd.hpp"
#include "tests/support/child.hpp"
#include "tests/support/files.hpp"
#include "tests/support/seed.hpp"
#include "tests/support/shared.hpp"
#include "tests/support/temp_dir.hpp"
#include "tests/unit/tiering/origin_model.hpp"
#include "tiering/origin/version.hpp"

namespace sluice {
namespace {

using test::LeftOut;
using test::OriginModel;
using Fate = OriginModel::Fate;
using Works = std::vector<OriginModel::Work>;

// Tries every order in which the machines can make their calls, and goes on from each state once.
// A machine that dies needs no order of its own: it makes no further call, and the invariant is
// checked after each.
class EveryOrder {
 public:
  EveryOrder(Works machines, LeftOut left_out)
      : machines_(std::move(machines)), left_out_(left_out) {}

  std::string run() {
    std::vector<std::vector<int>> waiting{{}};
    while (!waiting.empty() && broken_.empty()) {
      const auto path = std::move(waiting.back());
      waiting.pop_back();
      follow(path, waiting);
    }
    return broken_;
  }
  std::size_t states() const { return seen_.size(); }
  std::uint64_t hits() const { return hits_; }

 private:
  // Follows the path, then always the first choice, and leaves the others for later.
  void follow(std::vector<int> path, std::vector<std::vector<int>>& waiting) {
    OriginModel model(machines_, left_out_);
    for (const int machine : path) model.step(machine);
    while (model.broken().empty() && seen_.insert(model.state()).second) {
      const auto choices = choices_in(model);
      if (choices.empty()) break;
      for (std::size_t i = 1; i < choices.size(); ++i) {
        waiting.push_back(path);
        waiting.back().push_back(choices[i]);
      }
      path.push_back(choices[0]);
      model.step(choices[0]);
    }
    broken_ = model.broken();
    hits_ += model.hits();
  }
  std::vector<int> choices_in(const OriginModel& model) const {
    std::vector<int> out;
    for (int i = 0; i < static_cast<int>(machines_.size()); ++i) {
      if (!model.is_over(i)) out.push_back(i);
    }
    return out;
  }

  const Works machines_;
  const LeftOut left_out_;
  std::set<std::string> seen_;
  std::string broken_;
  std::uint64_t hits_ = 0;
};

TEST(OriginOrderTest, NoOrderOfAWriterAndAReaderMakesAWrongCopyCount) {
  EveryOrder every({OriginModel::write, OriginModel::read_twice}, LeftOut::Nothing);
  EXPECT_EQ(every.run(), "");
  EXPECT_GT(every.states(), 50u);
}

TEST(OriginOrderTest, NoOrderOfTwoWritersAndAReaderMakesAWrongCopyCount) {
  EveryOrder every({OriginModel::write, OriginModel::write, OriginModel::read_twice},
                   LeftOut::Nothing);
  EXPECT_EQ(every.run(), "");
  EXPECT_GT(every.states(), 1000u);
  EXPECT_GT(every.hits(), 0u) << "no copy was used";
}

TEST(OriginOrderTest, NoOrderOfAWriterAReaderAndAScanMakesAWrongCopyCount) {
  EveryOrder every({OriginModel::scan, OriginModel::write, OriginModel::read_twice},
                   LeftOut::Nothing);
  EXPECT_EQ(every.run(), "");
}

// Each part of the protocol is needed.
TEST(OriginOrderTest, WithoutFlagsACopyCanBeWrong) {
  EveryOrder every({OriginModel::write, OriginModel::write, OriginModel::read_twice},
                   LeftOut::Flags);
  EXPECT_NE(every.run(), "");
}

TEST(OriginOrderTest, WithoutTheMarkOfTheWriterACopyCanBeWrong) {
  EveryOrder every({OriginModel::write, OriginModel::write, OriginModel::read_twice},
                   LeftOut::Mark);
  EXPECT_NE(every.run(), "");
}

// Runs machines in a random order until all have ended; each call may fail or be the last one.
std::string run_randomly(const Works& machines, std::mt19937_64& random, unsigned percent_bad) {
  OriginModel model(machines, LeftOut::Nothing);
  bool is_whole = true;
  while (!model.are_all_over() && model.broken().empty()) {
    const int machine = static_cast<int>(random() % machines.size());
    if (model.is_over(machine)) continue;
    const bool is_bad = random() % 100 < percent_bad;
    is_whole = is_whole && !is_bad;
    model.step(machine, !is_bad ? Fate::Runs : random() % 2 == 0 ? Fate::Dies : Fate::Fails);
  }
  if (model.broken().empty() && is_whole && !model.is_settled()) return "no copy may be kept";
  return model.broken();
}

TEST(OriginOrderTest, ManyMachinesInRandomOrdersWithFailuresMakeNoWrongCopyCount) {
  std::mt19937_64 random(test::test_seed());
  const Works machines{OriginModel::write,      OriginModel::write,      OriginModel::write,
                       OriginModel::read_twice, OriginModel::read_twice, OriginModel::scan};
  for (int i = 0; i < test::rounds(1500, 50000); ++i) {
    ASSERT_EQ(run_randomly(machines, random, i % 3 == 0 ? 0 : 4), "") << "run " << i;
  }
}

// ---- on a real file ----

class OriginVersionTest : public testing::Test {
 protected:
  OriginVersionTest() {
    ::chmod(dir_.path().c_str(), 0700);
    fd_.reset(::open(path_.c_str(), O_RDWR | O_CLOEXEC));
  }
  OriginVersion version() const {
    auto read = read_version(file_());
    EXPECT_TRUE(read) << read.error().text();
    return read ? *read : OriginVersion{};
  }
  OriginFd file_() const { return OriginFd(fd_.get(), AttributeSpace::User); }
  WriteFlag begin() const {
    OriginFd file = file_();
    auto flag = begin_writing(file, BootId{7});
    EXPECT_TRUE(flag) << flag.error().text();
    return flag ? *flag : WriteFlag{};
  }
  void end(const WriteFlag& flag) const {
    OriginFd file = file_();
    const auto ended = end_writing(file, flag);
    EXPECT_TRUE(ended) << ended.error().text();
  }
  std::size_t flags() const {
    const auto names = file_().names();
    return names ? static_cast<std::size_t>(std::ranges::count_if(
                       *names, [](const std::string& n) { return n.starts_with("w."); }))
                 : 999;
  }
  // `now` as seconds after the file's last change.
  Quiet stamp(std::chrono::seconds after) const {
    OriginFd file = file_();
    const auto stat = file.stat();
    const auto found =
        stamp_quiet_file(file, std::max(stat->mtime, stat->ctime) / 1'000'000'000 + after.count());
    EXPECT_TRUE(found) << found.error().text();
    return found ? *found : Quiet::Recent;
  }
  bool still(const OriginVersion& before) const {
    const auto found = is_still(file_(), before);
    return found && *found;
  }

  test::TempDir dir_;
  std::string path_ = dir_.make_file("file", "content");
  UniqueFd fd_;
};

TEST_F(OriginVersionTest, AFileWithoutAStampHasNoVersion) {
  EXPECT_FALSE(version().is_settled());
  EXPECT_FALSE(still(version()));
}

TEST_F(OriginVersionTest, AWriterLeavesANewVersion) {
  const WriteFlag flag = begin();
  EXPECT_FALSE(version().is_settled());
  end(flag);
  const OriginVersion first = version();
  EXPECT_TRUE(first.is_settled());
  EXPECT_TRUE(still(first));
  end(begin());
  EXPECT_NE(version().stamp, first.stamp);
  EXPECT_FALSE(still(first));
  EXPECT_EQ(flags(), 0u);
}

TEST_F(OriginVersionTest, NoCopyIsKeptUntilTheLastWriterEnds) {
  const WriteFlag one = begin(), other = begin();
  end(one);
  EXPECT_FALSE(still(version()));
  end(other);
  EXPECT_TRUE(still(version()));
}

TEST_F(OriginVersionTest, AFailedSyncLeavesTheFileAsBeingWritten) {
  class Failing final : public OriginFile {
   public:
    explicit Failing(OriginFd file) : file_(file) {}
    Result<FileStat> stat() const override { return file_.stat(); }
    Result<std::string> get(const std::string& name) const override { return file_.get(name); }
    Result<void> set(const std::string& name, const std::string& value) override {
      return file_.set(name, value);
    }
    Result<void> remove(const std::string& name) override { return file_.remove(name); }
    Result<std::vector<std::string>> names() const override { return file_.names(); }
    Result<void> sync() override { return Error(EIO, "sync"); }

   private:
    OriginFd file_;
  };
  Failing file(file_());
  const auto flag = begin_writing(file, BootId{7});
  ASSERT_TRUE(flag);
  EXPECT_TRUE(failed_with(end_writing(file, *flag), EIO));
  EXPECT_FALSE(version().is_settled());
  EXPECT_EQ(flags(), 1u);
}

TEST_F(OriginVersionTest, WritersBeyondTheMostShareAFlagThatStays) {
  std::vector<WriteFlag> all;
  for (std::size_t i = 0; i < kMostWriters + 3; ++i) all.push_back(begin());
  EXPECT_EQ(flags(), kMostWriters + 1);
  for (const WriteFlag& flag : all) end(flag);
  EXPECT_EQ(flags(), 1u);
  EXPECT_FALSE(still(version()));
  EXPECT_EQ(stamp(kLeftOver), Quiet::Stamped);
  EXPECT_TRUE(still(version()));
}

TEST_F(OriginVersionTest, AChangeWithoutSluiceChangesTheVersion) {
  end(begin());
  const OriginVersion before = version();
  test::write_file(path_, "longer than before");
  EXPECT_NE(version(), before);
}

TEST_F(OriginVersionTest, AScanStampsWhatHasNoStampOrHasChanged) {
  EXPECT_EQ(stamp(kRecent), Quiet::Stamped);
  EXPECT_TRUE(still(version()));
  EXPECT_EQ(stamp(kRecent), Quiet::Unchanged);
  test::write_file(path_, "longer than before");
  EXPECT_EQ(stamp(kRecent), Quiet::Stamped);
}

TEST_F(OriginVersionTest, AScanLeavesOutWhatIsBeingWritten) {
  EXPECT_EQ(stamp(kRecent - std::chrono::seconds(1)), Quiet::Recent);
  begin();
  EXPECT_EQ(stamp(kLeftOver - std::chrono::seconds(1)), Quiet::Written);
  EXPECT_FALSE(version().is_settled());
  // Its writer died.
  EXPECT_EQ(stamp(kLeftOver), Quiet::Stamped);
  EXPECT_TRUE(still(version()));
}

TEST_F(OriginVersionTest, ACopyWithItsAttributesIsStampedAnew) {
  end(begin());
  const auto stamp_of_original = file_().get("v");
  const std::string copy = dir_.make_file("copy", "content");
  fd_.reset(::open(copy.c_str(), O_RDWR | O_CLOEXEC));
  ASSERT_TRUE(file_().set("v", *stamp_of_original));
  EXPECT_EQ(stamp(kRecent), Quiet::Stamped);
}

TEST_F(OriginVersionTest, AStampOfAnotherFormatIsNone) {
  end(begin());
  auto value = file_().get("v");
  ASSERT_TRUE(value);
  for (std::size_t size = 0; size < value->size(); ++size) {
    ASSERT_TRUE(file_().set("v", value->substr(0, size)));
    ASSERT_FALSE(version().is_settled()) << size;
  }
  (*value)[0] = 2;
  ASSERT_TRUE(file_().set("v", *value));
  EXPECT_FALSE(version().is_settled());
}

TEST_F(OriginVersionTest, TrustedAttributesAreUsedWhereThereAreSome) {
  const auto space = attribute_space(fd_.get());
  ASSERT_TRUE(space) << space.error().text();
  EXPECT_EQ(*space, AttributeSpace::Trusted);
  const UniqueFd proc(::open("/proc", O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  EXPECT_TRUE(failed_with(attribute_space(proc.get()), EOPNOTSUPP));
}

// ---- between processes ----

constexpr std::size_t kWriters = 2;
constexpr std::size_t kSlots = 4;         // of each writer
constexpr std::uint64_t kRaces = 10'000;  // of each of two readers

// Each writer fills its slots with one number after the other.
using Slots = std::array<std::array<std::uint64_t, kSlots>, kWriters>;

struct Board {
  std::array<std::atomic<std::uint64_t>, kWriters> closed{};  // by each writer
  std::atomic<std::uint64_t> races{0}, hits{0}, stale{0}, torn{0};
  std::atomic<int> readers{2};
};

// Does not wait for the disk: the processes share a page cache, and the test many races.
class QuickFile final : public OriginFile {
 public:
  explicit QuickFile(int fd) : file_(fd, AttributeSpace::User) {}
  Result<FileStat> stat() const override { return file_.stat(); }
  Result<std::string> get(const std::string& name) const override { return file_.get(name); }
  Result<void> set(const std::string& name, const std::string& value) override {
    return file_.set(name, value);
  }
  Result<void> remove(const std::string& name) override { return file_.remove(name); }
  Result<std::vector<std::string>> names() const override { return file_.names(); }
  Result<void> sync() override { return {}; }

 private:
  OriginFd file_;
};

enum class Stamps { On, Off };

void write_slots(int fd, std::size_t writer, std::uint64_t number) {
  for (std::size_t i = 0; i < kSlots; ++i) {
    const auto place = static_cast<off_t>((writer * kSlots + i) * sizeof number);
    if (::pwrite(fd, &number, sizeof number, place) != sizeof number) ::_exit(2);
  }
}

void write_until_nobody_reads(const std::string& path, Board& board, std::size_t writer,
                              Stamps stamps) {
  const UniqueFd fd(::open(path.c_str(), O_RDWR | O_CLOEXEC));
  QuickFile file(fd.get());
  for (std::uint64_t number = 1; board.readers > 0; ++number) {
    if (stamps == Stamps::On) {
      const auto flag = begin_writing(file, BootId{writer});
      if (!flag) ::_exit(3);
      write_slots(fd.get(), writer, number);
      if (!end_writing(file, *flag)) ::_exit(4);
    } else {
      write_slots(fd.get(), writer, number);
    }
    board.closed[writer] = number;
    ::usleep(1);  // so that readers meet the file at rest, too
  }
}

class CopyReader {
 public:
  CopyReader(const std::string& path, Board& board, Stamps stamps)
      : fd_(::open(path.c_str(), O_RDONLY | O_CLOEXEC)), board_(board), stamps_(stamps) {}

  void read_until_enough() {
    std::array<std::uint64_t, kWriters> last{};
    for (std::uint64_t races = 0; races < kRaces;) {
      const std::array<std::uint64_t, kWriters> closed{board_.closed[0], board_.closed[1]};
      open(closed);
      if (closed == last) {
        ::usleep(1);  // the writers may need the processor
        continue;
      }
      last = closed;
      ++races;
      ++board_.races;
    }
    --board_.readers;
  }

 private:
  // Without stamps, stat in whole seconds, as some filesystems have it.
  OriginVersion version() const {
    const QuickFile file(fd_.get());
    auto read = read_version(file);
    if (!read) ::_exit(5);
    if (stamps_ == Stamps::On) return OriginVersion{read->stamp, {}};
    read->stat.mtime -= read->stat.mtime % 1'000'000'000;
    read->stat.ctime -= read->stat.ctime % 1'000'000'000;
    return OriginVersion{1, read->stat};
  }
  bool may_keep(const OriginVersion& before) const {
    if (stamps_ == Stamps::Off) return version() == before;
    const QuickFile file(fd_.get());
    const auto now = read_version(file);
    const auto still = is_still(file, OriginVersion{before.stamp, now ? now->stat : FileStat{}});
    return still && *still;
  }
  void open(const std::array<std::uint64_t, kWriters>& closed) {
    const OriginVersion now = version();
    Slots seen{};
    if (now.is_settled() && now == version_) {
      ++board_.hits;
      seen = copy_;
    } else {
      if (::pread(fd_.get(), &seen, sizeof seen, 0) != sizeof seen) ::_exit(6);
      if (may_keep(now)) {
        version_ = now;
        copy_ = seen;
        for (const auto& slots : seen) board_.torn += slots.front() != slots.back();
      }
    }
    for (std::size_t i = 0; i < kWriters; ++i)
      board_.stale += *std::ranges::min_element(seen[i]) < closed[i];
  }

  UniqueFd fd_;
  Board& board_;
  const Stamps stamps_;
  OriginVersion version_;
  Slots copy_{};
};

void race(Board& board, Stamps stamps) {
  const test::TempDir dir;
  const std::string path = dir.make_file("file", std::string(sizeof(Slots), '\0'));
  std::vector<std::unique_ptr<test::Child>> all;
  for (std::size_t i = 0; i < kWriters; ++i) {
    all.push_back(std::make_unique<test::Child>(
        [&, i] { write_until_nobody_reads(path, board, i, stamps); }));
  }
  for (int i = 0; i < 2; ++i) {
    all.push_back(std::make_unique<test::Child>(
        [&] { CopyReader(path, board, stamps).read_until_enough(); }));
  }
  for (const auto& each : all) ASSERT_TRUE(each->join());
  std::printf(
      "%llu races, %llu hits, %llu stale, %llu torn\n",
      static_cast<unsigned long long>(board.races), static_cast<unsigned long long>(board.hits),
      static_cast<unsigned long long>(board.stale), static_cast<unsigned long long>(board.torn));
}

TEST(OriginRaceTest, NoOpenBetweenProcessesIsStaleOrTorn) {
  const test::Shared<Board> board;
  race(*board, Stamps::On);
  EXPECT_GE(board->races, 20'000u);
  EXPECT_GT(board->hits, 0u);
  EXPECT_EQ(board->stale, 0u);
  EXPECT_EQ(board->torn, 0u);
}

TEST(OriginRaceTest, WithoutStampsOpensAreStale) {
  const test::Shared<Board> board;
  race(*board, Stamps::Off);
  EXPECT_GT(board->stale, 0u);
}

}  // namespace
}  // namespace sluice
