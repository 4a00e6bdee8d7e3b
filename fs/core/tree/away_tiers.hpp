// SPDX-License-Identifier: BSD-2-Clause
// AwayTiers records the changes that users make while a tier is offline ("away"). When the tier
// returns, they are applied to it before any request can see it. The rules:
// - Files on an offline tier cannot be used: EIO.
// - In a directory that has a copy on an offline tier, names may be created, replaced and removed,
//   and its attributes may be changed.
// - Such a directory cannot be renamed or removed, and its flags (chattr) cannot be changed: EIO.
//
// Threads: thread-safe.
#pragma once

#include <vector>

#include "base/result.hpp"
#include "fs/core/tree/directory_tree.hpp"
#include "metadata/store.hpp"
#include "tiering/move/away_journal.hpp"
#include "tiering/pool/pool.hpp"

namespace sluice {

class AwayTiers {
 public:
  AwayTiers(Pool& pool, Store& store, DirectoryTree& tree)
      : pool_(pool), tree_(tree), journal_(store) {}

  // Must be called before a file gets the name `name` in `directory`. CHECKED: NamesLock::mutex is
  // held.
  Result<void> note_new_name(const InodePtr& directory, const OpenCopies& copies, const char* name);
  // Must be called before attributes of the directory change. CHECKED: NamesLock::mutex is held.
  Result<void> note_attribute_change(const InodePtr& directory, const OpenCopies& copies);
  // Whether the directory has, or may have, a copy on a tier that is offline.
  bool has_offline_copy(const InodePtr& directory) { return !offline_copies(directory).empty(); }
  // Must be called after the journal of a tier that returned was applied.
  void tier_returned() { journal_.tier_returned(); }

 private:
  std::vector<AwayJournal::Copy> offline_copies(const InodePtr& directory);

  Pool& pool_;
  DirectoryTree& tree_;
  AwayJournal journal_;
};

}  // namespace sluice
