// SPDX-License-Identifier: BSD-2-Clause
// MoveRequests takes users' requests to move a file. Without a Migration they get EOPNOTSUPP.
// Threads: every member may be called from any thread at once.
#pragma once

#include "base/result.hpp"
#include "fs/core/attributes.hpp"
#include "fs/core/directory_tree.hpp"
#include "tiering/migration.hpp"
#include "tiering/pool.hpp"

namespace sluice {

class MoveRequests {
 public:
  MoveRequests(Pool& pool, DirectoryTree& tree, Attributes& attributes, Migration* migration)
      : pool_(pool), tree_(tree), attributes_(attributes), migration_(migration) {}

  Result<void> request(const InodePtr& inode, TierIndex to, uid_t user);
  // To the fastest tier with room. Nothing to do if there is no faster one; ENOSPC if those are
  // full.
  Result<void> promote(InodeId id, uid_t user);

 private:
  Pool& pool_;
  DirectoryTree& tree_;
  Attributes& attributes_;
  Migration* const migration_;
};

}  // namespace sluice
