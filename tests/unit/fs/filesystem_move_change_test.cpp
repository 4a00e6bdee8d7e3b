// SPDX-License-Identifier: BSD-2-Clause
// Changes of files while they are being moved.
#include <linux/fs.h>
#include <sys/xattr.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <fstream>
#include <thread>

#include "fs/core/inodes/kernel_request.hpp"
#include "fs/core/tree/directory_stream.hpp"
#include "tests/support/wait.hpp"
#include "tests/unit/fs/moving_filesystem.hpp"

namespace sluice {
namespace {

using test::eventually;

struct Change {
  const char* name;
  std::function<void(Filesystem& fs, InodeId f)> make;
  std::string left;  // the path of f afterwards

  friend void PrintTo(const Change& change, std::ostream* out) { *out << change.name; }
};

class ChangeDuringMoveTest : public FileMoveTest, public testing::WithParamInterface<Change> {
 public:
  static std::vector<Change> all() {
    const auto opens = [](int flags) {
      return [flags](Filesystem& fs, InodeId f) {
        ASSERT_TRUE(fs.files().open(f, flags, kOpener, std::nullopt));
        fs.files().release(f, flags);
      };
    };
    const auto sets = [](const AttributeChange& change) {
      return [change](Filesystem& fs, InodeId f) { ASSERT_TRUE(fs.attributes().set(f, change)); };
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
         [](Filesystem& fs, InodeId f) {
           ASSERT_TRUE(fs.xattrs().set(f, "user.k", "v", 1, 0, kRoot));
         },
         "a"},
        {"Pin",
         [](Filesystem& fs, InodeId f) {
           ASSERT_TRUE(fs.xattrs().set(f, "user.sluice.pin", "a", 1, 0, kRoot));
         },
         "a"},
        {"RemoveXattr",
         [](Filesystem& fs, InodeId f) { ASSERT_TRUE(fs.xattrs().remove(f, "user.old", kRoot)); },
         "a"},
        {"Unlink", [](Filesystem& fs, InodeId) { ASSERT_TRUE(fs.names().unlink(kRootId, "f")); },
         ""},
        {"Rename",
         [](Filesystem& fs, InodeId) {
           ASSERT_TRUE(fs.names().rename(kRootId, "f", kRootId, "g", 0));
         },
         ""},
        {"RenameOverIt",
         [](Filesystem& fs, InodeId) {
           ASSERT_TRUE(fs.names().rename(kRootId, "other", kRootId, "f", 0));
         },
         "a"},
        {"Exchange",
         [](Filesystem& fs, InodeId) {
           ASSERT_TRUE(fs.names().rename(kRootId, "other", kRootId, "f", RENAME_EXCHANGE));
         },
         "a"},
        {"Link", [](Filesystem& fs, InodeId f) { ASSERT_TRUE(fs.names().link(f, kRootId, "g")); },
         "a"},
        {"Allocate",
         [](Filesystem& fs, InodeId f) {
           ASSERT_TRUE(fs.files().open(f, O_RDWR, kOpener, std::nullopt));
           ASSERT_TRUE(fs.files().allocate(f, 0, 0, 100));
           fs.files().release(f, O_RDWR);
         },
         "a"},
    };
  }
};

TEST_P(ChangeDuringMoveTest, CancelsTheMove) {
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

TEST_P(ChangeDuringMoveTest, DoesNotPreventALaterMove) {
  dir_.make_file("a/f", "content");
  dir_.make_file("a/other", "other");
  ASSERT_EQ(::setxattr(at("a", "f").c_str(), "user.old", "v", 1, 0), 0);
  const InodeId f = id_of("f");
  id_of("other");
  {
    auto flight = begun("f");
    GetParam().make(*fs_, f);
    [[maybe_unused]] const auto cancelled = end(flight);
  }
  if (GetParam().left.empty()) return;
  EXPECT_TRUE(move("f"));
  EXPECT_EQ(where("f"), "b");
}

INSTANTIATE_TEST_SUITE_P(Moves, ChangeDuringMoveTest,
                         testing::ValuesIn(ChangeDuringMoveTest::all()),
                         [](const testing::TestParamInfo<Change>& tested) {
                           return tested.param.name;
                         });

TEST_F(FileMoveTest, ReadingAFileDoesNotCancelItsMove) {
  dir_.make_file("a/f", "content");
  auto flight = begun("f");
  const InodeId id = id_of("f");
  ASSERT_TRUE(fs_->attributes().get(id));
  ASSERT_TRUE(fs_->attributes().statx(id));
  ASSERT_TRUE(fs_->xattrs().list(id, kRoot));
  open_file(id, O_RDONLY);
  EXPECT_EQ(read_all(id), "content");
  EXPECT_FALSE(flight.file->is_cancelled());
  EXPECT_TRUE(end(flight));
  fs_->files().release(id, O_RDONLY);
}

TEST_F(FileMoveTest, IsCancelledByAWriterThatUsesTheTierDirectly) {
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

TEST_F(FileMoveTest, IsCancelledIfTheFileChangedDirectlyOnItsTier) {
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

TEST_F(FileMoveTest, DoesNotReplaceAFileOnTheOtherTier) {
  dir_.make_file("a/f", "content");
  dir_.make_file("b/f", "hidden by it");
  EXPECT_TRUE(failed_with(move("f"), EEXIST));
  EXPECT_EQ(test::read_file(at("a", "f")), "content");
  EXPECT_EQ(test::read_file(at("b", "f")), "hidden by it");
  EXPECT_EQ(read_all(id_of("f")), "content");
}

TEST_F(FileMoveTest, MovesAllHardLinksOfAFile) {
  dir_.make_file("a/f", "content");
  dir_.make_dir("a/d");
  ASSERT_TRUE(fs_->names().link(id_of("f"), id_of("d"), "g"));
  const InodeId id = id_of("f");
  ASSERT_TRUE(move("f")) << "asked for by one of them";
  EXPECT_EQ(where("f"), "b");
  EXPECT_EQ(where("d/g"), "b");
  EXPECT_EQ(test::lstat_of(at("b", "f")).st_ino, test::lstat_of(at("b", "d/g")).st_ino);
  EXPECT_EQ(id_of("f"), id);
  EXPECT_EQ(id_of("d/g"), id);
  EXPECT_EQ(entry_of("f").st.st_nlink, 2u);
}

TEST_F(FileMoveTest, AFileWithAnUnknownHardLinkIsNotMoved) {
  dir_.make_file("a/f", "content");
  ASSERT_EQ(::link(at("a", "f").c_str(), (dir_ / "outside").c_str()), 0);
  EXPECT_TRUE(failed_with(begin("f"), EMLINK));
  EXPECT_EQ(where("f"), "a");
  EXPECT_TRUE(test::names_in(at("b", ".sluice/tmp")).empty());
}

TEST_F(FileMoveTest, LeavesTheFileUnlockedIfItsNamesPreventTheMove) {
  dir_.make_file("a/f", "content");
  ASSERT_EQ(::link(at("a", "f").c_str(), (dir_ / "outside").c_str()), 0);
  ASSERT_TRUE(failed_with(begin("f"), EMLINK));
  ASSERT_EQ(::unlink((dir_ / "outside").c_str()), 0);
  EXPECT_TRUE(move("f"));
}

TEST_F(FileMoveTest, SeveralFilesCanBeSwitchedTogether) {
  std::vector<Flight> flights;
  for (const char* name : {"f", "g", "h"}) {
    dir_.make_file(std::string("a/") + name, name);
    flights.push_back(begun(name));
  }
  AttributeChange change;
  change.mode = 0600;
  ASSERT_TRUE(fs_->attributes().set(id_of("g"), change));
  std::vector<ReadyCopy> copies;
  for (Flight& flight : flights) copies.push_back({flight.file.get(), &flight.copy, flight.to});
  const auto outcomes = fs_->relocator().switcher().switch_files(copies);
  ASSERT_EQ(outcomes.size(), 3u);
  EXPECT_TRUE(outcomes[0]);
  EXPECT_TRUE(failed_with(outcomes[1], ECANCELED));
  EXPECT_TRUE(outcomes[2]);
  EXPECT_EQ(where("f") + where("g") + where("h"), "bab");
}

TEST_F(FileMoveTest, LookupFindsTheFileAfterEveryStep) {
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

TEST_F(FileMoveTest, ConcurrentLookupsAlwaysFindTheFile) {
  dir_.make_file("a/d/f", "content");
  dir_.make_dir("b/d");
  const InodeId d = id_of("d"), f = id_of("d/f");
  std::atomic<bool> stop{false};
  std::atomic<int> looked{0}, missed{0}, strange{0};
  std::thread reader([&] {
    while (!stop) {
      const auto entry = fs_->names().lookup(d, "f");
      ++looked;
      if (!entry || entry->id == InodeId{}) {
        ++missed;
      } else {
        if (entry->id != f) ++strange;
        if (read_all(f) != "content") ++strange;
        fs_->names().forget(entry->id, 1);
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

TEST_F(FileMoveTest, ALookupThatBeganBeforeTheSwitchFindsTheFileInANewDirectoryCopy) {
  dir_.make_file("a/d/f", "content");
  const InodeId d = id_of("d"), f = id_of("d/f");
  auto flight = begun("d/f");
  syscall_hook.calls = 1;
  syscall_hook.before_naming = [&] { EXPECT_TRUE(end(flight)); };
  const auto entry = fs_->names().lookup(d, "f");
  ASSERT_FALSE(syscall_hook.before_naming) << "the hook was never called";
  ASSERT_EQ(where("d/f"), "b");
  ASSERT_TRUE(entry);
  EXPECT_EQ(entry->id, f) << "and the kernel remembers for " << entry->entry_seconds
                          << " s that it does not exist";
}

TEST_F(FileMoveTest, AReadThatBeganBeforeTheSwitchDoesNotKeepTheOldCopy) {
  dir_.make_file("a/f", "content");
  const InodeId id = id_of("f");
  open_file(id, O_RDONLY);
  auto flight = begun("f");
  syscall_hook.after_opening = [&] { EXPECT_TRUE(end(flight)); };
  EXPECT_EQ(read_all(id), "content");
  ASSERT_FALSE(syscall_hook.after_opening) << "the hook was never called";
  ASSERT_EQ(where("f"), "b");
  open_file(id, O_RDWR);
  ASSERT_TRUE(fs_->files().write(id, "CONTENT", 7, 0, std::nullopt));
  EXPECT_EQ(test::read_file(at("b", "f")), "CONTENT") << "written to a file without a name";
  fs_->files().release(id, O_RDWR);
  fs_->files().release(id, O_RDONLY);
}

TEST_F(FileMoveTest, AListingThatBeganBeforeTheSwitchShowsTheFile) {
  constexpr int kFiles = 300;  // more than one call lists
  for (int i = 0; i < kFiles; ++i) {
    dir_.make_file("a/d/" + std::to_string(i) + std::string(200, 'x'), "");
  }
  const InodeId d = id_of("d");
  std::vector<DirectoryStream::Item> items;
  // Continues the listing, for at most `count` names.
  const auto list = [&](DirectoryStream& stream, std::size_t count) {
    const off_t offset = items.empty() ? 0 : items.back().next;
    EXPECT_TRUE(stream.read(offset, DirectoryStream::Numbers::NotWanted,
                            [&](const DirectoryStream::Item& item) {
                              if (count-- == 0) return false;
                              items.push_back(item);
                              return true;
                            }));
  };
  list(**fs_->names().open_directory(d), kFiles + 2);
  ASSERT_EQ(items.size(), kFiles + 2u);
  const std::string last = items.back().name;
  items.clear();
  auto flight = begun("d/" + last);
  const auto stream = *fs_->names().open_directory(d);
  syscall_hook.calls = 1;
  syscall_hook.before_naming = [&] { list(*stream, 1); };
  [[maybe_unused]] const auto moved = end(flight);  // it may also be postponed
  ASSERT_FALSE(syscall_hook.before_naming) << "the hook was never called";
  list(*stream, kFiles + 2);
  EXPECT_EQ(items.size(), kFiles + 2u);
}

TEST_F(FileMoveTest, AListingShowsTheFileOnceBeforeAndAfter) {
  dir_.make_file("a/d/f", "content");
  dir_.make_file("b/d/g", "other");
  const auto names = [&] {
    std::vector<std::string> out;
    const auto stream = *fs_->names().open_directory(id_of("d"));
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

TEST_F(FileMoveTest, IsAllOrNothingIfAnyCallOfTheStoreFails) {
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
      ASSERT_TRUE(fs_->names().unlink(kRootId, "f"));
      fs_->names().forget(id, 1000);
      if (!failed) break;
    }
  }
}

TEST_F(FileMoveTest, AWriterDoesNotWaitForTheCopy) {
  dir_.make_file("a/f", "content");
  const InodeId id = id_of("f");
  auto flight = begun("f");
  open_file(id, O_RDWR);
  fs_->files().serve_everything();
  ASSERT_TRUE(fs_->files().write(id, "CONTENT", 7, 0, std::nullopt));
  fs_->files().release(id, O_RDWR);
  EXPECT_TRUE(failed_with(end(flight), ECANCELED));
  EXPECT_EQ(test::read_file(at("a", "f")), "CONTENT");
}

TEST_F(FileMoveTest, DoesNotUseADirectoryCopyThatLostItsNameInAPowerFailure) {
  dir_.make_file("a/d/e/f", "f");
  dir_.make_file("a/d/e/g", "g");
  ASSERT_TRUE(move("d/e/f", kB));
  ASSERT_TRUE(move("d/e/f", kA));
  // b/d loses its name, as after a power failure. The daemon still has the handle of b/d/e.
  ASSERT_EQ(::rename(at("b", "d").c_str(), at("b", ".sluice/tmp/t1").c_str()), 0);
  const auto moved = move("d/e/g", kB);
  EXPECT_EQ(moved ? where("d/e/g") : "b", "b") << "the name must exist";
  EXPECT_EQ(read_path("d/e/g"), "g");
  mount();
  EXPECT_EQ(read_path("d/e/g"), "g");
}

TEST_F(FileMoveTest, DirectoryCopiesWithoutANameAreForgottenWhenTheirTierReturns) {
  dir_.make_file("a/d/e/f", "f");
  ASSERT_TRUE(move("d/e/f", kB));
  ASSERT_TRUE(move("d/e/f", kA));
  take_away("b");
  ASSERT_EQ(::rename((dir_ / "away-b/d").c_str(), (dir_ / "away-b/.sluice/tmp/t1").c_str()), 0);
  bring_back("b");
  EXPECT_EQ(xattr("d/e", "user.sluice.tier"), "a");
  ASSERT_TRUE(move("d/e/f", kB));
  EXPECT_EQ(where("d/e/f"), "b");
}

TEST_F(FileMoveTest, AThreadThatMustNotWaitGetsWouldWaitDuringASwitch) {
  int waits = 0;
  for (int calls = 1;; ++calls) {
    const std::string name = "f" + std::to_string(calls);
    dir_.make_file("a/" + name, "content");
    const InodeId id = id_of(name);
    auto flight = begun(name);
    int code = 0;
    syscall_hook.calls = calls;
    syscall_hook.before_naming = [&] {
      std::jthread([&] {
        AttributeChange change;
        change.mode = 0600;
        const auto changed = fs_->attributes().set(id, change, KernelRequest().without_waiting());
        code = changed ? 0 : changed.error().code;
      });
    };
    const auto moved = end(flight);
    if (std::exchange(syscall_hook.before_naming, nullptr)) break;  // the last call has been tried
    EXPECT_TRUE(code == 0 || code == kWouldWait) << code;
    waits += code == kWouldWait ? 1 : 0;
    EXPECT_EQ(moved || code == 0, true) << "a request that returned at once cancelled the move";
    EXPECT_EQ(test::lstat_of(at(where(name), name)).st_mode & 07777, code == 0 ? 0600u : 0644u);
  }
  EXPECT_GT(waits, 0) << "no call had to wait";
}

// Whether a thread of this process waits for something.
bool is_asleep(pid_t thread) {
  std::ifstream file("/proc/self/task/" + std::to_string(thread) + "/stat");
  std::string line;
  std::getline(file, line);
  return line.find(") S ") != std::string::npos;
}

TEST_F(FileMoveTest, ADirectoryRenamedWhileItIsCopiedHasOneName) {
  ASSERT_TRUE((*pool_)[kA].set_draining(true));  // so that new files go to b
  for (int calls = 1; calls <= 4; ++calls) {
    const std::string old_name = "d" + std::to_string(calls), name = "e" + std::to_string(calls);
    dir_.make_file("a/" + old_name + "/keep", "content");
    const InodeId directory = id_of(old_name);
    std::jthread other;
    std::atomic<pid_t> renamer{0};
    std::atomic<bool> renamed{false};
    syscall_hook.calls = calls;
    syscall_hook.before_naming = [&] {
      other = std::jthread([&] {
        renamer = ::gettid();
        EXPECT_TRUE(fs_->names().rename(kRootId, old_name.c_str(), kRootId, name.c_str(), 0));
        renamed = true;
      });
      EXPECT_TRUE(test::eventually([&] { return renamed || (renamer && is_asleep(renamer)); }));
    };
    const auto made = fs_->files().create(directory, "f", 0644, O_WRONLY, kRoot);
    EXPECT_TRUE(made) << "at " << calls;
    if (made) fs_->files().release(made->first.id, O_WRONLY);
    if (std::exchange(syscall_hook.before_naming, nullptr)) break;  // the last call has been tried
    other.join();
    EXPECT_EQ(where(old_name), "") << "at " << calls;
    EXPECT_EQ(where(name), "ab") << "at " << calls;
  }
}

}  // namespace
}  // namespace sluice
