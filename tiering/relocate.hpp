// SPDX-License-Identifier: BSD-2-Clause
// Relocation gives a file a new home on another tier: a complete, synced copy out of sight first,
// then one rename and one unlink under an intent. At every instant at least one complete copy has
// the file's name. Threads: pure functions; the caller keeps writers away from the file.
#pragma once

#include <string>
#include <vector>

#include "tiering/copier.hpp"
#include "tiering/intent.hpp"
#include "tiering/pool.hpp"

namespace sluice {

// A copy of a file in a tier's .sluice/tmp.
struct HiddenCopy {
  std::string name;  // none if the original has none
  UniqueFd fd;       // O_RDWR
  Located located;
  Copied copied;
};

// Copies the open file `source` with all its metadata and its identity. Not yet synced: that is
// settle()'s. Leaves nothing behind on failure.
Result<HiddenCopy> make_hidden_copy(int source, const Identity& identity, Tier& to,
                                    const Pace& pace = {});

// Returns once the copy is on stable storage. The caller discards a copy that can't be settled.
Result<void> settle(const HiddenCopy& copy);

void discard(const HiddenCopy& copy, const Tier& tier);

// One of a file's names: the directory it is in, on both tiers.
struct NamePlaces {
  int from_dir = -1;
  int to_dir = -1;
  std::string name;
};

// The steps that put the copy in the place of all the file's names on the tier `from`.
Result<std::vector<Step>> relocation_steps(const HiddenCopy& copy, const Tier& from, const Tier& to,
                                           const std::vector<NamePlaces>& names);

// Whether the steps are a file's move.
bool is_move(const std::vector<Step>& steps);

// How one move ended.
struct MoveEnd {
  // The copy is the file now; or why not, and the original is.
  Result<void> result;
  // False: the other of the two could not be taken out of sight. The intent stays in the store, and
  // settle_move() or take_back() must be tried again: until then both have the name.
  bool is_settled = true;
  std::uint64_t sequence = 0;  // of the intent
};

// Carries out a step, the `step`-th of the `move`-th move, by calling `act`.
using AroundStep = std::function<Result<void>(std::size_t move, std::size_t step,
                                              const std::function<Result<void>()>& act)>;

// Carries out several moves together, so that they share their syncs; each happens whole or not at
// all. `before_removals(i)` is called once the copy of move i has all its names, on disk. Each step
// puts the times of the directory that it changes back, unless there is an `around`: then that
// does.
Result<std::vector<MoveEnd>> carry_out_moves(
    Store& store, const Pool& pool, const std::vector<std::vector<Step>>& moves,
    const std::function<void(std::size_t)>& before_removals, const AroundStep& around = {});

// Which of the two files people may have worked with, because the other's tier was away.
enum class Served { Neither, Original, Copy };

// Brings a move that stopped half-way to an end, forwards if the original is as it was when it was
// copied, backwards if it was changed since, or may be open, and the copy was not. EUCLEAN if both
// were changed: both stay and somebody must choose. Other errors: it can't be settled now. Returns
// true if the copy is the file.
Result<bool> settle_move(const Pool& pool, const std::vector<Step>& steps,
                         Served served = Served::Neither);

// Takes the copy of a move out of sight, and makes sure of it. ESTALE if an original is gone: then
// only settle_move() helps.
Result<void> take_back(const Pool& pool, const std::vector<Step>& steps);

}  // namespace sluice
