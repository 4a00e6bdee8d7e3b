// SPDX-License-Identifier: BSD-2-Clause
// The reads and writes of a disk since boot, as the kernel counts them. They include the I/O of all
// programs, and of the kernel itself for passthrough files. Threads: pure functions.
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
  // The sum of the times that each read (each write) took, including the wait in the disk's queue.
  std::uint64_t read_ms = 0, write_ms = 0;
  std::uint64_t busy_ms = 0;  // time during which at least one request was in progress
};

// The counters of the block device whose number is `device`, the st_dev of a filesystem. Empty if
// the filesystem has no single block device (tmpfs, overlayfs, NFS) or its own device numbers
// (btrfs, ZFS).
std::optional<DiskCounters> disk_counters(dev_t device);

// Parses the text of /sys/dev/block/MAJOR:MINOR/stat.
std::optional<DiskCounters> parse_disk_counters(std::string_view text);

}  // namespace sluice
