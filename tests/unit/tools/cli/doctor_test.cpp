// SPDX-License-Identifier: BSD-2-Clause
#include "tools/cli/doctor.hpp"

#include <gtest/gtest.h>
#include <sys/sysmacros.h>
#include <unistd.h>

#include "base/units.hpp"
#include "tests/support/temp_dir.hpp"

namespace sluice::tools::cli {
namespace {

using Verdict = Check::Verdict;

class DoctorTest : public testing::Test {
 protected:
  MachineView machine() const { return MachineView(root_.path()); }

  void put(const std::string& path, const std::string& text) const { root_.make_file(path, text); }
  void link(const std::string& path, const std::string& target) const {
    root_.make_dir(path.substr(0, path.rfind('/')));
    ASSERT_EQ(::symlink(target.c_str(), (root_ / path).c_str()), 0) << path;
  }
  static Check find(const std::vector<Check>& checks, const std::string& what) {
    for (const auto& check : checks) {
      if (check.what == what) return check;
    }
    ADD_FAILURE() << "no check of " << what;
    return {};
  }
  Check kernel_check(const std::string& what) const {
    return find(kernel_checks(machine(), 7), what);
  }
  Check driver_check(const std::string& what) const {
    return find(driver_checks(machine(), {"0000:1a:00.0"}), what);
  }

  // In the format of the driver.
  void put_driver(const std::string& kind) const {
    put("proc/driver/nvidia/version",
        "NVRM version: NVIDIA UNIX " + kind +
            "  580.65.06  Release Build  (dvs-builder@U16)  Sun Jul 27 06:54:38 UTC 2026\n"
            "GCC version:  gcc version 13.3.0 (Ubuntu 13.3.0-6ubuntu2)\n");
  }
  // All requirements of P2PDMA.
  void open_all_gates() const {
    put_driver("Open Kernel Module for x86_64");
    put("proc/kallsyms", "0000 T pci_p2pdma_add_resource\n");
    put("sys/bus/pci/devices/0000:1a:00.0/p2pmem/size", "150323855360\n");
    put("etc/cufile.json", "{\n  // comment\n  \"properties\": {\"use_pci_p2pdma\": true}\n}\n");
  }

  test::TempDir root_;
};

TEST_F(DoctorTest, KernelVersionIsMajorAndMinor) {
  EXPECT_EQ(parse_kernel("6.18.44-fc"), (KernelVersion{6, 18}));
  EXPECT_EQ(parse_kernel("7.0"), (KernelVersion{7, 0}));
  EXPECT_EQ(parse_kernel("six"), KernelVersion{});
  EXPECT_EQ(parse_kernel(""), KernelVersion{});
  EXPECT_EQ(parse_kernel("6"), KernelVersion{});
  EXPECT_LT((KernelVersion{6, 9}), (KernelVersion{6, 14}));
}

TEST_F(DoctorTest, ParsesSoftAndHardLimits) {
  const std::string before = "Limit                     Soft Limit   Hard Limit   Units\n";
  const auto locked = [&](const std::string& line) {
    return parse_limit(before + line, "Max locked memory");
  };
  EXPECT_EQ(locked("Max locked memory         8388608      99999999     bytes\n"),
            (Limit{8388608, 99999999}));
  EXPECT_EQ(locked("Max locked memory         unlimited    unlimited    bytes\n"),
            (Limit{kUnlimited, kUnlimited}));
  EXPECT_EQ(locked(""), std::nullopt);
  EXPECT_EQ(locked("Max locked memory"), std::nullopt);
}

TEST_F(DoctorTest, SmallMemlockLimitOfTheDaemonIsAWarning) {
  put("proc/7/limits",
      "Max locked memory         65536                8388608              bytes\n");
  EXPECT_EQ(kernel_check("memlock").verdict, Verdict::Warn);
  EXPECT_NE(kernel_check("memlock").words.find("64.0 KiB"), std::string::npos);
  put("proc/7/limits",
      "Max locked memory         unlimited            unlimited            bytes\n");
  EXPECT_EQ(kernel_check("memlock").verdict, Verdict::Ok);
}

TEST_F(DoctorTest, OldKernelIsReportedWithItsMissingFeatures) {
  put("proc/sys/kernel/osrelease", "6.8.0-40-generic\n");
  EXPECT_EQ(kernel_check("kernel").verdict, Verdict::Warn);
  EXPECT_NE(kernel_check("kernel").words.find("6.9"), std::string::npos);
  put("proc/sys/kernel/osrelease", "6.18.0\n");
  EXPECT_EQ(kernel_check("kernel"), (Check{Verdict::Ok, "kernel", "6.18.0", ""}));
}

TEST_F(DoctorTest, MissingFuseDeviceInAContainerHasAFix) {
  EXPECT_EQ(kernel_check("fuse").fix, "modprobe fuse");
  put("proc/filesystems", "nodev\tproc\nnodev\tfuse\n\text4\n");
  EXPECT_NE(kernel_check("fuse").fix.find("--device /dev/fuse"), std::string::npos);
  put("dev/fuse", "");
  EXPECT_EQ(kernel_check("fuse").verdict, Verdict::Ok);
}

TEST_F(DoctorTest, PassthroughIsDetectedInTheKernelSymbols) {
  EXPECT_EQ(kernel_check("passthrough").verdict, Verdict::Warn);
  put("proc/kallsyms", "0000 t fuse_passthrough_read_iter\n");
  EXPECT_EQ(kernel_check("passthrough").verdict, Verdict::Ok);
  put("proc/kallsyms", "0000 t fuse_readdir\n");
  EXPECT_NE(kernel_check("passthrough").fix, "");
}

TEST_F(DoctorTest, OpenAndClosedDriversAreDistinguished) {
  put_driver("x86_64 Kernel Module");
  EXPECT_EQ(driver_check("driver").words, "580.65.06, closed modules");
  put_driver("Open Kernel Module for x86_64");
  EXPECT_EQ(driver_check("driver").words, "580.65.06, open modules");
  EXPECT_EQ(parse_driver("something else"), std::nullopt);
}

TEST_F(DoctorTest, MachineWithoutAGpuIsOk) {
  const auto checks = driver_checks(machine(), {});
  ASSERT_EQ(checks.size(), 1u);
  EXPECT_EQ(checks[0].verdict, Verdict::Ok);
}

TEST_F(DoctorTest, GpuWithoutItsDriverIsAFailure) {
  put("sys/bus/pci/devices/0000:1a:00.0/vendor", "0x10de\n");
  put("sys/bus/pci/devices/0000:1a:00.0/class", "0x040300\n");  // its audio function
  EXPECT_EQ(driver_checks(machine(), {})[0].verdict, Verdict::Ok);
  put("sys/bus/pci/devices/0000:1a:00.0/class", "0x030200\n");
  const auto checks = driver_checks(machine(), {});
  ASSERT_EQ(checks.size(), 1u);
  EXPECT_EQ(checks[0].verdict, Verdict::Fail);
  EXPECT_NE(checks[0].fix.find("modprobe nvidia"), std::string::npos);
}

TEST_F(DoctorTest, NvidiaFsIsNotRequiredIfP2pdmaWorks) {
  open_all_gates();
  EXPECT_EQ(driver_check("nvidia-fs").verdict, Verdict::Ok);
  EXPECT_EQ(driver_check("nvidia-fs").fix, "");
  put("etc/cufile.json", "{}");
  EXPECT_EQ(driver_check("nvidia-fs").verdict, Verdict::Warn);
  put("proc/driver/nvidia-fs/version", "version: 2.26\n");
  EXPECT_EQ(driver_check("p2pdma").verdict, Verdict::Ok);
}

TEST_F(DoctorTest, DisabledLeasesAreAFailure) {
  EXPECT_EQ(kernel_check("leases").verdict, Verdict::Ok);
  put("proc/sys/fs/leases-enable", "0\n");
  EXPECT_EQ(kernel_check("leases").verdict, Verdict::Fail);
  EXPECT_EQ(kernel_check("leases").fix, "sysctl fs.leases-enable=1");
}

TEST_F(DoctorTest, FewDescriptorsAreAWarning) {
  put("proc/7/limits",
      "Max open files            1024                 524288               files\n");
  EXPECT_EQ(kernel_check("nofile").verdict, Verdict::Warn);
  // Without a daemon the hard limit is checked, because a daemon raises its limit to it.
  put("proc/self/limits",
      "Max open files            1024                 524288               files\n");
  EXPECT_EQ(find(kernel_checks(machine(), 0), "nofile").verdict, Verdict::Ok);
  put("proc/sys/fs/file-nr", "95000\t0\t100000\n");
  EXPECT_NE(find(kernel_checks(machine(), 0), "nofile").fix.find("file-max"), std::string::npos);
}

TEST_F(DoctorTest, SmallRequestsAreAWarning) {
  EXPECT_EQ(kernel_check("requests").verdict, Verdict::Ok);
  put("proc/sys/fs/fuse/max_pages_limit", "256\n");
  EXPECT_EQ(kernel_check("requests").words,
            "up to " + format_size(256 * static_cast<std::uint64_t>(::sysconf(_SC_PAGESIZE))));
  put("proc/sys/fs/fuse/max_pages_limit", "32\n");
  EXPECT_EQ(kernel_check("requests").verdict, Verdict::Warn);
}

TEST_F(DoctorTest, MissingCapabilitiesOfTheDaemonAreReported) {
  put("proc/7/status", "Name:\tsluice\nCapEff:\t000001ffffffffff\n");
  EXPECT_EQ(kernel_check("rights").verdict, Verdict::Ok);
  put("proc/7/status", "CapEff:\t000001ffffdfffff\n");
  EXPECT_NE(kernel_check("rights").fix.find("SYS_ADMIN"), std::string::npos);
  EXPECT_EQ(kernel_check("rights").verdict, Verdict::Fail);
  put("proc/7/status", "CapEff:\t000001ffefffffff\n");
  EXPECT_NE(kernel_check("rights").fix.find("--cap-add LEASE"), std::string::npos);
}

TEST_F(DoctorTest, EachWarningSaysWhatToDo) {
  // On an empty machine no file can be read.
  for (const pid_t daemon : {0, 4}) {
    for (const auto& check : kernel_checks(machine(), daemon)) {
      EXPECT_EQ(check.fix.empty(), check.verdict == Verdict::Ok) << check.what << check.words;
    }
  }
  for (const auto& check : disk_checks(machine(), "/nvme", makedev(0, 40), Gpus::Some)) {
    EXPECT_EQ(check.fix.empty(), check.verdict == Verdict::Ok) << check.what << check.words;
  }
  EXPECT_NE(find(ability_checks("/proc"), "abilities").fix, "");
}

TEST_F(DoctorTest, ReportsTheLibfuseVersion) {
  EXPECT_TRUE(kernel_check("libfuse").words.starts_with("3.")) << kernel_check("libfuse").words;
}

TEST_F(DoctorTest, FilesystemChecksLeaveNoFilesBehind) {
  const auto checks = ability_checks(root_.path());
  EXPECT_EQ(find(checks, "leases").verdict, Verdict::Ok);
  EXPECT_EQ(find(checks, "xattr").verdict, Verdict::Ok);
  EXPECT_EQ(machine().names(""), std::vector<std::string>{});
  EXPECT_EQ(find(ability_checks("/proc"), "abilities").verdict, Verdict::Warn);
}

TEST_F(DoctorTest, P2pdmaReportsTheFirstMissingRequirement) {
  open_all_gates();
  EXPECT_EQ(driver_check("p2pdma").verdict, Verdict::Ok) << driver_check("p2pdma").words;
  put("etc/cufile.json", "{\"properties\": {\"use_pci_p2pdma\": false}}");
  EXPECT_NE(driver_check("p2pdma").fix.find("use_pci_p2pdma"), std::string::npos);
  put("sys/bus/pci/devices/0000:1a:00.0/p2pmem/size", "0\n");
  EXPECT_NE(driver_check("p2pdma").words.find("0000:1a:00.0"), std::string::npos);
  put_driver("x86_64 Kernel Module");
  EXPECT_NE(driver_check("p2pdma").fix.find("open kernel modules"), std::string::npos);
  put("proc/kallsyms", "0000 T something\n");
  EXPECT_NE(driver_check("p2pdma").fix.find("CONFIG_PCI_P2PDMA"), std::string::npos);
}

TEST_F(DoctorTest, P2pdmaSettingMustBeUnderProperties) {
  EXPECT_TRUE(asks_for_p2pdma("{\"properties\": {\"use_pci_p2pdma\": true}} // end"));
  EXPECT_FALSE(asks_for_p2pdma("{\"use_pci_p2pdma\": true}"));
  EXPECT_FALSE(asks_for_p2pdma("{\"properties\": {\"use_pci_p2pdma\": \"true\"}}"));
  EXPECT_FALSE(asks_for_p2pdma("{\"properties\": 1}"));
  EXPECT_FALSE(asks_for_p2pdma("no json"));
  EXPECT_FALSE(asks_for_p2pdma(""));
}

TEST_F(DoctorTest, ReportsWhetherNvidiaFsIsLoaded) {
  put_driver("Open Kernel Module for x86_64");
  EXPECT_EQ(driver_check("nvidia-fs").verdict, Verdict::Warn);
  put("proc/driver/nvidia-fs/version", "version: 2.26\n");
  EXPECT_EQ(driver_check("nvidia-fs"), (Check{Verdict::Ok, "nvidia-fs", "version: 2.26", ""}));
}

TEST_F(DoctorTest, TranslatingIommuIsAWarning) {
  put_driver("Open Kernel Module for x86_64");
  EXPECT_EQ(driver_check("iommu").words, "off");
  root_.make_dir("sys/class/iommu/dmar0");
  put("sys/kernel/iommu_groups/0/type", "identity\n");
  EXPECT_EQ(driver_check("iommu").verdict, Verdict::Ok);
  put("sys/kernel/iommu_groups/1/type", "DMA-FQ\n");
  EXPECT_EQ(driver_check("iommu").verdict, Verdict::Warn);
}

class DiskTest : public DoctorTest {
 protected:
  // Adds a disk, or with `parent` a partition, under its device number in sysfs.
  void put_disk(const std::string& name, const std::string& number,
                const std::string& parent = "") {
    const std::string folder = "sys/devices/block/" + (parent.empty() ? name : parent + "/" + name);
    put(folder + "/dev", number + "\n");
    if (!parent.empty()) put(folder + "/partition", "1\n");
    link("sys/dev/block/" + number, "../../../" + folder);
  }
  void put_slave(const std::string& of, const std::string& name) {
    link("sys/devices/block/" + of + "/slaves/" + name, "../../" + name);
  }
};

TEST_F(DiskTest, PartitionBelongsToItsDisk) {
  put_disk("nvme0n1", "259:0");
  put_disk("nvme0n1p1", "259:1", "nvme0n1");
  const auto disk = disk_of(machine(), 259, 1);
  ASSERT_TRUE(disk);
  EXPECT_EQ(disk->name, "nvme0n1");
  EXPECT_TRUE(disk->is_nvme);
  EXPECT_EQ(disk->raid, "");
}

TEST_F(DiskTest, HardDiskIsNotNvme) {
  put_disk("sda", "8:0");
  put("sys/devices/block/sda/queue/rotational", "1\n");
  const auto disk = disk_of(machine(), 8, 0);
  ASSERT_TRUE(disk);
  EXPECT_FALSE(disk->is_nvme);
  EXPECT_TRUE(disk->is_rotational);
}

TEST_F(DiskTest, VolumeHasTheKindOfItsDisks) {
  put_disk("nvme0n1", "259:0");
  put_disk("nvme1n1", "259:5");
  put_disk("md0", "9:0");
  put("sys/devices/block/md0/md/level", "raid0\n");
  put_slave("md0", "nvme0n1");
  put_slave("md0", "nvme1n1");
  put_disk("dm-0", "253:0");
  put_slave("dm-0", "md0");
  const auto disk = disk_of(machine(), 253, 0);
  ASSERT_TRUE(disk);
  EXPECT_EQ(disk->name, "dm-0");
  EXPECT_TRUE(disk->is_nvme);
  EXPECT_EQ(disk->raid, "raid0");
  put_disk("sda", "8:0");
  put_slave("md0", "sda");
  EXPECT_FALSE(disk_of(machine(), 253, 0)->is_nvme);
}

TEST_F(DiskTest, OnlyBlockDevicesHaveADisk) { EXPECT_FALSE(disk_of(machine(), 0, 40)); }

TEST_F(DiskTest, NvmeTierWithExt4AndUdevSupportsCuFile) {
  put("proc/self/mountinfo", "30 22 259:1 / /nvme rw - ext4 /dev/nvme0n1p1 rw\n");
  put_disk("nvme0n1", "259:0");
  put_disk("nvme0n1p1", "259:1", "nvme0n1");
  put("run/udev/data/b259:1", "I:1\n");
  for (const auto& check : disk_checks(machine(), "/nvme/tier", makedev(259, 1), Gpus::Some)) {
    EXPECT_EQ(check.verdict, Verdict::Ok) << check.what << ": " << check.words;
  }
}

TEST_F(DiskTest, ReportsWhatCuFileDoesNotAccept) {
  put("proc/self/mountinfo", "30 22 259:1 / /nvme rw - ext4 /dev/nvme0n1p1 rw,data=journal\n");
  const auto checks = disk_checks(machine(), "/nvme", makedev(259, 1), Gpus::Some);
  EXPECT_NE(find(checks, "filesystem").fix.find("data=ordered"), std::string::npos);
  EXPECT_NE(find(checks, "udev").words.find("b259:1"), std::string::npos);
  EXPECT_NE(find(checks, "udev").fix.find("/run/udev"), std::string::npos);
  put("run/udev/data/b1:1", "");
  EXPECT_EQ(find(disk_checks(machine(), "/nvme", makedev(259, 1), Gpus::Some), "udev").fix,
            "udevadm trigger");
}

TEST_F(DiskTest, HardDiskIsNotAWarning) {
  put_disk("sda", "8:0");
  const auto checks = disk_checks(machine(), "/hdd", makedev(8, 0), Gpus::Some);
  EXPECT_EQ(find(checks, "disk").verdict, Verdict::Ok);
  EXPECT_NE(find(checks, "disk").words.find("needs NVMe"), std::string::npos);
}

TEST_F(DiskTest, RequirementsOfCuFileAreIgnoredWithoutAGpu) {
  put("proc/self/mountinfo", "30 22 0:44 / /data rw - btrfs /dev/sda rw\n");
  for (const auto& check : disk_checks(machine(), "/data", makedev(0, 44), Gpus::None)) {
    EXPECT_EQ(check.verdict, Verdict::Ok) << check.what << ": " << check.words;
  }
}

TEST_F(DiskTest, ReadOnlyTierIsAFailureAndStackedTierAWarning) {
  const auto check = [&](const std::string& line, const std::string& what) {
    put("proc/self/mountinfo", line);
    return find(disk_checks(machine(), "/nvme", makedev(259, 1), Gpus::Some), what);
  };
  EXPECT_EQ(check("30 22 259:1 / /nvme rw - ext4 /dev/sda ro,errors=remount-ro\n", "flags").verdict,
            Verdict::Fail);
  EXPECT_EQ(check("30 22 259:1 / /nvme ro - ext4 /dev/sda rw\n", "flags").verdict, Verdict::Fail);
  EXPECT_EQ(check("30 22 259:1 / /nvme rw,sync - ext4 /dev/sda rw\n", "flags").verdict,
            Verdict::Warn);
  EXPECT_EQ(check("30 22 259:1 / /nvme rw,noatime - ext4 /dev/sda rw\n", "flags"),
            (Check{Verdict::Ok, "flags", "rw,noatime"}));
  EXPECT_NE(
      check("30 22 0:9 / /nvme rw - overlay overlay rw\n", "filesystem").words.find("stacked"),
      std::string::npos);
  EXPECT_EQ(check("30 22 0:9 / /nvme rw - nfs4 host:/x rw\n", "filesystem").verdict, Verdict::Warn);
}

}  // namespace
}  // namespace sluice::tools::cli
