// SPDX-License-Identifier: BSD-2-Clause
// Pins determines on which tier a pin or a rule wants a file. A pin is an xattr of a file, or of a
// directory for everything below it. The pin that a directory passes on is cached in its inode; any
// change of a pin makes these caches invalid.
//
// Threads: thread-safe.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <vector>

#include "base/mutex.hpp"
#include "fs/core/inodes/inode_table.hpp"
#include "fs/core/inodes/names_lock.hpp"
#include "fs/core/tree/descriptors.hpp"
#include "fs/core/tree/directory_tree.hpp"
#include "tiering/choose/policy.hpp"
#include "tiering/pool/pool.hpp"

namespace sluice {

class Pins {
 public:
  Pins(Pool& pool, InodeTable& table, DirectoryTree& tree, Descriptors& descriptors,
       NamesLock& names_lock, std::vector<Rule> rules)
      : pool_(pool),
        table_(table),
        tree_(tree),
        descriptors_(descriptors),
        names_lock_(names_lock) {
    change_rules(std::move(rules));
  }

  // For files that are created from now on.
  void change_rules(std::vector<Rule> rules);

  // The pin of the inode, its own or an inherited one; kNoTier if there is none. REQUIRES:
  // NamesLock::mutex is not held.
  TierIndex effective(const InodePtr& inode);
  // The inode, or the directory above it, that has the effective pin; nullptr if there is none.
  InodePtr pin_source(const InodePtr& inode);
  // The pin for everything in `directory`; kNoTier if there is none. CHECKED: NamesLock::mutex is
  // held.
  TierIndex inside(const InodePtr& directory);
  // The tier on which a pin or a rule wants the new file `name`; kNoTier: any. CHECKED:
  // NamesLock::mutex is held.
  TierIndex wanted(const InodePtr& parent, const char* name);

  // Must be called after the pin of this inode was set or removed.
  void changed(const InodePtr& inode);
  // Must be called after a directory was renamed, because it may inherit another pin.
  void inheritance_changed() { ++epoch_; }
  // Must be called when a tier was added, came online or went offline: pins to it become valid or
  // invalid.
  void tiers_changed();

 private:
  TierIndex own(const InodePtr& directory);
  bool is_deeper_than(const InodePtr& inode, std::size_t levels);

  Pool& pool_;
  InodeTable& table_;
  DirectoryTree& tree_;
  Descriptors& descriptors_;
  NamesLock& names_lock_;
  mutable Mutex rules_mutex_;
  // Never null; replaced as a whole.
  std::shared_ptr<const std::vector<Rule>> rules_ GUARDED_BY(rules_mutex_);
  std::atomic<std::uint64_t> epoch_{1};       // see CachedPins::inherited_epoch
  std::atomic<std::uint32_t> tier_epoch_{1};  // see CachedPins::own_epoch
};

}  // namespace sluice
