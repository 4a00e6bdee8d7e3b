// SPDX-License-Identifier: BSD-2-Clause
#include "tiering/pool/storage_kind.hpp"

#include <gtest/gtest.h>
#include <sys/sysmacros.h>
#include <unistd.h>

#include <vector>

#include "tests/support/temp_dir.hpp"

namespace sluice {
namespace {

// A sysfs with some disks.
class StorageKindTest : public testing::Test {
 protected:
  void add_disk(const std::string& number, const std::string& name, const char* rotational) {
    dir_.make_file("devices/" + name + "/dev", number + "\n");
    dir_.make_file("devices/" + name + "/queue/rotational", std::string(rotational) + "\n");
    link(number, name);
  }
  void add_partition(const std::string& number, const std::string& disk, const std::string& name) {
    dir_.make_file("devices/" + disk + "/" + name + "/partition", "1\n");
    dir_.make_file("devices/" + disk + "/" + name + "/dev", number + "\n");
    link(number, disk + "/" + name);
  }
  void add_volume(const std::string& number, const std::string& name,
                  const std::vector<std::string>& disks) {
    add_disk(number, name, "0");
    dir_.make_dir("devices/" + name + "/slaves");
    for (const std::string& disk : disks) {
      const std::string target = "../../" + disk,
                        at = dir_ / ("devices/" + name + "/slaves/" + disk);
      ASSERT_EQ(::symlink(target.c_str(), at.c_str()), 0);
    }
  }
  StorageKind kind(unsigned major_number, unsigned minor_number) const {
    return storage_kind("ext4", makedev(major_number, minor_number), dir_.path());
  }

  test::TempDir dir_;

 private:
  void link(const std::string& number, const std::string& folder) {
    dir_.make_dir("dev/block");
    const std::string target = "../../devices/" + folder, at = dir_ / ("dev/block/" + number);
    ASSERT_EQ(::symlink(target.c_str(), at.c_str()), 0);
  }
};

TEST_F(StorageKindTest, IsWhatTheDiskSays) {
  add_disk("259:0", "nvme0n1", "0");
  add_disk("8:0", "sda", "0");
  add_disk("8:16", "sdb", "1");
  EXPECT_EQ(kind(259, 0), StorageKind::Nvme);
  EXPECT_EQ(kind(8, 0), StorageKind::Ssd);
  EXPECT_EQ(kind(8, 16), StorageKind::Hdd);
}

TEST_F(StorageKindTest, OfAPartitionIsThatOfItsDisk) {
  add_disk("8:16", "sdb", "1");
  add_partition("8:17", "sdb", "sdb1");
  EXPECT_EQ(kind(8, 17), StorageKind::Hdd);
}

TEST_F(StorageKindTest, OfAVolumeIsThatOfItsSlowestDisk) {
  add_disk("259:0", "nvme0n1", "0");
  add_disk("8:16", "sdb", "1");
  add_volume("253:0", "dm-0", {"nvme0n1"});
  add_volume("9:0", "md0", {"nvme0n1", "sdb"});
  EXPECT_EQ(kind(253, 0), StorageKind::Nvme);
  EXPECT_EQ(kind(9, 0), StorageKind::Hdd);
}

TEST_F(StorageKindTest, AVirtualDiskIsNotBelievedToBeRotational) {
  add_disk("254:0", "vda", "1");
  add_disk("7:0", "loop0", "1");
  EXPECT_EQ(kind(254, 0), StorageKind::Virtual);
  EXPECT_EQ(kind(7, 0), StorageKind::Virtual);
}

TEST_F(StorageKindTest, FilesystemsWithoutADiskAreKnownByName) {
  EXPECT_EQ(storage_kind("tmpfs", makedev(0, 30)), StorageKind::Memory);
  EXPECT_EQ(storage_kind("nfs", makedev(0, 30)), StorageKind::Network);
  EXPECT_EQ(storage_kind("overlay", makedev(0, 30)), StorageKind::Unknown);
  EXPECT_EQ(kind(8, 99), StorageKind::Unknown) << "no such disk";
}

TEST_F(StorageKindTest, UsualSpeedsAreInTheOrderThatEverybodyExpects) {
  const StorageKind order[] = {StorageKind::Memory, StorageKind::Nvme, StorageKind::Ssd,
                               StorageKind::Hdd};
  for (std::size_t i = 1; i < std::size(order); ++i) {
    const TierSpeed faster = usual_speed(order[i - 1]), slower = usual_speed(order[i]);
    EXPECT_LT(faster.latency, slower.latency) << name_of(order[i]);
    EXPECT_GT(faster.bandwidth, slower.bandwidth) << name_of(order[i]);
  }
}

TEST(TierSpeedTest, TheOrderOfTheUserHoldsWhateverWasMeasured) {
  std::vector<TierSpeed> speeds{{1e-3, 100e6}, {1e-4, 2e9}, {8e-3, 0}};
  obey_order(speeds);
  EXPECT_EQ(speeds[0], (TierSpeed{1e-3, 100e6}));
  EXPECT_DOUBLE_EQ(speeds[1].latency, 1.25e-3);
  EXPECT_DOUBLE_EQ(speeds[1].bandwidth, 80e6);
  EXPECT_DOUBLE_EQ(speeds[2].latency, 8e-3);
  EXPECT_DOUBLE_EQ(speeds[2].bandwidth, 64e6) << "unknown is not infinitely fast";
}

}  // namespace
}  // namespace sluice
