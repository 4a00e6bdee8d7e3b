// SPDX-License-Identifier: BSD-2-Clause
// What a test and the fault shim in the daemon tell each other: one page of memory in a file that
// both map. A test uses FaultShim (fault_shim.hpp), not this.
//
// Threads: atomics are free; the rest is written while `at` is 0 and read only when it is not.
#pragma once

#include <atomic>
#include <cstdint>

namespace sluice::test {

// Kinds of calls, as bits of a mask. Calls with an effect are those between which a crash can tell
// a difference; the others can only fail.
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
  Lease = 1 << 18,     // F_SETLEASE that takes one
  Handle = 1 << 19,    // name_to_handle_at, open_by_handle_at
  Look = 1 << 20,      // stat, lseek and reading of xattrs
};

enum class FaultAction : std::uint32_t {
  Fail,        // returns -1 with `error`, and does nothing
  KillBefore,  // SIGKILL to its own process
  KillAfter,
  Hold,  // waits until disarmed, then goes on as if nothing had been
  Skip,  // returns 0 and does nothing: a disk that lies
};

struct FaultControl {
  static constexpr const char* kVariable = "SLUICE_FAULTS";  // the environment's: path of the file

  std::atomic<std::uint64_t> at{0};      // the call, counted from 1, that suffers; 0: none
  std::atomic<std::uint64_t> calls{0};   // calls that matched, also while none suffers
  std::atomic<std::uint64_t> faults{0};  // calls that suffered
  std::atomic<std::uint32_t> held{0};    // calls that wait now
  FaultAction action{};
  std::uint32_t kinds = 0;
  std::int32_t error = 0;
  std::uint32_t for_good = 0;  // not only the call `at`, but every later one, too
  char thread[16] = "";        // what a thread's name begins with; empty: any
  char path[1024] = "";        // the directory that the file lies in; empty: any
  char where[1280] = "";       // name and path of the call that suffered first
};
static_assert(std::atomic<std::uint64_t>::is_always_lock_free);

}  // namespace sluice::test
