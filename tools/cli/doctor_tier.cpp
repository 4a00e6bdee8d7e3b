// SPDX-License-Identifier: BSD-2-Clause
// Checks the filesystem and disk of a tier, and the features that its files support.
#include <fcntl.h>
#include <sys/sysmacros.h>
#include <sys/xattr.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <initializer_list>
#include <utility>

#include "base/mount_lines.hpp"
#include "base/unique_fd.hpp"
#include "tools/cli/doctor.hpp"
#include "tools/common/output.hpp"

namespace sluice::tools::cli {
namespace {

using Verdict = Check::Verdict;

bool is_one_of(const std::string& word, std::initializer_list<std::string_view> words) {
  return std::find(words.begin(), words.end(), word) != words.end();
}

Check filesystem(const MountLine& mounted, Gpus gpus) {
  const std::string& type = mounted.type;
  if (is_one_of(type, {"tmpfs", "ramfs"})) {
    return {Verdict::Warn, "filesystem", type + ": in memory; its files are lost after a restart",
            "put the tier on a disk"};
  }
  if (is_one_of(type, {"overlay", "ecryptfs"}) || type.starts_with("fuse")) {
    return {Verdict::Warn, "filesystem",
            type + ": stacked on another filesystem, so passthrough is not possible",
            "put the tier on the underlying filesystem"};
  }
  if (gpus == Gpus::None) return {Verdict::Ok, "filesystem", type};
  if (type != "ext4" && type != "xfs") {
    return {Verdict::Warn, "filesystem", type + ": GPUDirect Storage needs ext4 or xfs",
            "put the tier on ext4 or xfs"};
  }
  if (has_word(mounted.options, "data=journal") || has_word(mounted.options, "data=writeback")) {
    return {Verdict::Warn, "filesystem", "ext4 without data=ordered: cuFile does not accept it",
            "mount it with -o data=ordered"};
  }
  return {Verdict::Ok, "filesystem", type};
}

Check mount_flags(const MountLine& mounted) {
  const std::string remount = "mount -o remount,";
  if (has_word(mounted.flags, "ro") || has_word(mounted.options, "ro")) {
    return {Verdict::Fail, "flags", "read-only: files cannot be written or moved there",
            "see dmesg for why, then " + remount + "rw " + shell_word(mounted.point)};
  }
  if (has_word(mounted.flags, "sync") || has_word(mounted.options, "sync")) {
    return {Verdict::Warn, "flags", "sync: each write waits for the disk",
            remount + "async " + shell_word(mounted.point)};
  }
  // nosuid, nodev and noexec of a tier do not matter: the kernel uses the flags of the mount
  // through which a file was opened.
  return {Verdict::Ok, "flags", mounted.flags};
}

Check disk(const MachineView& machine, dev_t device, Gpus gpus) {
  const auto found = disk_of(machine, major(device), minor(device));
  // A slow disk is not a warning: there is nothing to fix.
  if (!found) {
    return {
        Verdict::Ok, "disk",
        gpus == Gpus::None ? "not a block device" : "not a block device: no direct path to a GPU"};
  }
  const std::string words = found->name + ": " + found->raid + (found->raid.empty() ? "" : " of ") +
                            (found->is_nvme         ? "NVMe"
                             : found->is_virtual    ? "a virtual disk"
                             : found->is_rotational ? "a hard disk"
                                                    : "not NVMe");
  if (gpus == Gpus::None || (found->is_nvme && found->raid.empty())) {
    return {Verdict::Ok, "disk", words};
  }
  return {
      Verdict::Ok, "disk",
      words + (found->raid.empty()
                   ? "; the route gds needs NVMe, the other routes work"
                   : "; P2PDMA does not support RAID, nvidia-fs supports RAID 0 and 1 of NVMe")};
}

Check udev(const MachineView& machine, dev_t device) {
  const std::string entry =
      "/run/udev/data/b" + std::to_string(major(device)) + ":" + std::to_string(minor(device));
  if (machine.has(entry)) return {Verdict::Ok, "udev", entry};
  return {Verdict::Warn, "udev", "no " + entry + ": cuFile does not accept files of this tier",
          machine.has("/run/udev/data") ? "udevadm trigger"
                                        : "start udev; for a container -v /run/udev:/run/udev:ro"};
}

Check lease_check(UniqueFd file) {
  // As the mover does: on the only descriptor, open for reading.
  const std::string name = "/proc/self/fd/" + std::to_string(file.get());
  const UniqueFd reader(::open(name.c_str(), O_RDONLY | O_CLOEXEC));
  file.reset();
  if (reader && ::fcntl(reader.get(), F_SETLEASE, F_WRLCK) == 0) {
    return {Verdict::Ok, "leases", "supported"};
  }
  return {Verdict::Warn, "leases",
          std::string("not supported (") + std::strerror(errno) +
              "): a file moves only after a minute without use",
          "sysctl fs.leases-enable=1, or put the tier on a local filesystem"};
}

Check attribute_check(const UniqueFd& file) {
  const auto sets = [&](const char* name) { return ::fsetxattr(file.get(), name, "x", 1, 0) == 0; };
  if (!sets("user.sluice.doctor")) {
    return {Verdict::Warn, "xattr", "no user.* attributes",
            "mount the tier with -o user_xattr, or put it on ext4 or xfs"};
  }
  if (::geteuid() == 0 && !sets("trusted.sluice.doctor")) {
    return {Verdict::Fail, "xattr",
            "no trusted.* attributes: files cannot be moved there or pinned",
            "put the tier on ext4 or xfs"};
  }
  return {Verdict::Ok, "xattr", ::geteuid() == 0 ? "user.* and trusted.*" : "user.*"};
}

Check acl_check(const UniqueFd& file) {
  // ENODATA or a value: ACLs are supported. EOPNOTSUPP: they are not.
  if (::fgetxattr(file.get(), "system.posix_acl_access", nullptr, 0) >= 0 || errno == ENODATA) {
    return {Verdict::Ok, "acl", "POSIX ACLs"};
  }
  return {Verdict::Warn, "acl", "not supported: setfacl fails",
          "mount the tier with -o acl, or put it on ext4 or xfs"};
}

}  // namespace

std::vector<Check> ability_checks(const std::string& path) {
  UniqueFd file(::open(path.c_str(), O_TMPFILE | O_RDWR | O_CLOEXEC, 0600));
  if (file) {
    std::vector<Check> checks{attribute_check(file), acl_check(file)};
    checks.push_back(lease_check(std::move(file)));
    return checks;
  }
  if (errno == EACCES || errno == EPERM) {
    return {
        {Verdict::Warn, "abilities", "leases and attributes were not tested", "run this as root"}};
  }
  if (errno == EROFS) return {};  // the check of the mount flags reports it
  const bool is_full = errno == ENOSPC || errno == EDQUOT;
  return {{Verdict::Warn, "abilities",
           std::string("cannot test leases and attributes: ") + std::strerror(errno),
           is_full        ? "free some space there"
           : errno == EIO ? "see dmesg"
                          : "put the tier on ext4 or xfs"}};
}

std::vector<Check> disk_checks(const MachineView& machine, const std::string& path, dev_t device,
                               Gpus gpus) {
  const auto mounted =
      mount_holding(parse_mount_lines(machine.text("/proc/self/mountinfo").value_or("")), path);
  std::vector<Check> checks;
  if (mounted) {
    checks = {filesystem(*mounted, gpus), mount_flags(*mounted)};
  } else {
    checks = {{Verdict::Warn, "filesystem", "not in /proc/self/mountinfo",
               "run this outside of the chroot or container"}};
  }
  checks.push_back(disk(machine, device, gpus));
  if (gpus == Gpus::Some) checks.push_back(udev(machine, device));
  return checks;
}

}  // namespace sluice::tools::cli
