// SPDX-License-Identifier: BSD-2-Clause
// AwayJournal records changes that concern a tier while that tier is away: new names in directories
// of which the tier has a copy, and changed attributes of such directories. The records are intents
// (tiering/move/intent.hpp); replay_intents() applies them before the tier is used again.
//
// While a tier is away, directories that have a copy on it are neither renamed nor removed. So the
// path of a directory is enough to find that copy later.
//
// Threads: every member may be called from any thread at once.
#pragma once

#include <cstdint>
#include <string>
#include <unordered_set>
#include <vector>

#include "base/mutex.hpp"
#include "tiering/move/intent.hpp"

namespace sluice {

class AwayJournal {
 public:
  explicit AwayJournal(Store& store) : store_(store) {}

  // The place of a directory's copy on a tier that is away. The copy itself may not exist.
  struct Copy {
    unsigned slot = 0;  // of the tier
    std::string path;   // below its root
  };

  // Call this before `name` is given to a file or directory. When the tier returns, its file of
  // that name may be set aside; see apply_name_taken().
  Result<void> name_taken(const std::vector<Copy>& directory, const std::string& name);

  // Call this before attributes of the directory `subject` change. When the tier returns, they are
  // copied from `from`, a copy that is online.
  Result<void> attributes_change(const std::vector<Copy>& directory, const Place& from,
                                 const Identity& subject);

  // Everything recorded so far has been applied.
  void tier_returned();
  std::size_t remembered() const;  // records that are not stored again

 private:
  Result<void> record(const std::vector<Step>& steps);

  Store& store_;
  mutable Mutex mutex_;
  // Hashes of the records that are stored already: a file that is saved every minute needs only
  // one. Not all of them are remembered: a record may be stored twice.
  std::unordered_set<std::size_t> recorded_ GUARDED_BY(mutex_);
};

}  // namespace sluice
