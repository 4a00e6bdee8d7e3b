// SPDX-License-Identifier: BSD-2-Clause
// Tiers that are missing, return, or belong to another pool; and a lost state directory.
#include <dirent.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "tests/mount/tiers.hpp"
#include "tests/support/files.hpp"
#include "tests/support/tree.hpp"
#include "tests/support/wait.hpp"

namespace sluice::test {
namespace {

using Names = std::vector<std::string>;

class MissingTierTest : public TiersTest {
 protected:
  void SetUp() override {
    TiersTest::SetUp();
    if (IsSkipped() || HasFailure()) return;
    put("nvme", "d/fast", "fast");
    put("ssd", "d/middle", "middle");
    put("hdd", "d/slow", "slow");
  }

  bool online(const std::string& tier) {
    const nlohmann::json status = mount().status();
    for (const nlohmann::json& each : status.at("tiers")) {
      if (each.at("name") == tier) return each.at("online").get<bool>();
    }
    ADD_FAILURE() << "status does not know " << tier << ": " << status;
    return false;
  }

  // The errno of opening and reading a file of the mount; 0 if it succeeded.
  int read_errno(const std::string& name) {
    const UniqueFd fd(::open((*this / name).c_str(), O_RDONLY | O_CLOEXEC));
    char byte = 0;
    return fd && ::pread(fd.get(), &byte, 1, 0) >= 0 ? 0 : errno;
  }

  // Lists a directory and returns the errno at its end; 0 for a complete listing.
  static int list_until_error(const std::string& path, Names& names) {
    DIR* dir = ::opendir(path.c_str());
    if (dir == nullptr) return errno;
    errno = 0;
    while (const dirent* entry = ::readdir(dir)) names.emplace_back(entry->d_name);
    const int code = errno;
    ::closedir(dir);
    return code;
  }

  CommandResult try_to_mount(std::vector<std::string> flags = {}) {
    Pool wanted = pool();
    wanted.flags = std::move(flags);
    std::vector<std::string> arguments = wanted.mount_arguments();
    arguments.insert(arguments.begin(), "mount");
    return sluice(arguments);
  }
};

TEST_F(MissingTierTest, PresentTiersAreOnline) {
  start();
  for (const char* tier : {"nvme", "ssd", "hdd"}) EXPECT_TRUE(online(tier)) << tier;
}

TEST_F(MissingTierTest, MissingTierAffectsOnlyItsOwnFiles) {
  start();
  EXPECT_EQ(read_file(*this / "d/middle"), "middle");
  disk("ssd").vanish();
  ASSERT_TRUE(eventually([&] { return !online("ssd"); })) << "status still says it is online";
  EXPECT_EQ(read_errno("d/middle"), EIO);
  EXPECT_EQ(read_errno("d/fast"), 0);
  EXPECT_EQ(read_errno("d/slow"), 0);
  // The other entries are listed, then an error keeps `rsync --delete` from deleting the missing
  // ones at its destination.
  Names names;
  EXPECT_EQ(list_until_error(*this / "d", names), EIO);
  EXPECT_TRUE(std::ranges::count(names, "fast") == 1 && std::ranges::count(names, "slow") == 1);
  write_file(*this / "d/new", "new");
  EXPECT_EQ(tiers_with("d/new"), "nvme");
  EXPECT_EQ(::mkdir((*this / "newdir").c_str(), 0755), 0) << errno_name(errno);
  EXPECT_EQ(::unlink((*this / "d/slow").c_str()), 0) << errno_name(errno);
  EXPECT_TRUE(online("nvme"));
  EXPECT_TRUE(names_in(on("ssd", "")).empty()) << "nothing is made on the bare mount point";
}

TEST_F(MissingTierTest, ReaderOfAFileOnAMissingTierDoesNotHang) {
  start();
  const UniqueFd fd(::open((*this / "d/middle").c_str(), O_RDWR | O_CLOEXEC));
  disk("ssd").vanish();
  ASSERT_TRUE(eventually([&] { return !online("ssd"); }));
  char byte = 0;
  const ssize_t got = ::pread(fd.get(), &byte, 1, 0);
  EXPECT_TRUE(got == 1 || errno == EIO) << errno_name(errno);
}

TEST_F(MissingTierTest, ReturnedTierIsServedAgain) {
  start();
  const ino_t inode = lstat_of(*this / "d/middle").st_ino;
  disk("ssd").vanish();
  ASSERT_TRUE(eventually([&] { return !online("ssd"); }));
  disk("ssd").come_back();
  ASSERT_TRUE(eventually([&] { return online("ssd"); }));
  EXPECT_TRUE(eventually([&] { return read_errno("d/middle") == 0; }));
  EXPECT_EQ(read_file(*this / "d/middle"), "middle");
  EXPECT_EQ(lstat_of(*this / "d/middle").st_ino, inode);
  EXPECT_EQ(names_in(*this / "d"), (Names{"fast", "middle", "slow"}));
}

TEST_F(MissingTierTest, DirectoriesOfAMissingTierCannotBeRemovedOrRenamed) {
  start();
  disk("ssd").vanish();
  ASSERT_TRUE(eventually([&] { return !online("ssd"); }));
  ASSERT_EQ(::unlink((*this / "d/fast").c_str()), 0);
  ASSERT_EQ(::unlink((*this / "d/slow").c_str()), 0);
  // "middle" may still be in it; that is unknown.
  EXPECT_LT(::rmdir((*this / "d").c_str()), 0);
  EXPECT_LT(::rename((*this / "d").c_str(), (*this / "moved").c_str()), 0);
  disk("ssd").come_back();
  ASSERT_TRUE(eventually([&] { return online("ssd"); }));
  EXPECT_TRUE(eventually([&] { return read_errno("d/middle") == 0; }));
}

TEST_F(MissingTierTest, UnmountWorksWithoutTheTier) {
  start();
  disk("hdd").vanish();
  ASSERT_TRUE(eventually([&] { return !online("hdd"); }));
  EXPECT_NO_THROW(mount().umount());
}

TEST_F(MissingTierTest, MountIsRefusedAndTheEmptyMountPointIsNotAdopted) {
  start();
  mount().umount();
  disk("ssd").vanish();
  const CommandResult result = try_to_mount();
  EXPECT_EQ(result.exit_code, 1);
  EXPECT_NE(result.err.find("ssd"), std::string::npos) << result.err;
  EXPECT_TRUE(names_in(on("ssd", "")).empty());
  disk("ssd").come_back();
  mount().mount();
  EXPECT_EQ(names_in(*this / "d"), (Names{"fast", "middle", "slow"}));
}

TEST_F(MissingTierTest, DegradedMountServesTheOtherTiers) {
  start();
  mount().umount();
  disk("ssd").vanish();
  start({"--degraded"});
  EXPECT_FALSE(online("ssd"));
  EXPECT_EQ(read_errno("d/fast"), 0);
  EXPECT_EQ(read_errno("d/slow"), 0);
  EXPECT_EQ(read_errno("d/middle"), ENOENT);
  write_file(*this / "d/new", "new");
  EXPECT_TRUE(names_in(on("ssd", "")).empty());
  mount().umount();
  disk("ssd").come_back();
  start();
  EXPECT_EQ(names_in(*this / "d"), (Names{"fast", "middle", "new", "slow"}));
  EXPECT_EQ(read_file(*this / "d/middle"), "middle");
}

TEST_F(MissingTierTest, TierOfAnotherPoolIsRefused) {
  start();
  mount().umount();
  const Pool other{{"a=" + base_.make_dir("a"), "b=" + on("ssd", "")},
                   base_ / "other-state",
                   base_.make_dir("other")};
  std::vector<std::string> arguments = other.mount_arguments();
  arguments.insert(arguments.begin(), "mount");
  const CommandResult result = sluice(arguments);
  EXPECT_EQ(result.exit_code, 1);
  EXPECT_NE(result.err.find(disk("ssd").path()), std::string::npos) << result.err;
  if (result.ok()) sluice({"umount", other.mountpoint});
}

TEST_F(MissingTierTest, WithoutItsStateDirectoryOnlyHeatIsLost) {
  start();
  read_file(*this / "d/slow");
  const auto before = digest(*this / "", {.times = true});
  const ino_t inode = lstat_of(*this / "d/slow").st_ino;
  mount().umount();
  std::filesystem::remove_all(base_ / "state");
  mount().mount();
  EXPECT_EQ(difference(before, digest(*this / "", {.times = true})), "");
  EXPECT_EQ(lstat_of(*this / "d/slow").st_ino, inode);
}

TEST_F(MissingTierTest, GarbageInTheDatabaseDoesNotStopTheMount) {
  start();
  write_file(*this / "f", "x");
  const auto before = digest(*this / "");
  mount().umount();
  int damaged = 0;
  for (const auto& file : std::filesystem::recursive_directory_iterator(base_ / "state")) {
    if (!file.is_regular_file() || file.path().extension() == ".log") continue;
    std::ofstream(file.path(), std::ios::binary) << pattern(777, 1);
    ++damaged;
  }
  EXPECT_GT(damaged, 0);
  ASSERT_NO_THROW(mount().mount());
  EXPECT_EQ(difference(before, digest(*this / "")), "");
  write_file(*this / "g", "y");
  mount().remount();
  EXPECT_EQ(read_file(*this / "g"), "y");
}

TEST_F(MissingTierTest, TruncatedDatabaseDoesNotStopTheMount) {
  start();
  mount().umount();
  for (const auto& file : std::filesystem::recursive_directory_iterator(base_ / "state")) {
    if (file.is_regular_file()) std::filesystem::resize_file(file.path(), file.file_size() / 2);
  }
  ASSERT_NO_THROW(mount().mount());
  EXPECT_EQ(read_file(*this / "d/slow"), "slow");
}

TEST_F(MissingTierTest, TierThatWasGivenUpIsNotRequired) {
  start();
  const auto drain = [&] { return sluice({"tier", "drain", "ssd", "--lost", base_ / "mnt"}); };
  CommandResult result = drain();
  EXPECT_EQ(result.exit_code, 1);
  EXPECT_NE(result.err.find("ssd is not lost"), std::string::npos) << result.err;
  disk("ssd").vanish();
  ASSERT_TRUE(eventually([&] { return !online("ssd"); }));
  result = drain();
  EXPECT_EQ(result.exit_code, 0) << result.err;
  EXPECT_NE(result.out.find("name = \"ssd\"\npath = \"" + base_ / "ssd" + "\"\n"),
            std::string::npos)
      << result.out;
  mount().umount();

  const Mount without(
      Pool{{"nvme=" + base_ / "nvme", "hdd=" + base_ / "hdd"}, base_ / "state", base_ / "mnt", {}});
  EXPECT_EQ(read_file(*this / "d/fast"), "fast");
  EXPECT_EQ(read_file(*this / "d/slow"), "slow");
  Names names;
  EXPECT_EQ(list_until_error(*this / "d", names), 0) << "nothing is missing";
}

TEST_F(MissingTierTest, TierThatWasGivenUpAndReturnsIsRequiredAgain) {
  start();
  const auto give_up = [&] {
    disk("ssd").vanish();
    ASSERT_TRUE(eventually([&] { return !online("ssd"); }));
    ASSERT_TRUE(sluice({"tier", "drain", "ssd", "--lost", base_ / "mnt"}).ok());
  };
  const auto expect_it_is_missed = [&] {
    mount().umount();
    const CommandResult result =
        sluice({"mount", "--tier", "nvme=" + base_ / "nvme", "--tier", "hdd=" + base_ / "hdd",
                "--state", base_ / "state", base_ / "mnt"});
    EXPECT_NE(result.exit_code, 0);
    EXPECT_NE(result.err.find("also has a tier ssd"), std::string::npos) << result.err;
  };
  give_up();
  disk("ssd").come_back();
  ASSERT_TRUE(eventually([&] { return online("ssd"); }));
  EXPECT_EQ(read_file(*this / "d/middle"), "middle");
  expect_it_is_missed();

  // The same if it returns only at a later mount.
  mount().mount();
  give_up();
  mount().umount();
  disk("ssd").come_back();
  mount().mount();
  EXPECT_EQ(read_file(*this / "d/middle"), "middle");
  expect_it_is_missed();
}

}  // namespace
}  // namespace sluice::test
