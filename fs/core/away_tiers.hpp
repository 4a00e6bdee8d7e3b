// SPDX-License-Identifier: BSD-2-Clause
// AwayTiers remembers what changes while a tier is away, so that the tier learns of it when it
// returns, before any request sees it. The rules:
// - What is on a tier that is away answers EIO.
// - In a directory that has a copy there, names may be made, replaced and removed, and its
//   attributes may change.
// - Such a directory is neither renamed nor removed, and its flags (chattr) do not change: EIO.
//
// Threads: every member may be called from any thread at once.
#pragma once

#include <vector>

#include "base/result.hpp"
#include "fs/core/directory_tree.hpp"
#include "metadata/store.hpp"
#include "tiering/away_journal.hpp"
#include "tiering/pool.hpp"

namespace sluice {

class AwayTiers {
 public:
  AwayTiers(Pool& pool, Store& store, DirectoryTree& tree)
      : pool_(pool), tree_(tree), journal_(store) {}

  // To be called before `name` in `directory` is given to a new file. REQUIRES: Namespace::lock is
  // held.
  Result<void> note_taken(const InodePtr& directory, const OpenCopies& copies, const char* name);
  // To be called before attributes of the directory change. REQUIRES: the same.
  Result<void> note_attribute_change(const InodePtr& directory, const OpenCopies& copies);
  // Whether the directory has, or may have, a copy on a tier that is away.
  bool concerns(const InodePtr& directory) { return !away_copies(directory).empty(); }
  // The journal of a tier that returned was carried out.
  void tier_returned() { journal_.tier_returned(); }

 private:
  std::vector<AwayJournal::Copy> away_copies(const InodePtr& directory);

  Pool& pool_;
  DirectoryTree& tree_;
  AwayJournal journal_;
};

}  // namespace sluice
