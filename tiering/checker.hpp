// SPDX-License-Identifier: BSD-2-Clause
// The invariants of a pool as code: what `sluice fsck` reports and what tests demand after every
// injected fault. It deletes only what is proven to be a copy. Threads: one caller; nobody else may
// change the pool meanwhile if it repairs.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "metadata/store.hpp"
#include "tiering/pool.hpp"

namespace sluice {

struct Finding {
  enum class Kind {
    SameFileTwice,  // one path, two tiers, equal bytes: the slower can go
    TwoFiles,       // one path, two tiers, different bytes: somebody must choose; never repaired
    TypeClash,      // a directory on one tier, something else on another; never repaired
    DirectoryAttributes,  // copies of a directory that differ in owner, mode or xattrs
    SharedIdentity,       // two files or directories of different names have one identity
    AclAlias,             // an ACL of XFS, kept by a filesystem to which it is no ACL
    LeftOver,             // something in .sluice/tmp
    Unfinished,           // an intent that was never carried out
    Unreadable,           // could not be examined
  };
  Kind kind{};
  std::string path;    // below the pool's root
  std::string detail;  // which tiers, and what to do
  bool repaired = false;
};

// "same-file-twice", ...: stable, for programs.
const char* name_of(Finding::Kind kind);

struct CheckReport {
  std::vector<Finding> findings;
  std::uint64_t files = 0;
  std::uint64_t directories = 0;
  bool clean() const;  // nothing is left to do
};

enum class Repair { No, Yes };

// Walks every tier that is online. `progress` is called now and then with the files seen so far.
// `store` may be null: then intents are not looked at.
CheckReport check_pool(const Pool& pool, Store* store, Repair repair,
                       const std::function<void(std::uint64_t files)>& progress);

}  // namespace sluice
