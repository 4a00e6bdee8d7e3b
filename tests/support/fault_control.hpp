// SPDX-License-Identifier: BSD-2-Clause
// Memory that a test and the fault shim in the daemon share: one page of a file that both map.
// Tests use FaultShim (fault_shim.hpp) instead of this.
//
// Threads: the atomics need no lock. The other members are written while `at` is 0 and read only
// when it is not.
#pragma once

#include <atomic>
#include <cstdint>

namespace sluice::test {

// Kinds of calls, as bits of a mask. The first group changes something, so a crash before or after
// such a call makes a difference; the others can only fail.
enum class CallKind : std::uint32_t {
  Create = 1 << 0,     // an open that can create or truncate
  Write = 1 << 1,      // also copy_file_range
  Resize = 1 << 2,     // ftruncate, fallocate
  Sync = 1 << 3,       // fsync, fdatasync, sync_file_range, syncfs
  Rename = 1 << 4,     //
  Link = 1 << 5,       //
  Unlink = 1 << 6,     //
  Mkdir = 1 << 7,      //
  Attribute = 1 << 8,  // owner, mode, times, xattrs
  Open = 1 << 16,      // any other open
  Read = 1 << 17,      //
  Lease = 1 << 18,     // F_SETLEASE that takes a lease
  Handle = 1 << 19,    // name_to_handle_at, open_by_handle_at
  Look = 1 << 20,      // stat, lseek and reading of xattrs
};

enum class FaultAction : std::uint32_t {
  Fail,        // returns -1 with `error` and does nothing
  KillBefore,  // sends SIGKILL to its own process
  KillAfter,
  Block,  // waits until disarmed, then makes the call normally
  Skip,   // returns 0 and does nothing, like a disk that lies
  Crash,  // abort()s, as a mistake in the daemon would
};

struct FaultControl {
  // Environment variable with the path of the file.
  static constexpr const char* kVariable = "SLUICE_FAULTS";

  std::atomic<std::uint64_t> at{0};       // number of the affected call, from 1; 0 if none
  std::atomic<std::uint64_t> calls{0};    // calls that matched, whether affected or not
  std::atomic<std::uint64_t> faults{0};   // calls that were affected
  std::atomic<std::uint32_t> blocked{0};  // calls that are blocked now
  FaultAction action{};
  std::uint32_t kinds = 0;
  std::int32_t error = 0;
  std::uint32_t for_good = 0;  // affects every later call, too
  char thread[16] = "";        // beginning of the thread's name; "" means any
  char path[1024] = "";        // directory that contains the file; "" means any
  char where[1280] = "";       // name and path of the first affected call
};
static_assert(std::atomic<std::uint64_t>::is_always_lock_free);

}  // namespace sluice::test
