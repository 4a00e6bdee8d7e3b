// SPDX-License-Identifier: BSD-2-Clause
// What makes a twin valid, and what ends it.
#include "tiering/pool/twin.hpp"

#include <gtest/gtest.h>
#include <sys/stat.h>
#include <sys/xattr.h>
#include <time.h>
#include <unistd.h>

#include <map>
#include <span>

#include "tests/support/wait.hpp"
#include "tests/unit/tiering/pools.hpp"
#include "tiering/pool/twins.hpp"

namespace sluice {
namespace {

using test::open_directory;
using test::open_file;
using test::PoolTest;

TwinNote sample() {
  TwinNote note;
  note.file = {InodeId{0xfedcba9876543210}, 0xffffffff};
  note.slot = 30;
  note.handle.bytes = std::string("\x01\0\xff", 3);
  note.size = 1;
  note.mtime = -5;
  note.ctime = 6;
  note.session = 7;
  note.hash = ~0ULL;
  note.made = 9;
  note.mode = 06751;
  note.uid = 1;
  note.gid = 2;
  note.names = {{{"dir"}, "name"}, {{""}, std::string(255, 'n')}};
  return note;
}

TEST(TwinNoteTest, ReadsWhatWasWritten) { EXPECT_EQ(decode_note(encode_note(sample())), sample()); }

TEST(TwinNoteTest, EveryTruncationIsNoNote) {
  TwinNote note = sample();
  note.names.clear();  // a shorter list of names is a note, too
  const std::string whole = encode_note(note);
  for (std::size_t size = 0; size < whole.size(); ++size)
    ASSERT_FALSE(decode_note(whole.substr(0, size))) << size;
  EXPECT_FALSE(decode_note(whole + '\0'));
}

TEST(TwinNoteTest, AnotherVersionIsNoNote) {
  std::string other = encode_note(sample());
  other[0] = 2;
  EXPECT_FALSE(decode_note(other));
}

TEST(TwinNoteTest, TheNameTellsTheIdentity) {
  const Identity file{InodeId{0x0123456789abcdef}, 0x1020};
  EXPECT_EQ(twin_name(file), "0123456789abcdef-00001020");
  EXPECT_EQ(identity_in_twin_name(twin_name(file)), file);
  for (const char* other : {"", "t1", "0123456789abcdef-0000102", "0123456789abcdeg-00001020"})
    EXPECT_FALSE(identity_in_twin_name(other)) << other;
}

struct stat as_noted(const TwinNote& note) {
  struct stat st {};
  st.st_mode = S_IFREG | 0644;
  st.st_size = note.size;
  st.st_mtim = {0, static_cast<long>(note.mtime)};
  st.st_ctim = {0, static_cast<long>(note.ctime)};
  return st;
}

TEST(TwinStateTest, OnlyAFileExactlyAsNotedIsTheSame) {
  TwinNote note = sample();
  note.mtime = 5;
  EXPECT_EQ(compare(note, note.handle, as_noted(note), 7), TwinState::Same);
  struct stat changed = as_noted(note);
  changed.st_ctim.tv_nsec = 8;
  EXPECT_EQ(compare(note, note.handle, changed, 7), TwinState::Perhaps) << "chmod, rename, ...";
  EXPECT_EQ(compare(note, note.handle, as_noted(note), 8), TwinState::Perhaps) << "a power cut";
  note.session = 0;
  EXPECT_EQ(compare(note, note.handle, as_noted(note), 0), TwinState::Perhaps) << "unknown";
}

TEST(TwinStateTest, AnotherSizeMtimeOrFileDiffers) {
  TwinNote note = sample();
  note.mtime = 5;
  struct stat larger = as_noted(note), written = as_noted(note);
  larger.st_size = 2;
  written.st_mtim.tv_nsec = 6;
  EXPECT_EQ(compare(note, note.handle, larger, 7), TwinState::Differs);
  EXPECT_EQ(compare(note, note.handle, written, 7), TwinState::Differs);
  EXPECT_EQ(compare(note, {"other"}, as_noted(note), 7), TwinState::Differs);
}

// The file f on tier a, with its twin on tier b.
class TwinsTest : public PoolTest {
 protected:
  void prepare() override {
    settings_ = make_tiers("ab");
    open_pool();
    dir_.make_file("b/f", "content");
    set_old(at("b", "f"));
    file_ = identity_of(b(), at("b", "f"));
    const UniqueFd original = open_file(at("b", "f"), O_RDONLY);
    auto copy = make_hidden_copy(original.get(), file_, a());
    ASSERT_TRUE(copy);
    const UniqueFd from = open_directory(at("b", "")), to = open_directory(at("a", ""));
    const auto steps =
        relocation_steps(*copy, b(), a(), {{from.get(), to.get(), "f"}}, Original::KeepAsTwin);
    ASSERT_TRUE(steps);
    const auto ends =
        execute_moves(store_, *pool_, {*steps}, [](std::size_t) { return KeptTimes{}; });
    ASSERT_TRUE(ends && (*ends)[0].result && (*ends)[0].is_finished);
    EXPECT_FALSE(test::exists(at("b", "f")));
    EXPECT_TRUE(test::exists(twin()));
    // As the switch does before users may change the file.
    const std::int64_t ctime = nanoseconds_of(test::lstat_of(at("a", "f")).st_ctim);
    ASSERT_TRUE(test::eventually([&] {
      timespec now{};
      ::clock_gettime(CLOCK_REALTIME_COARSE, &now);
      return nanoseconds_of(now) > ctime;
    }));
    twins().note({.from = b(),
                  .to = a(),
                  .file = file_,
                  .original = original.get(),
                  .copy = copy->fd.get(),
                  .hash = copy->copied.hash,
                  .names = {{from.get(), "f"}}});
  }
  void open_pool() {
    pool_.reset();
    pool_ = open(settings_);
    twins().start(Twins::Mode::Keep, [&](TierIndex, std::span<const Twins::Sized> files) {
      std::vector<double> out;
      for (const Twins::Sized& each : files) out.push_back(standing_[each.file]);
      return out;
    });
  }
  static void set_old(const std::string& path) {
    const timespec times[2] = {{1'000'000'000, 1}, {1'000'000'000, 2}};
    ASSERT_EQ(::utimensat(AT_FDCWD, path.c_str(), times, 0), 0);
  }
  Twins& twins() { return pool_->twins(); }
  Tier& a() { return (*pool_)[0]; }
  Tier& b() { return (*pool_)[1]; }
  std::string twin() const { return twin_of(file_); }
  std::string twin_of(const Identity& file) const {
    return at("b", ".sluice/twins/" + twin_name(file));
  }
  // Another twin on b, whose file is on a tier that is not there. It is not used, and no use is
  // known either.
  Identity add_twin(const std::string& content) {
    const std::string path = dir_.make_file("b/other", content);
    TwinNote note = sample();
    note.file = identity_of(b(), path);
    note.size = static_cast<std::int64_t>(content.size());
    note.mtime = nanoseconds_of(test::lstat_of(path).st_mtim);
    EXPECT_EQ(::rename(path.c_str(), twin_of(note.file).c_str()), 0);
    set_note(note);
    return note.file;
  }
  void set_note(const TwinNote& note) {
    const std::string value = encode_note(note);
    EXPECT_EQ(::setxattr(twin_of(note.file).c_str(), kTwinXattr, value.data(), value.size(), 0), 0);
  }
  std::optional<HiddenCopy> take() {
    const UniqueFd source = open_file(at("a", "f"), O_RDONLY);
    auto taken = twins().take(file_, source.get(), a(), b(), {});
    if (!taken) throw std::runtime_error(taken.error().text());
    return *std::move(taken);
  }

  std::vector<TierSettings> settings_;
  std::map<InodeId, double> standing_;  // used by the pool's thread
  std::unique_ptr<Pool> pool_;
  test::MemoryStore store_;
  Identity file_;
};

TEST_F(TwinsTest, AnUnchangedFileHasATwin) {
  const auto copy = take();
  ASSERT_TRUE(copy);
  EXPECT_TRUE(copy->is_twin);
  EXPECT_EQ(copy->copied.bytes, 0u);
  EXPECT_EQ(copy->located.identity, file_);
}

TEST_F(TwinsTest, TheTwinGetsTheFilesPresentMetadata) {
  ASSERT_EQ(::chown(at("a", "f").c_str(), 12, 34), 0);
  ASSERT_EQ(::chmod(at("a", "f").c_str(), 0640), 0);
  ASSERT_EQ(::setxattr(at("a", "f").c_str(), "user.k", "v", 1, 0), 0);
  ASSERT_TRUE(take());
  const struct stat st = test::lstat_of(twin());
  EXPECT_EQ(st.st_mode & 07777, 0640u);
  EXPECT_EQ(st.st_uid, 12u);
  EXPECT_EQ(test::xattr_of(twin(), "user.k"), "v");
}

TEST_F(TwinsTest, AWriteEndsTheTwin) {
  test::write_file(at("a", "f"), "changed");
  EXPECT_FALSE(take());
  EXPECT_FALSE(test::exists(twin()));
}

TEST_F(TwinsTest, AWriteWithTheOldMtimeEndsTheTwin) {
  test::write_file(at("a", "f"), "CONTENT");
  set_old(at("a", "f"));
  EXPECT_FALSE(take());
  EXPECT_FALSE(test::exists(twin()));
}

TEST_F(TwinsTest, AWriteToTheTwinEndsIt) {
  test::write_file(twin(), "CONTENT");
  EXPECT_FALSE(take());
}

TEST_F(TwinsTest, ATwinWithoutANoteIsWorthNothing) {
  ASSERT_EQ(::removexattr(twin().c_str(), kTwinXattr), 0);
  EXPECT_FALSE(take());
}

TEST_F(TwinsTest, ADeletedFilesTwinGoes) {
  ASSERT_EQ(::unlink(at("a", "f").c_str()), 0);
  twins().forget(file_.id);
  EXPECT_TRUE(test::eventually([&] { return !test::exists(twin()); }));
}

TEST_F(TwinsTest, TheTwinIsNotFoundAsTheFile) {
  if (!test::on_ext4(at("b", ""))) GTEST_SKIP() << "only ext4 and xfs find files by identity";
  EXPECT_TRUE(failed_with(b().find(file_.id), ESTALE));
}

TEST_F(TwinsTest, ATwinGoesWhenItsFileMovedOnAndLeftAnother) {
  // As if f had moved from a to a still faster tier: what is on a is a twin now.
  const std::string moved_on = at("a", ".sluice/twins/" + twin_name(file_));
  ASSERT_EQ(::rename(at("a", "f").c_str(), moved_on.c_str()), 0);
  EXPECT_FALSE(twins().of(file_));
  const auto found = twins().check(b(), false);
  EXPECT_EQ(found.stale.files, 1u);
}

TEST_F(TwinsTest, AFileThatMovesLosesItsTwinsElsewhere) {
  twins().forget(file_.id, {1});
  EXPECT_TRUE(test::exists(twin()));
  twins().forget(file_.id, {0});
  EXPECT_TRUE(test::eventually([&] { return !test::exists(twin()); }));
}

TEST_F(TwinsTest, TwinsOfFilesThatStayLongestGoFirst) {
  std::vector<std::string> paths;
  for (int i = 1; i <= 3; ++i) {
    const Identity file = add_twin(std::string(4 << 20, 'x'));
    paths.push_back(twin_of(file));
    standing_[file.id] = i == 2 ? 7 : i;
  }
  standing_[file_.id] = 0.5;
  open_pool();  // finds the twins on the disk
  ASSERT_TRUE(test::eventually([&] { return twins().figures(1).files == 4; }));
  EXPECT_TRUE(twins().make_room(b(), 1));
  EXPECT_FALSE(test::exists(paths[1])) << "7 is the highest";
  EXPECT_TRUE(test::exists(paths[2]));
  EXPECT_TRUE(twins().make_room(b(), 1));
  EXPECT_FALSE(test::exists(paths[2]));
  EXPECT_TRUE(test::exists(paths[0]) && test::exists(twin()));
}

// What a daemon left that was killed. The limit is below the time that the checks of later rounds
// would take.
constexpr std::chrono::seconds kSoon{20};

TEST_F(TwinsTest, TwinsThatAnEarlierDaemonLeftWithoutANoteGoSoon) {
  ASSERT_EQ(::removexattr(twin().c_str(), kTwinXattr), 0);
  const std::int64_t ctime = nanoseconds_of(test::lstat_of(twin()).st_ctim);
  ASSERT_TRUE(test::eventually([&] {
    timespec now{};
    ::clock_gettime(CLOCK_REALTIME_COARSE, &now);
    return nanoseconds_of(now) > ctime;
  }));
  open_pool();
  EXPECT_TRUE(test::eventually([&] { return !test::exists(twin()); }, kSoon));
}

TEST_F(TwinsTest, ManyUselessTwinsThatAnEarlierDaemonLeftGoSoon) {
  constexpr std::size_t kMany = 1000;
  for (std::size_t i = 0; i < kMany; ++i) {
    TwinNote note = sample();
    note.file = add_twin("x");
    note.size = 2;
    set_note(note);
  }
  const Identity good = add_twin("y");
  open_pool();
  EXPECT_TRUE(test::eventually([&] { return twins().figures(1).files == 2; }, kSoon))
      << twins().figures(1).files;
  EXPECT_TRUE(test::exists(twin()) && test::exists(twin_of(good)));
}

TEST_F(TwinsTest, TwinsCountAsFreeAndGoForRoom) {
  EXPECT_EQ(twins().figures(1).files, 1u);
  b().refresh_space();
  EXPECT_GT(b().space().twins, 0u);
  EXPECT_TRUE(twins().make_room(b(), 1));
  EXPECT_FALSE(test::exists(twin()));
  EXPECT_EQ(b().space().twins, 0u);
  EXPECT_FALSE(twins().make_room(b(), 1));
}

TEST_F(TwinsTest, ATwinWhoseFileIsOnAnAbsentDiskStays) {
  ASSERT_EQ(::rename(at("a", "").c_str(), (dir_ / "away").c_str()), 0);
  ASSERT_TRUE((*pool_)[0].check_presence());
  EXPECT_FALSE(twins().make_room(b(), 1));
  EXPECT_TRUE(test::exists(twin())) << "it may be all that is left of the file";
}

}  // namespace
}  // namespace sluice
