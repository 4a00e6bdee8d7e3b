// SPDX-License-Identifier: BSD-2-Clause
// What users' operations add to the trees and remove from them.
#include "fs/core/budget/budgets.hpp"

#include <algorithm>
#include <map>

#include "fs/core/budget/budget_tree.hpp"

namespace sluice {
namespace {

using std::chrono::steady_clock;

constexpr std::uint64_t kRemembered = 256;  // about how many files Tree::largest is of

}  // namespace

void Budgets::name_came(const InodePtr& parent, const std::string& name, const InodePtr& file,
                        Growth growth) {
  if (!trees_.is_active() || !S_ISREG(file->type)) return;
  const Way way = trees_.climb(parent);
  trees_.note_unknown(way);
  const BudgetSize size =
      growth == Growth::Growing ? BudgetSize{} : size_of(parts_.descriptors, file);
  const bool is_written = has_writers(*file);
  bool needs_keeper = false;
  for (const Above& each : trees_.above(way)) {
    Tree& tree = *each.tree;
    const MutexLock lock(tree.mutex);
    BudgetFiles::File& known =
        tree.files.add_name(file->id(), each.below(way), name, parts_.clock.seconds());
    tree.files.set_bytes(known, size.bytes);
    tree.note(file->id());
    const bool is_owing = file->waits_for_room && !tree.has_room();
    if (is_owing) tree.owing[file->id()] = steady_clock::now();
    needs_keeper = needs_keeper || is_owing || tree.files.used() > tree.budget.bytes ||
                   (is_written && tree.growing.empty());
    if (is_written && !is_owing) tree.put_growing(file->id());
  }
  if (needs_keeper) trees_.wake();
}

void Budgets::name_gone(const InodePtr& parent, const std::string& name, InodeId id) {
  if (!trees_.is_active()) return;
  const Way way = trees_.climb(parent);
  for (const Above& each : trees_.above(way)) {
    Tree& tree = *each.tree;
    const MutexLock lock(tree.mutex);
    tree.note(id);
    tree.files.remove_name(id, each.below(way), name);
    if (!tree.files.contains(id)) tree.erase(id);
  }
  may_have_room();
}

void Budgets::opened_for_writing(const InodePtr& file) {
  if (!trees_.is_active()) return;
  const std::string name = file->last_name().text;
  const Way way = trees_.climb_from_file(file);
  trees_.note_unknown(way);
  const bool has_links = size_of(parts_.descriptors, file).has_links;
  bool needs_keeper = false;
  for (const Above& each : trees_.trees_of(way, has_links)) {
    Tree& tree = *each.tree;
    const MutexLock lock(tree.mutex);
    if (!tree.files.contains(file->id())) {
      // Perhaps it was made directly on a tier.
      if (each.depth == BudgetTrees::kNotAbove || !tree.is_known || name.empty()) continue;
      tree.files.add_name(file->id(), each.below(way), name, parts_.clock.seconds());
    }
    needs_keeper = needs_keeper || tree.growing.empty();
    if (!tree.owing.contains(file->id())) tree.growing.try_emplace(file->id());
  }
  if (needs_keeper) trees_.wake();
}

void Budgets::written(const InodePtr& file) {
  if (!trees_.is_active()) return;
  const BudgetSize size = size_of(parts_.descriptors, file);
  const bool is_open = has_writers(*file);
  bool needs_keeper = false;
  for (const Above& each : trees_.trees_of(trees_.climb_from_file(file), size.has_links)) {
    Tree& tree = *each.tree;
    const MutexLock lock(tree.mutex);
    BudgetFiles::File* const known = tree.files.find(file->id());
    if (known == nullptr) continue;
    tree.note(file->id());
    if (!size.has_name) {
      tree.erase(file->id());
      continue;
    }
    tree.files.set_bytes(*known, size.bytes);
    known->written = parts_.clock.seconds();
    needs_keeper = needs_keeper || tree.files.used() > tree.budget.bytes;
    if (is_open) continue;
    tree.owing.erase(file->id());
    if (tree.growing.erase(file->id()) == 0) continue;
    tree.largest = std::max(size.bytes, tree.largest - tree.largest / kRemembered);
  }
  if (!is_open) file->waits_for_room = false;
  needs_keeper ? trees_.wake() : may_have_room();
}

void Budgets::accessed(InodeId id, double uses) {
  if (!trees_.is_active()) return;
  // A file that the kernel has forgotten since gets its uses from the store by the next listing.
  const InodePtr inode = parts_.table.find(id);
  if (!inode) return;
  for (const Above& each : trees_.above(trees_.climb_from_file(inode))) {
    const MutexLock lock(each.tree->mutex);
    BudgetFiles::File* const file = each.tree->files.find(id);
    if (file == nullptr) continue;
    file->uses += uses;
    file->last_use = static_cast<double>(parts_.clock.seconds());
  }
}

void Budgets::directory_renamed(const InodePtr& from, const std::string& name, const InodePtr& to,
                                const std::string& new_name) {
  if (!trees_.is_active()) return;
  const Way old_way = trees_.climb(from), new_way = trees_.climb(to);
  const auto path = [](const Above& each, const Way& way, const std::string& last) {
    std::vector<std::string> out{last};
    const auto below = each.below(way);
    out.insert(out.end(), below.begin(), below.end());
    return out;
  };
  std::map<TreePtr, Tree::DirectoryChange> changes;
  for (const Above& each : trees_.above(old_way))
    changes[each.tree].from = path(each, old_way, name);
  for (const Above& each : trees_.above(new_way))
    changes[each.tree].to = path(each, new_way, new_name);
  for (auto& [tree, change] : changes) {
    const MutexLock lock(tree->mutex);
    if (change.from.empty()) {
      tree->must_list = true;  // its files are not known
      continue;
    }
    apply(tree->files, change.from, change.to);
    tree->erase_gone();
    tree->note(std::move(change));
  }
  trees_.paths_changed();
  may_have_room();
}

void Budgets::directory_came(const InodePtr& parent) {
  if (!trees_.is_active()) return;
  for (const Above& each : trees_.above(trees_.climb(parent))) {
    const MutexLock lock(each.tree->mutex);
    each.tree->must_list = true;
  }
}

void Budgets::directory_gone(const InodePtr& parent, const std::string& name) {
  if (!trees_.is_active()) return;
  const Way way = trees_.climb(parent);
  for (const Above& each : trees_.above(way)) {
    Tree::DirectoryChange change{{name}, {}};
    const auto below = each.below(way);
    change.from.insert(change.from.end(), below.begin(), below.end());
    const MutexLock lock(each.tree->mutex);
    each.tree->files.directory_left(change.from);
    each.tree->erase_gone();
    each.tree->note(std::move(change));
  }
}

bool Budgets::poll() {
  std::map<InodeId, std::vector<TreePtr>> growing;
  for (const TreePtr& tree : trees_.all()) {
    const MutexLock lock(tree->mutex);
    for (const auto& [file, grew] : tree->growing) growing[file].push_back(tree);
    for (const auto& [file, since] : tree->owing) growing[file].push_back(tree);
  }
  for (const auto& [id, trees] : growing) {
    const InodePtr file = parts_.table.find(id);
    if (file && !has_writers(*file)) written(file);
    const bool is_open = file && has_writers(*file);
    const BudgetSize size = is_open ? size_of(parts_.descriptors, file) : BudgetSize{};
    for (const TreePtr& tree : trees) {
      const MutexLock lock(tree->mutex);
      BudgetFiles::File* const known = tree->files.find(id);
      // A GPU or a mapping has written to it; such writes do not wait for room.
      if (size.bytes > 0 && tree->owing.erase(id) > 0) tree->put_growing(id);
      const auto grew = tree->growing.find(id);
      // If it was closed meanwhile, its size is known better.
      if (grew == tree->growing.end()) continue;
      if (!is_open || known == nullptr) {
        tree->growing.erase(grew);
        continue;
      }
      if (size.bytes > known->bytes) grew->second = steady_clock::now();
      tree->files.set_bytes(*known, size.bytes);
    }
  }
  return !growing.empty();
}

}  // namespace sluice
