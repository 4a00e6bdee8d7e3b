// SPDX-License-Identifier: BSD-2-Clause
// Directories with a budget, without a mount: what is counted, what is deleted, who waits.
#include <fcntl.h>
#include <sys/stat.h>
#include <sys/xattr.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <ctime>
#include <filesystem>
#include <future>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <random>
#include <set>
#include <thread>

#include "fs/core/inodes/kernel_request.hpp"
#include "tests/support/fake_clock.hpp"
#include "tests/support/seed.hpp"
#include "tests/support/wait.hpp"
#include "tests/unit/fs/test_filesystem.hpp"
#include "tiering/pool/pin.hpp"

namespace sluice {
namespace {

using test::eventually;

class FilesystemBudgetTest : public DirectFilesystem<FakeKernel> {
 protected:
  void prepare() override {}
  void TearDown() override {
    fs_.reset();
    const CreateAs root(Caller{});
  }
  void mount(std::chrono::seconds rest = std::chrono::minutes(1),
             std::vector<BudgetRule> rules = {}) {
    fs_.reset();
    pool_.reset();
    pool_ = open(make_tiers("abc"));
    Filesystem::Settings settings;
    settings.budgets = std::move(rules);
    settings.budget_rest = rest;
    fs_ = std::make_unique<Filesystem>(*pool_, store_, kernel_, std::move(settings));
    fs_->keep_budgets();
  }
  // A file on tier a that was written `age` seconds ago.
  void put_old(const std::string& name, std::size_t bytes, int age) {
    const std::string path = at("a", name);
    for (std::size_t slash = path.find('/', 1); slash != path.npos;
         slash = path.find('/', slash + 1))
      ::mkdir(path.substr(0, slash).c_str(), 0755);
    test::write_file(path, test::pattern(bytes, bytes));
    const timespec times[2] = {{::time(nullptr) - age, 0}, {::time(nullptr) - age, 0}};
    ASSERT_EQ(::utimensat(AT_FDCWD, path.c_str(), times, 0), 0);
  }
  int set(const std::string& path, const std::string& value, const Caller& who = kRoot) {
    const auto done =
        fs_->xattrs().set(id_of(path), "user.sluice.budget", value.data(), value.size(), 0, who);
    return done ? 0 : done.error().code;
  }
  bool is_there(const std::string& name) { return test::exists(at("a", name)); }
  BudgetTrees::Report report(const std::string& path) {
    for (const auto& each : fs_->budgets().trees().reports()) {
      if (each.path == path) return each;
    }
    return {};
  }
  bool is_known(const std::string& path) {
    return eventually([&] { return report(path).is_known; });
  }
  // As a program does that writes a file. Returns the errno.
  int make(const std::string& directory, const std::string& name, std::size_t bytes) {
    const auto made =
        fs_->files().create(id_of(directory), name.c_str(), 0644, O_WRONLY | O_CREAT, kRoot);
    if (!made) return made.error().code;
    const int code = write(made->first.id, bytes);
    fs_->files().release(made->first.id, O_WRONLY);
    return code;
  }
  // As the session does it: a write that finds no room waits without a thread.
  int write(InodeId file, std::size_t bytes) {
    const std::string content = test::pattern(bytes, 1);
    const auto put = [&](const KernelRequest& request) {
      const auto done = fs_->files().write(file, content.data(), content.size(), 0, std::nullopt,
                                           WriteTo::Offset, 0, request);
      return done ? 0 : done.error().code;
    };
    const int code = put(KernelRequest().without_waiting());
    if (code == kWouldWait) return put({});  // the disk is busy
    if (code != kNoRoomYet) return code;
    std::promise<void> ready;
    fs_->budgets().when_room(file, 0, [&] { ready.set_value(); });
    ready.get_future().wait();
    return put({});
  }
  // Makes a file that stays open. Returns its id, or nothing if there is no room.
  std::optional<InodeId> make_open(const std::string& directory, const std::string& name,
                                   const KernelRequest& request = {}) {
    const auto made = fs_->files().create(id_of(directory), name.c_str(), 0644, O_WRONLY | O_CREAT,
                                          kRoot, request);
    return made ? std::optional(made->first.id) : std::nullopt;
  }
};

TEST_F(FilesystemBudgetTest, LeastValueIsDeletedWithAReceiptAndTheKernelIsTold) {
  for (int i = 0; i < 6; ++i) put_old("d/f" + std::to_string(i), kMiB, 1000 - 100 * i);
  mount();
  ASSERT_EQ(set("d", "4MiB"), 0);
  ASSERT_TRUE(eventually([&] { return report("/d").deleted == 2; }));
  EXPECT_FALSE(is_there("d/f0"));
  EXPECT_FALSE(is_there("d/f1"));
  EXPECT_TRUE(is_there("d/f2"));
  EXPECT_EQ(report("/d").used, 4 * kMiB);
  const auto receipts = store_.receipts(10);
  ASSERT_TRUE(receipts);
  ASSERT_EQ(receipts->size(), 2u);
  EXPECT_EQ((*receipts)[0].path, "/d/f1");
  EXPECT_EQ((*receipts)[0].from, "a");
  EXPECT_EQ((*receipts)[0].to, "");
  EXPECT_EQ((*receipts)[0].code, 0);
}

TEST_F(FilesystemBudgetTest, OnlyOwnerAndRootSetItOnADirectoryBelowTheRoot) {
  put_old("d/f", 1, 1000);
  ASSERT_EQ(::chown(at("a", "d").c_str(), kUser.uid, kUser.gid), 0);
  mount();
  EXPECT_EQ(set("d", "1GiB", Caller{1001, 1001, 022}), EPERM);
  EXPECT_EQ(set("d", "1GiB", kUser), 0);
  EXPECT_EQ(xattr("d", "user.sluice.budget"), "1073741824");
  EXPECT_EQ(set("", "1GiB"), EINVAL);
  EXPECT_EQ(set("d/f", "1GiB"), ENOTDIR);
  for (const char* wrong : {"", "0", "x"}) EXPECT_EQ(set("d", wrong), EINVAL) << wrong;
  EXPECT_TRUE(
      failed_with(fs_->xattrs().remove(id_of("d"), "user.sluice.budget", {1001, 1001, 0}), EPERM));
  EXPECT_EQ(set("d", "none", kUser), 0);
  EXPECT_EQ(xattr("d", "user.sluice.budget"), "error: ENODATA");
}

TEST_F(FilesystemBudgetTest, OpenPinnedAndFreshFilesStayAndNewOnesFindNoRoom) {
  put_old("d/open", kMiB, 9000);
  put_old("d/pinned", kMiB, 8000);
  put_old("d/fresh", kMiB, 1);
  put_old("d/old", kMiB, 500);
  mount();
  ASSERT_TRUE(fs_->xattrs().set(id_of("d/pinned"), "user.sluice.pin", "a", 1, 0, kRoot));
  const InodeId open = id_of("d/open");
  ASSERT_TRUE(fs_->files().open(open, O_RDONLY, kOpener, std::nullopt));
  ASSERT_EQ(set("d", "1MiB"), 0);
  ASSERT_TRUE(eventually([&] { return report("/d").is_stuck; }));
  EXPECT_FALSE(is_there("d/old"));
  EXPECT_EQ(report("/d").deleted, 1u);
  EXPECT_EQ(make("d", "new", 1), ENOSPC);
  fs_->files().release(open, O_RDONLY);
  EXPECT_TRUE(eventually([&] { return !is_there("d/open"); }));
  EXPECT_TRUE(is_there("d/pinned"));
  EXPECT_TRUE(is_there("d/fresh"));
}

// Somebody wanted the file to stay. The pool may get the tier again.
TEST_F(FilesystemBudgetTest, AFileThatIsPinnedToATierThatIsGoneStays) {
  put_old("d/pinned", kMiB, 8000);
  put_old("d/old", kMiB, 500);
  mount();
  ASSERT_EQ(::setxattr(at("a", "d/pinned").c_str(), kPinXattr, "gone", 4, 0), 0);
  ASSERT_EQ(set("d", "1MiB"), 0);
  EXPECT_TRUE(eventually([&] { return report("/d").deleted == 1; }));
  EXPECT_FALSE(is_there("d/old"));
  EXPECT_TRUE(is_there("d/pinned"));
}

TEST_F(FilesystemBudgetTest, AFileThatLeavesTheTreeBeforeItIsDeletedStays) {
  constexpr int kTrees = 60;
  for (int i = 0; i < kTrees; ++i) put_old("d" + std::to_string(i) + "/below/f", kMiB, 8000);
  mount();
  int stayed = 0;
  for (int i = 0; i < kTrees; ++i) {
    const std::string n = std::to_string(i);
    id_of("d" + n + "/below");  // the kernel must know what it renames
    ASSERT_EQ(set("d" + n, "1"), 0);
    std::this_thread::sleep_for(std::chrono::microseconds(500 * i));
    ASSERT_TRUE(fs_->names().rename(id_of("d" + n), "below", kRootId, ("out" + n).c_str(), 0));
    if (!is_there("out" + n + "/f")) continue;
    ++stayed;
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
    EXPECT_TRUE(is_there("out" + n + "/f")) << i;
  }
  EXPECT_GT(stayed, 0);
}

TEST_F(FilesystemBudgetTest, AWriterIsHeldAtTheBudget) {
  put_old("d/first", 4096, 1000);
  mount(std::chrono::seconds(0));
  ASSERT_EQ(set("d", "4MiB"), 0);
  ASSERT_TRUE(is_known("/d"));
  for (int i = 0; i < 100; ++i) {
    ASSERT_EQ(make("d", "f" + std::to_string(i), 256 << 10), 0) << i;
    ASSERT_LE(report("/d").used, 4 * kMiB + (256 << 10)) << i;
  }
  EXPECT_TRUE(is_there("d/f99"));
  EXPECT_GE(report("/d").deleted, 84u);
}

TEST_F(FilesystemBudgetTest, InnerAndOuterBudgetsAreObeyed) {
  for (int i = 0; i < 3; ++i) put_old("d/in/f" + std::to_string(i), kMiB, 300 - 10 * i);
  for (int i = 0; i < 3; ++i) put_old("d/f" + std::to_string(i), kMiB, 900 - 10 * i);
  mount();
  ASSERT_EQ(set("d/in", "2MiB"), 0);
  ASSERT_EQ(set("d", "3MiB"), 0);
  EXPECT_TRUE(eventually([&] {
    return report("/d").is_known && report("/d").used <= 3 * kMiB &&
           report("/d/in").used <= 2 * kMiB;
  }));
  EXPECT_FALSE(is_there("d/f0"));
  EXPECT_TRUE(is_there("d/in/f2"));
}

TEST_F(FilesystemBudgetTest, HardLinksCountOnceAndALinkOutsideKeepsTheFile) {
  put_old("d/a", 2 * kMiB, 9000);
  put_old("d/b", 2 * kMiB, 8000);
  put_old("d/c", 2 * kMiB, 100);
  ASSERT_EQ(::link(at("a", "d/a").c_str(), at("a", "d/a2").c_str()), 0);
  ASSERT_EQ(::link(at("a", "d/b").c_str(), at("a", "outside").c_str()), 0);
  mount();
  ASSERT_EQ(set("d", "7MiB"), 0);
  ASSERT_TRUE(is_known("/d"));
  EXPECT_EQ(report("/d").used, 6 * kMiB);
  EXPECT_EQ(report("/d").files, 3u);
  ASSERT_EQ(set("d", "5MiB"), 0);
  ASSERT_TRUE(eventually([&] { return report("/d").used <= 5 * kMiB; }));
  EXPECT_FALSE(is_there("d/a"));
  EXPECT_FALSE(is_there("d/a2"));
  EXPECT_TRUE(is_there("d/b"));
  EXPECT_TRUE(is_there("d/c"));
}

TEST_F(FilesystemBudgetTest, RenamesAndUnlinksAreCounted) {
  put_old("d/a", kMiB, 900);
  put_old("out/b", 2 * kMiB, 800);
  mount();
  ASSERT_EQ(set("d", "8MiB"), 0);
  ASSERT_TRUE(is_known("/d"));
  ASSERT_TRUE(rename(id_of("out"), "b", id_of("d"), "b", 0));
  EXPECT_EQ(report("/d").used, 3 * kMiB);
  ASSERT_TRUE(rename(id_of("d"), "b", id_of("d"), "c", 0));
  EXPECT_EQ(report("/d").used, 3 * kMiB);
  ASSERT_TRUE(rename(id_of("d"), "c", id_of("d"), "a", 0));  // replaces a
  EXPECT_EQ(report("/d").used, 2 * kMiB);
  ASSERT_TRUE(rename(kRootId, "out", id_of("d"), "in", 0));
  ASSERT_TRUE(rename(kRootId, "d", kRootId, "e", 0));
  EXPECT_TRUE(eventually([&] { return report("/e").used == 2 * kMiB; }));
  ASSERT_TRUE(unlink(id_of("e"), "a"));
  EXPECT_EQ(report("/e").used, 0u);
}

TEST_F(FilesystemBudgetTest, IsFoundAgainAfterAMountAndByARule) {
  for (int i = 0; i < 3; ++i) put_old("d/f" + std::to_string(i), kMiB, 900 - 10 * i);
  for (int i = 0; i < 3; ++i) put_old("u/x/cache/f" + std::to_string(i), kMiB, 900 - 10 * i);
  mount();
  ASSERT_EQ(set("d", "4MiB"), 0);
  ASSERT_TRUE(is_known("/d"));
  put_old("d/past", 2 * kMiB, 5000);
  mount(std::chrono::minutes(1), {{"/u/*/cache", 2 * kMiB}});
  EXPECT_TRUE(eventually([&] { return !is_there("d/past"); }));
  EXPECT_TRUE(eventually([&] { return !is_there("u/x/cache/f0"); }));
  EXPECT_TRUE(is_there("d/f0"));
  EXPECT_TRUE(is_there("u/x/cache/f1"));
}

TEST_F(FilesystemBudgetTest, OthersFilesInTheirOwnDirectoriesStay) {
  put_old("d/mine", kMiB, 900);
  put_old("d/theirs/f", 4 * kMiB, 9000);
  for (const char* name : {"d", "d/mine"})
    ASSERT_EQ(::chown(at("a", name).c_str(), kUser.uid, kUser.gid), 0);
  mount();
  ASSERT_EQ(set("d", "4MiB", kUser), 0);
  EXPECT_TRUE(eventually([&] { return !is_there("d/mine"); }));
  EXPECT_TRUE(eventually([&] { return report("/d").used == 4 * kMiB; }));
  EXPECT_TRUE(is_there("d/theirs/f"));
}

// What is known without listing the tree again: a directory that leaves is not counted at once, and
// one that stays inside is deleted from by its new path.
TEST_F(FilesystemBudgetTest, RenamedDirectoriesAreKnownByTheirNewPath) {
  put_old("d/x/a", kMiB, 900);
  put_old("d/x/deep/b", kMiB, 800);
  put_old("d/y/c", kMiB, 700);
  mount();
  ASSERT_EQ(set("d", "8MiB"), 0);
  ASSERT_TRUE(is_known("/d"));
  ASSERT_TRUE(rename(id_of("d"), "x", id_of("d/y"), "moved", 0));
  EXPECT_EQ(report("/d").used, 3 * kMiB);
  ASSERT_TRUE(rename(id_of("d/y/moved"), "deep", kRootId, "out", 0));
  EXPECT_EQ(report("/d").used, 2 * kMiB);
  ASSERT_EQ(set("d", "1MiB"), 0);
  ASSERT_TRUE(eventually([&] { return report("/d").deleted == 1; }));
  EXPECT_FALSE(is_there("d/y/moved/a"));
  EXPECT_TRUE(is_there("d/y/c"));
  EXPECT_TRUE(is_there("out/b"));
  EXPECT_EQ((*store_.receipts(1))[0].path, "/d/y/moved/a");
}

TEST_F(FilesystemBudgetTest, IsObeyedWhileDirectoriesAreRenamedAllTheTime) {
  for (int i = 0; i < 6; ++i) put_old("d/x/f" + std::to_string(i), kMiB, 900 - 10 * i);
  mount();
  ASSERT_EQ(set("d", "2MiB"), 0);
  bool is_x = true;
  EXPECT_TRUE(eventually([&] {
    // A listing during which a directory is renamed does not count: it needs a pause between these.
    for (int i = 0; i < 10; ++i, is_x = !is_x) {
      EXPECT_TRUE(rename(id_of("d"), is_x ? "x" : "y", id_of("d"), is_x ? "y" : "x", 0));
    }
    return report("/d").deleted == 4;
  }));
}

TEST_F(FilesystemBudgetTest, AFullTreeHasNoRoomForFilesFromOutside) {
  put_old("d/in/fresh", 2 * kMiB, 1);
  put_old("out/f", kMiB, 900);
  mount();
  ASSERT_EQ(set("d", "1MiB"), 0);
  ASSERT_TRUE(eventually([&] { return report("/d").is_stuck; }));
  EXPECT_TRUE(failed_with(rename(id_of("out"), "f", id_of("d"), "f", 0), ENOSPC));
  EXPECT_TRUE(failed_with(fs_->names().link(id_of("out/f"), id_of("d"), "f"), ENOSPC));
  EXPECT_TRUE(fs_->names().link(id_of("d/in/fresh"), id_of("d"), "again"));
  EXPECT_TRUE(rename(id_of("d/in"), "fresh", id_of("d"), "f", 0));
  EXPECT_TRUE(rename(id_of("d"), "f", kRootId, "f", 0));
}

// The kernel holds the locks of directories during these requests, so that others would wait, too.
// Old files can be deleted here, so all succeed at once, and only the bytes of the new file wait.
TEST_F(FilesystemBudgetTest, NamesComeAtOnceAndBytesWaitUntilOldFilesAreDeleted) {
  for (const char* name : {"d/old1", "d/old2"}) put_old(name, 2 * kMiB, 900);
  put_old("out/f", kMiB, 900);
  put_old("out/g", kMiB, 900);
  mount();
  ASSERT_EQ(set("d", "4MiB"), 0);
  ASSERT_TRUE(is_known("/d"));
  {
    const auto now = KernelRequest().without_waiting();  // kWouldWait if one of them waited
    const auto file = make_open("d", "new", now);
    ASSERT_TRUE(file);
    EXPECT_TRUE(fs_->files().waits_for_room(*file));
    EXPECT_TRUE(rename(id_of("out"), "f", id_of("d"), "f", 0, now));
    EXPECT_TRUE(fs_->names().link(id_of("out/g"), id_of("d"), "g", now));
  }
  EXPECT_EQ(write(id_of("d/new"), kMiB), 0);
  EXPECT_FALSE(fs_->files().waits_for_room(id_of("d/new")));
  EXPECT_TRUE(eventually([&] { return report("/d").used <= 4 * kMiB; }));
  EXPECT_GE(report("/d").deleted, 2u);
}

// Everything in the tree is fresh.
TEST_F(FilesystemBudgetTest, AWriteThatFindsNoRoomFailsInTheEndAndHoldsNoThread) {
  put_old("d/fresh", kMiB, 1);
  mount();
  ASSERT_EQ(set("d", "1MiB"), 0);
  ASSERT_TRUE(is_known("/d"));
  const auto waits = make_open("d", "waits");
  ASSERT_TRUE(waits);
  ASSERT_TRUE(fs_->files().waits_for_room(*waits));
  EXPECT_EQ(write(*waits, 4096), ENOSPC);
  // It is a file like others once there is room.
  ASSERT_TRUE(unlink(id_of("d"), "fresh"));
  EXPECT_EQ(write(*waits, 4096), 0);
  fs_->files().release(*waits, O_WRONLY);
}

// Others may wait for the lock of the file, with directories locked. Nothing in the tree may be
// deleted, but it is not full.
TEST_F(FilesystemBudgetTest, AWriteThatNoDeletionHelpsGoesOn) {
  put_old("d/fresh", kMiB, 1);
  mount();
  ASSERT_EQ(set("d", "1100KiB"), 0);
  ASSERT_TRUE(is_known("/d"));
  ASSERT_TRUE(make_open("d", "grows"));
  const auto waits = make_open("d", "waits");
  ASSERT_TRUE(waits);
  ASSERT_TRUE(fs_->files().waits_for_room(*waits));
  EXPECT_EQ(write(*waits, 4096), 0);
  EXPECT_EQ(report("/d").let_in, 1u);
}

TEST_F(FilesystemBudgetTest, WritesThatWaitAreDroppedWhenTheSessionEnds) {
  put_old("d/fresh", kMiB, 1);
  mount();
  ASSERT_EQ(set("d", "1100KiB"), 0);
  ASSERT_TRUE(is_known("/d"));
  ASSERT_TRUE(make_open("d", "grows"));
  const auto waits = make_open("d", "waits");
  ASSERT_TRUE(waits);
  const auto calls = std::make_shared<std::atomic<int>>(0);
  fs_->budgets().when_room(*waits, 0, [calls] { ++*calls; });
  fs_->budgets().stop_waiting();
  EXPECT_EQ(calls.use_count(), 1);
  const int before = *calls;
  fs_->budgets().when_room(*waits, 0, [calls] { ++*calls; });
  EXPECT_EQ(calls.use_count(), 1);
  EXPECT_EQ(*calls, before);
}

// The kernel's writeback, and asynchronous writes of other users, must not wait for these.
TEST_F(FilesystemBudgetTest, OnlySomeWritesWaitAtATime) {
  put_old("d/fresh", kMiB, 1);
  mount();
  ASSERT_EQ(set("d", "1100KiB"), 0);
  ASSERT_TRUE(is_known("/d"));
  ASSERT_TRUE(make_open("d", "grows"));
  std::atomic<int> answered{0};
  for (int asked = 1; asked <= 20; ++asked) {
    const auto file = make_open("d", "w" + std::to_string(asked));
    ASSERT_TRUE(file);
    fs_->budgets().when_room(*file, 1000, [&answered] { ++answered; });
    EXPECT_LE(asked - answered, 16);
  }
  fs_->budgets().stop_waiting();
  EXPECT_GE(answered, 4);
}

TEST_F(FilesystemBudgetTest, AUserCanSetOnlySoManyBudgets) {
  const Caller other{1001, 1001, 022};
  const auto make_directory = [&](const std::string& name, const Caller& who) {
    ASSERT_TRUE(fs_->names().mkdir(kRootId, name.c_str(), 0755, who));
  };
  mount();
  const auto name = [](std::size_t i) { return "d" + std::to_string(i); };
  for (std::size_t i = 0; i < BudgetTrees::kMostOfUser; ++i) {
    make_directory(name(i), kUser);
    ASSERT_EQ(set(name(i), "1GiB", kUser), 0);
  }
  make_directory("more", kUser);
  make_directory("others", other);
  EXPECT_EQ(fs_->budgets().trees().most_of_user(), BudgetTrees::kMostOfUser);
  EXPECT_EQ(set("more", "1GiB", kUser), EDQUOT);
  EXPECT_EQ(xattr("more", "user.sluice.budget"), "error: ENODATA");
  EXPECT_EQ(set("d0", "2GiB", kUser), 0);  // one that is there can be changed
  EXPECT_EQ(set("others", "1GiB", other), 0);
  EXPECT_EQ(set("more", "1GiB"), 0);  // root has no limit
  EXPECT_EQ(set("more", "none"), 0);
  EXPECT_EQ(set("d0", "none", kUser), 0);
  EXPECT_EQ(set("more", "1GiB", kUser), 0);
  EXPECT_EQ(set("d0", "1GiB", kUser), EDQUOT);
  // A directory that is removed does not count, whether the budget was found before or not.
  ASSERT_TRUE(eventually([&] { return fs_->budgets().trees().reports().size() == 33; }));
  ASSERT_TRUE(fs_->names().rmdir(kRootId, "d1"));
  EXPECT_TRUE(eventually([&] { return set("d0", "1GiB", kUser) == 0; }));
  ASSERT_TRUE(eventually([&] { return fs_->budgets().trees().reports().size() == 33; }));
}

// Neither may it be a way around the limit, nor to another user's budget.
TEST_F(FilesystemBudgetTest, ADirectoryThatCannotBeRemovedKeepsItsBudget) {
  put_old("d/f", kMiB, 900);
  put_old("e/f", kMiB, 900);
  mount();
  ASSERT_TRUE(fs_->names().mkdir(kRootId, "empty", 0755, kUser));
  ASSERT_EQ(set("d", "4MiB"), 0);
  const auto attack = [&](int times) {
    for (int i = 0; i < times; ++i) {
      EXPECT_TRUE(failed_with(fs_->names().rmdir(kRootId, "d"), ENOTEMPTY));
      EXPECT_TRUE(failed_with(rename(kRootId, "empty", kRootId, "d", 0), ENOTEMPTY));
    }
  };
  attack(1);  // before it was found
  ASSERT_TRUE(is_known("/d"));
  for (int round = 0; round < 20; ++round) {
    fs_->budgets().trees().search_again();
    attack(50);
  }
  // A budget that is found after this one shows that everything before it was looked at.
  ASSERT_EQ(set("e", "4MiB"), 0);
  ASSERT_TRUE(is_known("/e"));
  EXPECT_EQ(report("/d").used, kMiB);
}

// Random changes of names and sizes. The sum must always be that of the files on the tiers.
TEST_F(FilesystemBudgetTest, WhatIsCountedIsWhatIsThere) {
  for (const char* name : {"d/x/1", "d/x/z/2", "d/y/3", "out/x/4", "out/y/z/5"})
    put_old(name, 64 << 10, 900);
  mount();
  ASSERT_EQ(set("d", "1GiB"), 0);
  ASSERT_TRUE(is_known("/d"));
  const auto is_there_now = [&] {
    std::uint64_t sum = 0;
    std::set<ino_t> seen;
    for (const auto& each : std::filesystem::recursive_directory_iterator(at("a", "d"))) {
      struct stat st {};
      EXPECT_EQ(::lstat(each.path().c_str(), &st), 0);
      if (S_ISREG(st.st_mode) && seen.insert(st.st_ino).second)
        sum += static_cast<std::uint64_t>(st.st_blocks) * 512;
    }
    return sum;
  };
  std::mt19937 random(std::random_device{}());
  const auto any = [&](std::initializer_list<const char*> from) {
    return std::string(from.begin()[random() % from.size()]);
  };
  const auto directory = [&] { return any({"d", "d/x", "d/y", "d/x/z", "out", "out/x", "out/y"}); };
  const auto name = [&] { return any({"1", "2", "3", "4", "5", "x", "y", "z"}); };
  std::string done;
  for (int step = 0; step < 300; ++step) {
    const std::string from = directory(), to = directory(), a = name(), b = name();
    if (!test::exists(at("a", from)) || !test::exists(at("a", to))) continue;
    const InodeId old_parent = id_of(from), new_parent = id_of(to);
    const auto what = random() % 6;
    bool is_done = false;
    if (what == 0) {
      is_done = make(from, a, (random() % 8) << 12) == 0;
    } else if (what == 1) {
      is_done = unlink(old_parent, a.c_str()).has_value();
    } else if (what == 2 && test::exists(at("a", from + "/" + a))) {
      is_done = fs_->names().link(id_of(from + "/" + a), new_parent, b.c_str()).has_value();
    } else if (what > 2) {
      const unsigned flags = what == 5 ? RENAME_EXCHANGE : 0;
      is_done = rename(old_parent, a.c_str(), new_parent, b.c_str(), flags).has_value();
    }
    if (!is_done) continue;
    done += " " + std::to_string(what) + ":" + from + "/" + a + ">" + to + "/" + b;
    const std::uint64_t expected = is_there_now();
    ASSERT_TRUE(eventually([&] { return report("/d").used == expected; }))
        << report("/d").used << " instead of " << expected << " after" << done;
  }
}

// What would be deleted is said before: by user.sluice.budget.SIZE, for plan, and by explain.
class BudgetForecastTest : public FilesystemBudgetTest {
 protected:
  static constexpr Caller kOther{1001, 1001, 022};
  static constexpr std::chrono::hours kRest{1};
  static constexpr int kFresh = 5, kOld = 4000;  // ages in seconds
  using Json = nlohmann::json;
  using Paths = std::set<std::string>;

  void mount() {
    fs_.reset();
    pool_.reset();
    pool_ = open(make_tiers("abc"));
    Filesystem::Settings settings;
    settings.budget_rest = kRest;
    settings.migration.emplace().automatic = false;  // explain needs it
    // The order of files that were used just now changes from one second to the next.
    clock_ = std::make_unique<test::FakeClock>(::time(nullptr));
    fs_ = std::make_unique<Filesystem>(*pool_, store_, kernel_, std::move(settings), nullptr,
                                       *clock_);
    fs_->keep_budgets();
  }
  std::string preview_text(const std::string& directory, const std::string& size,
                           const Caller& who = kRoot) {
    const CurrentCaller now(who);
    return xattr(directory, ("user.sluice.budget." + size).c_str());
  }
  Json preview(const std::string& directory, std::uint64_t bytes, const Caller& who = kRoot) {
    return Json::parse(preview_text(directory, std::to_string(bytes), who));
  }
  static Paths named(const Json& preview) {
    Paths out;
    for (const Json& file : preview.at("first")) {
      if (file.at("waits").is_null()) out.insert(file.at("path"));
    }
    return out;
  }
  void own(const std::string& name, const Caller& who) {
    ASSERT_EQ(::lchown(at("a", name).c_str(), who.uid, who.gid), 0);
  }
  Json standing(const std::string& path) {
    const Json budgets = Json::parse(xattr(path, "user.sluice.explain")).at("budgets");
    return budgets.empty() ? Json() : budgets.at(0);
  }

  std::unique_ptr<test::FakeClock> clock_;

  // Makes a tree of 14 files. Returns their names in it; the first is that of a file, others are
  // hard links to the one before.
  using Random = std::mt19937_64;
  std::vector<std::vector<std::string>> grow(const std::string& tree, Random& random) {
    const auto chance = [&](unsigned of) { return random() % of == 0; };
    std::vector<std::vector<std::string>> files;
    for (int i = 0; i < 14; ++i) {
      const char* const directory =
          std::array{"", "own/", "others/", "pinned/", "deep/er/"}[random() % 5];
      const std::string name = directory + std::to_string(i);
      const int age = chance(6) ? kFresh : kOld + 100 * static_cast<int>(random() % 8);
      put_old(tree + "/" + name, 4096 * (1 + random() % 12), age);
      files.push_back({name});
      own(tree + "/" + name, chance(2) ? kUser : kOther);
      const std::string path = at("a", tree + "/" + name);
      if (chance(6)) {
        files.back().push_back(name + "-link");
        EXPECT_EQ(::link(path.c_str(), (path + "-link").c_str()), 0);
      }
      if (chance(6)) {
        EXPECT_EQ(::link(path.c_str(), at("a", "outside-" + tree + std::to_string(i)).c_str()), 0);
      }
    }
    own(tree, kUser);
    for (const char* each : {"/own", "/others", "/deep", "/deep/er"}) {
      if (is_there(tree + each)) own(tree + each, each == std::string("/others") ? kOther : kUser);
    }
    return files;
  }
};

// Random trees with links, pins, files that are open or were written just now, and several users.
TEST_F(BudgetForecastTest, WhatIsSaidIsWhatGoes) {
  Random random(test::test_seed());
  const int rounds = test::rounds(20, 200);
  std::vector<std::vector<std::vector<std::string>>> trees;
  for (int round = 0; round < rounds; ++round)
    trees.push_back(grow("t" + std::to_string(round), random));
  mount();
  const auto pin = [&](const std::string& path) {
    ASSERT_TRUE(fs_->xattrs().set(id_of(path), "user.sluice.pin", "a", 1, 0, kRoot)) << path;
  };
  std::size_t said_in_all = 0;
  for (int round = 0; round < rounds; ++round) {
    const std::string tree = "t" + std::to_string(round);
    SCOPED_TRACE(tree);
    std::vector<InodeId> open;
    for (const auto& names : trees[static_cast<std::size_t>(round)]) {
      const std::string path = tree + "/" + names[0];
      if (random() % 8 == 0) pin(path);
      if (random() % 8 != 0) continue;
      open.push_back(id_of(path));
      ASSERT_TRUE(fs_->files().open(open.back(), O_RDONLY, kOpener, std::nullopt));
    }
    if (is_there(tree + "/pinned")) pin(tree + "/pinned");
    const Caller& who = random() % 2 == 0 ? kRoot : kUser;
    const auto used = preview(tree, 1, who).at("used").get<std::uint64_t>();
    const std::uint64_t budget = used * (1 + random() % 9) / 10;
    const Json before = preview(tree, budget, who);
    // The same with a tree that is known already, and a budget that deletes nothing.
    ASSERT_EQ(set(tree, "1GiB", who), 0);
    ASSERT_TRUE(is_known("/" + tree));
    const Json said = preview(tree, budget, who);
    EXPECT_EQ(said.at("now"), before.at("now"));
    EXPECT_EQ(said.at("first"), before.at("first"));
    EXPECT_EQ(said.at("kept"), before.at("kept"));
    Paths planned, explained;
    for (const auto& next : fs_->budget_forecast().next(id_of(tree), (1ULL << 30) - budget, 1000))
      planned.insert(next.path.substr(1));
    std::map<std::string, std::string> first_names;
    for (const auto& names : trees[static_cast<std::size_t>(round)]) {
      for (const std::string& name : names) first_names[name] = names[0];
      const Json its = standing(tree + "/" + names[0]);
      if (its.at("kept").is_null() && its.at("before") < used - budget) explained.insert(names[0]);
    }
    ASSERT_EQ(set(tree, std::to_string(budget), who), 0);
    ASSERT_TRUE(eventually([&] {
      const auto now = report("/" + tree);
      return now.budget.bytes == budget && (now.used <= budget || now.is_stuck);
    }));
    Paths gone;
    for (const auto& names : trees[static_cast<std::size_t>(round)]) {
      if (!is_there(tree + "/" + names[0])) gone.insert(names[0]);
    }
    const auto with_first_names = [&](const Paths& paths) {
      Paths out;
      for (const std::string& path : paths) out.insert(first_names.at(path));
      return out;
    };
    EXPECT_EQ(with_first_names(planned), gone);
    EXPECT_EQ(explained, gone);
    EXPECT_EQ(said.at("now").at("files"), gone.size());
    EXPECT_EQ(said.at("now").at("bytes"), used - report("/" + tree).used);
    const Paths names = with_first_names(named(said));
    EXPECT_EQ(names.size(), std::min<std::size_t>(gone.size(), BudgetForecast::kMostNamed));
    EXPECT_TRUE(std::includes(gone.begin(), gone.end(), names.begin(), names.end()));
    said_in_all += gone.size();
    for (const InodeId id : open) fs_->files().release(id, O_RDONLY);
    ASSERT_EQ(set(tree, "none", who), 0);
  }
  EXPECT_GT(said_in_all, static_cast<std::size_t>(rounds));
}

TEST_F(BudgetForecastTest, SaysWhyFilesStayAndWhichGoLater) {
  put_old("d/linked", kMiB, 9000);
  put_old("d/pinned", kMiB, 8000);
  put_old("d/open", kMiB, 7000);
  put_old("d/fresh", 4 * kMiB, 3000);  // large, so its turn comes before that of `old`
  put_old("d/old", kMiB, kOld);
  ASSERT_EQ(::link(at("a", "d/linked").c_str(), at("a", "outside").c_str()), 0);
  mount();
  ASSERT_TRUE(fs_->xattrs().set(id_of("d/pinned"), "user.sluice.pin", "a", 1, 0, kRoot));
  const InodeId open = id_of("d/open");
  ASSERT_TRUE(fs_->files().open(open, O_RDONLY, kOpener, std::nullopt));
  const Json one = preview("d", 7 * kMiB);
  EXPECT_EQ(one.at("used"), 8 * kMiB);
  EXPECT_EQ(one.at("now"), (Json{{"files", 1}, {"bytes", kMiB}}));
  EXPECT_EQ(one.at("later"), (Json{{"files", 0}, {"bytes", 0}}));
  EXPECT_EQ(named(one), Paths{"old"});
  EXPECT_EQ(one.at("kept").size(), 3u) << one;
  EXPECT_EQ(one.at("kept").at("linked_outside"), (Json{{"files", 1}, {"bytes", kMiB}}));
  EXPECT_EQ(one.at("kept").at("pinned"), (Json{{"files", 1}, {"bytes", kMiB}}));
  EXPECT_EQ(one.at("kept").at("fresh"), (Json{{"files", 1}, {"bytes", 4 * kMiB}}));
  EXPECT_EQ(one.at("over"), 0);
  const Json all = preview("d", kMiB);
  EXPECT_EQ(all.at("now").at("files"), 1);
  EXPECT_EQ(all.at("later"), (Json{{"files", 2}, {"bytes", 5 * kMiB}}));
  EXPECT_EQ(all.at("kept").size(), 2u) << all;
  EXPECT_EQ(all.at("over"), kMiB);
  EXPECT_EQ(all.at("first").at(0).at("path"), "old");
  EXPECT_EQ(all.at("first").at(1).at("path"), "fresh");
  EXPECT_EQ(all.at("first").at(1).at("waits"), "fresh");
  EXPECT_EQ(all.at("first").at(2).at("waits"), "in_use");
  fs_->files().release(open, O_RDONLY);
}

TEST_F(BudgetForecastTest, FilesThatAreNotNeededAreNotSaidToStay) {
  for (const char* name : {"d/1", "d/2", "d/3", "d/4"}) put_old(name, kMiB, kFresh);
  mount();
  const Json said = preview("d", 3 * kMiB);
  EXPECT_EQ(said.at("later"), (Json{{"files", 1}, {"bytes", kMiB}}));
  EXPECT_TRUE(said.at("kept").empty()) << said;
  EXPECT_EQ(said.at("over"), 0);
}

TEST_F(BudgetForecastTest, ABudgetHoldsAndEndsAtOnce) {
  for (const char* name : {"d/1", "d/2"}) put_old(name, kMiB, kFresh);
  mount();
  const auto create = [&](const char* name) {
    const auto made = fs_->files().create(id_of("d"), name, 0644, O_WRONLY, kRoot);
    if (made) fs_->files().release(made->first.id, O_WRONLY);
    return made ? 0 : made.error().code;
  };
  ASSERT_EQ(set("d", "1MiB", kRoot), 0);
  const auto reports = fs_->budgets().trees().reports();
  ASSERT_EQ(reports.size(), 1u);
  EXPECT_EQ(reports[0].path, "/d");
  EXPECT_EQ(reports[0].budget.bytes, kMiB);
  ASSERT_TRUE(test::eventually([&] { return create("full") == ENOSPC; }));
  ASSERT_EQ(set("d", "none", kRoot), 0);
  EXPECT_EQ(create("new"), 0);
  EXPECT_TRUE(fs_->budgets().trees().reports().empty());
}

TEST_F(BudgetForecastTest, OnlyWhoMaySetTheBudgetMayAskAndNothingIsSet) {
  put_old("d/f", kMiB, kOld);
  ASSERT_EQ(::chown(at("a", "d").c_str(), kUser.uid, kUser.gid), 0);
  mount();
  EXPECT_EQ(preview_text("d", "1KiB", kOther), "error: EPERM");
  EXPECT_EQ(preview("d", 1024, kUser).at("used"), kMiB);
  EXPECT_EQ(preview("d", 1024).at("now").at("files"), 1);
  EXPECT_EQ(preview_text("", "1KiB"), "error: EINVAL");
  EXPECT_EQ(preview_text("d/f", "1KiB"), "error: ENOTDIR");
  for (const char* wrong : {"", "0", "none", "x"})
    EXPECT_EQ(preview_text("d", wrong), "error: EINVAL") << wrong;
  EXPECT_EQ(xattr("d", "user.sluice.budget"), "error: ENODATA");
  EXPECT_TRUE(fs_->budgets().trees().reports().empty());
  EXPECT_TRUE(is_there("d/f"));
}

TEST_F(BudgetForecastTest, AUserLearnsNoNamesOfDirectoriesThatItCannotList) {
  put_old("d/secret/f", kMiB, kOld);
  ASSERT_EQ(::chmod(at("a", "d/secret").c_str(), 0700), 0);
  own("d", kUser);
  own("d/secret", kOther);
  own("d/secret/f", kUser);
  mount();
  EXPECT_EQ(named(preview("d", 4096, kUser)), Paths{""});
  EXPECT_EQ(named(preview("d", 4096)), Paths{"secret/f"});
  ASSERT_EQ(::chmod(at("a", "d/secret").c_str(), 0755), 0);
  EXPECT_EQ(named(preview("d", 4096, kUser)), Paths{"secret/f"});
}

TEST_F(BudgetForecastTest, KnowsTheBudgetInForceThatDeletesAsMuch) {
  put_old("d/f", kMiB, kOld);
  own("d", kUser);
  mount();
  EXPECT_TRUE(preview("d", kMiB, kUser).at("in_force").is_null());
  ASSERT_EQ(set("d", "4MiB", kUser), 0);
  EXPECT_EQ(preview("d", kMiB, kUser).at("in_force"), 4 * kMiB);
  EXPECT_TRUE(preview("d", kMiB).at("in_force").is_null());  // that of root reaches more files
  ASSERT_EQ(set("d", "3MiB"), 0);
  EXPECT_EQ(preview("d", kMiB, kUser).at("in_force"), 3 * kMiB);
}

// The keeper remembers for a while which files had to stay.
TEST_F(BudgetForecastTest, WhatMayGoAgainIsSaidAndGoes) {
  put_old("d/linked", kMiB, 9000);
  put_old("d/old", kMiB, kOld);
  put_old("d/young", kMiB, kFresh);
  ASSERT_EQ(::link(at("a", "d/linked").c_str(), at("a", "outside").c_str()), 0);
  mount();
  ASSERT_EQ(set("d", "2MiB"), 0);
  ASSERT_TRUE(eventually([&] { return !is_there("d/old"); }));
  EXPECT_TRUE(is_there("d/linked"));
  ASSERT_TRUE(unlink(kRootId, "outside"));
  const auto next = fs_->budget_forecast().next(id_of("d"), kMiB, 10);
  ASSERT_EQ(next.size(), 1u);
  EXPECT_EQ(next[0].path, "/linked");
  ASSERT_EQ(make("d", "new", 4096), 0);
  EXPECT_TRUE(eventually([&] { return !is_there("d/linked"); }));
}

}  // namespace
}  // namespace sluice
