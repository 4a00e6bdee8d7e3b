// SPDX-License-Identifier: BSD-2-Clause
// MoveRequests passes users' requests to move a file on to the Migration. Without a Migration every
// request fails with EOPNOTSUPP.
//
// Threads: thread-safe.
#pragma once

#include "base/result.hpp"
#include "fs/core/names/attributes.hpp"
#include "fs/core/tree/directory_tree.hpp"
#include "tiering/move/migration.hpp"
#include "tiering/pool/pool.hpp"

namespace sluice {

class MoveRequests {
 public:
  MoveRequests(Pool& pool, DirectoryTree& tree, Attributes& attributes, Migration* migration)
      : pool_(pool), tree_(tree), attributes_(attributes), migration_(migration) {}

  // For the tier that the file is on, withdraws its move. EISDIR if the inode is not a regular
  // file, EIO if the tier is offline, EBUSY if it is being emptied.
  Result<void> request(const InodePtr& inode, TierIndex to, uid_t user);
  // Ends the file's move, whoever asked for it. ENODATA if it has none, EALREADY if it is too late:
  // the file has just moved or is being switched.
  Result<void> withdraw(const InodePtr& inode);
  // Requests a move to the fastest tier that has room. Does nothing if the file is on the fastest
  // tier already. ENOSPC if all faster tiers are full.
  Result<void> promote(InodeId id, uid_t user);

 private:
  Pool& pool_;
  DirectoryTree& tree_;
  Attributes& attributes_;
  Migration* const migration_;
};

}  // namespace sluice
