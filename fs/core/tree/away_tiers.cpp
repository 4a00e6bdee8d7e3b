// SPDX-License-Identifier: BSD-2-Clause
#include "fs/core/tree/away_tiers.hpp"

#include <string>

#include "tiering/move/intent.hpp"

namespace sluice {

std::vector<AwayJournal::Copy> AwayTiers::offline_copies(const InodePtr& directory) {
  std::vector<const Tier*> away;
  {
    Inode::Locked state(*directory);
    for (const auto& tier : pool_) {
      if (tier->online()) continue;
      if (state->has_copy_on(tier->index()) || state->directory.partly_unknown)
        away.push_back(tier);
    }
  }
  std::vector<AwayJournal::Copy> out;
  if (away.empty()) return out;
  const std::string path = tree_.path_of(directory);
  for (const Tier* tier : away) out.push_back({tier->member().slot, path});
  return out;
}

Result<void> AwayTiers::note_new_name(const InodePtr& directory, const OpenCopies& copies,
                                      const char* name) {
  tree_.assert_names_held();
  if (copies.complete) return {};
  return journal_.name_taken(offline_copies(directory), name);
}

Result<void> AwayTiers::note_attribute_change(const InodePtr& directory, const OpenCopies& copies) {
  tree_.assert_names_held();
  if (copies.complete) return {};
  const OpenCopy& first = copies.reachable[0];
  const Place from = SLUICE_TRY(place_at(*first.tier, first.get(), ""));
  return journal_.attributes_change(offline_copies(directory), from, directory->identity);
}

}  // namespace sluice
