// SPDX-License-Identifier: BSD-2-Clause
// The disks that `sluice init` finds on a machine, and the tiers it proposes. Nothing is opened
// for writing, and disks are not read: all facts come from the kernel and udev.
// Threads: immutable; each call reads the current state of the machine.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "tools/cli/machine.hpp"

namespace sluice::tools::cli {

// Fastest first: the order of the tiers.
enum class DiskKind { Nvme, Ssd, Virtual, Hdd, Unknown };
std::string_view name_of(DiskKind kind);  // "NVMe", "SSD", "virtual disk", "hard disk", "?"

// A mounted filesystem that might be a tier.
struct FoundFilesystem {
  std::string point;
  std::string type;    // "ext4"
  std::string source;  // "/dev/nvme0n1p1"
  std::string disk;    // "nvme0n1"; empty: not known
  DiskKind kind = DiskKind::Unknown;
  std::uint64_t size = 0, free = 0;
  std::string tier;    // the name proposed; empty: left out
  std::string path;    // the directory proposed
  std::string parent;  // the one above it, which is new and for root alone
  std::string why;     // why that directory, or why it was left out
};

// A disk or partition that is not in use.
struct IdleDevice {
  std::string device;  // "/dev/sdb"
  std::uint64_t size = 0;
  std::string words;  // its content, as far as known, and how to use it
};

struct FoundDisks {
  std::vector<FoundFilesystem> filesystems;  // tiers first, in their order
  std::vector<IdleDevice> idle;
};

struct Room {
  std::uint64_t size = 0, free = 0;
};
// For the filesystem mounted at a path; nothing if it is unknown.
using RoomOf = std::function<std::optional<Room>(const std::string& point)>;

// `taken` are directories that other pools' configurations name. The root filesystem is proposed
// only if there is nothing else.
FoundDisks find_disks(const MachineView& machine, const RoomOf& room,
                      const std::vector<std::string>& taken);

}  // namespace sluice::tools::cli
