// SPDX-License-Identifier: BSD-2-Clause
#include "tools/cli/init_disks.hpp"

#include <gtest/gtest.h>
#include <unistd.h>

#include <map>

#include "tests/support/temp_dir.hpp"

namespace sluice::tools::cli {
namespace {

constexpr std::uint64_t kGiB = std::uint64_t{1} << 30;

// A fake machine: disks in /sys and a mount table.
class InitDisksTest : public testing::Test {
 protected:
  void put(const std::string& path, const std::string& text) const { root_.make_file(path, text); }
  void link(const std::string& path, const std::string& target) const {
    root_.make_dir(path.substr(0, path.rfind('/')));
    ASSERT_EQ(::symlink(target.c_str(), (root_ / path).c_str()), 0) << path;
  }
  // Adds a whole disk; `folder` is its directory in /sys.
  void put_disk(const std::string& name, const std::string& number, std::uint64_t size,
                const std::string& rotational, const std::string& folder = "sys/devices/") const {
    put(folder + name + "/dev", number + "\n");
    put(folder + name + "/size", std::to_string(size / 512) + "\n");
    put(folder + name + "/queue/rotational", rotational + "\n");
    link("sys/dev/block/" + number, "../../../" + folder + name);
    link("sys/block/" + name, "../../" + folder + name);
    link("sys/class/block/" + name, "../../../" + folder + name);
  }
  void mount(const std::string& number, const std::string& point, const std::string& type,
             const std::string& source, std::uint64_t size, const std::string& flags = "rw",
             const std::string& root = "/") {
    table_ += "30 22 " + number + " " + root + " " + point + " " + flags + " - " + type + " " +
              source + " rw\n";
    rooms_[point] = {size, size / 2};
    root_.make_dir(point.substr(1));
  }
  FoundDisks find(const std::vector<std::string>& taken = {}) const {
    put("proc/self/mountinfo", table_);
    return find_disks(
        MachineView(root_.path()),
        [&](const std::string& point) -> std::optional<Room> {
          const auto found = rooms_.find(point);
          if (found == rooms_.end()) return std::nullopt;
          return found->second;
        },
        taken);
  }
  static std::vector<std::string> tiers(const FoundDisks& found) {
    std::vector<std::string> out;
    for (const auto& each : found.filesystems) {
      if (!each.tier.empty()) out.push_back(each.tier + "=" + each.path);
    }
    return out;
  }
  static std::string why(const FoundDisks& found, const std::string& point) {
    for (const auto& each : found.filesystems) {
      if (each.point == point) return each.tier.empty() ? each.why : "a tier";
    }
    return "not shown";
  }

  test::TempDir root_;
  std::string table_ =
      "22 1 0:5 / /proc rw - proc proc rw\n23 1 0:6 / /dev/shm rw - tmpfs tmpfs rw\n";
  std::map<std::string, Room> rooms_;
};

using Strings = std::vector<std::string>;

TEST_F(InitDisksTest, TiersAreRankedByKindAndThenBySize) {
  put_disk("sda", "8:0", 4000 * kGiB, "1");
  put_disk("sdb", "8:16", 2000 * kGiB, "0");
  put_disk("nvme0n1", "259:0", 2000 * kGiB, "0");
  put_disk("nvme1n1", "259:1", 1000 * kGiB, "0");
  mount("8:0", "/data", "xfs", "/dev/sda", 4000 * kGiB);
  mount("259:0", "/nvme-a", "ext4", "/dev/nvme0n1", 2000 * kGiB);
  mount("8:16", "/ssd", "ext4", "/dev/sdb", 2000 * kGiB);
  mount("259:1", "/nvme-b", "ext4", "/dev/nvme1n1", 1000 * kGiB);
  const auto found = find();
  EXPECT_EQ(tiers(found), (Strings{"nvme=/nvme-b/sluice/tier", "nvme2=/nvme-a/sluice/tier",
                                   "ssd=/ssd/sluice/tier", "hdd=/data/sluice/tier"}));
  EXPECT_EQ(found.filesystems[0].parent, "/nvme-b/sluice");
  EXPECT_EQ(found.filesystems[0].disk, "nvme1n1");
  EXPECT_EQ(found.filesystems[3].kind, DiskKind::Hdd);
  EXPECT_EQ(found.idle.size(), 0u);
}

TEST_F(InitDisksTest, ExistingFilesStayOutsideOfThePool) {
  put_disk("sda", "8:0", 400 * kGiB, "1");
  mount("8:0", "/data", "ext4", "/dev/sda", 400 * kGiB);
  root_.make_dir("data/lost+found");
  EXPECT_EQ(find().filesystems.at(0).why, "empty");
  put("data/photo.jpg", "x");
  EXPECT_EQ(tiers(find()), Strings{"hdd=/data/sluice/tier"});
  // An existing directory may be in use, or a link to elsewhere.
  link("data/sluice", "/etc");
  EXPECT_EQ(tiers(find()), Strings{"hdd=/data/sluice2/tier"});
}

TEST_F(InitDisksTest, BindMountIsNotProposedAsATier) {
  put_disk("sda", "8:0", 400 * kGiB, "1");
  put("etc/hosts", "127.0.0.1 localhost");
  table_ += "30 22 8:0 /containers/7/hosts /etc/hosts rw - ext4 /dev/sda rw\n";
  mount("8:0", "/volume", "ext4", "/dev/sda", 400 * kGiB, "rw", "/volumes/7");
  auto found = find();
  EXPECT_EQ(tiers(found), Strings{});
  EXPECT_EQ(why(found, "/etc/hosts"), "not shown");
  EXPECT_NE(why(found, "/volume").find("only a directory of it"), std::string::npos);
  mount("8:0", "/data", "ext4", "/dev/sda", 400 * kGiB);
  found = find();
  EXPECT_EQ(tiers(found), Strings{"hdd=/data/sluice/tier"});
  EXPECT_EQ(why(found, "/volume"), "not shown");
}

TEST_F(InitDisksTest, RootFilesystemIsProposedOnlyIfItIsTheOnlyOne) {
  put_disk("vda", "254:0", 400 * kGiB, "1");
  mount("254:0", "/", "ext4", "/dev/vda", 400 * kGiB);
  auto found = find();
  EXPECT_EQ(tiers(found), Strings{"disk=/srv/sluice/tier"});
  EXPECT_EQ(found.filesystems[0].kind, DiskKind::Virtual);
  put_disk("sda", "8:0", 400 * kGiB, "1");
  mount("8:0", "/data", "ext4", "/dev/sda", 400 * kGiB);
  found = find();
  EXPECT_EQ(tiers(found), Strings{"hdd=/data/sluice/tier"});
  EXPECT_NE(why(found, "/").find("has the operating system"), std::string::npos);
}

TEST_F(InitDisksTest, EverySkippedFilesystemHasAReason) {
  put_disk("sda", "8:0", 400 * kGiB, "1");
  put_disk("sdb", "8:16", 400 * kGiB, "0", "sys/devices/pci/usb2/2-1/");
  put_disk("sdc", "8:32", 4 * kGiB, "0");
  put_disk("sdd", "8:48", 400 * kGiB, "1");
  put_disk("sde", "8:64", 400 * kGiB, "1");
  put_disk("sdf", "8:80", 400 * kGiB, "1");
  put_disk("sdg", "8:96", 400 * kGiB, "1");
  mount("8:0", "/ro", "ext4", "/dev/sda", 400 * kGiB, "ro,relatime");
  mount("8:16", "/usb", "ext4", "/dev/sdb", 400 * kGiB);
  mount("8:32", "/tiny", "ext4", "/dev/sdc", 4 * kGiB);
  mount("8:48", "/home", "ext4", "/dev/sdd", 400 * kGiB);
  mount("8:64", "/windows", "ntfs3", "/dev/sde", 400 * kGiB);
  mount("8:80", "/pooled", "ext4", "/dev/sdf", 400 * kGiB);
  put("pooled/.sluice/tier.json", "{}");
  put_disk("sdi", "8:128", 400 * kGiB, "1");
  mount("8:128", "/pooled-inside", "ext4", "/dev/sdi", 400 * kGiB);
  put("pooled-inside/sluice/tier/.sluice/tier.json", "{}");
  mount("8:96", "/named", "ext4", "/dev/sdg", 400 * kGiB);
  mount("0:60", "/net", "nfs4", "host:/x", 400 * kGiB);
  mount("0:61", "/ssh", "fuse.sshfs", "host:", 400 * kGiB);
  mount("0:62", "/mnt/pool", "fuse.sluice", "sluice", 400 * kGiB);
  rooms_["/full"] = {};
  put_disk("sdh", "8:112", 400 * kGiB, "1");
  mount("8:112", "/full", "ext4", "/dev/sdh", 400 * kGiB);
  rooms_["/full"].free = 0;
  const auto found = find({"/named/sluice"});
  EXPECT_EQ(tiers(found), Strings{});
  EXPECT_EQ(why(found, "/ro"), "read-only");
  EXPECT_EQ(why(found, "/usb"), "removable");
  EXPECT_EQ(why(found, "/tiny"), "smaller than 8.0 GiB");
  EXPECT_NE(why(found, "/home").find("belongs to the system"), std::string::npos);
  EXPECT_NE(why(found, "/windows").find("ntfs3"), std::string::npos);
  EXPECT_EQ(why(found, "/pooled"), "already a tier of a pool");
  EXPECT_EQ(why(found, "/pooled-inside"), "already a tier of a pool");
  EXPECT_EQ(why(found, "/named"), "in use by another pool: /named/sluice");
  EXPECT_NE(why(found, "/net").find("network"), std::string::npos);
  EXPECT_NE(why(found, "/ssh").find("FUSE"), std::string::npos);
  EXPECT_EQ(why(found, "/full"), "full");
  for (const char* point : {"/proc", "/dev/shm", "/mnt/pool"}) {
    EXPECT_EQ(why(found, point), "not shown") << point;
  }
}

TEST_F(InitDisksTest, FilesystemMountedTwiceIsOneTier) {
  put_disk("sda", "8:0", 400 * kGiB, "1");
  mount("8:0", "/data", "ext4", "/dev/sda", 400 * kGiB);
  mount("8:0", "/srv/bound", "ext4", "/dev/sda", 400 * kGiB);
  EXPECT_EQ(tiers(find()), Strings{"hdd=/data/sluice/tier"});
}

TEST_F(InitDisksTest, DiskOfBtrfsIsThatOfItsSource) {
  put_disk("sda", "8:0", 400 * kGiB, "0");
  mount("0:45", "/data", "btrfs", "/dev/sda", 400 * kGiB);
  const auto found = find();
  EXPECT_EQ(tiers(found), Strings{"ssd=/data/sluice/tier"});
  EXPECT_EQ(found.idle.size(), 0u);
}

TEST_F(InitDisksTest, UnmountedDisksAreListedWithAdvice) {
  put_disk("sda", "8:0", 400 * kGiB, "1");
  put("run/udev/data/b8:0", "E:ID_BUS=ata\n");
  put_disk("sdb", "8:16", 400 * kGiB, "1");
  put("run/udev/data/b8:16", "S:disk/by-id/x\nE:ID_FS_TYPE=xfs\n");
  put_disk("sdc", "8:32", 400 * kGiB, "1");
  put("run/udev/data/b8:32", "E:ID_FS_TYPE=LVM2_member\n");
  put_disk("sdd", "8:48", 400 * kGiB, "1");
  put("sys/devices/sdd/holders/md0/x", "");
  put_disk("sde", "8:64", 400 * kGiB, "1");
  put("proc/swaps", "Filename Type\n/dev/sde  partition 1 0 -2\n");
  put_disk("loop0", "7:0", 400 * kGiB, "1");
  const auto found = find();
  EXPECT_EQ(tiers(found), Strings{});
  ASSERT_EQ(found.idle.size(), 3u);
  EXPECT_EQ(found.idle[0].device, "/dev/sda");
  EXPECT_EQ(found.idle[0].words,
            "no known filesystem; if its content is not needed, create one and mount it");
  EXPECT_EQ(found.idle[1].words, "xfs, not mounted; to use it: mkdir /sdb && mount /dev/sdb /sdb");
  EXPECT_EQ(found.idle[2].words, "LVM2_member: used by another subsystem");
}

TEST_F(InitDisksTest, UnknownContentOfADiskIsNotGuessed) {
  put_disk("dm-0", "253:0", 400 * kGiB, "1");  // may belong to a virtual machine
  put("run/udev/data/b253:0", "E:ID_FS_TYPE=ext4\n");
  put_disk("nvme0c0n1", "259:9", 400 * kGiB, "0");
  put("sys/devices/nvme0c0n1/hidden", "1\n");
  put_disk("sda", "8:0", 400 * kGiB, "1");  // without an entry of udev
  put_disk("sdb", "8:16", 400 * kGiB, "1");
  put("run/udev/data/b8:16", "E:ID_PART_TABLE_TYPE=gpt\n");
  put_disk("sdc", "8:32", 400 * kGiB, "1");
  put("run/udev/data/b8:32", "E:ID_FS_TYPE=BitLocker\n");
  put_disk("sdd", "8:48", 400 * kGiB, "1");  // the second disk of a btrfs
  put("run/udev/data/b8:48", "E:ID_FS_TYPE=btrfs\n");
  put("sys/fs/btrfs/0815/devices/sdd/x", "");
  const auto found = find();
  ASSERT_EQ(found.idle.size(), 4u);
  for (const auto i : {0u, 1u, 2u}) {
    EXPECT_TRUE(found.idle[i].words.starts_with("its content is unknown")) << found.idle[i].words;
  }
  EXPECT_EQ(found.idle[3].words, "BitLocker: used by another subsystem");
}

TEST_F(InitDisksTest, IdleDiskWithPartitionsListsItsPartitions) {
  put_disk("sda", "8:0", 400 * kGiB, "1");
  for (const auto* number : {"1", "2"}) {
    const std::string folder = std::string("sys/devices/sda/sda") + number;
    put(folder + "/partition", number);
    put(folder + "/dev", std::string("8:") + number + "\n");
    put(folder + "/size", std::to_string(200 * kGiB / 512));
    link(std::string("sys/dev/block/8:") + number, "../../../" + folder);
  }
  mount("8:1", "/data", "ext4", "/dev/sda1", 200 * kGiB);
  const auto found = find();
  EXPECT_EQ(tiers(found), Strings{"hdd=/data/sluice/tier"});
  ASSERT_EQ(found.idle.size(), 1u);
  EXPECT_EQ(found.idle[0].device, "/dev/sda2");
}

}  // namespace
}  // namespace sluice::tools::cli
