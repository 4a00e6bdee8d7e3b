// SPDX-License-Identifier: BSD-2-Clause
// Store keeps what Sluice remembers about files beside the files themselves: how often they were
// opened, and the intents of operations that touch more than one tier. docs/metadata-format.md
// describes every byte.
//
// The tiers are the truth about where a file is; a lost store costs heat, never data.
// Threads: every member may be called from any thread at once.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "base/ids.hpp"
#include "base/result.hpp"

namespace sluice {

// How a file has been used. As a delta handed to add_heat(), the counts are what is new; as a
// value, the totals.
struct Heat {
  double score = 0;  // accesses, each halved every half-life; see docs/metadata-format.md
  std::int64_t last_access = 0;  // seconds since the epoch; 0: never
  std::uint64_t opens = 0;
  std::uint64_t gpu_bytes = 0;

  bool operator==(const Heat&) const = default;
};

// What became of one move. Kept for people and programs to read; nothing depends on it.
struct Receipt {
  std::int64_t time = 0;  // when it ended, seconds since the epoch
  InodeId id{};
  std::string path;      // below the mount, when it was moved
  std::string from, to;  // tiers' names
  std::uint64_t bytes = 0;
  std::uint64_t hash = 0;  // XXH3-64 of what was copied; 0: nothing was
  std::uint32_t milliseconds = 0;
  std::int32_t code = 0;  // 0: moved; else the errno that says why not
  std::string reason;     // why it was to move, and if it failed, what stood in the way

  bool operator==(const Receipt&) const = default;
};

// A file that had to leave a tier for want of room. If it is used again soon, it was a mistake.
struct Ghost {
  std::int64_t left_at = 0;  // seconds since the epoch
  std::uint8_t slot = 0;     // of the tier that it left

  bool operator==(const Ghost&) const = default;
};

// The times of a file or directory that a move must not show. The kernel sets the ctime and the
// time of birth of a copy itself, so they are kept here.
struct KeptTimes {
  // Of the copy on one tier; all in nanoseconds since the epoch.
  struct Copy {
    std::uint8_t slot = 0;         // of the tier
    std::int64_t ctime = 0;        // the copy's own, as the last move left it
    std::int64_t shown_ctime = 0;  // shown in its place, for as long as it is the copy's ctime
    std::int64_t birth = 0;        // when the file was made; 0: not known

    bool operator==(const Copy&) const = default;
  };
  bool is_directory = false;
  std::vector<Copy> copies;  // of a file one, of a directory one for each tier

  bool operator==(const KeptTimes&) const = default;
};

// A record of work on several tiers that must be finished or undone if we die in the middle of it.
// The store knows only that it has a key and bytes; tiering/intent gives the bytes their meaning.
struct StoredIntent {
  std::uint64_t sequence;
  std::string bytes;
};

class Store {
 public:
  virtual ~Store() = default;

  // Adds each delta to what is known of that file. Not synced: a crash may lose the last few
  // batches.
  virtual Result<void> add_heat(const std::vector<std::pair<InodeId, Heat>>& deltas) = 0;

  // The totals for `id`; all zero for a file never seen.
  virtual Result<Heat> heat(InodeId id) const = 0;

  // Calls `visit` for every file with heat, in the order of the ids, until it says false. Sees the
  // store as it was when the call began. Records that cannot be decoded are left out; where the
  // disk itself is damaged it fails with EUCLEAN, and what was visited is what could be read.
  // REQUIRES: `visit` calls no member of this store.
  virtual Result<void> each_heat(
      const std::function<bool(InodeId id, const Heat& heat)>& visit) const = 0;

  virtual Result<void> forget_heat(const std::vector<InodeId>& ids) = 0;

  // Appends to the log of moves, of which the newest kMostReceipts are kept. Not synced.
  static constexpr std::size_t kMostReceipts = 100'000;
  virtual Result<void> add_receipts(const std::vector<Receipt>& receipts) = 0;
  // The newest `most`, newest first, without those that cannot be decoded.
  virtual Result<std::vector<Receipt>> receipts(std::size_t most) const = 0;

  // Not synced. A later ghost of a file replaces the earlier.
  virtual Result<void> add_ghosts(const std::vector<std::pair<InodeId, Ghost>>& ghosts) = 0;
  // As each_heat().
  virtual Result<void> each_ghost(
      const std::function<bool(InodeId id, const Ghost& ghost)>& visit) const = 0;
  virtual Result<void> forget_ghosts(const std::vector<InodeId>& ids) = 0;

  // Not synced. Later times of a file replace the earlier.
  virtual Result<void> keep_times(const std::vector<std::pair<InodeId, KeptTimes>>& times) = 0;
  // Without copies for a file that has none.
  virtual Result<KeptTimes> times(InodeId id) const = 0;
  // As each_heat().
  virtual Result<void> each_times(
      const std::function<bool(InodeId id, const KeptTimes& times)>& visit) const = 0;
  virtual Result<void> forget_times(const std::vector<InodeId>& ids) = 0;

  // Returns the first record's sequence number, those of the others following, once all of them are
  // on stable storage.
  virtual Result<std::uint64_t> begin_intents(const std::vector<std::string>& records) = 0;

  // Returns once that is on stable storage: an intent that came back after its names were used
  // again (renamed there and back, say) would be carried out once more.
  virtual Result<void> clear_intents(const std::vector<std::uint64_t>& sequences) = 0;

  // Every intent not cleared, oldest first.
  virtual Result<std::vector<StoredIntent>> intents() const = 0;
};

}  // namespace sluice
