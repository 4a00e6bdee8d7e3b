// SPDX-License-Identifier: BSD-2-Clause
// DeletionRule decides whether a budget may delete a file now. BudgetKeeper asks it before it
// deletes, and BudgetForecast before it says what would be deleted, so both always agree. The
// decision itself is why_kept() in tiering/choose/budget.hpp; this class collects what it needs to
// know.
//
// Threads: thread-safe.
#pragma once

#include <chrono>
#include <optional>
#include <utility>
#include <vector>

#include "base/clock.hpp"
#include "fs/core/budget/budget_trees.hpp"
#include "fs/core/inodes/inode_table.hpp"
#include "fs/core/names/names.hpp"
#include "fs/core/tree/descriptors.hpp"
#include "fs/core/tree/directory_tree.hpp"

namespace sluice {

class DeletionRule {
 public:
  struct Parts {
    const Pool& pool;
    InodeTable& table;
    DirectoryTree& tree;
    Descriptors& descriptors;
    const Clock& clock;
    std::chrono::seconds rest;  // see BudgetTrees
  };
  explicit DeletionRule(const Parts& parts) : parts_(parts) {}

  // A file that may be deleted next, and what is known of it. It keeps the inodes in memory.
  class Candidate {
   public:
    explicit Candidate(InodeTable& table) : table_(&table) {}
    Candidate(Candidate&& other) noexcept
        : file(std::move(other.file)),
          names(std::move(other.names)),
          facts(std::move(other.facts)),
          table_(other.table_),
          references_(std::exchange(other.references_, {})) {}
    Candidate(const Candidate&) = delete;
    Candidate& operator=(const Candidate&) = delete;
    ~Candidate() {
      for (const InodeId id : references_) table_->forget(id, 1);
    }

    InodePtr file;
    std::vector<Names::Place> names;
    DeletionFacts facts;

   private:
    friend class DeletionRule;
    InodeTable* table_;
    std::vector<InodeId> references_;
  };

  // Finds the file, and collects all facts except those of add(). ESTALE or ENOENT if it is not
  // where the tree says.
  Result<Candidate> find(const BudgetTrees::Place& place, const BudgetTrees::Victim& victim);
  // Whether the file or a directory above it, below `directory`, has a pin. ESTALE: the file is not
  // below it.
  Result<bool> has_pin(const InodePtr& directory, const Candidate& candidate);
  // Adds whether anybody uses the file, as far as its state shows it.
  static void add_use(DeletionFacts& facts, const InodeState& state);
  // What the tier says of a name: `found` in `directory`.
  Result<void> add(DeletionFacts& facts, const Located& found, const OpenCopy& directory) const;
  // find(), and add() for all names.
  Result<Candidate> examine(const BudgetTrees::Place& place, const BudgetTrees::Victim& victim);
  // Why the file stays; nothing if it may be deleted. REQUIRES: add() was called for each name.
  std::optional<Kept> decide(const Candidate& file, const Budget& budget) const {
    return why_kept(file.facts, budget, parts_.clock.seconds(), parts_.rest);
  }

 private:
  const Parts parts_;
};

}  // namespace sluice
