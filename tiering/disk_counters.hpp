// SPDX-License-Identifier: BSD-2-Clause
// What a disk has read and written since the machine started, as the kernel counts it: whoever did
// it, the kernel itself for passthrough files included. Threads: pure functions.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace sluice {

struct DiskCounters {
  std::string name;  // "nvme0n1p1", "dm-0"
  std::uint64_t reads = 0, read_bytes = 0;
  std::uint64_t writes = 0, written_bytes = 0;
  std::uint64_t busy_ms = 0;  // at least one request was under way
};

// Of the block device that `device`, the st_dev of a filesystem, is. Nothing where that is none:
// tmpfs, overlayfs, NFS, and btrfs and ZFS, whose filesystems have numbers of their own.
std::optional<DiskCounters> disk_counters(dev_t device);

// The counts in the text of /sys/dev/block/MAJOR:MINOR/stat.
std::optional<DiskCounters> parse_disk_counters(std::string_view text);

}  // namespace sluice
