// SPDX-License-Identifier: BSD-2-Clause
// Store keeps what Sluice must remember about files and cannot keep in the files themselves: heat,
// receipts, ghosts, times, requested moves, and the intents of operations on more than one tier.
// docs/metadata-format.md describes the formats.
//
// Only the tiers decide where a file is, so losing the store loses heat but never data.
// Threads: every member may be called from any thread at once.
#pragma once

#include <cerrno>
#include <cstdint>
#include <functional>
#include <limits>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "base/ids.hpp"
#include "base/result.hpp"

namespace sluice {

// The accesses to a file. In a delta for add_heat(), the counts are the new accesses; otherwise
// they are totals.
struct Heat {
  double score = 0;  // accesses, each halved every half-life; see docs/metadata-format.md
  std::int64_t last_access = 0;  // seconds since the epoch; 0: never
  std::uint64_t opens = 0;
  std::uint64_t gpu_bytes = 0;
  double recent = 0;       // like the score, but halved every day (kRecentHalfLife)
  std::int64_t since = 0;  // when the first of the accesses was seen; 0: unknown, long ago

  bool operator==(const Heat&) const = default;
};

// The result of one move, for users and programs to read; nothing depends on it.
struct Receipt {
  std::int64_t time = 0;  // when it ended, seconds since the epoch
  InodeId id{};
  std::string path;      // below the mount, when it was moved
  std::string from, to;  // names of the tiers
  std::uint64_t bytes = 0;
  std::uint64_t hash = 0;  // XXH3-64 of the copied data; 0 if nothing was copied
  std::uint32_t milliseconds = 0;
  // 0 if the file was moved, kWithdrawn if a user cancelled the move, otherwise an errno.
  std::int32_t code = 0;
  std::string reason;  // why the file should move and, if the move failed, the cause

  bool operator==(const Receipt&) const = default;
};

// No other failure of a move has this code. On disk: never change it.
inline constexpr std::int32_t kWithdrawn = EINTR;

// The record that a file had to leave a tier for lack of room. If it is used again soon, the
// eviction was a mistake.
struct Ghost {
  std::int64_t left_at = 0;  // seconds since the epoch
  std::uint8_t slot = 0;     // slot of the tier that it left

  bool operator==(const Ghost&) const = default;
};

// The times of a file or directory that a move must not change for users. The kernel sets ctime and
// birth time of a copy itself, so the original times are stored here.
struct KeptTimes {
  // The copy on one tier; all times in nanoseconds since the epoch.
  struct Copy {
    std::uint8_t slot = 0;         // slot of the tier
    std::int64_t ctime = 0;        // the copy's own ctime, as the last move left it
    std::int64_t shown_ctime = 0;  // shown instead, as long as the copy's ctime equals `ctime`
    std::int64_t birth = 0;        // when the file was created; 0 if unknown
    // A move is changing names in this copy of a directory, or was when the daemon died. The atime
    // and mtime are those from before the change, and so is `ctime`.
    bool is_changing = false;
    std::int64_t atime = 0, mtime = 0;

    bool operator==(const Copy&) const = default;
  };
  bool is_directory = false;
  std::vector<Copy> copies;  // one for a file, one per tier for a directory

  bool operator==(const KeptTimes&) const = default;
};

// A move that a user asked for and that was not made yet.
struct MoveRequest {
  std::uint64_t number = 0;  // requests are made in the order of their numbers
  std::uint32_t user = 0;    // who asked
  std::string to;            // the name of the tier
  std::string path;  // below the mount, when it was asked for; the file may be elsewhere now

  bool operator==(const MoveRequest&) const = default;
};

// A record of an operation on several tiers that must be finished or undone after a crash. The
// store treats it as bytes with a key; tiering/intent defines their meaning.
struct StoredIntent {
  std::uint64_t sequence;
  std::string bytes;
};

class Store {
 public:
  virtual ~Store() = default;

  // Adds each delta to the heat of its file. Not synced: a crash may lose the last few batches.
  virtual Result<void> add_heat(const std::vector<std::pair<InodeId, Heat>>& deltas) = 0;

  // The totals for `id`; all zero if the file was never accessed.
  virtual Result<Heat> heat(InodeId id) const = 0;

  // Calls `visit` for every file with heat, sorted by id, until it returns false. Uses a snapshot
  // of the store as of the beginning of the call. Records that cannot be decoded are skipped. If
  // the disk is damaged, fails with EUCLEAN after visiting everything that could be read.
  // REQUIRES: `visit` calls no member of this store.
  virtual Result<void> each_heat(
      const std::function<bool(InodeId id, const Heat& heat)>& visit) const = 0;

  virtual Result<void> forget_heat(const std::vector<InodeId>& ids) = 0;

  // Appends to the list of moves, of which the newest kMostReceipts are kept. Not synced.
  static constexpr std::size_t kMostReceipts = 100'000;
  virtual Result<void> add_receipts(const std::vector<Receipt>& receipts) = 0;
  // Calls `visit` for each receipt with a number below `before`, newest first, until it returns
  // false. Later receipts have higher numbers. Those that cannot be decoded are skipped.
  // REQUIRES: `visit` calls no member of this store.
  static constexpr std::uint64_t kNewest = std::numeric_limits<std::uint64_t>::max();
  virtual Result<void> each_receipt(
      std::uint64_t before,
      const std::function<bool(std::uint64_t number, const Receipt& receipt)>& visit) const = 0;
  // The newest `most` receipts of one file, newest first. The cost does not grow with the number of
  // all receipts, except for the first call.
  virtual Result<std::vector<Receipt>> receipts_of(InodeId id, std::size_t most) const = 0;
  // The newest `most` receipts, newest first.
  Result<std::vector<Receipt>> receipts(std::size_t most) const;

  // Not synced. A later ghost of a file replaces the earlier one.
  virtual Result<void> add_ghosts(const std::vector<std::pair<InodeId, Ghost>>& ghosts) = 0;
  // Like each_heat().
  virtual Result<void> each_ghost(
      const std::function<bool(InodeId id, const Ghost& ghost)>& visit) const = 0;
  virtual Result<void> forget_ghosts(const std::vector<InodeId>& ids) = 0;

  // Survives a crash of the daemon, but is synced only by the next change of the intents. Later
  // times of a file replace the earlier ones.
  virtual Result<void> keep_times(const std::vector<std::pair<InodeId, KeptTimes>>& times) = 0;
  // The result has no copies if no times are stored.
  virtual Result<KeptTimes> times(InodeId id) const = 0;
  // Like each_heat().
  virtual Result<void> each_times(
      const std::function<bool(InodeId id, const KeptTimes& times)>& visit) const = 0;
  virtual Result<void> forget_times(const std::vector<InodeId>& ids) = 0;

  // Not synced: the requests survive a crash of the daemon, but a crash of the machine may lose the
  // last ones. A later request for a file replaces the earlier one.
  virtual Result<void> keep_requests(
      const std::vector<std::pair<InodeId, MoveRequest>>& requests) = 0;
  // Like each_heat().
  virtual Result<bool> has_request(InodeId id) const = 0;
  virtual Result<void> each_request(
      const std::function<bool(InodeId id, const MoveRequest& request)>& visit) const = 0;
  virtual Result<void> forget_requests(const std::vector<InodeId>& ids) = 0;

  // Stores the records and returns when all of them are on stable storage. Returns the sequence
  // number of the first record; the others follow it.
  virtual Result<std::uint64_t> begin_intents(const std::vector<std::string>& records) = 0;

  // Returns when the removal is on stable storage. Otherwise an intent could come back after a
  // crash and be executed again, although its names now belong to other files.
  virtual Result<void> clear_intents(const std::vector<std::uint64_t>& sequences) = 0;

  // Every intent that was not cleared, oldest first.
  virtual Result<std::vector<StoredIntent>> intents() const = 0;
};

inline Result<std::vector<Receipt>> Store::receipts(std::size_t most) const {
  std::vector<Receipt> found;
  if (most == 0) return found;
  SLUICE_TRY(each_receipt(kNewest, [&](std::uint64_t, const Receipt& receipt) {
    found.push_back(receipt);
    return found.size() < most;
  }));
  return found;
}

}  // namespace sluice
