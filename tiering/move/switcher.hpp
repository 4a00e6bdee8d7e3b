// SPDX-License-Identifier: BSD-2-Clause
// Switcher makes the last part of a move: a file's copy on another tier takes the file's names, and
// the original loses them. Moves, spills and the emptying of a tier all end here. A switch that an
// error interrupts is remembered until finish() can end it.
//
// Threads: thread-safe. Lock order: HeldFile is called with a lock of this held, which comes after
// NamesLock of the core and before all its other locks.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "base/mutex.hpp"
#include "base/result.hpp"
#include "metadata/store.hpp"
#include "tiering/move/intent.hpp"
#include "tiering/move/move_host.hpp"
#include "tiering/move/relocate.hpp"
#include "tiering/pool/pool.hpp"

namespace sluice {

// A complete, synced copy that can replace its file.
struct ReadyCopy {
  HeldFile* file = nullptr;
  const HiddenCopy* copy = nullptr;
  TierIndex to = kNoTier;
};

class Switcher {
 public:
  Switcher(Pool& pool, Store& store) : pool_(pool), store_(store) {}

  // Switches each file to its copy, atomically per file, and returns one result per copy. After an
  // error the original still is the file, and the caller must discard the copy. ECANCELED if a user
  // changed the file first. The files are released.
  std::vector<Result<void>> switch_files(const std::vector<ReadyCopy>& copies);
  // The same for a file that moves alone: syncs its copy first, and discards it after an error. A
  // file without a name only gets a new place.
  Result<void> switch_file(const ReadyCopy& ready);

  // The switches that were interrupted. Without any, finish() has nothing to do.
  bool has_unfinished();
  // Retries them. REQUIRES: users cannot change names, here and below.
  void finish();
  // Executes the intents that waited for this tier.
  Result<void> replay_for(TierIndex tier);
  // Ends the intents and the interrupted switches that need a disk that was replaced.
  Result<void> settle_lost();

 private:
  struct Switch {
    HeldFile* file;
    const HiddenCopy* copy;
    TierIndex to;
    std::vector<NamePlaces> names = {};
    std::vector<Step> steps = {};
    Original keep = Original::Remove;  // whether the original stays as a twin
    Result<void> result = {};
  };
  // A switch that was interrupted by an error that may be transient.
  struct Unfinished {
    std::unique_ptr<SwitchedFile> file;
    std::vector<Step> steps;
    std::uint64_t sequence;  // of the intent
    Holder holder;           // the one that users have
  };

  void consider_twin(Switch& change) const;
  Result<void> prepare(Switch& change) const;
  void switch_all(const std::vector<Switch*>& changes);
  void note_twin(const Switch& change) const;
  Result<void> change_place(const ReadyCopy& ready);

  Pool& pool_;
  Store& store_;
  // Shared while switches execute their intents, exclusive to replay intents of an earlier time.
  SharedMutex intents_;
  Mutex unfinished_mutex_ ACQUIRED_AFTER(intents_);
  std::vector<Unfinished> unfinished_ GUARDED_BY(unfinished_mutex_);
};

}  // namespace sluice
