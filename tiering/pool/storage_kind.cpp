// SPDX-License-Identifier: BSD-2-Clause
#include "tiering/pool/storage_kind.hpp"

#include <fcntl.h>
#include <sys/sysmacros.h>
#include <unistd.h>

#include <algorithm>
#include <array>

#include "base/file_at.hpp"
#include "base/path.hpp"
#include "base/unique_fd.hpp"

namespace sluice {
namespace {

// The first line of a small file; empty if it cannot be read.
std::string line_of(const std::string& path) {
  const UniqueFd fd(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  std::array<char, 64> text{};
  const ssize_t size = fd ? ::read(fd.get(), text.data(), text.size()) : -1;
  if (size <= 0) return {};
  const std::string_view all(text.data(), static_cast<std::size_t>(size));
  return std::string(all.substr(0, all.find('\n')));
}

// `number` is "MAJOR:MINOR".
StorageKind kind_of_disk(const std::string& number, const std::string& sysfs, int depth = 0) {
  constexpr int kDeepest = 8;  // volumes upon volumes
  std::string folder = real_path(sysfs + "/dev/block/" + number);
  if (::access((folder + "/partition").c_str(), F_OK) == 0) folder = parent_path(folder);
  const std::string name = folder.substr(folder.rfind('/') + 1);
  const UniqueFd slaves(::open((folder + "/slaves").c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  const auto below = slaves ? names_in(slaves.get()) : Result<std::vector<std::string>>({});
  if (below && !below->empty() && depth < kDeepest) {
    StorageKind slowest = StorageKind::Memory;
    for (const std::string& each : *below) {
      const std::string device = line_of(folder + "/slaves/" + each + "/dev");
      slowest = std::max(slowest, kind_of_disk(device, sysfs, depth + 1));
    }
    return slowest;
  }
  if (name.starts_with("zram") || name.starts_with("ram") || name.starts_with("pmem"))
    return StorageKind::Memory;
  if (name.starts_with("vd") || name.starts_with("xvd") || name.starts_with("loop"))
    return StorageKind::Virtual;
  if (name.starts_with("nbd") || name.starts_with("rbd") || name.starts_with("drbd"))
    return StorageKind::Network;
  if (name.starts_with("nvme")) return StorageKind::Nvme;
  const std::string rotational = line_of(folder + "/queue/rotational");
  if (rotational.empty()) return StorageKind::Unknown;
  return rotational == "1" ? StorageKind::Hdd : StorageKind::Ssd;
}

}  // namespace

const char* name_of(StorageKind kind) {
  switch (kind) {
    case StorageKind::Memory:
      return "memory";
    case StorageKind::Nvme:
      return "NVMe";
    case StorageKind::Ssd:
      return "SSD";
    case StorageKind::Virtual:
      return "virtual disk";
    case StorageKind::Hdd:
      return "hard disk";
    case StorageKind::Network:
      return "network";
    case StorageKind::Unknown:
      break;
  }
  return "unknown";
}

StorageKind storage_kind(std::string_view filesystem, dev_t device, const std::string& sysfs) {
  if (filesystem == "tmpfs" || filesystem == "ramfs") return StorageKind::Memory;
  if (filesystem == "nfs" || filesystem == "cifs" || filesystem == "ceph" || filesystem == "9p")
    return StorageKind::Network;
  // These filesystems have device numbers of their own, which belong to no disk.
  if (major(device) == 0) return StorageKind::Unknown;
  return kind_of_disk(std::to_string(major(device)) + ":" + std::to_string(minor(device)), sysfs);
}

}  // namespace sluice
