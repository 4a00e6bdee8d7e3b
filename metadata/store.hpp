// SPDX-License-Identifier: BSD-2-Clause
// Store keeps what Sluice remembers about files beside the files themselves: how often they were opened, and the intents
// of operations that touch more than one tier. docs/metadata-format.md describes every byte.
//
// The tiers are the truth about where a file is; a lost store costs heat, never data.
// Threads: every member may be called from any thread at once.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "base/ids.hpp"
#include "base/result.hpp"

namespace sluice {

// How a file has been used. As a delta handed to add_heat(), the counts are what is new; as a value, the totals.
struct Heat {
  double score = 0;              // accesses, each halved every half-life; see docs/metadata-format.md
  std::int64_t last_access = 0;  // seconds since the epoch; 0: never
  std::uint64_t opens = 0;
  std::uint64_t gpu_bytes = 0;

  bool operator==(const Heat&) const = default;
};

// A record of work on several tiers that must be finished or undone if we die in the middle of it. The store knows only
// that it has a key and bytes; tiering/intent gives the bytes their meaning.
struct StoredIntent {
  std::uint64_t sequence;
  std::string bytes;
};

class Store {
 public:
  virtual ~Store() = default;

  // Adds each delta to what is known of that file. Not synced: a crash may lose the last few batches.
  virtual Result<void> add_heat(const std::vector<std::pair<InodeId, Heat>>& deltas) = 0;

  // The totals for `id`; all zero for a file never seen.
  virtual Result<Heat> heat(InodeId id) const = 0;

  virtual Result<void> forget_heat(InodeId id) = 0;

  // Returns the record's sequence number once it is on stable storage.
  virtual Result<std::uint64_t> begin_intent(const std::string& bytes) = 0;

  // Returns once that is on stable storage: an intent that came back after its names were used
  // again (renamed there and back, say) would be carried out once more.
  virtual Result<void> clear_intent(std::uint64_t sequence) = 0;

  // Every intent not cleared, oldest first.
  virtual Result<std::vector<StoredIntent>> intents() const = 0;
};

}  // namespace sluice
