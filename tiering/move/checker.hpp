// SPDX-License-Identifier: BSD-2-Clause
// The invariants of a pool, as code. `sluice fsck` reports violations, and tests run the checker
// after every injected fault. A repair deletes a file only after it was compared with its
// duplicate.
// Threads: one caller. While a check repairs, nothing else may change the pool.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "metadata/store.hpp"
#include "tiering/pool/pool.hpp"

namespace sluice {

struct Finding {
  enum class Kind {
    SameFileTwice,  // two tiers have the same path with equal bytes; the slower copy can be removed
    // Two tiers have the same path with different bytes. Never repaired: a person must choose.
    TwoFiles,
    TypeClash,            // one tier has a directory, another has something else; never repaired
    DirectoryAttributes,  // copies of a directory differ in owner, mode or xattrs
    SharedIdentity,       // two files or directories with different paths have one identity
    AclAlias,             // XFS's alias of an ACL, stored on a filesystem where it is not an ACL
    LeftOver,             // a file in .sluice/tmp
    Unfinished,           // an intent that was not executed
    Unreadable,           // could not be examined
  };
  Kind kind{};
  std::string path;    // below the pool's root
  std::string detail;  // which tiers, and what to do next
  bool repaired = false;
};

// "same-file-twice", ...: stable, for programs.
const char* name_of(Finding::Kind kind);

struct CheckReport {
  std::vector<Finding> findings;
  std::uint64_t files = 0;
  std::uint64_t directories = 0;
  // Twins that can still take their file's place, and others. The latter are not a problem: a mount
  // removes them, and so does a repair.
  std::uint64_t twins = 0, twin_bytes = 0;
  std::uint64_t stale_twins = 0, stale_twin_bytes = 0;
  bool clean() const;  // no findings are left
};

enum class Repair { No, Yes };

// Walks every tier that is online. `progress` is called from time to time with the number of files
// seen so far. If `store` is null, intents are not checked.
CheckReport check_pool(const Pool& pool, Store* store, Repair repair,
                       const std::function<void(std::uint64_t files)>& progress);

}  // namespace sluice
