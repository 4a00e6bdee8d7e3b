// SPDX-License-Identifier: BSD-2-Clause
#include "tools/cli/init_disks.hpp"

#include <algorithm>
#include <initializer_list>
#include <map>
#include <set>
#include <tuple>
#include <utility>

#include "base/mount_lines.hpp"
#include "base/units.hpp"

namespace sluice::tools::cli {
namespace {

constexpr std::uint64_t kLeastSize = std::uint64_t{8} << 30;
constexpr std::uint64_t kLeastFree = std::uint64_t{1} << 30;
constexpr const char* kOnRoot = "/srv";  // used instead of the top directory "/"
constexpr const char* kTierName = "tier";

bool is_one_of(std::string_view word, std::initializer_list<std::string_view> words) {
  return std::find(words.begin(), words.end(), word) != words.end();
}

bool is_below(const std::string& path, const std::string& folder) {
  return path == folder || path.starts_with(folder == "/" ? folder : folder + "/");
}

bool is_network(std::string_view type) {
  return is_one_of(type, {"nfs", "nfs4", "cifs", "smb3", "ceph", "9p", "virtiofs", "lustre",
                          "glusterfs", "beegfs", "afs"});
}

// Filesystems whose device numbers do not belong to a disk.
bool is_many_disks(std::string_view type) { return is_one_of(type, {"btrfs", "zfs", "bcachefs"}); }

struct Numbers {
  unsigned major = 0, minor = 0;
};

// The device number of "/dev/sda1"; the path may be a symbolic link made by udev.
std::optional<Numbers> numbers_of(const MachineView& machine, const std::string& device) {
  const std::string real = machine.resolved(device);
  const std::string path = real.empty() ? device : real;
  const auto text = machine.text("/sys/class/block/" + path.substr(path.rfind('/') + 1) + "/dev");
  const auto parts = parts_of(text.value_or(""), ':');
  if (parts.size() != 2) return std::nullopt;
  return Numbers{static_cast<unsigned>(parse_size(parts[0]).value_or(0)),
                 static_cast<unsigned>(parse_size(parts[1]).value_or(0))};
}

std::optional<Disk> disk_below(const MachineView& machine, const MountLine& line) {
  if (!is_many_disks(line.type)) return disk_of(machine, line.major, line.minor);
  const auto numbers = numbers_of(machine, line.source);
  return numbers ? disk_of(machine, numbers->major, numbers->minor) : std::nullopt;
}

DiskKind kind_of(const Disk& disk) {
  if (disk.is_nvme) return DiskKind::Nvme;
  if (disk.is_virtual) return DiskKind::Virtual;
  return disk.is_rotational ? DiskKind::Hdd : DiskKind::Ssd;
}

// True for a dangling symbolic link, too.
bool has_entry(const MachineView& machine, const std::string& path, std::string_view name) {
  const auto names = machine.names(path);
  return std::find(names.begin(), names.end(), name) != names.end();
}

bool is_tier(const MachineView& machine, const std::string& path) {
  return has_entry(machine, path, ".sluice");
}

bool is_empty(const MachineView& machine, const std::string& path) {
  for (const auto& name : machine.names(path)) {
    if (name != "lost+found") return false;
  }
  return true;
}

// Why a filesystem cannot be a tier; empty if it can.
std::string why_not(const MachineView& machine, const MountLine& line,
                    const std::optional<Disk>& disk, const FoundFilesystem& found,
                    const std::vector<std::string>& taken) {
  if (line.type.starts_with("fuse")) return "a FUSE filesystem: passthrough is not possible";
  if (is_network(line.type)) return "on the network: no leases, so files would rarely move";
  if (is_one_of(line.type, {"vfat", "exfat", "ntfs", "ntfs3", "msdos", "udf"})) {
    return line.type + " has no owners, links and attributes";
  }
  if (has_word(line.flags, "ro") || has_word(line.options, "ro")) return "read-only";
  if (disk && disk->is_removable) return "removable";
  if (disk && disk->name.starts_with("loop")) return "a mounted image file, not a disk";
  if (line.root != "/" && line.type != "btrfs") {
    return "only a directory of it is mounted here; use --tier to take it anyway";
  }
  if (!machine.listing(line.point)) return "its directory cannot be read";
  if (is_tier(machine, line.point) || is_tier(machine, line.point + "/sluice") ||
      is_tier(machine, line.point + "/sluice/" + kTierName)) {
    return "already a tier of a pool";
  }
  for (const auto& path : taken) {
    if (line.point != "/" && is_below(path, line.point)) return "in use by another pool: " + path;
  }
  if (is_one_of(line.point, {"/usr", "/var", "/tmp", "/home", "/opt", "/nix"}) ||
      is_below(line.point, "/boot") || is_below(line.point, "/var/lib")) {
    return "belongs to the system; use --tier to take it anyway";
  }
  if (found.size < kLeastSize) return "smaller than " + format_size(kLeastSize);
  if (found.free < kLeastFree) return "full";
  if (!disk) return "its disks are unknown; use --tier to take it anyway";
  return {};
}

// A directory that does not exist yet: an existing one may be in use, or a link to elsewhere.
std::string new_directory(const MachineView& machine, const std::string& folder) {
  std::string name = "sluice";
  for (int i = 2; has_entry(machine, folder, name); ++i) name = "sluice" + std::to_string(i);
  return folder + "/" + name;
}

// Never proposes the root of the filesystem: a tier has the mode of the pool's root, so users could
// enter it and bypass the mount. Only root can enter the new directory that contains the tier.
void propose_directory(const MachineView& machine, FoundFilesystem& found) {
  if (found.point == "/") {
    found.parent = new_directory(machine, kOnRoot);
    found.why = "the only filesystem";
  } else {
    found.parent = new_directory(machine, found.point);
    found.why =
        is_empty(machine, found.point) ? "empty" : "existing files stay outside of the pool";
  }
  found.path = found.parent + "/" + kTierName;
}

// "nvme", "ssd", "hdd"; "nvme2" for the second.
void name_tiers(std::vector<FoundFilesystem>& tiers) {
  std::map<std::string, unsigned> used;
  for (auto& tier : tiers) {
    const std::string name = tier.kind == DiskKind::Nvme  ? "nvme"
                             : tier.kind == DiskKind::Ssd ? "ssd"
                             : tier.kind == DiskKind::Hdd ? "hdd"
                                                          : "disk";
    const unsigned number = ++used[name];
    tier.tier = number == 1 ? name : name + std::to_string(number);
  }
}

// Describes the content of a device that is not in use here, and how to use it. Never suggests a
// command that formats it, because a virtual machine, another host, or the host of a container may
// use it.
std::string advice_for(const MachineView& machine, const std::string& device,
                       const std::string& number) {
  const std::string name = device.substr(device.rfind('/') + 1);
  const auto udev = machine.text("/run/udev/data/b" + number);
  std::string content, partitions;
  for (const auto& line : parts_of(udev.value_or(""), '\n')) {
    const std::string value = line.substr(std::min(line.find('='), line.size() - 1) + 1);
    if (line.starts_with("E:ID_FS_TYPE=")) content = value;
    if (line.starts_with("E:ID_PART_TABLE_TYPE=")) partitions = value;
  }
  const bool is_volume =
      is_one_of(name.substr(0, name.find_first_of("-0123456789")), {"dm", "zd", "rbd", "drbd"});
  if (!udev || is_volume || (content.empty() && !partitions.empty())) {
    return "its content is unknown; to examine it: wipefs -n " + device;
  }
  if (content.empty()) {
    return "no known filesystem; if its content is not needed, create one and mount it";
  }
  if (content == "swap") return "swap space";
  if (is_one_of(content, {"ext2", "ext3", "ext4", "xfs", "btrfs", "f2fs"})) {
    return content + ", not mounted; to use it: mkdir /" + name + " && mount " + device + " /" +
           name;
  }
  return content + ": used by another subsystem";
}

std::vector<IdleDevice> idle_devices(const MachineView& machine,
                                     const std::vector<MountLine>& lines) {
  std::set<std::string> in_use;
  for (const auto& line : lines) {
    in_use.insert(std::to_string(line.major) + ":" + std::to_string(line.minor));
    if (!is_many_disks(line.type)) continue;
    const auto below = numbers_of(machine, line.source);
    if (below) in_use.insert(std::to_string(below->major) + ":" + std::to_string(below->minor));
  }
  std::set<std::string>
      in_btrfs;  // includes further disks of a btrfs, which the mount table does not name
  for (const auto& each : machine.names("/sys/fs/btrfs")) {
    for (auto& name : machine.names("/sys/fs/btrfs/" + each + "/devices")) in_btrfs.insert(name);
  }
  const std::string swaps = machine.text("/proc/swaps").value_or("");
  std::vector<IdleDevice> idle;
  for (const auto& disk : machine.names("/sys/block")) {
    const bool is_none = is_one_of(disk.substr(0, disk.find_first_of("0123456789")),
                                   {"loop", "ram", "zram", "sr", "fd", "nbd"});
    // The paths of a multipath NVMe disk are hidden; the disk itself is listed, too.
    if (is_none || machine.text("/sys/block/" + disk + "/removable") == "1" ||
        machine.text("/sys/block/" + disk + "/hidden") == "1") {
      continue;
    }
    std::vector<std::string> folders;
    for (const auto& name : machine.names("/sys/block/" + disk)) {
      const std::string folder = "/sys/block/" + disk + "/" + name;
      if (machine.has(folder + "/partition")) folders.push_back(folder);
    }
    if (folders.empty()) folders.push_back("/sys/block/" + disk);
    for (const auto& folder : folders) {
      const std::string number = machine.text(folder + "/dev").value_or("");
      const auto size = machine.number(folder + "/size").value_or(0) * 512;
      const std::string name = folder.substr(folder.rfind('/') + 1);
      const std::string device = "/dev/" + name;
      const bool is_busy = number.empty() || in_btrfs.contains(name) || in_use.contains(number) ||
                           !machine.names(folder + "/holders").empty() ||
                           swaps.find(device + " ") != std::string::npos;
      if (is_busy || size < kLeastSize) continue;
      idle.push_back({device, size, advice_for(machine, device, number)});
    }
  }
  return idle;
}

}  // namespace

std::string_view name_of(DiskKind kind) {
  switch (kind) {
    case DiskKind::Nvme:
      return "NVMe";
    case DiskKind::Ssd:
      return "SSD";
    case DiskKind::Virtual:
      return "virtual disk";
    case DiskKind::Hdd:
      return "hard disk";
    case DiskKind::Unknown:
      break;
  }
  return "?";
}

FoundDisks find_disks(const MachineView& machine, const RoomOf& room,
                      const std::vector<std::string>& taken) {
  const auto lines = parse_mount_lines(machine.text("/proc/self/mountinfo").value_or(""));
  // A bind mount of a directory counts only if the whole filesystem is not mounted.
  auto ordered = lines;
  std::stable_partition(ordered.begin(), ordered.end(),
                        [](const MountLine& line) { return line.root == "/"; });
  std::vector<FoundFilesystem> tiers, left_out, root;
  std::set<std::pair<unsigned, unsigned>> seen;
  for (const auto& line : ordered) {
    const auto disk = disk_below(machine, line);
    const bool is_foreign = is_network(line.type) || line.type.starts_with("fuse.");
    if ((!disk && !is_many_disks(line.type) && !is_foreign) || line.type == "fuse.sluice") continue;
    // A filesystem that is hidden by another mount cannot be a tier.
    const auto visible = mount_holding(lines, line.point);
    // A single file may be mounted, such as /etc/hosts of a container. Network filesystems are not
    // accessed, because they may hang.
    if (!is_foreign && !machine.is_directory(line.point)) continue;
    if (visible != line || !seen.emplace(line.major, line.minor).second) continue;
    // Packages that are mounted images (snap); some systems have dozens.
    if (disk && disk->name.starts_with("loop") && has_word(line.flags, "ro")) continue;
    FoundFilesystem found;
    found.point = line.point;
    found.type = line.type;
    found.source = line.source;
    if (disk) {
      found.disk = disk->name;
      found.kind = kind_of(*disk);
    }
    if (const auto known = is_foreign ? std::nullopt : room(line.point)) {
      found.size = known->size;
      found.free = known->free;
    }
    found.why = why_not(machine, line, disk, found, taken);
    if (!found.why.empty()) {
      left_out.push_back(std::move(found));
    } else {
      (line.point == "/" ? root : tiers).push_back(std::move(found));
    }
  }
  if (tiers.empty()) {
    tiers = std::exchange(root, {});
  }
  for (auto& each : root) {
    each.why = "has the operating system; use --tier to take a directory of it anyway";
    left_out.push_back(std::move(each));
  }
  // Of two equally fast disks, the smaller one is the faster tier.
  std::stable_sort(tiers.begin(), tiers.end(), [](const auto& a, const auto& b) {
    return std::tie(a.kind, a.size) < std::tie(b.kind, b.size);
  });
  for (auto& tier : tiers) propose_directory(machine, tier);
  name_tiers(tiers);
  FoundDisks found{std::move(tiers), idle_devices(machine, lines)};
  found.filesystems.insert(found.filesystems.end(), left_out.begin(), left_out.end());
  return found;
}

}  // namespace sluice::tools::cli
