// SPDX-License-Identifier: BSD-2-Clause
// The order in which locks of the core are taken. A lock says which ranks it comes after and
// before. The preset `clang` refuses a function that takes two in the wrong order. It does not see
// locks that a called function takes, those behind pointers and in arrays: OpenFile::moving comes
// before `names`, the turns of ShownTimes come between `copies` and `table`.
//
// Locks without a rank are taken last, and nothing else is called while they are held. The locks of
// tiering/ and metadata/ come after all of these, except for the one that has a rank here.
#pragma once

#include "base/mutex.hpp"

namespace sluice::lock_order {

class CAPABILITY("rank") Rank {};

// The outermost is the last one.
inline constexpr Rank budgets;                          // BudgetTrees
inline constexpr Rank budget ACQUIRED_BEFORE(budgets);  // one tree
inline constexpr Rank waiting ACQUIRED_BEFORE(budget);  // Budgets
inline constexpr Rank inode ACQUIRED_BEFORE(waiting);   // an Inode
inline constexpr Rank table ACQUIRED_BEFORE(inode);     // a shard of InodeTable
inline constexpr Rank copies ACQUIRED_BEFORE(table);    // DirectoryTree makes a copy of a directory
inline constexpr Rank intents ACQUIRED_BEFORE(copies);  // tiering/move/switcher.hpp: no annotation
inline constexpr Rank names ACQUIRED_BEFORE(intents);   // NamesLock
inline constexpr Rank listing ACQUIRED_BEFORE(names);   // DirectoryStream
inline constexpr Rank presence ACQUIRED_BEFORE(listing);  // Filesystem: tiers come and go

}  // namespace sluice::lock_order
