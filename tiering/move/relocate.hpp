// SPDX-License-Identifier: BSD-2-Clause
// Relocation gives a file a new place on another tier: after a complete, synced, hidden copy was
// made, the copy gets the file's names and the original loses them. An intent covers this switch,
// so that a crash at any point leaves at least one complete file under each name.
//
// Threads: functions without state. The caller prevents writes to the file.
#pragma once

#include <string>
#include <vector>

#include "tiering/move/intent.hpp"
#include "tiering/pool/hidden_copy.hpp"
#include "tiering/pool/pool.hpp"

namespace sluice {

// One name of a file, and its directory on both tiers.
struct NamePlaces {
  int from_dir = -1;
  int to_dir = -1;
  std::string name;
};

// The steps that give the copy all the names and remove the original's on the tier `from`, where
// the original may stay as a twin. `shown`: the times of the original, which users see of the copy.
enum class Original { Remove, KeepAsTwin };
Result<std::vector<Step>> relocation_steps(const HiddenCopy& copy, const Tier& from, const Tier& to,
                                           const std::vector<NamePlaces>& names,
                                           Original original = Original::Remove,
                                           const ShownBefore& shown = {});

// Whether the steps are the switch of a move.
bool is_move(const std::vector<Step>& steps);

// How one move ended.
struct MoveEnd {
  // Success: the copy is the file. Error: the original still is.
  Result<void> result;
  // False: the other one of the two could not be removed, so both have the name. The intent stays
  // in the store, and finish_move() or undo_move() must be retried.
  bool is_finished = true;
  std::uint64_t sequence = 0;  // of the intent
};

// Executes one step, number `step` of move number `move`, by calling `act`.
using AroundStep = std::function<Result<void>(std::size_t move, std::size_t step,
                                              const std::function<Result<void>()>& act)>;

// Executes the switches of several moves together, so that they share their syncs. Each one happens
// completely or not at all. `before_removals(i)` is called once the copy of move i durably has all
// its names. It returns the times to keep for the file, which are durable when this returns.
// `around` hides the steps from the times of directories.
using BeforeRemovals = std::function<KeptTimes(std::size_t move)>;
Result<std::vector<MoveEnd>> execute_moves(Store& store, const Pool& pool,
                                           const std::vector<std::vector<Step>>& moves,
                                           const BeforeRemovals& before_removals,
                                           const AroundStep& around = {});

// Which of the two files users may have changed, because the tier of the other one was away.
enum class Served { Neither, Original, Copy };

// Ends a switch that was interrupted. It is completed if the original was not changed since it was
// copied. It is undone if the original was changed, or may be open, and the copy was not changed.
// EUCLEAN if both were changed: both stay, and the administrator must choose. Other errors: retry
// later. Returns true if the copy is the file. `around`: as for execute_moves(), for move 0.
Result<bool> finish_move(const Pool& pool, const std::vector<Step>& steps, const AroundStep& around,
                         Served served = Served::Neither);

// Durably removes the names of a move's copy. ESTALE if an original is gone: then only
// finish_move() helps.
Result<void> undo_move(const Pool& pool, const std::vector<Step>& steps);

}  // namespace sluice
