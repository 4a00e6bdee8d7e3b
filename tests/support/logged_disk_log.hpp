// SPDX-License-Identifier: BSD-2-Clause
// Shared by LoggedDisks and its server process: the format of the log and a page of memory. Tests
// use LoggedDisks (logged_disk.hpp) instead of this.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>

namespace sluice::test {

constexpr std::size_t kMostDisks = 8;

// The header of each record of the log; after a Write, its bytes follow.
struct LogRecord {
  enum class Kind : std::uint32_t { Write, Zero, Flush };
  Kind kind;
  std::uint32_t disk;  // index in the order of the server's arguments
  std::uint64_t offset;
  std::uint64_t length;
};
static_assert(sizeof(LogRecord) == 24);

enum class DiskMode : std::uint32_t {
  Works,
  Fails,       // every access fails with EIO
  FailsWrites  // writes and flushes fail
};

struct LogControl {
  std::atomic<std::uint64_t> records{0};  // records in the log, of all disks
  std::array<std::atomic<std::uint64_t>, kMostDisks> flushes{};
  std::array<std::atomic<DiskMode>, kMostDisks> modes{};
};

}  // namespace sluice::test
