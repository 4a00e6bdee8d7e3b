// SPDX-License-Identifier: BSD-2-Clause
// Moves between tiers as the filesystem sees them: who may go on, who is in the way, what stays the
// same; and what users say and ask about the place of their files.
#include <linux/fs.h>
#include <signal.h>
#include <stdio.h>
#include <sys/syscall.h>
#include <sys/xattr.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <nlohmann/json.hpp>
#include <thread>

#include "fs/directory_stream.hpp"
#include "fs/filesystem.hpp"
#include "tests/support/wait.hpp"
#include "tests/unit/tiering/pools.hpp"
#include "tiering/pin.hpp"

namespace sluice {
namespace {

using test::eventually;
using test::MemoryStore;

constexpr Caller kRoot{0, 0, 022};
constexpr pid_t kOpener = 4711;
constexpr std::size_t kMiB = 1 << 20;
constexpr TierIndex kA = 0, kB = 1, kC = 2;

// What another thread does at the worst moment: run, once, inside a system call of this one.
struct Moment {
  std::function<void()> before_naming;  // before the `calls`-th name_to_handle_at
  int calls = 1;
  std::function<void()> after_opening;  // after the next open_by_handle_at for reading
};
thread_local Moment moment;

}  // namespace
}  // namespace sluice

// In place of libc's, so that tests can be at those moments.
extern "C" int name_to_handle_at(int directory, const char* name, file_handle* handle,
                                 int* mount_id, int flags) noexcept {
  auto& at = sluice::moment;
  if (at.before_naming && --at.calls == 0) std::exchange(at.before_naming, nullptr)();
  return static_cast<int>(
      ::syscall(SYS_name_to_handle_at, directory, name, handle, mount_id, flags));
}

extern "C" int open_by_handle_at(int mount_fd, file_handle* handle, int flags) {
  const auto fd = static_cast<int>(::syscall(SYS_open_by_handle_at, mount_fd, handle, flags));
  auto& at = sluice::moment;
  if (at.after_opening && (flags & ~O_CLOEXEC) == O_RDONLY)
    std::exchange(at.after_opening, nullptr)();
  return fd;
}

namespace sluice {
namespace {

// A kernel that passes everything through that it is asked to.
class FakeKernel final : public KernelSide {
 public:
  std::atomic<int> backed{0};  // files registered now
  Result<std::int32_t> add_backing(int fd) override {
    // As the kernel does, it keeps the file open.
    UniqueFd kept(::fcntl(fd, F_DUPFD_CLOEXEC, 0));
    MutexLock lock(mutex_);
    files_[++last_] = std::move(kept);
    ++backed;
    return last_;
  }
  void remove_backing(std::int32_t id) override {
    MutexLock lock(mutex_);
    files_.erase(id);
    --backed;
  }
  void drop_attributes(InodeId id) override {
    MutexLock lock(mutex_);
    dropped_.push_back(id);
  }
  void drop_pages(InodeId) override {}
  std::vector<InodeId> dropped() {
    MutexLock lock(mutex_);
    return dropped_;
  }

 private:
  Mutex mutex_;
  std::map<std::int32_t, UniqueFd> files_ GUARDED_BY(mutex_);
  std::vector<InodeId> dropped_ GUARDED_BY(mutex_);
  std::int32_t last_ GUARDED_BY(mutex_) = 0;
};

class FileMoveTest : public test::PoolTest {
 protected:
  // A move on its way, as the mover has it.
  struct Flight {
    std::unique_ptr<HeldFile> file;
    HiddenCopy copy;
    TierIndex to = kNoTier;
  };

  void prepare() override {
    ::signal(SIGIO, SIG_IGN);  // as the daemon does: it tells of leases that somebody breaks
    mount();
  }
  void TearDown() override {
    migration_.reset();
    create_as(Caller{});
  }
  void mount() {
    migration_.reset();
    fs_.reset();
    pool_.reset();
    pool_ = open(make_tiers("abc"));
    fs_ = std::make_unique<Filesystem>(*pool_, store_, kernel_, Filesystem::Settings{});
  }
  void migrate(Policy policy = {}) {
    Migration::Settings settings;
    settings.policy = std::move(policy);
    settings.automatic = false;
    migration_ = std::make_unique<Migration>(
        *pool_, store_, *fs_, [] {}, std::move(settings));
    fs_->attach(*migration_);
  }

  Entry entry_of(const std::string& path) {
    Entry entry;
    entry.id = kRootId;
    for (std::size_t at = 0; at < path.size();) {
      const std::size_t end = std::min(path.find('/', at), path.size());
      const auto next = fs_->lookup(entry.id, path.substr(at, end - at).c_str());
      if (!next) throw std::runtime_error("lookup " + path + ": " + next.error().operation);
      if (next->id == InodeId{}) throw std::runtime_error("no " + path);
      entry = *next;
      at = end + 1;
    }
    return entry;
  }
  InodeId id_of(const std::string& path) { return entry_of(path).id; }
  bool has(InodeId parent, const char* name) {
    const auto entry = fs_->lookup(parent, name);
    if (!entry) throw std::runtime_error(entry.error().operation);
    return entry->id != InodeId{};
  }
  std::string read_all(InodeId id) {
    std::string out(4 * kMiB, '\0');
    const auto got = fs_->read(id, out.data(), out.size(), 0, O_RDONLY);
    if (!got) return std::string("error: ") + ::strerrorname_np(got.error().code);
    out.resize(*got);
    return out;
  }
  std::string xattr(const std::string& path, const char* name) {
    const auto value = fs_->getxattr(id_of(path), name);
    return value ? *value : std::string("error: ") + ::strerrorname_np(value.error().code);
  }
  int set_xattr(const std::string& path, const char* name, const std::string& value) {
    const auto set = fs_->setxattr(id_of(path), name, value.data(), value.size(), 0, kRoot);
    return set ? 0 : set.error().code;
  }
  Opened open_file(InodeId id, int flags) {
    const auto opened = fs_->open(id, flags, kOpener, std::nullopt);
    if (!opened) throw std::runtime_error(opened.error().operation);
    return *opened;
  }
  // The tiers that have it.
  std::string where(const std::string& path) const {
    std::string out;
    for (const char* tier : {"a", "b", "c"}) {
      if (test::exists(at(tier, path))) out += tier;
    }
    return out;
  }

  Move move_of(const std::string& path, TierIndex to = kB) {
    Move move;
    move.id = id_of(path);
    move.paths = {"/" + path};
    move.from = pool_->by_name(xattr(path, "user.sluice.tier"))->index();
    move.to = to;
    return move;
  }
  Result<Flight> begin(const std::string& path, TierIndex to = kB) {
    Flight flight;
    flight.file = SLUICE_TRY(fs_->hold(move_of(path, to)));
    flight.copy =
        SLUICE_TRY(make_hidden_copy(flight.file->source(), flight.file->identity(), (*pool_)[to]));
    flight.to = to;
    return flight;
  }
  Flight begun(const std::string& path, TierIndex to = kB) {
    auto flight = begin(path, to);
    if (!flight) throw std::runtime_error(flight.error().operation);
    return *std::move(flight);
  }
  Result<void> end(Flight& flight) {
    SLUICE_TRY(settle(flight.copy));
    auto outcome = fs_->replace({{flight.file.get(), &flight.copy, flight.to}})[0];
    if (!outcome) discard(flight.copy, (*pool_)[flight.to]);
    flight.file.reset();
    return outcome;
  }
  Result<void> move(const std::string& path, TierIndex to = kB) {
    auto flight = SLUICE_TRY(begin(path, to));
    return end(flight);
  }

  MemoryStore store_;
  FakeKernel kernel_;
  std::unique_ptr<Pool> pool_;
  std::unique_ptr<Filesystem> fs_;
  std::unique_ptr<Migration> migration_;
};

TEST_F(FileMoveTest, TakesAFileToAnotherTier) {
  dir_.make_file("a/f", "content");
  ASSERT_TRUE(move("f"));
  EXPECT_EQ(where("f"), "b");
  EXPECT_EQ(xattr("f", "user.sluice.tier"), "b");
  EXPECT_EQ(read_all(id_of("f")), "content");
  EXPECT_TRUE(test::names_in(at("b", ".sluice/tmp")).empty());
  EXPECT_EQ(intents_in(store_), 0u);
}

TEST_F(FileMoveTest, KeepsIdGenerationAndAttributes) {
  dir_.make_file("a/f", "content");
  ASSERT_EQ(::chmod(at("a", "f").c_str(), 04751), 0);
  ASSERT_EQ(::chown(at("a", "f").c_str(), 12, 34), 0);
  ASSERT_EQ(::setxattr(at("a", "f").c_str(), "user.k", "v", 1, 0), 0);
  const Entry before = entry_of("f");
  ASSERT_TRUE(move("f"));
  const Entry after = entry_of("f");
  EXPECT_EQ(after.id, before.id);
  EXPECT_EQ(after.generation, before.generation);
  EXPECT_EQ(after.st.st_ino, before.st.st_ino);
  EXPECT_EQ(after.st.st_mode, before.st.st_mode);
  EXPECT_EQ(after.st.st_uid, before.st.st_uid);
  EXPECT_EQ(after.st.st_mtim.tv_nsec, before.st.st_mtim.tv_nsec);
  EXPECT_EQ(xattr("f", "user.k"), "v");
  mount();
  EXPECT_EQ(entry_of("f").id, before.id) << "after a remount";
  EXPECT_EQ(entry_of("f").generation, before.generation);
}

TEST_F(FileMoveTest, GoesThereAndBack) {
  dir_.make_file("a/f", "content");
  const InodeId id = id_of("f");
  for (const TierIndex to : {kB, kC, kA, kC}) {
    ASSERT_TRUE(move("f", to)) << int{to};
    EXPECT_EQ(where("f"), (*pool_)[to].name());
    EXPECT_EQ(id_of("f"), id);
    EXPECT_EQ(read_all(id), "content");
  }
}

TEST_F(FileMoveTest, BringsTheDirectoriesAlong) {
  dir_.make_file("a/d/e/f", "content");
  ASSERT_EQ(::chmod(at("a", "d").c_str(), 02750), 0);
  const InodeId d = id_of("d"), e = id_of("d/e");
  ASSERT_TRUE(move("d/e/f"));
  EXPECT_EQ(where("d/e/f"), "b");
  EXPECT_EQ(test::lstat_of(at("b", "d")).st_mode & 07777, 02750u);
  EXPECT_EQ(id_of("d"), d);
  EXPECT_EQ(id_of("d/e"), e);
}

TEST_F(FileMoveTest, MakesTheKernelAskForTheAttributesAgain) {
  dir_.make_file("a/f", "content");
  const InodeId id = id_of("f");
  ASSERT_TRUE(move("f"));
  EXPECT_EQ(kernel_.dropped(), std::vector{id});
}

TEST_F(FileMoveTest, ForgetsWhatItLookedUp) {
  dir_.make_file("a/d/f", "content");
  const InodeId d = id_of("d"), f = id_of("d/f");
  const Move wanted{f, {"/d/f"}, kA, kB, 0, Reason::Requested, ""};
  fs_->forget(f, 1);
  fs_->forget(d, 2);
  const std::size_t before = fs_->known_inodes();
  {
    auto held = fs_->hold(wanted);
    ASSERT_TRUE(held);
    EXPECT_GT(fs_->known_inodes(), before);
  }
  EXPECT_EQ(fs_->known_inodes(), before);
}

TEST_F(FileMoveTest, AFileThatIsThereAlreadyIsLeftAlone) {
  dir_.make_file("b/f", "content");
  Move there = move_of("f", kB);
  EXPECT_TRUE(failed_with(fs_->hold(there), EALREADY));
}

TEST_F(FileMoveTest, AFileThatIsNotWhereThePlanSawItIsLeftAlone) {
  dir_.make_file("b/f", "content");
  Move planned = move_of("f", kC);
  planned.from = kA;
  planned.reason = Reason::Cold;
  EXPECT_TRUE(failed_with(fs_->hold(planned), ESTALE));
}

TEST_F(FileMoveTest, AnotherFileByThatNameIsLeftAlone) {
  dir_.make_file("a/f", "content");
  dir_.make_file("a/g", "other");
  Move planned = move_of("f");
  planned.paths = {"/g"};
  EXPECT_TRUE(failed_with(fs_->hold(planned), ESTALE));
  planned.paths = {"/gone"};
  EXPECT_TRUE(failed_with(fs_->hold(planned), ESTALE));
  planned.paths = {};
  EXPECT_TRUE(failed_with(fs_->hold(planned), ESTALE));
}

TEST_F(FileMoveTest, IsMadeOnceAtATime) {
  dir_.make_file("a/f", "content");
  const Flight first = begun("f");
  EXPECT_TRUE(failed_with(fs_->hold(move_of("f", kC)), EBUSY));
  discard(first.copy, (*pool_)[kB]);
}

TEST_F(FileMoveTest, GivenUpLeavesTheFileFree) {
  dir_.make_file("a/f", "content");
  {
    const Flight flight = begun("f");
    discard(flight.copy, (*pool_)[kB]);
  }
  EXPECT_TRUE(move("f", kC));
}

TEST_F(FileMoveTest, AReaderWeServeGoesOnReading) {
  dir_.make_file("a/f", "content");
  const InodeId id = id_of("f");
  ASSERT_EQ(open_file(id, O_RDONLY).backing_id, 0);
  EXPECT_EQ(read_all(id), "content");
  auto flight = begun("f");
  EXPECT_EQ(read_all(id), "content") << "during the copy";
  ASSERT_TRUE(end(flight));
  EXPECT_EQ(where("f"), "b");
  EXPECT_EQ(read_all(id), "content") << "after it";
  fs_->release(id, O_RDONLY);
  EXPECT_EQ(read_all(id), "content") << "closed";
}

TEST_F(FileMoveTest, AReaderSeesWhatIsWrittenAfterTheMove) {
  dir_.make_file("a/f", "content");
  const InodeId id = id_of("f");
  open_file(id, O_RDONLY);
  auto flight = begun("f");
  EXPECT_EQ(read_all(id), "content");
  ASSERT_TRUE(end(flight));
  open_file(id, O_RDWR);
  ASSERT_TRUE(fs_->write(id, "CONTENT", 7, 0, std::nullopt));
  EXPECT_EQ(read_all(id), "CONTENT");
  EXPECT_EQ(test::read_file(at("b", "f")), "CONTENT");
  fs_->release(id, O_RDWR);
  fs_->release(id, O_RDONLY);
}

TEST_F(FileMoveTest, AReaderIsNotInTheWayOnceTheWritersHaveClosed) {
  dir_.make_file("a/f", "content");
  const InodeId id = id_of("f");
  open_file(id, O_RDONLY);
  open_file(id, O_RDWR);
  ASSERT_TRUE(fs_->write(id, "CONTENT", 7, 0, std::nullopt));
  EXPECT_TRUE(failed_with(begin("f"), EBUSY));
  fs_->release(id, O_RDWR);
  AttributeChange shorter;
  shorter.size = 4;
  ASSERT_TRUE(fs_->setattr(id, shorter));
  EXPECT_TRUE(move("f"));
  EXPECT_EQ(read_all(id), "CONT");
  fs_->release(id, O_RDONLY);
}

TEST_F(FileMoveTest, WhoOpensALargeFileMeanwhileIsServedByUs) {
  dir_.make_file("a/f", test::pattern(kMiB, 1));
  const InodeId id = id_of("f");
  auto flight = begun("f");
  EXPECT_EQ(open_file(id, O_RDONLY).backing_id, 0);
  EXPECT_TRUE(read_all(id) == test::pattern(kMiB, 1));
  ASSERT_TRUE(end(flight));
  EXPECT_TRUE(read_all(id) == test::pattern(kMiB, 1));
  fs_->release(id, O_RDONLY);
  EXPECT_NE(open_file(id, O_RDONLY).backing_id, 0) << "the next is passed through again";
  fs_->release(id, O_RDONLY);
}

TEST_F(FileMoveTest, APassthroughReaderIsInTheWayUntilItCloses) {
  dir_.make_file("a/f", test::pattern(kMiB, 1));
  const InodeId id = id_of("f");
  ASSERT_NE(open_file(id, O_RDONLY).backing_id, 0);
  EXPECT_TRUE(failed_with(begin("f"), EBUSY));
  fs_->release(id, O_RDONLY);
  EXPECT_EQ(kernel_.backed, 0);
  EXPECT_TRUE(move("f"));
}

TEST_F(FileMoveTest, WhoOpensAFileWhoseMoveWaitsIsServedByUs) {
  dir_.make_file("a/f", test::pattern(kMiB, 1));
  const InodeId id = id_of("f");
  open_file(id, O_RDONLY);
  ASSERT_TRUE(failed_with(begin("f"), EBUSY));
  fs_->release(id, O_RDONLY);
  EXPECT_EQ(open_file(id, O_RDONLY).backing_id, 0);
  EXPECT_TRUE(move("f"));
  fs_->release(id, O_RDONLY);
}

TEST_F(FileMoveTest, AFileThatWasInUseMovesWhenItIsClosed) {
  dir_.make_file("a/f", test::pattern(kMiB, 1));
  migrate();
  const InodeId id = id_of("f");
  open_file(id, O_RDONLY);
  ASSERT_EQ(set_xattr("f", "user.sluice.tier", "b"), 0);
  ASSERT_TRUE(eventually([&] { return migration_->mover().is_waiting(id); }));
  EXPECT_EQ(migration_->mover().pending(id)->code, EBUSY);
  fs_->release(id, O_RDONLY);
  EXPECT_TRUE(eventually([&] { return where("f") == "b"; }));
}

TEST_F(FileMoveTest, AGpuReadIsInTheWayWhileItRuns) {
  dir_.make_file("a/f", "content");
  Engine engine({});
  fs_->attach(engine);
  std::string buffer(7, '-');
  const auto memory = borrow_host(buffer.data(), buffer.size());
  const Segment all{0, 0, 7};
  const InodeId id = id_of("f");
  moment.after_opening = [&] {  // the read has its descriptor, and no byte yet
    const auto flight = begin("f");
    ASSERT_FALSE(flight);
    EXPECT_EQ(flight.error().code, EBUSY);
  };
  ASSERT_TRUE(fs_->gpu_read(id, *memory, {&all, 1}, Route::Auto));
  ASSERT_FALSE(moment.after_opening) << "the moment never came";
  EXPECT_EQ(buffer, "content");
  EXPECT_TRUE(move("f"));
  EXPECT_EQ(where("f"), "b");
}

TEST_F(FileMoveTest, AFileThatAGpuReadsIsCopiedButNotSwitched) {
  dir_.make_file("a/f", "content");
  Engine engine({});
  fs_->attach(engine);
  std::string buffer(7, '-');
  const auto memory = borrow_host(buffer.data(), buffer.size());
  const Segment all{0, 0, 7};
  const InodeId id = id_of("f");
  Flight flight = begun("f");
  moment.after_opening = [&] {
    const auto ended = end(flight);
    ASSERT_FALSE(ended);
    EXPECT_EQ(ended.error().code, EBUSY);
  };
  ASSERT_TRUE(fs_->gpu_read(id, *memory, {&all, 1}, Route::Auto));
  ASSERT_FALSE(moment.after_opening) << "the moment never came";
  EXPECT_EQ(buffer, "content");
  EXPECT_EQ(where("f"), "a");
  EXPECT_TRUE(move("f"));
}

TEST_F(FileMoveTest, AWriterIsInTheWay) {
  for (const std::size_t size : {std::size_t{10}, kMiB}) {
    dir_.make_file("a/f", test::pattern(size, 1));
    const InodeId id = id_of("f");
    open_file(id, O_WRONLY);
    EXPECT_TRUE(failed_with(begin("f"), EBUSY)) << size;
    fs_->release(id, O_WRONLY);
    EXPECT_TRUE(move("f")) << size;
    ASSERT_TRUE(fs_->unlink(kRootId, "f"));
    fs_->forget(id, 1000);
  }
}

TEST_F(FileMoveTest, WhoWritesOnTheTierItselfIsInTheWay) {
  dir_.make_file("a/f", "content");
  {
    const auto writer = test::open_file(at("a", "f"));
    EXPECT_TRUE(failed_with(begin("f"), EBUSY));
  }
  EXPECT_TRUE(move("f"));
}

struct Change {
  const char* name;
  std::function<void(Filesystem& fs, InodeId f)> make;
  std::string left;  // where f is afterwards

  friend void PrintTo(const Change& change, std::ostream* out) { *out << change.name; }
};

class ChangeMeanwhileTest : public FileMoveTest, public testing::WithParamInterface<Change> {
 public:
  static std::vector<Change> all() {
    const auto opens = [](int flags) {
      return [flags](Filesystem& fs, InodeId f) {
        ASSERT_TRUE(fs.open(f, flags, kOpener, std::nullopt));
        fs.release(f, flags);
      };
    };
    const auto sets = [](const AttributeChange& change) {
      return [change](Filesystem& fs, InodeId f) { ASSERT_TRUE(fs.setattr(f, change)); };
    };
    AttributeChange mode, owner, size, times;
    mode.mode = 0600;
    owner.uid = 12;
    size.size = 3;
    times.mtime = timespec{1000, 0};
    return {
        {"OpenForWriting", opens(O_WRONLY), "a"},
        {"OpenForReadingAndWriting", opens(O_RDWR), "a"},
        {"OpenAndTruncate", opens(O_WRONLY | O_TRUNC), "a"},
        {"Chmod", sets(mode), "a"},
        {"Chown", sets(owner), "a"},
        {"Truncate", sets(size), "a"},
        {"SetTimes", sets(times), "a"},
        {"SetXattr",
         [](Filesystem& fs, InodeId f) { ASSERT_TRUE(fs.setxattr(f, "user.k", "v", 1, 0, kRoot)); },
         "a"},
        {"Pin",
         [](Filesystem& fs, InodeId f) {
           ASSERT_TRUE(fs.setxattr(f, "user.sluice.pin", "a", 1, 0, kRoot));
         },
         "a"},
        {"RemoveXattr",
         [](Filesystem& fs, InodeId f) { ASSERT_TRUE(fs.removexattr(f, "user.old")); }, "a"},
        {"Unlink", [](Filesystem& fs, InodeId) { ASSERT_TRUE(fs.unlink(kRootId, "f")); }, ""},
        {"Rename",
         [](Filesystem& fs, InodeId) { ASSERT_TRUE(fs.rename(kRootId, "f", kRootId, "g", 0)); },
         ""},
        {"RenameOverIt",
         [](Filesystem& fs, InodeId) { ASSERT_TRUE(fs.rename(kRootId, "other", kRootId, "f", 0)); },
         "a"},
        {"Exchange",
         [](Filesystem& fs, InodeId) {
           ASSERT_TRUE(fs.rename(kRootId, "other", kRootId, "f", RENAME_EXCHANGE));
         },
         "a"},
        {"Link", [](Filesystem& fs, InodeId f) { ASSERT_TRUE(fs.link(f, kRootId, "g")); }, "a"},
        {"Allocate",
         [](Filesystem& fs, InodeId f) {
           ASSERT_TRUE(fs.open(f, O_RDWR, kOpener, std::nullopt));
           ASSERT_TRUE(fs.allocate(f, 0, 0, 100));
           fs.release(f, O_RDWR);
         },
         "a"},
    };
  }
};

TEST_P(ChangeMeanwhileTest, CancelsTheMove) {
  dir_.make_file("a/f", "content");
  dir_.make_file("a/other", "other");
  ASSERT_EQ(::setxattr(at("a", "f").c_str(), "user.old", "v", 1, 0), 0);
  const InodeId f = id_of("f");
  id_of("other");
  auto flight = begun("f");
  EXPECT_FALSE(flight.file->is_cancelled());
  GetParam().make(*fs_, f);
  EXPECT_TRUE(flight.file->is_cancelled());
  EXPECT_TRUE(failed_with(end(flight), ECANCELED));
  EXPECT_EQ(where("f"), GetParam().left);
  EXPECT_TRUE(test::names_in(at("b", ".sluice/tmp")).empty());
  EXPECT_EQ(intents_in(store_), 0u);
}

TEST_P(ChangeMeanwhileTest, DoesNotKeepTheFileFromMovingLater) {
  dir_.make_file("a/f", "content");
  dir_.make_file("a/other", "other");
  ASSERT_EQ(::setxattr(at("a", "f").c_str(), "user.old", "v", 1, 0), 0);
  const InodeId f = id_of("f");
  {
    auto flight = begun("f");
    GetParam().make(*fs_, f);
    [[maybe_unused]] const auto cancelled = end(flight);
  }
  if (GetParam().left.empty()) return;
  EXPECT_TRUE(move("f"));
  EXPECT_EQ(where("f"), "b");
}

INSTANTIATE_TEST_SUITE_P(Moves, ChangeMeanwhileTest, testing::ValuesIn(ChangeMeanwhileTest::all()),
                         [](const testing::TestParamInfo<Change>& tested) {
                           return tested.param.name;
                         });

TEST_F(FileMoveTest, LookingAtAFileDoesNotCancelItsMove) {
  dir_.make_file("a/f", "content");
  auto flight = begun("f");
  const InodeId id = id_of("f");
  ASSERT_TRUE(fs_->getattr(id));
  ASSERT_TRUE(fs_->statx(id));
  ASSERT_TRUE(fs_->listxattr(id, kRoot));
  open_file(id, O_RDONLY);
  EXPECT_EQ(read_all(id), "content");
  EXPECT_FALSE(flight.file->is_cancelled());
  EXPECT_TRUE(end(flight));
  fs_->release(id, O_RDONLY);
}

TEST_F(FileMoveTest, IsCancelledBySomebodyWhoWantsToWriteOnTheTierItself) {
  dir_.make_file("a/f", "content");
  auto flight = begun("f");
  const int fd = ::open(at("a", "f").c_str(), O_WRONLY | O_NONBLOCK | O_CLOEXEC);
  EXPECT_LT(fd, 0) << "they wait for our lease";
  EXPECT_TRUE(flight.file->is_cancelled());
  EXPECT_TRUE(failed_with(end(flight), ECANCELED));
  EXPECT_EQ(where("f"), "a");
  const auto writer = test::open_file(at("a", "f"));
  EXPECT_EQ(::pwrite(writer.get(), "CONTENT", 7, 0), 7);
  EXPECT_EQ(read_all(id_of("f")), "CONTENT");
}

TEST_F(FileMoveTest, AFileChangedOnItsTierMeanwhileIsNotReplaced) {
  dir_.make_file("a/f", "content");
  id_of("f");
  const std::vector<std::function<void(const std::string&)>> changes{
      [](const std::string& path) { ASSERT_EQ(::chmod(path.c_str(), 0600), 0); },
      [](const std::string& path) { ASSERT_EQ(::setxattr(path.c_str(), "user.k", "v", 1, 0), 0); },
      [](const std::string& path) {
        ASSERT_EQ(::link(path.c_str(), (path + ".link").c_str()), 0);
        ASSERT_EQ(::unlink((path + ".link").c_str()), 0);
      },
      [](const std::string& path) {
        test::write_file(path + ".new", "another");
        ASSERT_EQ(::rename((path + ".new").c_str(), path.c_str()), 0);
      }};
  for (std::size_t i = 0; i < changes.size(); ++i) {
    auto flight = begun("f");
    changes[i](at("a", "f"));
    EXPECT_TRUE(failed_with(end(flight), ECANCELED)) << i;
    EXPECT_EQ(where("f"), "a") << i;
  }
  EXPECT_EQ(test::read_file(at("a", "f")), "another");
}

TEST_F(FileMoveTest, ANameThatIsTakenOnTheOtherTierIsNotReplaced) {
  dir_.make_file("a/f", "content");
  dir_.make_file("b/f", "hidden by it");
  EXPECT_TRUE(failed_with(move("f"), EEXIST));
  EXPECT_EQ(test::read_file(at("a", "f")), "content");
  EXPECT_EQ(test::read_file(at("b", "f")), "hidden by it");
  EXPECT_EQ(read_all(id_of("f")), "content");
}

TEST_F(FileMoveTest, TakesAllNamesOfAFileAlong) {
  dir_.make_file("a/f", "content");
  dir_.make_dir("a/d");
  ASSERT_TRUE(fs_->link(id_of("f"), id_of("d"), "g"));
  const InodeId id = id_of("f");
  ASSERT_TRUE(move("f")) << "asked for by one of them";
  EXPECT_EQ(where("f"), "b");
  EXPECT_EQ(where("d/g"), "b");
  EXPECT_EQ(test::lstat_of(at("b", "f")).st_ino, test::lstat_of(at("b", "d/g")).st_ino);
  EXPECT_EQ(id_of("f"), id);
  EXPECT_EQ(id_of("d/g"), id);
  EXPECT_EQ(entry_of("f").st.st_nlink, 2u);
}

TEST_F(FileMoveTest, AFileWithANameOutsideStays) {
  dir_.make_file("a/f", "content");
  ASSERT_EQ(::link(at("a", "f").c_str(), (dir_ / "outside").c_str()), 0);
  EXPECT_TRUE(failed_with(begin("f"), EMLINK));
  EXPECT_EQ(where("f"), "a");
  EXPECT_TRUE(test::names_in(at("b", ".sluice/tmp")).empty());
}

TEST_F(FileMoveTest, ThatFailedForItsNamesLeavesTheFileFree) {
  dir_.make_file("a/f", "content");
  ASSERT_EQ(::link(at("a", "f").c_str(), (dir_ / "outside").c_str()), 0);
  ASSERT_TRUE(failed_with(begin("f"), EMLINK));
  ASSERT_EQ(::unlink((dir_ / "outside").c_str()), 0);
  EXPECT_TRUE(move("f"));
}

TEST_F(FileMoveTest, SeveralFilesArriveTogether) {
  std::vector<Flight> flights;
  for (const char* name : {"f", "g", "h"}) {
    dir_.make_file(std::string("a/") + name, name);
    flights.push_back(begun(name));
  }
  AttributeChange change;
  change.mode = 0600;
  ASSERT_TRUE(fs_->setattr(id_of("g"), change));
  std::vector<Arrival> arrivals;
  for (Flight& flight : flights) arrivals.push_back({flight.file.get(), &flight.copy, flight.to});
  const auto outcomes = fs_->replace(arrivals);
  ASSERT_EQ(outcomes.size(), 3u);
  EXPECT_TRUE(outcomes[0]);
  EXPECT_TRUE(failed_with(outcomes[1], ECANCELED));
  EXPECT_TRUE(outcomes[2]);
  EXPECT_EQ(where("f") + where("g") + where("h"), "bab");
}

TEST_F(FileMoveTest, LookupFindsTheFileAtEveryMoment) {
  dir_.make_file("a/d/f", "content");
  const InodeId id = id_of("d/f"), d = id_of("d");
  auto flight = begun("d/f");
  EXPECT_EQ(id_of("d/f"), id) << "during the copy";
  EXPECT_FALSE(has(d, "g"));
  ASSERT_TRUE(end(flight));
  EXPECT_EQ(id_of("d/f"), id) << "after it";
  EXPECT_FALSE(has(d, "g"));
  EXPECT_FALSE(has(kRootId, "f"));
}

TEST_F(FileMoveTest, WhoLooksItUpWhileItMovesAlwaysFindsIt) {
  dir_.make_file("a/d/f", "content");
  dir_.make_dir("b/d");
  const InodeId d = id_of("d"), f = id_of("d/f");
  std::atomic<bool> stop{false};
  std::atomic<int> looked{0}, missed{0}, strange{0};
  std::thread reader([&] {
    while (!stop) {
      const auto entry = fs_->lookup(d, "f");
      ++looked;
      if (!entry || entry->id == InodeId{}) {
        ++missed;
      } else {
        if (entry->id != f) ++strange;
        if (read_all(f) != "content") ++strange;
        fs_->forget(entry->id, 1);
      }
    }
  });
  int moved = 0;
  for (int i = 0; i < 30; ++i) {
    if (move("d/f", i % 2 == 0 ? kB : kA)) ++moved;
  }
  stop = true;
  reader.join();
  EXPECT_EQ(missed, 0) << "of " << looked;
  EXPECT_EQ(strange, 0) << "of " << looked;
  EXPECT_GT(moved, 0);
}

TEST_F(FileMoveTest, ALookupThatBeganBeforeFindsTheFileInADirectoryThatIsNewOnItsTier) {
  dir_.make_file("a/d/f", "content");
  const InodeId d = id_of("d"), f = id_of("d/f");
  auto flight = begun("d/f");
  moment.calls = 1;
  moment.before_naming = [&] { EXPECT_TRUE(end(flight)); };
  const auto entry = fs_->lookup(d, "f");
  ASSERT_FALSE(moment.before_naming) << "the moment never came";
  ASSERT_EQ(where("d/f"), "b");
  ASSERT_TRUE(entry);
  EXPECT_EQ(entry->id, f) << "and the kernel remembers for " << entry->entry_seconds
                          << " s that it does not exist";
}

TEST_F(FileMoveTest, AReadThatBeganBeforeDoesNotTieTheFileToItsOldPlace) {
  dir_.make_file("a/f", "content");
  const InodeId id = id_of("f");
  open_file(id, O_RDONLY);
  auto flight = begun("f");
  moment.after_opening = [&] { EXPECT_TRUE(end(flight)); };
  EXPECT_EQ(read_all(id), "content");
  ASSERT_FALSE(moment.after_opening) << "the moment never came";
  ASSERT_EQ(where("f"), "b");
  open_file(id, O_RDWR);
  ASSERT_TRUE(fs_->write(id, "CONTENT", 7, 0, std::nullopt));
  EXPECT_EQ(test::read_file(at("b", "f")), "CONTENT") << "written to a file without a name";
  fs_->release(id, O_RDWR);
  fs_->release(id, O_RDONLY);
}

TEST_F(FileMoveTest, AListingThatBeganJustBeforeDoesNotMissTheFile) {
  constexpr int kFiles = 300;  // more than one call can list
  for (int i = 0; i < kFiles; ++i) {
    dir_.make_file("a/d/" + std::to_string(i) + std::string(200, 'x'), "");
  }
  const InodeId d = id_of("d");
  std::vector<DirectoryStream::Item> items;
  // Goes on where it was, for at most `count` names.
  const auto list = [&](DirectoryStream& stream, std::size_t count) {
    const off_t offset = items.empty() ? 0 : items.back().next;
    EXPECT_TRUE(stream.read(offset, DirectoryStream::Numbers::NotWanted,
                            [&](const DirectoryStream::Item& item) {
                              if (count-- == 0) return false;
                              items.push_back(item);
                              return true;
                            }));
  };
  list(**fs_->open_directory(d), kFiles + 2);
  ASSERT_EQ(items.size(), kFiles + 2u);
  const std::string last = items.back().name;
  items.clear();
  auto flight = begun("d/" + last);
  const auto stream = *fs_->open_directory(d);
  moment.calls = 1;
  moment.before_naming = [&] { list(*stream, 1); };
  [[maybe_unused]] const auto moved = end(flight);  // or it waits for another time
  ASSERT_FALSE(moment.before_naming) << "the moment never came";
  list(*stream, kFiles + 2);
  EXPECT_EQ(items.size(), kFiles + 2u);
}

TEST_F(FileMoveTest, AListingShowsItOnceBeforeAndAfter) {
  dir_.make_file("a/d/f", "content");
  dir_.make_file("b/d/g", "other");
  const auto names = [&] {
    std::vector<std::string> out;
    const auto stream = *fs_->open_directory(id_of("d"));
    EXPECT_TRUE(
        stream->read(0, DirectoryStream::Numbers::Wanted, [&](const DirectoryStream::Item& item) {
          out.push_back(item.name);
          return true;
        }));
    std::ranges::sort(out);
    return out;
  };
  const auto before = names();
  ASSERT_TRUE(move("d/f"));
  EXPECT_EQ(names(), before);
}

TEST_F(FileMoveTest, IsAllOrNothingWhicheverCallOfTheStoreFails) {
  for (const auto failure : {MemoryStore::Failure::Once, MemoryStore::Failure::ForGood}) {
    for (std::uint64_t nth = 1;; ++nth) {
      ASSERT_LT(nth, 20u);
      dir_.make_file("a/f", "content");
      auto flight = begun("f");
      store_.fail_call(nth, EIO, failure);
      const auto done = end(flight);
      const bool failed = store_.has_failed();
      store_.fail_call(0);
      EXPECT_EQ(where("f"), done ? "b" : "a") << "call " << nth;
      EXPECT_EQ(read_all(id_of("f")), "content") << "call " << nth;
      ASSERT_TRUE(replay_intents(store_, *pool_));
      EXPECT_EQ(where("f").size(), 1u) << "call " << nth << ", after replay";
      const InodeId id = id_of("f");
      ASSERT_TRUE(fs_->unlink(kRootId, "f"));
      fs_->forget(id, 1000);
      if (!failed) break;
    }
  }
}

TEST_F(FileMoveTest, WhoWantsToWriteGetsTheFileWithoutWaitingForTheCopy) {
  dir_.make_file("a/f", "content");
  const InodeId id = id_of("f");
  auto flight = begun("f");
  open_file(id, O_RDWR);
  fs_->serve_everything();
  ASSERT_TRUE(fs_->write(id, "CONTENT", 7, 0, std::nullopt));
  fs_->release(id, O_RDWR);
  EXPECT_TRUE(failed_with(end(flight), ECANCELED));
  EXPECT_EQ(test::read_file(at("a", "f")), "CONTENT");
}

// What users say of tiers: user.sluice.*.
class TierXattrTest : public FileMoveTest {};

TEST_F(TierXattrTest, TierCanBeSetAndTheFileMoves) {
  dir_.make_file("a/f", "content");
  migrate();
  EXPECT_EQ(set_xattr("f", "user.sluice.tier", "c"), 0);
  EXPECT_TRUE(eventually([&] { return where("f") == "c"; }));
  EXPECT_TRUE(eventually([&] { return xattr("f", "user.sluice.tier") == "c"; }));
  EXPECT_TRUE(eventually([&] { return store_.receipts(1)->size() == 1; }));
  EXPECT_EQ(store_.receipts(1)->at(0).path, "/f");
}

TEST_F(TierXattrTest, TierThatTheFileIsOnChangesNothing) {
  dir_.make_file("a/f", "content");
  migrate();
  EXPECT_EQ(set_xattr("f", "user.sluice.tier", "a"), 0);
  EXPECT_EQ(migration_->mover().destination(id_of("f")), std::nullopt);
  EXPECT_EQ(where("f"), "a");
}

TEST_F(TierXattrTest, TierThatDoesNotExistIsRefused) {
  dir_.make_file("a/f", "content");
  migrate();
  EXPECT_EQ(set_xattr("f", "user.sluice.tier", "d"), EINVAL);
  EXPECT_EQ(set_xattr("f", "user.sluice.tier", ""), EINVAL);
}

TEST_F(TierXattrTest, TierOfADirectoryCannotBeSet) {
  dir_.make_file("a/d/f", "content");
  migrate();
  EXPECT_EQ(set_xattr("d", "user.sluice.tier", "b"), EISDIR);
}

TEST_F(TierXattrTest, TierThatIsAwayIsRefused) {
  dir_.make_file("a/f", "content");
  migrate();
  ASSERT_EQ(::rename((dir_ / "b").c_str(), (dir_ / "away").c_str()), 0);
  fs_->tick();
  EXPECT_EQ(set_xattr("f", "user.sluice.tier", "b"), EIO);
}

TEST_F(TierXattrTest, TierCannotBeSetWhereNothingMoves) {
  dir_.make_file("a/f", "content");
  EXPECT_EQ(set_xattr("f", "user.sluice.tier", "b"), EOPNOTSUPP);
}

TEST_F(TierXattrTest, PinComesAndGoes) {
  dir_.make_file("a/f", "content");
  EXPECT_EQ(xattr("f", "user.sluice.pin"), "error: ENODATA");
  ASSERT_EQ(set_xattr("f", "user.sluice.pin", "b"), 0);
  EXPECT_EQ(xattr("f", "user.sluice.pin"), "b");
  EXPECT_EQ(test::xattr_of(at("a", "f"), kPinXattr), "b");
  ASSERT_EQ(set_xattr("f", "user.sluice.pin", "c"), 0);
  EXPECT_EQ(xattr("f", "user.sluice.pin"), "c");
  ASSERT_TRUE(fs_->removexattr(id_of("f"), "user.sluice.pin"));
  EXPECT_EQ(xattr("f", "user.sluice.pin"), "error: ENODATA");
  EXPECT_TRUE(failed_with(fs_->removexattr(id_of("f"), "user.sluice.pin"), ENODATA));
}

TEST_F(TierXattrTest, PinToATierThatDoesNotExistIsRefused) {
  dir_.make_file("a/f", "content");
  EXPECT_EQ(set_xattr("f", "user.sluice.pin", "d"), EINVAL);
  EXPECT_EQ(xattr("f", "user.sluice.pin"), "error: ENODATA");
}

TEST_F(TierXattrTest, PinIsInheritedAndTheNearestWins) {
  dir_.make_file("a/d/e/f", "content");
  ASSERT_EQ(set_xattr("d", "user.sluice.pin", "b"), 0);
  EXPECT_EQ(xattr("d/e/f", "user.sluice.pin"), "b");
  ASSERT_EQ(set_xattr("d/e", "user.sluice.pin", "c"), 0);
  EXPECT_EQ(xattr("d/e/f", "user.sluice.pin"), "c");
  EXPECT_TRUE(failed_with(fs_->removexattr(id_of("d/e/f"), "user.sluice.pin"), ENODATA))
      << "it has none of its own";
}

TEST_F(TierXattrTest, PinMovesWithTheFile) {
  dir_.make_file("a/f", "content");
  ASSERT_EQ(set_xattr("f", "user.sluice.pin", "b"), 0);
  ASSERT_TRUE(move("f"));
  EXPECT_EQ(xattr("f", "user.sluice.pin"), "b");
}

TEST_F(TierXattrTest, PinIsInvisibleInItsOwnForm) {
  dir_.make_file("a/f", "content");
  ASSERT_EQ(set_xattr("f", "user.sluice.pin", "b"), 0);
  EXPECT_EQ(*fs_->listxattr(id_of("f"), kRoot), "");
  EXPECT_EQ(xattr("f", kPinXattr), "error: ENODATA");
  EXPECT_EQ(set_xattr("f", kPinXattr, "c"), EPERM);
  EXPECT_TRUE(failed_with(fs_->removexattr(id_of("f"), kPinXattr), ENODATA));
}

TEST_F(TierXattrTest, PinOfADirectoryIsOnEveryCopyOfIt) {
  dir_.make_dir("a/d");
  dir_.make_dir("b/d");
  ASSERT_EQ(set_xattr("d", "user.sluice.pin", "c"), 0);
  EXPECT_EQ(test::xattr_of(at("a", "d"), kPinXattr), "c");
  EXPECT_EQ(test::xattr_of(at("b", "d"), kPinXattr), "c");
}

TEST_F(TierXattrTest, PinDecidesWhereNewFilesGo) {
  dir_.make_dir("a/d/e");
  const InodeId e = id_of("d/e");
  ASSERT_TRUE(fs_->mknod(e, "before", S_IFREG | 0644, 0, kRoot));
  ASSERT_EQ(set_xattr("d", "user.sluice.pin", "c"), 0);
  ASSERT_TRUE(fs_->mknod(e, "after", S_IFREG | 0644, 0, kRoot));
  ASSERT_TRUE(fs_->create(e, "created", 0644, O_RDWR, kRoot));
  EXPECT_EQ(where("d/e/before"), "a");
  EXPECT_EQ(where("d/e/after"), "c");
  EXPECT_EQ(where("d/e/created"), "c");
  ASSERT_TRUE(fs_->removexattr(id_of("d"), "user.sluice.pin"));
  ASSERT_TRUE(fs_->mknod(e, "again", S_IFREG | 0644, 0, kRoot));
  EXPECT_EQ(where("d/e/again"), "a");
}

TEST_F(TierXattrTest, PinHoldsForWhatIsRenamedBelowIt) {
  dir_.make_dir("a/pinned");
  dir_.make_dir("a/d");
  const InodeId d = id_of("d");
  ASSERT_EQ(set_xattr("pinned", "user.sluice.pin", "b"), 0);
  ASSERT_TRUE(fs_->mknod(d, "before", S_IFREG | 0644, 0, kRoot));
  ASSERT_TRUE(fs_->rename(kRootId, "d", id_of("pinned"), "d", 0));
  ASSERT_TRUE(fs_->mknod(d, "after", S_IFREG | 0644, 0, kRoot));
  EXPECT_EQ(where("pinned/d/before"), "a");
  EXPECT_EQ(where("pinned/d/after"), "b");
}

TEST_F(TierXattrTest, RulesDecideWhereNewFilesGo) {
  Policy policy;
  policy.rules = {{"*.bin", {}, {}, {}, {}, kC}, {"/d/**", {}, {}, {}, {}, kB}};
  migrate(policy);
  dir_.make_dir("a/d");
  ASSERT_TRUE(fs_->mknod(kRootId, "x.bin", S_IFREG | 0644, 0, kRoot));
  ASSERT_TRUE(fs_->mknod(kRootId, "x.txt", S_IFREG | 0644, 0, kRoot));
  ASSERT_TRUE(fs_->mknod(id_of("d"), "x.txt", S_IFREG | 0644, 0, kRoot));
  EXPECT_EQ(where("x.bin"), "c");
  EXPECT_EQ(where("x.txt"), "a");
  EXPECT_EQ(where("d/x.txt"), "b");
}

TEST_F(TierXattrTest, APinComesBeforeARule) {
  Policy policy;
  policy.rules = {{"", {}, {}, {}, {}, kC}};
  migrate(policy);
  dir_.make_dir("a/d");
  ASSERT_EQ(set_xattr("d", "user.sluice.pin", "b"), 0);
  ASSERT_TRUE(fs_->mknod(id_of("d"), "f", S_IFREG | 0644, 0, kRoot));
  EXPECT_EQ(where("d/f"), "b");
}

TEST_F(TierXattrTest, HeatCountsOpens) {
  dir_.make_file("a/f", "content");
  EXPECT_EQ(xattr("f", "user.sluice.heat"), "0.00");
  const InodeId id = id_of("f");
  for (int i = 0; i < 3; ++i) {
    open_file(id, O_RDONLY);
    fs_->release(id, O_RDONLY);
  }
  EXPECT_EQ(xattr("f", "user.sluice.heat"), "3.00");
  ASSERT_TRUE(fs_->flush_heat());
  EXPECT_EQ(xattr("f", "user.sluice.heat"), "3.00");
}

TEST_F(TierXattrTest, HeatStaysWithAFileThatMoves) {
  dir_.make_file("a/f", "content");
  const InodeId id = id_of("f");
  open_file(id, O_RDONLY);
  fs_->release(id, O_RDONLY);
  ASSERT_TRUE(fs_->flush_heat());
  ASSERT_TRUE(move("f"));
  EXPECT_EQ(xattr("f", "user.sluice.heat"), "1.00");
}

TEST_F(TierXattrTest, MovingAFileDoesNotHeatIt) {
  dir_.make_file("a/f", "content");
  ASSERT_TRUE(move("f"));
  ASSERT_TRUE(fs_->flush_heat());
  EXPECT_EQ(xattr("f", "user.sluice.accesses"), "0");
}

TEST_F(TierXattrTest, ExplainTellsWhereAFileBelongs) {
  dir_.make_file("a/d/f", "content");
  migrate();
  ASSERT_EQ(set_xattr("d", "user.sluice.pin", "c"), 0);
  const auto told = nlohmann::json::parse(xattr("d/f", "user.sluice.explain"));
  EXPECT_EQ(told["path"], "/d/f");
  EXPECT_EQ(told["tier"], "a");
  EXPECT_EQ(told["location"], at("a", "d/f"));
  EXPECT_EQ(told["bytes"], 7);
  EXPECT_EQ(told["wants"], "c");
  EXPECT_EQ(told["reason"], "pinned");
  EXPECT_EQ(told["pin"]["tier"], "c");
  EXPECT_EQ(told["pin"]["from"], "/d");
  EXPECT_TRUE(told["pending"].is_null());
}

TEST_F(TierXattrTest, ExplainTellsWhatAMoveWaitsFor) {
  dir_.make_file("a/f", "content");
  migrate();
  const InodeId id = id_of("f");
  open_file(id, O_RDWR);
  ASSERT_EQ(set_xattr("f", "user.sluice.tier", "b"), 0);
  ASSERT_TRUE(eventually([&] { return migration_->mover().is_waiting(id); }));
  const auto told = nlohmann::json::parse(xattr("f", "user.sluice.explain"));
  EXPECT_EQ(told["pending"]["to"], "b");
  EXPECT_NE(told["pending"]["why"], "");
  fs_->release(id, O_RDWR);
}

TEST_F(TierXattrTest, ExplainKnowsOnlyFilesAndOnlyWhereThingsMove) {
  dir_.make_file("a/d/f", "content");
  EXPECT_EQ(xattr("d/f", "user.sluice.explain"), "error: ENODATA");
  migrate();
  EXPECT_EQ(xattr("d", "user.sluice.explain"), "error: ENODATA");
}

TEST_F(TierXattrTest, OthersCannotBeSetOrRemoved) {
  dir_.make_file("a/f", "content");
  for (const char* name : {"heat", "location", "accesses", "explain", "nonsense"}) {
    const std::string full = std::string("user.sluice.") + name;
    EXPECT_EQ(set_xattr("f", full.c_str(), "x"), EPERM) << name;
    EXPECT_TRUE(failed_with(fs_->removexattr(id_of("f"), full.c_str()), EPERM)) << name;
  }
  EXPECT_TRUE(failed_with(fs_->removexattr(id_of("f"), "user.sluice.tier"), EPERM));
}

// Emptying a tier.
class VacateTest : public FileMoveTest {
 protected:
  Filesystem::Remainder vacate(TierIndex tier) {
    if (!(*pool_)[tier].set_draining(true)) throw std::runtime_error("set draining");
    const auto left = fs_->vacate(tier);
    if (!left) throw std::runtime_error(left.error().operation);
    return *left;
  }
};

TEST_F(VacateTest, TakesSymlinksToAnotherTier) {
  dir_.make_dir("b/d");
  ASSERT_EQ(::symlink("some/target", at("b", "d/link").c_str()), 0);
  ASSERT_EQ(::lchown(at("b", "d/link").c_str(), 12, 34), 0);
  const std::array<timespec, 2> times{timespec{1000, 1}, timespec{2000, 2}};
  ASSERT_EQ(::utimensat(AT_FDCWD, at("b", "d/link").c_str(), times.data(), AT_SYMLINK_NOFOLLOW), 0);
  EXPECT_EQ(*fs_->readlink(id_of("d/link")), "some/target");
  vacate(kB);
  EXPECT_EQ(where("d/link"), "a");
  EXPECT_EQ(*fs_->readlink(id_of("d/link")), "some/target");
  const struct stat st = test::lstat_of(at("a", "d/link"));
  EXPECT_EQ(st.st_uid, 12u);
  EXPECT_EQ(st.st_gid, 34u);
  EXPECT_EQ(st.st_mtim.tv_sec, 2000);
}

TEST_F(VacateTest, TakesFifosToAnotherTier) {
  ASSERT_EQ(::mkfifo(at("b", "fifo").c_str(), 0600), 0);
  ASSERT_EQ(::chmod(at("b", "fifo").c_str(), 0622), 0);
  vacate(kB);
  EXPECT_EQ(where("fifo"), "a");
  EXPECT_EQ(test::lstat_of(at("a", "fifo")).st_mode, S_IFIFO | 0622u);
}

TEST_F(VacateTest, WhoKnowsASymlinkCanStillReadIt) {
  ASSERT_EQ(::symlink("target", at("b", "link").c_str()), 0);
  const InodeId known = id_of("link");
  vacate(kB);
  EXPECT_EQ(*fs_->readlink(known), "target");
  EXPECT_TRUE(fs_->getattr(known));
}

TEST_F(VacateTest, ALookupThatBeganBeforeFindsTheSymlink) {
  ASSERT_EQ(::symlink("target", at("b", "link").c_str()), 0);
  moment.calls = 2;  // it has looked on a, and comes to b
  moment.before_naming = [&] { vacate(kB); };
  const auto entry = fs_->lookup(kRootId, "link");
  ASSERT_FALSE(moment.before_naming) << "the moment never came";
  ASSERT_EQ(where("link"), "a");
  ASSERT_TRUE(entry);
  EXPECT_NE(entry->id, InodeId{}) << "and the kernel remembers for " << entry->entry_seconds
                                  << " s that it does not exist";
}

TEST_F(VacateTest, TakesDirectoriesToAnotherTier) {
  dir_.make_dir("b/d/empty");
  ASSERT_EQ(::chmod(at("b", "d/empty").c_str(), 02751), 0);
  const InodeId empty = id_of("d/empty");
  vacate(kB);
  EXPECT_TRUE(test::exists(at("a", "d/empty")));
  EXPECT_EQ(test::lstat_of(at("a", "d/empty")).st_mode & 07777, 02751u);
  EXPECT_EQ(id_of("d/empty"), empty);
}

TEST_F(VacateTest, CountsTheFilesThatAreLeft) {
  dir_.make_file("b/d/f", test::pattern(10'000, 1));
  dir_.make_file("b/g", "x");
  ASSERT_EQ(::symlink("x", at("b", "link").c_str()), 0);
  const Filesystem::Remainder left = vacate(kB);
  EXPECT_EQ(left.files, 2u);
  EXPECT_GE(left.bytes, 10'000u);
  EXPECT_EQ(where("d/f"), "b");
}

TEST_F(VacateTest, LeavesATierThatThePoolCanDoWithout) {
  dir_.make_dir("b/d");
  ASSERT_EQ(::symlink("target", at("b", "d/link").c_str()), 0);
  dir_.make_file("b/d/f", "content");
  const InodeId d = id_of("d"), f = id_of("d/f");
  ASSERT_TRUE(move("d/f", kA));
  EXPECT_EQ(vacate(kB).files, 0u);
  ASSERT_TRUE(pool_->retire(kB));
  fs_.reset();
  pool_.reset();
  pool_ = open({tier("a", dir_ / "a"), tier("c", dir_ / "c")});
  fs_ = std::make_unique<Filesystem>(*pool_, store_, kernel_, Filesystem::Settings{});
  EXPECT_EQ(id_of("d"), d);
  EXPECT_EQ(id_of("d/f"), f);
  EXPECT_EQ(read_all(f), "content");
  EXPECT_EQ(*fs_->readlink(id_of("d/link")), "target");
}

TEST_F(VacateTest, NeedsAnotherTier) {
  for (const auto& tier : *pool_) ASSERT_TRUE(tier->set_draining(true));
  EXPECT_TRUE(failed_with(fs_->vacate(kB), ENOSPC));
}

TEST_F(VacateTest, WhereASymlinkLiesInTheWayItStays) {
  ASSERT_EQ(::symlink("hidden", at("b", "link").c_str()), 0);
  ASSERT_EQ(::symlink("shown", at("a", "link").c_str()), 0);
  EXPECT_EQ(vacate(kB).files, 1u);
  EXPECT_EQ(*fs_->readlink(id_of("link")), "shown");
  EXPECT_EQ(where("link"), "ab");
  EXPECT_TRUE(test::names_in(at("a", ".sluice/tmp")).empty());
}

TEST_F(FileMoveTest, ATierThatIsAddedTakesFiles) {
  dir_.make_file("a/d/f", "content");
  const InodeId d = id_of("d"), f = id_of("d/f");
  ASSERT_TRUE(pool_->add(tier("new", dir_.make_dir("new")), why_)) << why_;
  fs_->tier_added(3);
  ASSERT_TRUE(move("d/f", 3));
  EXPECT_TRUE(test::exists(at("new", "d/f")));
  EXPECT_EQ(id_of("d"), d);
  EXPECT_EQ(read_all(f), "content");
}

}  // namespace
}  // namespace sluice
