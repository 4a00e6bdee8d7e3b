// SPDX-License-Identifier: BSD-2-Clause
// What LoggedDisks and its server process share: the format of the log and a page of memory. A test
// uses LoggedDisks (logged_disk.hpp), not this.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>

namespace sluice::test {

constexpr std::size_t kMostDisks = 8;

// Begins each record of the log; the bytes of a Write follow.
struct LogRecord {
  enum class Kind : std::uint32_t { Write, Zero, Flush };
  Kind kind;
  std::uint32_t disk;  // number, in the order of the server's arguments
  std::uint64_t offset;
  std::uint64_t length;
};
static_assert(sizeof(LogRecord) == 24);

enum class DiskMode : std::uint32_t {
  Works,
  Fails,       // every access is EIO
  FailsWrites  // writes and flushes are
};

struct LogControl {
  std::atomic<std::uint64_t> records{0};  // in the log, of all disks
  std::array<std::atomic<std::uint64_t>, kMostDisks> flushes{};
  std::array<std::atomic<DiskMode>, kMostDisks> modes{};
};

}  // namespace sluice::test
