// SPDX-License-Identifier: BSD-2-Clause
// The AwayJournal records what is changed while a tier is away and concerns that tier: names that
// were taken in directories of which the tier has a copy, and attributes of such directories. The
// records are intents (tiering/intent.hpp) that wait for the tier; replay_intents() applies them
// before the tier is used again.
//
// A directory that has a copy on a tier that is away is neither renamed nor removed meanwhile, so
// its path says where that copy is.
//
// Threads: every member may be called from any thread at once.
#pragma once

#include <cstdint>
#include <string>
#include <unordered_set>
#include <vector>

#include "base/mutex.hpp"
#include "tiering/intent.hpp"

namespace sluice {

class AwayJournal {
 public:
  explicit AwayJournal(Store& store) : store_(store) {}

  // A directory's copy on a tier that is away, or where one may be.
  struct Copy {
    unsigned slot = 0;  // of the tier
    std::string path;   // below its root
  };

  // To be called before `name` is given to a file or directory. When the tier returns, what it has
  // under that name is set aside; see apply_name_taken().
  Result<void> name_taken(const std::vector<Copy>& directory, const std::string& name);

  // To be called before attributes of the directory `subject` change. When the tier returns, they
  // are copied from `from`, the copy at hand.
  Result<void> attributes_change(const std::vector<Copy>& directory, const Place& from,
                                 const Identity& subject);

  // What has been recorded so far has been applied.
  void tier_returned();

 private:
  Result<void> record(const std::vector<Step>& steps);

  Store& store_;
  Mutex mutex_;
  // Hashes of what is recorded already: a file that is saved every minute needs one record.
  std::unordered_set<std::size_t> recorded_ GUARDED_BY(mutex_);
};

}  // namespace sluice
