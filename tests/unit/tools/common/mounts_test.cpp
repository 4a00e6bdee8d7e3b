// SPDX-License-Identifier: BSD-2-Clause
#include "tools/common/mounts.hpp"

#include <gtest/gtest.h>

namespace sluice::tools {
namespace {

constexpr const char* kTable =
    "22 1 8:1 / / rw,relatime shared:1 - ext4 /dev/sda1 rw\n"
    "40 22 0:50 / /mnt/pool rw shared:9 master:2 - fuse.sluice sluice rw,user_id=0\n"
    "41 22 0:51 / /mnt/with\\040space\\134 rw - fuse.sluice sluice rw,user_id=0\n"
    "42 40 8:2 / /mnt/pool/inner rw - ext4 /dev/sdb rw\n"
    "43 22 0:50 /sub /srv/bound rw - fuse.sluice sluice rw,user_id=0\n"
    "44 22 0:52 / /other rw - fuse.sshfs host rw\n"
    "45 22 0:53 / /home/eve/fake rw - fuse.sluice /etc/shadow rw,user_id=4242\n"
    "nonsense\n";

std::vector<MountEntry> one_mount() {
  return {{"/", false, true}, {"/mnt/pool", true, true}, {"/srv/bound", true, false}};
}

TEST(MountTableTest, ParsesTheFormatOfTheKernel) {
  EXPECT_EQ(parse_mountinfo(kTable),
            (std::vector<MountEntry>{{"/", false, true, 8, 1},
                                     {"/mnt/pool", true, true, 0, 50},
                                     {"/mnt/with space\\", true, true, 0, 51},
                                     {"/mnt/pool/inner", false, true, 8, 2},
                                     {"/srv/bound", true, false, 0, 50},
                                     {"/other", false, true, 0, 52},
                                     {"/home/eve/fake", false, true, 0, 53}}))
      << "mounts of other users must be ignored";
  EXPECT_EQ(parse_mountinfo(""), std::vector<MountEntry>{});
}

TEST(MountTableTest, TheRootIsMounted) {
  const auto mounts = mount_table();
  EXPECT_FALSE(mounts.empty());
}

TEST(MountTableTest, PathBelongsToTheInnermostAndLatestMount) {
  const auto lines = parse_mount_lines(
      "22 1 8:1 / / rw,relatime - ext4 /dev/sda1 rw\n"
      "30 22 259:1 / /nvme rw shared:1 - xfs /dev/nvme0n1p1 rw,attr2\n"
      "31 22 0:40 / /nvme rw,noatime - tmpfs tmpfs rw,size=1g\n"
      "32 22 0:41 / /bare rw - proc\n"
      "broken line\n");
  EXPECT_EQ(mount_holding(lines, "/home/x")->type, "ext4");
  EXPECT_EQ(mount_holding(lines, "/nvmeless")->type, "ext4");
  EXPECT_EQ(mount_holding(lines, "/nvme/f"),
            (MountLine{0, 40, "/", "/nvme", "rw,noatime", "tmpfs", "tmpfs", "rw,size=1g"}));
  EXPECT_EQ(lines[1].major, 259u);
  EXPECT_EQ(mount_holding(lines, "/bare")->source, "");
  EXPECT_EQ(mount_holding({}, "/"), std::nullopt);
}

TEST(MountTableTest, HasWordMatchesWholeWords) {
  EXPECT_TRUE(has_word("rw,noatime,ro", "ro"));
  EXPECT_FALSE(has_word("rw,errors=remount-ro", "ro"));
  EXPECT_FALSE(has_word("", "ro"));
}

TEST(SluiceMountOfTest, IsTheInnermostMount) {
  const auto mounts = parse_mountinfo(kTable);
  EXPECT_EQ(sluice_mount_of(mounts, "/mnt/pool"), "/mnt/pool");
  EXPECT_EQ(sluice_mount_of(mounts, "/mnt/pool/a/b"), "/mnt/pool");
  EXPECT_EQ(sluice_mount_of(mounts, "/mnt/pool2"), std::nullopt);
  EXPECT_EQ(sluice_mount_of(mounts, "/mnt/pool/inner/x"), std::nullopt);
  EXPECT_EQ(sluice_mount_of(mounts, "/srv/bound/x"), "/srv/bound");
  EXPECT_EQ(sluice_mount_of(mounts, "/other/x"), std::nullopt);
  EXPECT_EQ(sluice_mount_of({{"/", true, true}}, "/x"), "/");
}

TEST(SluiceMountOfTest, LaterMountHidesAnEarlierOneAtTheSamePoint) {
  EXPECT_EQ(sluice_mount_of({{"/m", true, true}, {"/m", false, true}}, "/m/x"), std::nullopt);
  EXPECT_EQ(sluice_mount_of({{"/m", false, true}, {"/m", true, true}}, "/m/x"), "/m");
}

TEST(ChooseMountTest, ChoosesTheGivenMount) {
  const auto mounts = parse_mountinfo(kTable);
  EXPECT_EQ(*choose_mount(mounts, "/mnt/pool", "/"), "/mnt/pool");
  EXPECT_EQ(*choose_mount(mounts, "/mnt/pool/dir", "/"), "/mnt/pool");
  EXPECT_EQ(choose_mount(mounts, "/home", "/mnt/pool").error().text(),
            "/home is not on a mount of sluice; mounts: /mnt/pool, /mnt/with space\\x5c");
  EXPECT_EQ(choose_mount({}, "/home", "/").error().text(),
            "/home is not on a mount of sluice; there is no mount");
}

TEST(ChooseMountTest, ChoosesTheMountOfTheCurrentDirectory) {
  EXPECT_EQ(*choose_mount(parse_mountinfo(kTable), "", "/mnt/with space\\/a"), "/mnt/with space\\");
}

TEST(ChooseMountTest, ChoosesTheWholeMountForABindMount) {
  EXPECT_EQ(*choose_mount(parse_mountinfo(kTable), "/srv/bound/x", "/"), "/mnt/pool");
  EXPECT_EQ(*choose_mount({{"/srv/bound", true, false}}, "", "/srv/bound"), "/srv/bound");
}

TEST(ChooseMountTest, ChoosesTheOnlyMount) {
  EXPECT_EQ(*choose_mount(one_mount(), "", "/home"), "/mnt/pool");
}

TEST(ChooseMountTest, FailsIfThereAreSeveralMountsOrNone) {
  EXPECT_EQ(choose_mount(parse_mountinfo(kTable), "", "/home").error().code, ENOTUNIQ);
  EXPECT_EQ(choose_mount(parse_mountinfo(kTable), "", "/home").error().text(),
            "several pools are mounted; choose one: /mnt/pool, /mnt/with space\\x5c");
  EXPECT_EQ(choose_mount({{"/", false, true}}, "", "/home").error().text(),
            "no pool is mounted; see 'sluice mount --help'");
}

}  // namespace
}  // namespace sluice::tools
