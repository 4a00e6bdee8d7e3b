// SPDX-License-Identifier: BSD-2-Clause
// The version of a file in an origin: a directory that several machines mount.
//
// Whether a copy of such a file is still right must be seen without reading the file. stat does not
// tell: MooseFS has whole seconds, and shows a rewrite late. So a writer leaves a stamp, a random
// number in the attribute trusted.sluice.v (user.sluice.v where the filesystem has no trusted):
//
//   begin_writing   sets a flag of its own, sluice.w.NUMBER, then marks v as being written
//   ...             bytes are written
//   end_writing     syncs them, sets v to a new number, then removes its flag
//
// A reader may use a copy if v is the number that the copy was noted with (and stat is the same).
// It keeps a copy that it has just read only if no file has a flag after that, and v is as before:
// see is_still().
//
// INVARIANT: if v is the number of a kept copy, the copy has the bytes of the file. Bytes change
// only while their writer has a flag. A copy that was read meanwhile is not kept: either the flag
// is still there, or the writer has set another number before it removed it. A copy that was kept
// before is not used: its number is gone when begin_writing returns, and never comes back. A number
// that another writer sets meanwhile belongs to no kept copy, because of the flag.
//
// There is no lock. A lock on the file would meet those of users, who may hold theirs for hours,
// and that of a machine that died blocks all others until its session ends, which may be a day. A
// flag that a dead machine left means only that no copy of the file is kept.
//
// Threads: no state but the file's.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <string>

#include "base/result.hpp"
#include "tiering/origin/origin_file.hpp"

namespace sluice {

// One boot of one machine.
enum class BootId : std::uint64_t {};
Result<BootId> this_boot();

struct OriginVersion {
  std::uint64_t stamp = 0;  // 0: none, or the file is being written
  FileStat stat;            // shows most changes by programs that do not use Sluice

  // Whether a copy may be judged by it.
  bool is_settled() const { return stamp != 0; }
  bool operator==(const OriginVersion&) const = default;
};

Result<OriginVersion> read_version(const OriginFile& file);

// Whether the file has had one content since `before` was read: a copy that was read from the
// origin meanwhile, past the page cache, may be kept under this version.
Result<bool> is_still(const OriginFile& file, const OriginVersion& before);

// The flag of a writer.
struct WriteFlag {
  std::string name;
};

// REQUIRES: no byte is written before this returns. If it fails, the file may count as being
// written from now on.
Result<WriteFlag> begin_writing(OriginFile& file, BootId boot);

// REQUIRES: no byte is written by this writer after this was called. If it fails, the file counts
// as being written until stamp_quiet_file().
Result<void> end_writing(OriginFile& file, const WriteFlag& flag);

// What stamp_quiet_file() found.
enum class Quiet {
  Stamped,    // it has a new stamp
  Unchanged,  // it has a stamp, and is as it was then
  Written,    // a writer has a flag
  Recent,     // it changed in the last seconds
};

// Stamps a file that other programs have written without Sluice. `now` is in seconds since the
// epoch. A flag counts as left over by a dead machine if the file has not changed for a day.
Result<Quiet> stamp_quiet_file(OriginFile& file, std::int64_t now);

inline constexpr std::chrono::seconds kRecent{5};
inline constexpr std::chrono::hours kLeftOver{24};
inline constexpr std::size_t kMostWriters = 16;  // with flags of their own; see version.cpp

}  // namespace sluice
