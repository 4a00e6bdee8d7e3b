// SPDX-License-Identifier: BSD-2-Clause
#include "tools/cli/init_disks.hpp"

#include <algorithm>
#include <initializer_list>
#include <map>
#include <set>
#include <tuple>
#include <utility>

#include "base/units.hpp"
#include "tools/common/mounts.hpp"

namespace sluice {
namespace {

constexpr std::uint64_t kLeastSize = std::uint64_t{8} << 30;
constexpr std::uint64_t kLeastFree = std::uint64_t{1} << 30;
constexpr const char* kOnRoot = "/srv";  // in place of a directory at the top of "/"
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

// Their device numbers name no disk.
bool is_many_disks(std::string_view type) { return is_one_of(type, {"btrfs", "zfs", "bcachefs"}); }

struct Numbers {
  unsigned major = 0, minor = 0;
};

// Of "/dev/sda1"; the name may be a link of udev's.
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

// Also a link that leads nowhere.
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

// Why a filesystem is no tier; empty if it may be one.
std::string why_not(const MachineView& machine, const MountLine& line,
                    const std::optional<Disk>& disk, const FoundFilesystem& found,
                    const std::vector<std::string>& taken) {
  if (line.type.starts_with("fuse"))
    return "another FUSE filesystem: the kernel can't pass reads through";
  if (is_network(line.type)) return "on the network: no leases, so files would hardly ever move";
  if (is_one_of(line.type, {"vfat", "exfat", "ntfs", "ntfs3", "msdos", "udf"})) {
    return line.type + " knows no owners, links and attributes";
  }
  if (has_word(line.flags, "ro") || has_word(line.options, "ro")) return "read-only";
  if (disk && disk->is_removable) return "can be pulled out";
  if (disk && disk->name.starts_with("loop")) return "a file that is mounted, not a disk";
  if (line.root != "/" && line.type != "btrfs") {
    return "only a directory of it is mounted here; --tier takes it nevertheless";
  }
  if (!machine.listing(line.point)) return "can't be listed";
  if (is_tier(machine, line.point) || is_tier(machine, line.point + "/sluice") ||
      is_tier(machine, line.point + "/sluice/" + kTierName)) {
    return "a tier of a pool already";
  }
  for (const auto& path : taken) {
    if (line.point != "/" && is_below(path, line.point)) return "in use by another pool: " + path;
  }
  if (is_one_of(line.point, {"/usr", "/var", "/tmp", "/home", "/opt", "/nix"}) ||
      is_below(line.point, "/boot") || is_below(line.point, "/var/lib")) {
    return "the system's own; --tier takes it nevertheless";
  }
  if (found.size < kLeastSize) return "smaller than " + format_size(kLeastSize);
  if (found.free < kLeastFree) return "full";
  if (!disk) return "can't tell what disks it is on; --tier takes it nevertheless";
  return {};
}

// A directory that is not there yet: one that is may be anything, also a link to anywhere.
std::string new_directory(const MachineView& machine, const std::string& folder) {
  std::string name = "sluice";
  for (int i = 2; has_entry(machine, folder, name); ++i) name = "sluice" + std::to_string(i);
  return folder + "/" + name;
}

// Never the filesystem itself: its root has the mode of the pool's root, so that users could enter
// the tier past the mount. The new directory is closed to them, the tier is one below it.
void propose_directory(const MachineView& machine, FoundFilesystem& found) {
  if (found.point == "/") {
    found.parent = new_directory(machine, kOnRoot);
    found.why = "the only filesystem there is";
  } else {
    found.parent = new_directory(machine, found.point);
    found.why = is_empty(machine, found.point) ? "empty"
                                               : "what is there already stays outside of the pool";
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

// What is on a device that nothing here uses, and what one would do. Never a command that
// formats it: what is not known of may be in use by a virtual machine, another host, or the host of
// a container.
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
    return "can't tell what is on it and who uses it; look with: wipefs -n " + device;
  }
  if (content.empty()) {
    return "no filesystem known; if nothing on it is needed, make one and mount it";
  }
  if (content == "swap") return "swap space";
  if (is_one_of(content, {"ext2", "ext3", "ext4", "xfs", "btrfs", "f2fs"})) {
    return content + ", not mounted; to use it: mkdir /" + name + " && mount " + device + " /" +
           name;
  }
  return content + ": belongs to something else";
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
  std::set<std::string> in_btrfs;  // also the second disk of one, which no line names
  for (const auto& each : machine.names("/sys/fs/btrfs")) {
    for (auto& name : machine.names("/sys/fs/btrfs/" + each + "/devices")) in_btrfs.insert(name);
  }
  const std::string swaps = machine.text("/proc/swaps").value_or("");
  std::vector<IdleDevice> idle;
  for (const auto& disk : machine.names("/sys/block")) {
    const bool is_none = is_one_of(disk.substr(0, disk.find_first_of("0123456789")),
                                   {"loop", "ram", "zram", "sr", "fd", "nbd"});
    // A path to an NVMe disk that has several is hidden: the disk itself is listed, too.
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
  // A directory of a filesystem stands for it only where the whole is not mounted.
  auto ordered = lines;
  std::stable_partition(ordered.begin(), ordered.end(),
                        [](const MountLine& line) { return line.root == "/"; });
  std::vector<FoundFilesystem> tiers, left_out, root;
  std::set<std::pair<unsigned, unsigned>> seen;
  for (const auto& line : ordered) {
    const auto disk = disk_below(machine, line);
    const bool is_foreign = is_network(line.type) || line.type.starts_with("fuse.");
    if ((!disk && !is_many_disks(line.type) && !is_foreign) || line.type == "fuse.sluice") continue;
    // Whatever is hidden below another mount can't be a tier.
    const auto visible = mount_holding(lines, line.point);
    // A single file may be mounted, too: /etc/hosts of a container. Who is far is not asked.
    if (!is_foreign && !machine.is_directory(line.point)) continue;
    if (visible != line || !seen.emplace(line.major, line.minor).second) continue;
    // Packages that are mounted images: dozens of them on some systems.
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
    each.why = "the system is on it; --tier takes a directory of it nevertheless";
    left_out.push_back(std::move(each));
  }
  // Of two that are equally fast the smaller is for what is hotter.
  std::stable_sort(tiers.begin(), tiers.end(), [](const auto& a, const auto& b) {
    return std::tie(a.kind, a.size) < std::tie(b.kind, b.size);
  });
  for (auto& tier : tiers) propose_directory(machine, tier);
  name_tiers(tiers);
  FoundDisks found{std::move(tiers), idle_devices(machine, lines)};
  found.filesystems.insert(found.filesystems.end(), left_out.begin(), left_out.end());
  return found;
}

}  // namespace sluice
