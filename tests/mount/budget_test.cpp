// SPDX-License-Identifier: BSD-2-Clause
// Directories with a budget: who may set it, what counts, what is deleted and what never is.
#include <fcntl.h>
#include <linux/fs.h>
#include <pty.h>
#include <stdio.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <sys/xattr.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <ctime>
#include <filesystem>
#include <fstream>
#include <map>
#include <thread>
#include <vector>

#include "base/unique_fd.hpp"
#include "tests/mount/tiering.hpp"
#include "tests/support/tree.hpp"
#include "tests/support/user.hpp"

namespace sluice::test {
namespace {

class BudgetTest : public TieringTest {
 protected:
  static constexpr const char* kBudget = "user.sluice.budget";

  // A file that was last written `age` seconds ago.
  void put_old(const std::string& tier, const std::string& name, std::uint64_t bytes, int age) {
    put(tier, name, pattern(bytes, bytes + static_cast<std::uint64_t>(age)));
    make_old(on(tier, name), age);
  }
  static void make_old(const std::string& path, int age) {
    const timespec times[2] = {{::time(nullptr) - age, 0}, {::time(nullptr) - age, 0}};
    ASSERT_EQ(::utimensat(AT_FDCWD, path.c_str(), times, 0), 0);
  }
  void set(const std::string& name, const std::string& size) const {
    const CommandResult result = sluice({"budget", *this / name, size, "--yes"});
    EXPECT_EQ(result.exit_code, 0) << result.err;
  }
  Json budget(const std::string& path) const {
    for (const Json& each : budgets()) {
      if (each.at("path") == path) return each;
    }
    return Json();
  }
  Json budgets() const { return ask({"budget"}).at("budgets"); }
  // Waits until the tree was counted and holds at most its budget, which is the one set last.
  bool is_within(const std::string& path) const {
    return eventually([&] {
      const Json each = budget(path);
      return each.is_object() && each.at("known") == true && each.at("used") <= each.at("budget") &&
             xattr_of(*this / path.substr(1), kBudget) == each.at("budget").dump();
    });
  }
  bool is_counted(const std::string& path, std::uint64_t least) const {
    return eventually([&] {
      const Json each = budget(path);
      return each.is_object() && each.at("known") == true && each.at("used") >= least;
    });
  }
  Strings deleted() const {
    Strings out;
    for (const Json& each : receipts()) {
      if (each.at("result") == "deleted") out.push_back(each.at("path"));
    }
    return out;
  }
  long tiers_online() const {
    const Json tiers = ask({"status"}).at("tiers");
    return std::count_if(tiers.begin(), tiers.end(),
                         [](const Json& tier) { return tier.at("online") == true; });
  }
  int set_as(const User& user, const std::string& name, const char* value) const {
    const std::string path = *this / name;
    return std::stoi(as_user(user, [&] {
      const int done = ::setxattr(path.c_str(), kBudget, value, std::strlen(value), 0);
      return std::to_string(done == 0 ? 0 : errno);
    }));
  }
};

TEST_F(BudgetTest, FilesOfLeastValueAreDeletedEachWithAReceipt) {
  for (int i = 0; i < 8; ++i) put_old("hdd", "d/f" + std::to_string(i), kMiB, 1000 - 100 * i);
  put_old("hdd", "beside", 4 * kMiB, 5000);
  start();
  set("d", "5MiB");
  ASSERT_TRUE(is_within("/d"));
  EXPECT_TRUE(eventually([&] { return deleted().size() == 3; }));
  EXPECT_EQ(deleted(), (Strings{"/d/f2", "/d/f1", "/d/f0"}));
  EXPECT_EQ(names_in(*this / "d"), (Strings{"f3", "f4", "f5", "f6", "f7"}));
  EXPECT_EQ(tiers_with("d/f0"), "");
  EXPECT_TRUE(exists(*this / "beside"));
  const Json receipt = receipts().at(0);
  EXPECT_EQ(receipt.at("from"), "hdd");
  EXPECT_EQ(receipt.at("to"), "");
  EXPECT_NE(receipt.at("reason").get<std::string>().find("/d has a budget of 5.0 MiB"),
            std::string::npos)
      << receipt;
}

TEST_F(BudgetTest, NamesThatTheKernelHasCachedAreGone) {
  for (int i = 0; i < 4; ++i) put_old("hdd", "d/f" + std::to_string(i), kMiB, 1000 - 100 * i);
  start();
  EXPECT_EQ(names_in(*this / "d").size(), 4u);
  for (int i = 0; i < 4; ++i) EXPECT_TRUE(exists(*this / "d/f" + std::to_string(i)));
  set("d", "2MiB");
  ASSERT_TRUE(is_within("/d"));
  EXPECT_TRUE(eventually([&] { return names_in(*this / "d") == Strings{"f2", "f3"}; }));
  EXPECT_FALSE(exists(*this / "d/f0"));
  // A new file of that name is a new file.
  write_file(*this / "d/f0", "new");
  EXPECT_EQ(read_file(*this / "d/f0"), "new");
}

TEST_F(BudgetTest, OnlyTheOwnerAndRootMaySetOrRemoveIt) {
  put("hdd", "d/f", "x");
  start();
  ASSERT_EQ(::chown((*this / "d").c_str(), kAlice.uid, kAlice.gid), 0);
  ASSERT_EQ(::chmod((*this / "d").c_str(), 0777), 0);
  EXPECT_EQ(set_as(kBob, "d", "1GiB"), EPERM);
  EXPECT_EQ(set_as(kAlice, "d", "1GiB"), 0);
  EXPECT_EQ(xattr_of(*this / "d", kBudget), "1073741824");
  EXPECT_EQ(xattr_of(*this / "d/f", kBudget), "1073741824");
  const std::string path = *this / "d";
  EXPECT_EQ(as_user(kBob, [&] { return std::to_string(::removexattr(path.c_str(), kBudget)); }),
            "-1");
  EXPECT_EQ(xattr_of(*this / "d", kBudget), "1073741824");
  EXPECT_EQ(as_user(kAlice, [&] { return std::to_string(::removexattr(path.c_str(), kBudget)); }),
            "0");
  EXPECT_EQ(xattr_of(*this / "d", kBudget), std::nullopt);
}

TEST_F(BudgetTest, TheRootFilesAndWrongSizesAreRefused) {
  put("hdd", "d/f", "x");
  start();
  const User administrator{0, 0};
  EXPECT_EQ(set_as(administrator, "", "1GiB"), EINVAL);
  EXPECT_EQ(set_as(administrator, "d/f", "1GiB"), ENOTDIR);
  for (const char* wrong : {"", "0", "much", "-1"})
    EXPECT_EQ(set_as(administrator, "d", wrong), EINVAL) << wrong;
  EXPECT_EQ(::listxattr((*this / "d").c_str(), nullptr, 0), 0);
  const CommandResult result = sluice({"budget", root(), "1GiB"});
  EXPECT_EQ(result.exit_code, 1);
  EXPECT_NE(result.err.find("the root of the mount cannot have a budget"), std::string::npos);
}

TEST_F(BudgetTest, FilesOfOthersInDirectoriesOfTheirOwnStay) {
  put_old("hdd", "d/mine", kMiB, 900);
  put_old("hdd", "d/bobs/f", 4 * kMiB, 9000);
  start();
  ASSERT_EQ(::chown((*this / "d").c_str(), kAlice.uid, kAlice.gid), 0);
  ASSERT_EQ(::chown((*this / "d/mine").c_str(), kAlice.uid, kAlice.gid), 0);
  for (const char* name : {"d/bobs", "d/bobs/f"})
    ASSERT_EQ(::chown((*this / name).c_str(), kBob.uid, kBob.gid), 0);
  ASSERT_EQ(set_as(kAlice, "d", "4MiB"), 0);
  EXPECT_TRUE(eventually([&] { return !exists(*this / "d/mine"); }));
  EXPECT_TRUE(exists(*this / "d/bobs/f"));
}

TEST_F(BudgetTest, OpenFreshAndPinnedFilesStay) {
  put_old("hdd", "d/open", kMiB, 9000);
  put_old("hdd", "d/pinned", kMiB, 8000);
  put_old("hdd", "d/keep/inherits", kMiB, 7000);
  put_old("hdd", "d/old", kMiB, 100);
  start();
  ASSERT_EQ(sluice({"pin", "hdd", *this / "d"}).exit_code, 0);  // says where, not that they stay
  ASSERT_EQ(sluice({"pin", "hdd", *this / "d/pinned"}).exit_code, 0);
  ASSERT_EQ(sluice({"pin", "hdd", *this / "d/keep"}).exit_code, 0);
  write_file(*this / "d/fresh", pattern(kMiB, 1));
  const UniqueFd open(::open((*this / "d/open").c_str(), O_RDONLY | O_CLOEXEC));
  ASSERT_TRUE(open);
  set("d", "1MiB");
  EXPECT_TRUE(eventually([&] { return !exists(*this / "d/old"); }));
  EXPECT_TRUE(eventually([&] { return budget("/d").at("stuck") == true; }));
  EXPECT_EQ(deleted(), Strings{"/d/old"});
  EXPECT_EQ(names_in(*this / "d"), (Strings{"fresh", "keep", "open", "pinned"}));
  // Nothing may be deleted, so nothing new gets in.
  EXPECT_EQ(::open((*this / "d/new").c_str(), O_CREAT | O_WRONLY | O_CLOEXEC, 0644), -1);
  EXPECT_EQ(errno, ENOSPC);
}

TEST_F(BudgetTest, AnOpenFileGoesOnceItIsClosed) {
  put_old("hdd", "d/f", 2 * kMiB, 9000);
  start();
  {
    const UniqueFd open(::open((*this / "d/f").c_str(), O_RDONLY | O_CLOEXEC));
    set("d", "1MiB");
    EXPECT_TRUE(
        eventually([&] { return budget("/d").is_object() && budget("/d").at("stuck") == true; }));
    EXPECT_TRUE(exists(*this / "d/f"));
  }
  EXPECT_TRUE(is_within("/d"));
  EXPECT_EQ(deleted(), Strings{"/d/f"});
}

// A file that is mapped is in use, also after its close. Other things than files take no room.
TEST_F(BudgetTest, AMappedFileStaysUntilItIsUnmappedAndOnlyFilesAreDeleted) {
  put_old("hdd", "d/mapped", 2 * kMiB, 9000);
  put_old("hdd", "d/old", kMiB, 100);
  start();
  ASSERT_EQ(::symlink("old", (*this / "d/link").c_str()), 0);
  ASSERT_EQ(::mkfifo((*this / "d/fifo").c_str(), 0600), 0);
  UniqueFd fd(::open((*this / "d/mapped").c_str(), O_RDWR | O_CLOEXEC));
  void* const at = ::mmap(nullptr, kMiB, PROT_READ | PROT_WRITE, MAP_SHARED, fd.get(), 0);
  ASSERT_NE(at, MAP_FAILED);
  fd.reset();
  set("d", "1MiB");
  EXPECT_TRUE(eventually([&] { return !exists(*this / "d/old"); }));
  EXPECT_TRUE(eventually([&] { return budget("/d").at("stuck") == true; }));
  EXPECT_EQ(names_in(*this / "d"), (Strings{"fifo", "link", "mapped"}));
  ASSERT_EQ(::munmap(at, kMiB), 0);
  EXPECT_TRUE(is_within("/d"));
  EXPECT_EQ(names_in(*this / "d"), (Strings{"fifo", "link"}));
}

TEST_F(BudgetTest, ATwinDoesNotCountAndGoesWithItsFile) {
  put_old("hdd", "d/f", 2 * kMiB, 9000);
  start();
  move("d/f", "nvme");
  ASSERT_EQ(names_in(on("hdd", ".sluice/twins")).size(), 1u);
  set("d", "3MiB");
  ASSERT_TRUE(is_counted("/d", 2 * kMiB));
  EXPECT_LT(budget("/d").at("used"), 3 * kMiB);
  set("d", "1MiB");
  EXPECT_TRUE(is_within("/d"));
  EXPECT_EQ(tiers_with("d/f"), "");
  EXPECT_TRUE(eventually([&] { return names_in(on("hdd", ".sluice/twins")).empty(); }));
}

TEST_F(BudgetTest, FilesOfATierThatIsAwayDoNotCountUntilItReturns) {
  put_old("ssd", "d/away", 2 * kMiB, 9000);
  put_old("hdd", "d/here", kMiB, 100);
  start();
  EXPECT_TRUE(exists(*this / "d/away"));  // its directory is known to be on both tiers
  disk("ssd").vanish();
  ASSERT_TRUE(eventually([&] { return tiers_online() == 2; }));
  set("d", "2MiB");
  ASSERT_TRUE(is_counted("/d", kMiB));
  EXPECT_TRUE(exists(*this / "d/here"));
  disk("ssd").come_back();
  ASSERT_TRUE(eventually([&] { return tiers_online() == 3; }));
  EXPECT_TRUE(eventually([&] { return !exists(*this / "d/away"); }));
  EXPECT_EQ(deleted(), Strings{"/d/away"});
}

TEST_F(BudgetTest, InnerAndOuterBudgetsAreObeyed) {
  for (int i = 0; i < 4; ++i) put_old("hdd", "d/in/f" + std::to_string(i), kMiB, 400 - 10 * i);
  for (int i = 0; i < 4; ++i) put_old("hdd", "d/f" + std::to_string(i), kMiB, 900 - 10 * i);
  start();
  set("d/in", "2MiB");
  ASSERT_TRUE(is_within("/d/in"));
  EXPECT_EQ(names_in(*this / "d/in"), (Strings{"f2", "f3"}));
  set("d", "3MiB");
  ASSERT_TRUE(is_within("/d"));
  EXPECT_EQ(names_in(*this / "d"), (Strings{"f3", "in"}));
  EXPECT_EQ(names_in(*this / "d/in"), (Strings{"f2", "f3"}));
}

TEST_F(BudgetTest, HardLinksCountOnceAndALinkOutsideKeepsTheFile) {
  put_old("hdd", "d/a", 2 * kMiB, 9000);
  put_old("hdd", "d/b", 2 * kMiB, 8000);
  put_old("hdd", "d/c", 2 * kMiB, 100);
  start();
  ASSERT_EQ(::link((*this / "d/a").c_str(), (*this / "d/a2").c_str()), 0);
  ASSERT_EQ(::link((*this / "d/b").c_str(), (*this / "outside").c_str()), 0);
  set("d", "6200KiB");
  ASSERT_TRUE(is_counted("/d", 6 * kMiB));
  EXPECT_EQ(names_in(*this / "d"), (Strings{"a", "a2", "b", "c"}));
  set("d", "5MiB");
  ASSERT_TRUE(is_within("/d"));
  EXPECT_EQ(names_in(*this / "d"), (Strings{"b", "c"}));
  EXPECT_EQ(read_file(*this / "outside").size(), 2 * kMiB);
}

TEST_F(BudgetTest, GoesWithTheRenamedDirectoryAndWithWhatIsRenamedIntoIt) {
  put_old("hdd", "d/a", kMiB, 900);
  put_old("hdd", "other/b", 2 * kMiB, 9000);
  start();
  set("d", "2MiB");
  ASSERT_TRUE(is_counted("/d", kMiB));
  ASSERT_EQ(::rename((*this / "d").c_str(), (*this / "e").c_str()), 0);
  EXPECT_EQ(xattr_of(*this / "e", kBudget), "2097152");
  ASSERT_TRUE(is_counted("/e", kMiB));
  ASSERT_EQ(::rename((*this / "other").c_str(), (*this / "e/other").c_str()), 0);
  ASSERT_TRUE(eventually([&] { return !exists(*this / "e/other/b"); }));
  EXPECT_TRUE(exists(*this / "e/a"));
  EXPECT_TRUE(exists(*this / "e/other"));  // directories stay
}

TEST_F(BudgetTest, ExchangedDirectoriesAreCountedAnew) {
  put_old("hdd", "d/sub/small", kMiB, 900);
  put_old("hdd", "out/large", 8 * kMiB, 800);
  start();
  set("d", "4MiB");
  ASSERT_TRUE(is_counted("/d", kMiB));
  ASSERT_EQ(::renameat2(AT_FDCWD, (*this / "d/sub").c_str(), AT_FDCWD, (*this / "out").c_str(),
                        RENAME_EXCHANGE),
            0);
  EXPECT_TRUE(eventually([&] { return !exists(*this / "d/sub/large"); }));
  EXPECT_TRUE(exists(*this / "out/small"));
}

TEST_F(BudgetTest, SurvivesARemountTheLossOfTheDatabaseAndACrash) {
  for (int i = 0; i < 4; ++i) put_old("hdd", "d/f" + std::to_string(i), kMiB, 400 - 10 * i);
  start();
  set("d", "4200KiB");
  ASSERT_TRUE(is_counted("/d", 4 * kMiB));
  mount().umount();
  remove_tree(base_ / "state");
  put_old("hdd", "d/more", kMiB, 1000);
  mount().mount();
  EXPECT_EQ(xattr_of(*this / "d", kBudget), std::to_string(4200 << 10));
  ASSERT_TRUE(is_within("/d"));
  EXPECT_FALSE(exists(*this / "d/more"));
  mount().crash_daemon();
  set("d", "2MiB");
  EXPECT_TRUE(is_within("/d"));
  EXPECT_EQ(names_in(*this / "d"), (Strings{"f2", "f3"}));
}

TEST_F(BudgetTest, MovesDoNotChangeWhatIsCounted) {
  for (int i = 0; i < 4; ++i) put_old("hdd", "d/f" + std::to_string(i), kMiB, 400 - 10 * i);
  start();
  set("d", "5MiB");
  ASSERT_TRUE(is_counted("/d", 4 * kMiB));
  move("d/f0", "nvme");
  EXPECT_EQ(xattr_of(*this / "d", kBudget), std::to_string(5 << 20));
  set("d", "3MiB");
  ASSERT_TRUE(is_within("/d"));
  EXPECT_EQ(tiers_with("d/f0"), "");
  EXPECT_EQ(names_in(*this / "d"), (Strings{"f1", "f2", "f3"}));
}

TEST_F(BudgetTest, RuleGivesBudgetsToDirectories) {
  for (int i = 0; i < 4; ++i)
    put_old("hdd", "users/a/cache/f" + std::to_string(i), kMiB, 400 - 10 * i);
  write_file(base_ / "c.toml", "[[rule]]\nmatch = \"/users/*/cache\"\nbudget = \"2MiB\"\n");
  start({"--config", base_ / "c.toml"});
  ASSERT_TRUE(is_within("/users/a/cache"));
  EXPECT_EQ(names_in(*this / "users/a/cache"), (Strings{"f2", "f3"}));
  ASSERT_EQ(::mkdir((*this / "users/b").c_str(), 0755), 0);
  ASSERT_EQ(::mkdir((*this / "users/b/cache").c_str(), 0755), 0);
  EXPECT_TRUE(is_counted("/users/b/cache", 0));
}

// A long path costs its names once, however many directories are made and removed at its end.
TEST_F(BudgetTest, DirectoriesMadeAndRemovedTakeNoMemory) {
  constexpr int kDepth = 200, kDirectories = 1000;
  const std::string name(250, 'x');
  start();
  ASSERT_EQ(::mkdir((*this / "d").c_str(), 0755), 0);
  set("d", "1GiB");
  ASSERT_TRUE(is_counted("/d", 0));
  UniqueFd at(::open((*this / "d").c_str(), O_PATH | O_CLOEXEC));
  for (int i = 0; i < kDepth; ++i) {
    ASSERT_EQ(::mkdirat(at.get(), name.c_str(), 0755), 0);
    at.reset(::openat(at.get(), name.c_str(), O_PATH | O_CLOEXEC));
    ASSERT_TRUE(at);
  }
  const auto memory = [&] {
    std::ifstream status("/proc/" + std::to_string(mount().pid()) + "/status");
    std::string word;
    std::uint64_t kib = 0;
    while (word != "VmRSS:" && status >> word) continue;
    status >> kib;
    return kib << 10;
  };
  const std::uint64_t before = memory();
  ASSERT_GT(before, 0u);
  for (int i = 0; i < kDirectories; ++i) {
    const std::string each = "d" + std::to_string(i), file = each + "/f";
    ASSERT_EQ(::mkdirat(at.get(), each.c_str(), 0755), 0);
    const UniqueFd made(::openat(at.get(), file.c_str(), O_CREAT | O_WRONLY | O_CLOEXEC, 0644));
    ASSERT_TRUE(made);
    ASSERT_EQ(::unlinkat(at.get(), file.c_str(), 0), 0);
    ASSERT_EQ(::unlinkat(at.get(), each.c_str(), AT_REMOVEDIR), 0);
  }
  // Their paths have 50 kB each.
  EXPECT_LT(memory(), before + 32 * kMiB);
  at.reset();
}

TEST_F(BudgetTest, AUserHasALimitOnBudgets) {
  constexpr int kMost = 32;
  start();
  for (int i = 0; i <= kMost; ++i) {
    const std::string name = "d" + std::to_string(i);
    ASSERT_EQ(::mkdir((*this / name).c_str(), 0755), 0);
    ASSERT_EQ(::chown((*this / name).c_str(), kAlice.uid, kAlice.gid), 0);
    EXPECT_EQ(set_as(kAlice, name, "1GiB"), i < kMost ? 0 : EDQUOT);
  }
  const Json limits = ask({"status"}).at("limits");
  const auto shown = std::find_if(limits.begin(), limits.end(),
                                  [](const Json& each) { return each.at("what") == "budgets"; });
  ASSERT_NE(shown, limits.end());
  EXPECT_EQ(shown->at("used"), kMost);
  EXPECT_EQ(shown->at("most"), kMost);
  EXPECT_EQ(shown->at("error"), "EDQUOT");
}

// What a tree holds is sampled from the tiers all the time, while files of unequal size are written
// at full speed.
class BudgetWritersTest : public BudgetTest {
 protected:
  static constexpr std::uint64_t kLargest = 256 << 10, kLimit = 16 * kMiB;
  static constexpr int kFiles = 400;

  // Never more than there was at one moment, however slowly this runs: sizes are read first, and
  // then files that are gone are left out.
  std::uint64_t bytes_on_tiers() const {
    std::map<std::string, std::uint64_t> sizes;
    std::error_code ignored;
    struct stat st {};
    for (const char* tier : {"nvme", "ssd", "hdd"}) {
      for (const auto& each : std::filesystem::directory_iterator(on(tier, "d"), ignored)) {
        if (::stat(each.path().c_str(), &st) == 0)
          sizes[each.path()] = static_cast<std::uint64_t>(st.st_blocks) * 512;
      }
    }
    std::uint64_t sum = 0;
    for (const auto& [path, bytes] : sizes) {
      if (exists(path)) sum += bytes;
    }
    return sum;
  }
  void write_with(int writers, const Strings& options) {
    Strings all = {"--debug", "budget_rest=0s"};
    all.insert(all.end(), options.begin(), options.end());
    start(all);
    ASSERT_EQ(::mkdir((*this / "d").c_str(), 0755), 0);
    set("d", "16MiB");
    ASSERT_TRUE(is_counted("/d", 0));
    std::atomic<bool> is_done{false};
    std::uint64_t most = 0;
    std::jthread watcher([&] {
      while (!is_done) most = std::max(most, bytes_on_tiers());
    });
    {
      std::vector<std::jthread> threads;
      for (int writer = 0; writer < writers; ++writer) {
        threads.emplace_back([&, writer] {
          for (int i = writer; i < kFiles; i += writers) {
            const std::uint64_t bytes = kLargest - (i % 3) * (kLargest / 4);
            write_file(*this / "d/f" + std::to_string(i), pattern(bytes, 7));
          }
        });
      }
    }
    is_done = true;
    watcher.join();
    EXPECT_GT(most, kLimit / 2);
    // Where files can't be deleted as fast as they are written, some come in before.
    const std::uint64_t let_in = budget("/d").at("let_in");
    EXPECT_LE(most, kLimit + kLargest * (1 + let_in));
    EXPECT_TRUE(eventually([&] { return budget("/d").at("used") == bytes_on_tiers(); }))
        << budget("/d") << bytes_on_tiers();
    EXPECT_GE(deleted().size(), kFiles - 2 * kLimit / kLargest);
  }
};

TEST_F(BudgetWritersTest, OneIsHeldAtTheBudget) { write_with(1, {}); }
TEST_F(BudgetWritersTest, FourTogetherAreHeldAtTheBudget) { write_with(4, {}); }
TEST_F(BudgetWritersTest, FourAreHeldAtTheBudgetWithoutPassthrough) {
  write_with(4, {"--debug", "passthrough=off"});
}

// What a crash left half done, the successor continues.
TEST_F(BudgetTest, SuccessorKeepsTheBudgetWhenTheDaemonIsKilledAgainAndAgain) {
  start({"--debug", "budget_rest=0s,crash_limit=0"});
  ASSERT_EQ(::mkdir((*this / "d").c_str(), 0755), 0);
  set("d", "4MiB");
  const std::string content = pattern(128 << 10, 3);
  for (int round = 0; round < 5; ++round) {
    std::jthread writer([&] {
      for (int i = 0; i < 60; ++i)
        write_file(*this / "d/r" + std::to_string(round) + "." + std::to_string(i), content);
    });
    mount().crash_daemon();
    writer.join();
  }
  EXPECT_TRUE(is_within("/d"));
  stop();
  const CommandResult checked = fsck();
  EXPECT_EQ(checked.exit_code, 0) << checked.out << checked.err;
}

TEST_F(BudgetTest, ExplainAndPlanShowWhatGoesNext) {
  for (int i = 0; i < 4; ++i) put_old("hdd", "d/f" + std::to_string(i), kMiB, 4000 - 1000 * i);
  start();
  set("d", "5MiB");
  ASSERT_TRUE(is_counted("/d", 4 * kMiB));
  const Json standing = explain("d/f1").at("budgets").at(0);
  EXPECT_EQ(standing.at("directory"), "/d");
  EXPECT_EQ(standing.at("before"), kMiB);
  const Json victims = ask({"plan"}).at("victims");
  ASSERT_FALSE(victims.empty());
  EXPECT_EQ(victims.at(0).at("path"), "/d/f0");
}

TEST_F(BudgetTest, SaysWhatItDeletesAndWithoutATerminalNeedsAYes) {
  for (int i = 0; i < 14; ++i) put_old("hdd", "d/f" + std::to_string(i), kMiB, 9000 - 100 * i);
  start();
  const std::string d = *this / "d";
  const CommandResult dry = sluice({"budget", d, "2MiB", "--dry-run"});
  EXPECT_EQ(dry.exit_code, 0) << dry.err;
  for (const char* said : {"holds 14.0 MiB in 14 files", "/d/f0\n", "/d/f9\n", "... and 2 more",
                           "12 files, 12.0 MiB: within seconds"})
    EXPECT_NE(dry.out.find(said), std::string::npos) << said << " is not in\n" << dry.out;
  EXPECT_EQ(dry.out.find("/d/f10\n"), std::string::npos) << dry.out;
  const CommandResult refused = sluice({"budget", d, "2MiB"});
  EXPECT_EQ(refused.exit_code, 1) << refused.out;
  for (const char* said : {"12 files, 12.0 MiB", "--yes", "--dry-run", "nothing was set"})
    EXPECT_NE(refused.err.find(said), std::string::npos) << said << " is not in\n" << refused.err;
  EXPECT_EQ(xattr_of(d, kBudget), std::nullopt);
  // What deletes nothing needs no question.
  const CommandResult large = sluice({"budget", d, "1GiB"});
  EXPECT_EQ(large.exit_code, 0) << large.err;
  EXPECT_EQ(large.out, "");
  ASSERT_TRUE(is_counted("/d", 14 * kMiB));
  EXPECT_EQ(sluice({"budget", d, "2MiB"}).exit_code, 1);
  EXPECT_EQ(xattr_of(d, kBudget), std::to_string(1ULL << 30));
  const Json said = Json::parse(sluice({"budget", d, "12MiB", "--dry-run", "--json"}).out);
  const CommandResult done = sluice({"budget", d, "12MiB", "--yes"});
  EXPECT_EQ(done.exit_code, 0) << done.err;
  EXPECT_NE(done.out.find("2 files, 2.0 MiB: within seconds"), std::string::npos) << done.out;
  ASSERT_TRUE(is_within("/d"));
  EXPECT_TRUE(eventually([&] { return deleted() == Strings{"/d/f1", "/d/f0"}; }));
  EXPECT_EQ(said.at("now").at("files"), 2);
  EXPECT_EQ(said.at("first").at(0).at("path"), "f0");
  EXPECT_EQ(said.at("first").at(1).at("path"), "f1");
  // Nor does one that deletes no more than the one before, or none.
  EXPECT_EQ(sluice({"budget", d, "13MiB"}).exit_code, 0);
  EXPECT_EQ(sluice({"budget", d, "none"}).exit_code, 0);
  for (const Strings& wrong : {Strings{"budget", "--yes", d}, Strings{"budget", "--dry-run"},
                               Strings{"budget", "--yes", "--dry-run", d, "1MiB"}})
    EXPECT_EQ(sluice(wrong).exit_code, 2) << wrong[1];
}

// Runs `sluice` at a terminal, types this line, and returns what it says.
std::string typed(const std::vector<std::string>& arguments, const std::string& line, int& code) {
  int terminal = -1;
  const pid_t child = ::forkpty(&terminal, nullptr, nullptr, nullptr);
  if (child == 0) {
    std::vector<char*> argv{const_cast<char*>("sluice")};
    for (const auto& each : arguments) argv.push_back(const_cast<char*>(each.c_str()));
    argv.push_back(nullptr);
    ::execv(sluice_binary().c_str(), argv.data());
    ::_exit(127);
  }
  // The terminal buffers the line.
  EXPECT_EQ(::write(terminal, line.data(), line.size()), static_cast<ssize_t>(line.size()));
  std::string said;
  char piece[4096];
  for (ssize_t got; (got = ::read(terminal, piece, sizeof piece)) > 0;)
    said.append(piece, static_cast<std::size_t>(got));
  int status = 0;
  ::waitpid(child, &status, 0);
  ::close(terminal);
  code = WIFEXITED(status) ? WEXITSTATUS(status) : -1;
  return said;
}

TEST_F(BudgetTest, AtATerminalItAsks) {
  for (int i = 0; i < 3; ++i) put_old("hdd", "d/f" + std::to_string(i), kMiB, 9000 - 100 * i);
  start();
  const std::string d = *this / "d";
  int code = -1;
  for (const char* no : {"\n", "n\n", "what\n"}) {
    const std::string said = typed({"budget", d, "2MiB"}, no, code);
    EXPECT_EQ(code, 1) << said;
    EXPECT_NE(said.find("/d/f0"), std::string::npos) << said;
    EXPECT_NE(said.find("[y/N]"), std::string::npos) << said;
    EXPECT_EQ(xattr_of(d, kBudget), std::nullopt);
  }
  const std::string said = typed({"budget", d, "2MiB"}, "y\n", code);
  EXPECT_EQ(code, 0) << said;
  EXPECT_TRUE(is_within("/d"));
  EXPECT_TRUE(eventually([&] { return deleted() == Strings{"/d/f0"}; }));
}

// Plan and explain obey what the deletion obeys.
TEST_F(BudgetTest, WhatIsProtectedIsNeitherPlannedNorDeleted) {
  put_old("hdd", "d/linked", kMiB, 9000);
  put_old("ssd", "d/pinned", kMiB, 8000);
  put_old("hdd", "d/open", kMiB, 7000);
  put_old("nvme", "d/f1", kMiB, 500);
  put_old("hdd", "d/f2", kMiB, 400);
  start();
  ASSERT_EQ(::link((*this / "d/linked").c_str(), (*this / "outside").c_str()), 0);
  ASSERT_EQ(sluice({"pin", "ssd", *this / "d/pinned"}).exit_code, 0);
  const UniqueFd open(::open((*this / "d/open").c_str(), O_RDONLY | O_CLOEXEC));
  ASSERT_TRUE(open);
  set("d", "5200KiB");
  ASSERT_TRUE(is_counted("/d", 5 * kMiB));
  Strings planned;
  const Json plan = ask({"plan"});
  for (const Json& each : plan.at("victims")) planned.push_back(each.at("path"));
  EXPECT_EQ(planned, Strings{"/d/f1"});
  const auto kept = [&](const std::string& name) {
    return explain(name).at("budgets").at(0).at("kept");
  };
  EXPECT_EQ(kept("d/linked"), "linked_outside");
  EXPECT_EQ(kept("d/pinned"), "pinned");
  EXPECT_EQ(kept("d/open"), "in_use");
  EXPECT_TRUE(kept("d/f1").is_null());
  EXPECT_EQ(explain("d/f1").at("budgets").at(0).at("before"), 0);
  EXPECT_EQ(explain("d/f2").at("budgets").at(0).at("before"), kMiB);
  const CommandResult text = sluice({"explain", *this / "d/linked"});
  EXPECT_NE(text.out.find("is not deleted (a hard link outside the directory)"), std::string::npos)
      << text.out;
  set("d", "4500KiB");
  ASSERT_TRUE(is_within("/d"));
  EXPECT_TRUE(eventually([&] { return deleted() == Strings{"/d/f1"}; }));
}

}  // namespace
}  // namespace sluice::test
