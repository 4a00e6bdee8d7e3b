// SPDX-License-Identifier: BSD-2-Clause
// Pins answers on which tier a pin or a rule wants a file. A pin is an xattr of a file or of a
// directory above it; each directory remembers what holds inside it until some pin changes.
//
// Threads: every member may be called from any thread at once.
#pragma once

#include <atomic>
#include <cstdint>
#include <vector>

#include "fs/core/descriptors.hpp"
#include "fs/core/directory_tree.hpp"
#include "fs/core/inode_table.hpp"
#include "fs/core/namespace.hpp"
#include "tiering/policy.hpp"
#include "tiering/pool.hpp"

namespace sluice {

class Pins {
 public:
  Pins(Pool& pool, InodeTable& table, DirectoryTree& tree, Descriptors& descriptors,
       Namespace& names, std::vector<Rule> rules)
      : pool_(pool),
        table_(table),
        tree_(tree),
        descriptors_(descriptors),
        names_(names),
        rules_(std::move(rules)) {}

  // The pin that holds for the inode, its own or one that it inherits; kNoTier if none does.
  // REQUIRES: Namespace::lock is not held.
  TierIndex effective(const InodePtr& inode);
  // The inode itself or the directory above it that has the pin; nullptr if none has.
  InodePtr bearer(const InodePtr& inode);
  // The pin that holds for what is in `directory`. REQUIRES: Namespace::lock is held.
  TierIndex inside(const InodePtr& directory);
  // Where a pin or a rule wants the new file `name`; kNoTier: anywhere. REQUIRES: Namespace::lock
  // is held.
  TierIndex wanted(const InodePtr& parent, const char* name);

  // The pin of this inode was set or removed.
  void changed(const InodePtr& inode);
  // A directory was renamed, and may inherit another pin.
  void inheritance_changed() { ++epoch_; }
  // A tier came or went, and with it the pins that name it.
  void tiers_changed();

 private:
  TierIndex own(const InodePtr& directory);
  bool is_deeper_than(const InodePtr& inode, std::size_t levels);

  Pool& pool_;
  InodeTable& table_;
  DirectoryTree& tree_;
  Descriptors& descriptors_;
  Namespace& names_;
  const std::vector<Rule> rules_;
  std::atomic<std::uint64_t> epoch_{1};       // see Inode::pin_epoch
  std::atomic<std::uint32_t> tier_epoch_{1};  // see Inode::own_pin_epoch
};

}  // namespace sluice
