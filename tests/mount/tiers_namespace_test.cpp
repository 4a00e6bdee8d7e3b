// SPDX-License-Identifier: BSD-2-Clause
// One namespace out of several: merging, adopting, and operations that touch more than one tier.
#include <dirent.h>
#include <fcntl.h>
#include <sys/xattr.h>
#include <unistd.h>

#include <map>
#include <memory>
#include <set>

#include "base/unique_fd.hpp"
#include "tests/mount/tiers.hpp"
#include "tests/support/command.hpp"
#include "tests/support/files.hpp"
#include "tests/support/tree.hpp"
#include "tests/support/user.hpp"

namespace sluice::test {
namespace {

using Names = std::vector<std::string>;

class TierNamespaceTest : public TiersTest {
 protected:
  // The errno of a rename of two names of the mount; 0 if it succeeded.
  int rename(const std::string& from, const std::string& to, unsigned flags = 0) {
    const int result =
        ::renameat2(AT_FDCWD, (*this / from).c_str(), AT_FDCWD, (*this / to).c_str(), flags);
    return result < 0 ? errno : 0;
  }

  // One directory with a file on each tier.
  void put_everywhere(const std::string& directory) {
    for (const char* tier : {"nvme", "ssd", "hdd"}) {
      put(tier, directory + "/on-" + tier, tier);
    }
  }
  void expect_everything_in(const std::string& directory) {
    EXPECT_EQ(names_in(*this / directory), (Names{"on-hdd", "on-nvme", "on-ssd"}));
    for (const char* tier : {"nvme", "ssd", "hdd"}) {
      EXPECT_EQ(read_file(*this / (directory + "/on-" + tier)), tier);
    }
    EXPECT_EQ(tiers_with(directory), "nvme ssd hdd");
  }
};

TEST_F(TierNamespaceTest, DirectoryOnSeveralTiersIsOneDirectory) {
  put_everywhere("d");
  put("nvme", "d/sub/a", "a");
  put("hdd", "d/sub/b", "b");
  put_dir("ssd", "d/other");
  start();
  EXPECT_EQ(names_in(*this / ""), Names{"d"});
  EXPECT_EQ(names_in(*this / "d"), (Names{"on-hdd", "on-nvme", "on-ssd", "other", "sub"}));
  EXPECT_EQ(names_in(*this / "d/sub"), (Names{"a", "b"}));
  // 2 plus the number of subdirectories; or 1, which means "not counted" to find(1) and others.
  const nlink_t links = lstat_of(*this / "d").st_nlink;
  EXPECT_TRUE(links == 4 || links == 1) << links;
}

TEST_F(TierNamespaceTest, EntriesHaveTheInodeNumbersOfStat) {
  put_everywhere("d");
  put_everywhere("d/sub");
  start();
  const std::unique_ptr<DIR, int (*)(DIR*)> stream(::opendir((*this / "d").c_str()), ::closedir);
  std::set<ino_t> inodes;
  while (const dirent* entry = ::readdir(stream.get())) {
    const std::string name = entry->d_name;
    if (name == "..") continue;
    EXPECT_EQ(entry->d_ino, lstat_of(*this / ("d/" + name)).st_ino) << name;
    EXPECT_TRUE(inodes.insert(entry->d_ino).second) << name << " shares its inode number";
  }
}

TEST_F(TierNamespaceTest, FilesOfDifferentTiersNeverShareAnInodeNumber) {
  // New filesystems of the same type give their first files the same numbers.
  for (int i = 0; i < 50; ++i) {
    put("nvme", "a" + std::to_string(i), "a");
    put("hdd", "b" + std::to_string(i), "b");
  }
  start();
  std::map<ino_t, std::string> owners;
  for (const std::string& name : names_in(*this / "")) {
    const auto [other, fresh] = owners.emplace(lstat_of(*this / name).st_ino, name);
    EXPECT_TRUE(fresh) << name << " and " << other->second;
  }
  EXPECT_EQ(owners.size(), 100u);
}

TEST_F(TierNamespaceTest, ExistingTreeIsAdoptedUnchanged) {
  put("ssd", "tree/a/f", pattern(100'000, 1));
  put("ssd", "tree/b/g", "g");
  ::chmod(on("ssd", "tree/a/f").c_str(), 04711);
  ::chown(on("ssd", "tree/b").c_str(), 12, 34);
  ::link(on("ssd", "tree/a/f").c_str(), on("ssd", "tree/b/linked").c_str());
  ::symlink("../a/f", on("ssd", "tree/b/s").c_str());
  ::mkfifo(on("ssd", "tree/fifo").c_str(), 0600);
  ::setxattr(on("ssd", "tree/b/g").c_str(), "user.k", "v", 1, 0);
  const DigestOptions options{.times = true};
  const auto before = digest(on("ssd", "tree"), options);
  start();
  EXPECT_EQ(difference(before, digest(*this / "tree", options)), "");
  EXPECT_EQ(difference(before, digest(on("ssd", "tree"), options)), "") << "on the tier itself";
  EXPECT_EQ(tiers_with("tree"), "ssd");
}

TEST_F(TierNamespaceTest, TheMarkerIsHidden) {
  start();
  EXPECT_TRUE(names_in(*this / "").empty());
  EXPECT_FALSE(exists(*this / ".sluice"));
  EXPECT_TRUE(exists(on("nvme", ".sluice")));
  EXPECT_LT(::mkdir((*this / ".sluice").c_str(), 0755), 0);
  EXPECT_LT(::open((*this / ".sluice").c_str(), O_CREAT | O_WRONLY, 0644), 0);
  write_file(*this / "f", "x");
  EXPECT_NE(rename("f", ".sluice"), 0);
  EXPECT_NE(rename(".sluice", "g"), 0);
  EXPECT_LT(::rmdir((*this / ".sluice").c_str()), 0);
}

TEST_F(TierNamespaceTest, FileOnTheFasterTierHidesOneWithTheSamePath) {
  put("ssd", "d/f", "fast");
  put("hdd", "d/f", "slow");
  start();
  EXPECT_EQ(names_in(*this / "d"), Names{"f"});
  EXPECT_EQ(read_file(*this / "d/f"), "fast");
  EXPECT_EQ(tier_of("d/f"), "ssd");
  write_file(*this / "d/f", "changed");
  EXPECT_EQ(read_file(on("hdd", "d/f")), "slow");
  mount().umount();
  const CommandResult report = fsck();
  EXPECT_NE((report.out + report.err).find("d/f"), std::string::npos)
      << "fsck: exit " << report.exit_code << "\n"
      << report.out << report.err;
  EXPECT_EQ(read_file(on("hdd", "d/f")), "slow");
}

TEST_F(TierNamespaceTest, FileHidesADirectoryOfTheSamePathOnASlowerTier) {
  put("nvme", "x", "file");
  put("hdd", "x/inside", "hidden");
  start();
  EXPECT_EQ(read_file(*this / "x"), "file");
  EXPECT_EQ(names_in(*this / ""), Names{"x"});
  EXPECT_EQ(read_file(on("hdd", "x/inside")), "hidden");
}

TEST_F(TierNamespaceTest, FsckOfAnOrdinaryPoolIsClean) {
  put_everywhere("d");
  start();
  write_file(*this / "f", "x");
  mount().umount();
  const CommandResult report = fsck();
  EXPECT_EQ(report.exit_code, 0) << report.out << report.err;
}

TEST_F(TierNamespaceTest, CreateFailsIfASlowerTierHasTheName) {
  put("hdd", "file", "x");
  put("hdd", "dir/f", "x");
  put("hdd", "full/f", "x");
  put("nvme", "other", "y");
  start();
  EXPECT_LT(::open((*this / "file").c_str(), O_CREAT | O_EXCL | O_WRONLY, 0644), 0);
  EXPECT_EQ(errno, EEXIST);
  EXPECT_LT(::mkdir((*this / "dir").c_str(), 0755), 0);
  EXPECT_EQ(errno, EEXIST);
  EXPECT_LT(::symlink("x", (*this / "file").c_str()), 0);
  EXPECT_EQ(errno, EEXIST);
  EXPECT_LT(::link((*this / "other").c_str(), (*this / "file").c_str()), 0);
  EXPECT_EQ(errno, EEXIST);
  EXPECT_LT(::mkfifo((*this / "file").c_str(), 0600), 0);
  EXPECT_EQ(errno, EEXIST);
  EXPECT_EQ(rename("other", "file", RENAME_NOREPLACE), EEXIST);
  EXPECT_EQ(rename("other", "dir"), EISDIR);
  ASSERT_EQ(::mkdir((*this / "empty").c_str(), 0755), 0);
  EXPECT_EQ(rename("empty", "full"), ENOTEMPTY);
  EXPECT_EQ(rename("empty", "file"), ENOTDIR);
}

TEST_F(TierNamespaceTest, RenameReplacesAFileOnAnotherTier) {
  put("nvme", "a", "from nvme");
  put("hdd", "b", "on hdd");
  put("hdd", "c", "from hdd");
  put("nvme", "d", "on nvme");
  start();
  UniqueFd old(::open((*this / "b").c_str(), O_RDONLY | O_CLOEXEC));
  EXPECT_EQ(rename("a", "b"), 0);
  EXPECT_EQ(rename("c", "d"), 0);
  char first = 0;
  EXPECT_EQ(::pread(old.get(), &first, 1, 0), 1) << "the replaced file is still readable";
  EXPECT_EQ(first, 'o');
  old.reset();
  for (int round = 0; round < 2; ++round) {
    EXPECT_EQ(names_in(*this / ""), (Names{"b", "d"}));
    EXPECT_EQ(read_file(*this / "b"), "from nvme");
    EXPECT_EQ(read_file(*this / "d"), "from hdd");
    EXPECT_EQ(tiers_with("b"), "nvme");
    EXPECT_EQ(tiers_with("d"), "hdd");
    EXPECT_EQ(tiers_with("a") + tiers_with("c"), "");
    if (round == 0) mount().remount();
  }
}

TEST_F(TierNamespaceTest, RenameIntoADirectoryThatTheTierLacksCreatesIt) {
  put("hdd", "a/f", "slow");
  put_dir("nvme", "b/c");
  ::chmod(on("nvme", "b").c_str(), 0711);
  start();
  EXPECT_EQ(rename("a/f", "b/c/f"), 0);
  EXPECT_EQ(read_file(*this / "b/c/f"), "slow");
  EXPECT_EQ(tiers_with("b/c/f"), "hdd");
  EXPECT_EQ(lstat_of(on("hdd", "b")).st_mode & 07777, 0711u);
  EXPECT_TRUE(names_in(*this / "a").empty());
}

TEST_F(TierNamespaceTest, DirectoryIsRenamedOnEveryTier) {
  put_everywhere("d");
  put_everywhere("d/sub");
  start();
  const ino_t inode = lstat_of(*this / "d").st_ino;
  const ino_t file = lstat_of(*this / "d/sub/on-hdd").st_ino;
  ASSERT_EQ(::mkdir((*this / "to").c_str(), 0755), 0);
  ASSERT_EQ(rename("d", "to/e"), 0);
  for (int round = 0; round < 2; ++round) {
    EXPECT_EQ(names_in(*this / ""), Names{"to"});
    EXPECT_EQ(tiers_with("d"), "");
    EXPECT_EQ(tiers_with("to/e"), "nvme ssd hdd");
    EXPECT_EQ(names_in(*this / "to/e"), (Names{"on-hdd", "on-nvme", "on-ssd", "sub"}));
    expect_everything_in("to/e/sub");
    EXPECT_EQ(lstat_of(*this / "to/e").st_ino, inode);
    EXPECT_EQ(lstat_of(*this / "to/e/sub/on-hdd").st_ino, file);
    if (round == 0) mount().remount();
  }
}

TEST_F(TierNamespaceTest, DirectoryReplacesAnEmptyOneOfOtherTiers) {
  put_everywhere("d");
  put_dir("hdd", "empty");
  put_dir("nvme", "empty");
  put("hdd", "full/f", "x");
  put_dir("nvme", "full");
  start();
  EXPECT_EQ(rename("d", "full"), ENOTEMPTY);
  expect_everything_in("d");
  EXPECT_EQ(rename("d", "empty"), 0);
  expect_everything_in("empty");
  EXPECT_EQ(tiers_with("d"), "");
}

TEST_F(TierNamespaceTest, NewFilesAppearInARenamedDirectory) {
  put_everywhere("d");
  start();
  EXPECT_EQ(names_in(*this / "d").size(), 3u);
  ASSERT_EQ(rename("d", "e"), 0);
  write_file(*this / "e/new", "x");
  EXPECT_EQ(names_in(*this / "e").size(), 4u);
  ASSERT_EQ(::mkdir((*this / "d").c_str(), 0755), 0);
  EXPECT_TRUE(names_in(*this / "d").empty());
}

TEST_F(TierNamespaceTest, FilesOfTwoTiersAreExchanged) {
  put("nvme", "a/f", "fast");
  put("hdd", "b/g", "slow");
  start();
  ASSERT_EQ(rename("a/f", "b/g", RENAME_EXCHANGE), 0);
  for (int round = 0; round < 2; ++round) {
    EXPECT_EQ(read_file(*this / "a/f"), "slow");
    EXPECT_EQ(read_file(*this / "b/g"), "fast");
    EXPECT_EQ(tiers_with("a/f"), "hdd");
    EXPECT_EQ(tiers_with("b/g"), "nvme");
    if (round == 0) mount().remount();
  }
}

TEST_F(TierNamespaceTest, DirectoriesAndFilesOfSeveralTiersAreExchanged) {
  put_everywhere("d");
  put("ssd", "e/x", "x");
  put("hdd", "f", "file");
  start();
  ASSERT_EQ(rename("d", "e", RENAME_EXCHANGE), 0);
  expect_everything_in("e");
  EXPECT_EQ(names_in(*this / "d"), Names{"x"});
  ASSERT_EQ(rename("e", "f", RENAME_EXCHANGE), 0);
  expect_everything_in("f");
  EXPECT_EQ(read_file(*this / "e"), "file");
  mount().remount();
  expect_everything_in("f");
  EXPECT_EQ(read_file(*this / "e"), "file");
  EXPECT_EQ(read_file(*this / "d/x"), "x");
}

TEST_F(TierNamespaceTest, RmdirNeedsTheDirectoryEmptyOnEveryTierAndRemovesAllCopies) {
  put_dir("nvme", "d");
  put("ssd", "d/f", "x");
  put_dir("hdd", "d");
  start();
  EXPECT_LT(::rmdir((*this / "d").c_str()), 0);
  EXPECT_EQ(errno, ENOTEMPTY);
  EXPECT_EQ(tiers_with("d"), "nvme ssd hdd");
  ASSERT_EQ(::unlink((*this / "d/f").c_str()), 0);
  EXPECT_EQ(::rmdir((*this / "d").c_str()), 0);
  EXPECT_EQ(tiers_with("d"), "");
  EXPECT_TRUE(names_in(*this / "").empty());
}

TEST_F(TierNamespaceTest, ChangesOfADirectoryReachEveryCopy) {
  put_everywhere("d");
  start();
  const std::string d = *this / "d";
  ASSERT_EQ(::chmod(d.c_str(), 02770), 0);
  ASSERT_EQ(::chown(d.c_str(), 12, 34), 0);
  ASSERT_EQ(::chmod(d.c_str(), 03771), 0);
  ASSERT_EQ(::setxattr(d.c_str(), "user.k", "v", 1, 0), 0);
  ASSERT_EQ(::setxattr(d.c_str(), "user.gone", "v", 1, 0), 0);
  ASSERT_EQ(::removexattr(d.c_str(), "user.gone"), 0);
  const std::vector<timespec> times{{111, 222}, {333, 444}};
  ASSERT_EQ(::utimensat(AT_FDCWD, d.c_str(), times.data(), 0), 0);
  const CommandResult acl = run_command({"setfacl", "-m", "u:77:rx,d:u:78:rwx", d});
  ASSERT_EQ(acl.exit_code, 0) << acl.err;
  for (const char* tier : {"nvme", "ssd", "hdd"}) {
    const struct stat st = lstat_of(on(tier, "d"));
    EXPECT_EQ(st.st_mode, lstat_of(d).st_mode) << tier;
    EXPECT_EQ(st.st_uid, 12u) << tier;
    EXPECT_EQ(st.st_gid, 34u) << tier;
    EXPECT_EQ(st.st_mtim.tv_sec, 333) << tier;
    EXPECT_EQ(st.st_mtim.tv_nsec, 444) << tier;
    EXPECT_EQ(xattr_of(on(tier, "d"), "user.k"), "v") << tier;
    EXPECT_EQ(xattr_of(on(tier, "d"), "user.gone"), std::nullopt) << tier;
    EXPECT_EQ(xattr_of(on(tier, "d"), "system.posix_acl_access"),
              xattr_of(d, "system.posix_acl_access"))
        << tier;
    EXPECT_EQ(xattr_of(on(tier, "d"), "system.posix_acl_default"),
              xattr_of(d, "system.posix_acl_default"))
        << tier;
  }
  EXPECT_NE(xattr_of(d, "system.posix_acl_default"), std::nullopt);
}

TEST_F(TierNamespaceTest, RevokedAclStaysRevoked) {
  put("ssd", "salaries", "secret");
  start({"--no-migrate"});
  const std::string path = *this / "salaries";
  const auto read_as_nobody = [&] {
    return as_user(kNobody, [&]() -> std::string {
      const UniqueFd fd(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
      return fd ? "read" : errno_name(errno);
    });
  };
  const auto move = [&](const std::string& tier) {
    return sluice({"move", "--wait", "--to", tier, path}).exit_code;
  };
  ASSERT_EQ(::chmod(path.c_str(), 0640), 0);
  ASSERT_TRUE(run_command({"setfacl", "-m", "u:65534:r", path}).ok());
  EXPECT_EQ(read_as_nobody(), "read");
  ASSERT_EQ(move("hdd"), 0);
  EXPECT_EQ(read_as_nobody(), "read");
  ASSERT_TRUE(run_command({"setfacl", "-b", path}).ok());
  EXPECT_EQ(read_as_nobody(), "EACCES");
  ASSERT_EQ(move("ssd"), 0);
  EXPECT_EQ(read_as_nobody(), "EACCES");
  mount().remount();
  EXPECT_EQ(read_as_nobody(), "EACCES");
  EXPECT_EQ(xattr_of(on("ssd", "salaries"), "system.posix_acl_access"), std::nullopt);
}

TEST_F(TierNamespaceTest, HardLinkIsCreatedOnTheTierOfItsFile) {
  put("hdd", "a/f", "slow");
  put_dir("nvme", "b");
  ::chmod(on("nvme", "b").c_str(), 0711);
  start();
  ASSERT_EQ(::link((*this / "a/f").c_str(), (*this / "b/g").c_str()), 0) << errno_name(errno);
  EXPECT_EQ(tiers_with("b/g"), "hdd");
  EXPECT_EQ(lstat_of(on("hdd", "b")).st_mode & 07777, 0711u);
  EXPECT_EQ(lstat_of(*this / "a/f").st_ino, lstat_of(*this / "b/g").st_ino);
  EXPECT_EQ(lstat_of(*this / "a/f").st_nlink, 2u);
  mount().remount();
  EXPECT_EQ(lstat_of(*this / "a/f").st_ino, lstat_of(*this / "b/g").st_ino);
  ASSERT_EQ(::unlink((*this / "a/f").c_str()), 0);
  EXPECT_EQ(read_file(*this / "b/g"), "slow");
}

TEST_F(TierNamespaceTest, InodeNumbersSurviveARemount) {
  put_everywhere("d");
  start();
  write_file(*this / "new", "x");
  ASSERT_EQ(::mkdir((*this / "newdir").c_str(), 0755), 0);
  ASSERT_EQ(::symlink("x", (*this / "newlink").c_str()), 0);
  std::map<std::string, ino_t> before;
  for (const char* name :
       {"", "d", "d/on-nvme", "d/on-ssd", "d/on-hdd", "new", "newdir", "newlink"}) {
    before[name] = lstat_of(*this / name).st_ino;
  }
  mount().remount();
  for (const auto& [name, inode] : before) EXPECT_EQ(lstat_of(*this / name).st_ino, inode) << name;
}

TEST_F(TierNamespaceTest, ToolsCopyATreeOfSeveralTiersCompletely) {
  put_everywhere("d");
  put_everywhere("d/sub");
  put("ssd", "d/big", pattern(3 << 20, 5));
  start();
  // A directory on several tiers need not count its links.
  const DigestOptions options{.times = true, .directory_links = false};
  const std::string copy = base_.make_dir("copy");
  ASSERT_TRUE(run_command({"cp", "-a", *this / "d", copy}).ok());
  EXPECT_EQ(difference(digest(*this / "d", options), digest(copy + "/d", options)), "");
  ASSERT_TRUE(run_command({"cp", "-a", copy + "/d", *this / "back"}).ok());
  EXPECT_EQ(difference(digest(copy + "/d", options), digest(*this / "back", options)), "");
  ASSERT_TRUE(run_command({"rm", "-rf", *this / "d"}).ok());
  EXPECT_EQ(tiers_with("d"), "");
}

}  // namespace
}  // namespace sluice::test
