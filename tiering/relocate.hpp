// SPDX-License-Identifier: BSD-2-Clause
// Relocation gives a file a new home on another tier: a complete, synced copy out of sight first,
// then one rename and one unlink under an intent. At every instant at least one complete copy has
// the file's name. Threads: pure functions; the caller keeps writers away from the file.
#pragma once

#include <string>

#include "tiering/intent.hpp"
#include "tiering/pool.hpp"

namespace sluice {

// A complete copy of a file in a tier's .sluice/tmp.
struct HiddenCopy {
  std::string name;
  UniqueFd fd;  // O_RDWR
  Located located;
};

// Copies the open file `source` with all its metadata and its identity, and syncs it. Leaves
// nothing behind on failure.
Result<HiddenCopy> make_hidden_copy(int source, const Identity& identity, Tier& to);

void discard(const HiddenCopy& copy, const Tier& tier);

// Puts the copy in the place of `name` in `to_dir`, and takes the source's name away from
// `from_dir`.
Result<void> switch_to_copy(Store& store, const Pool& pool, const HiddenCopy& copy,
                            const Tier& from, int from_dir, const Tier& to, int to_dir,
                            const std::string& name);

}  // namespace sluice
