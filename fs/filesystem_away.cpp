// SPDX-License-Identifier: BSD-2-Clause
// Tiers that go away and return. The rules, settled once:
// - What is on a tier that is away answers EIO.
// - In a directory that has a copy there, names may be made, replaced and removed, and its
//   attributes may change: the AwayJournal remembers that, and the tier is told when it returns,
//   before anybody can see it.
// - Such a directory is neither renamed nor removed, and its flags (chattr) don't change: EIO.
#include <sys/stat.h>

#include <cstring>

#include "base/log.hpp"
#include "fs/filesystem.hpp"

namespace sluice {

std::vector<AwayJournal::Copy> Filesystem::away_copies(const InodePtr& directory) {
  std::vector<const Tier*> away;
  {
    MutexLock lock(directory->mutex);
    for (const auto& tier : pool_) {
      if (tier->online()) continue;
      const bool has_copy = std::any_of(directory->copies.begin(), directory->copies.end(),
                                        [&](const Copy& c) { return c.tier == tier->index(); });
      if (has_copy || directory->partly_unknown) away.push_back(tier.get());
    }
  }
  std::vector<AwayJournal::Copy> out;
  if (away.empty()) return out;
  const std::string path = path_of(directory);
  for (const Tier* tier : away) out.push_back({tier->member().slot, path});
  return out;
}

Result<void> Filesystem::note_taken(const InodePtr& directory, const OpenCopies& copies,
                                    const char* name) {
  if (copies.complete) return {};
  return away_.name_taken(away_copies(directory), name);
}

Result<void> Filesystem::note_attribute_change(const InodePtr& directory,
                                               const OpenCopies& copies) {
  if (copies.complete) return {};
  const OpenCopy& first = copies.reachable[0];
  const Place from = SLUICE_TRY(place_at(*first.tier, first.get(), ""));
  return away_.attributes_change(away_copies(directory), from, directory->identity);
}

// Lets go of everything on it, so that its disk can be taken away.
void Filesystem::tier_went(Tier& tier) {
  if (engine_in_use_) engine_->forget_filesystem(tier.device());
  table_.for_each([&](Inode& inode) {
    MutexLock lock(inode.mutex);
    for (Copy& copy : inode.copies) {
      if (copy.tier == tier.index() && !copy.handle.empty()) copy.fd = nullptr;
    }
  });
  pins_may_differ();
}

// Intents that waited for the tier are carried out first, with nothing under way that has an intent
// of its own; moves that could not be settled are settle_moves()'s business, which tells the inode.
void Filesystem::tier_returned(Tier& tier) {
  std::vector<InodeId> changed;
  {
    ExclusiveLock no_names(namespace_);
    ExclusiveLock no_moves(move_intents_);
    Replay replay{.returned = tier.index(), .exclude = {}};
    {
      MutexLock unsettled(unsettled_mutex_);
      for (const Unsettled& each : unsettled_) replay.exclude.push_back(each.sequence);
    }
    if (const auto replayed = replay_intents(store_, pool_, replay); !replayed) {
      log::get().error("a tier that is back can't be used yet: tier={} why={}", tier.name(),
                       replayed.error().text());
      return;
    }
    away_.tier_returned();
    tier.admit();
    changed = rediscover_all(tier.index());
  }
  pins_may_differ();
  pool_.welcome_back();
  drop_names_and_listings(changed);
}

// The kernel may believe names that mean something else by now.
void Filesystem::drop_names_and_listings(const std::vector<InodeId>& directories) {
  if (!kernel_.drop_all_names()) {
    std::vector<std::pair<InodeId, std::string>> names;
    table_.for_each([&](Inode& inode) {
      MutexLock lock(inode.mutex);
      if (inode.told_at != 0) names.emplace_back(inode.parent, inode.name);
    });
    for (const auto& [parent, name] : names) kernel_.drop_name(parent, name);
  }
  for (const InodeId id : directories) kernel_.drop_pages(id);
}

}  // namespace sluice
