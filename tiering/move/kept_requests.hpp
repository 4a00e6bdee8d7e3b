// SPDX-License-Identifier: BSD-2-Clause
// KeptRequests stores the moves that users asked for, until they are made or withdrawn, so that an
// unmount or a crash does not lose them. It stores which file, not which path: a file may have been
// renamed before its move goes on. Moves that a pass planned are not stored, because the next pass
// plans them again.
//
// Threads: thread-safe. The caller makes sure that a request is not stored and forgotten at once.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <vector>

#include "base/ids.hpp"
#include "base/result.hpp"
#include "metadata/store.hpp"
#include "tiering/move/move_queue.hpp"
#include "tiering/pool/pool.hpp"

namespace sluice {

class KeptRequests {
 public:
  KeptRequests(const Pool& pool, Store& store);

  // Stores the request in place of an earlier one for the same file.
  Result<void> keep(const Move& move);
  Result<bool> has(InodeId file) const { return store_.has_request(file); }
  Result<void> forget(const std::vector<InodeId>& files);

  // The moves of stored requests, in the order in which they were asked for, with the places that
  // their files have now, and the requests that are to be forgotten: the file is gone, or is where
  // it should be, or the tier is not in the pool. Requests that are in neither list wait for a tier
  // that is offline. Leaves out files for which `is_queued` returns true.
  //
  // If files were renamed, this walks all tiers. Returning false from `go_on` ends that with
  // ECANCELED.
  struct Found {
    std::vector<Move> moves;
    std::vector<InodeId> obsolete;
  };
  Result<Found> find(const std::function<bool(InodeId)>& is_queued,
                     const std::function<bool()>& go_on) const;

 private:
  const Pool& pool_;
  Store& store_;
  std::atomic<std::uint64_t> next_{1};  // atomic: callers only need distinct numbers
};

}  // namespace sluice
