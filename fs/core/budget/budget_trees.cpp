// SPDX-License-Identifier: BSD-2-Clause
#include "fs/core/budget/budget_trees.hpp"

#include <algorithm>
#include <set>

#include "fs/core/budget/budget_tree.hpp"

namespace sluice {
namespace {

constexpr std::size_t kMostAncestors = 4096;     // above that, the next listing counts the file
constexpr std::uint64_t kNoBudget = UINT64_MAX;  // of a tree that will be dropped

}  // namespace

BudgetTrees::Way BudgetTrees::climb(const InodePtr& directory) {
  Way way;
  for (InodePtr at = directory; at && at->id() != kRootId && way.ids.size() < kMostAncestors;) {
    InodeName name = at->last_name();
    // A predecessor leaves only a hash of the name; path_of() finds the name.
    if (name.text.empty() && !parts_.tree.path_of(at).empty()) name = at->last_name();
    way.ids.push_back(at->id());
    way.names.push_back(std::move(name.text));
    at = parts_.table.find(name.parent);
  }
  return way;
}

BudgetTrees::Way BudgetTrees::climb_from_file(const InodePtr& file) {
  const InodePtr parent = parts_.table.find(file->last_name().parent);
  return parent ? climb(parent) : Way{};
}

std::vector<BudgetTrees::Above> BudgetTrees::above(const Way& way) {
  std::vector<Above> out;
  const MutexLock lock(mutex_);
  if (trees_.empty()) return out;
  for (std::size_t i = 0; i < way.ids.size(); ++i) {
    if (const auto found = trees_.find(way.ids[i]); found != trees_.end())
      out.push_back({found->second, way.ids[i], i});
  }
  return out;
}

std::vector<BudgetTrees::Above> BudgetTrees::trees_of(const Way& way, bool has_links) {
  std::vector<Above> out = above(way);
  if (!has_links) return out;
  std::set<InodeId> known;
  for (const Above& each : out) known.insert(each.id);
  const MutexLock lock(mutex_);
  for (const auto& [id, tree] : trees_) {
    if (!known.contains(id)) out.push_back({tree, id, kNotAbove});
  }
  return out;
}

// Before the pool was searched, users find the trees that they use.
void BudgetTrees::note_unknown(const Way& way) {
  if (is_searched_.load()) return;
  for (const InodeId id : way.ids) {
    const InodePtr directory = parts_.table.find(id);
    if (!directory) continue;
    {
      const MutexLock lock(mutex_);
      if (trees_.contains(id) || found_.contains(id)) continue;
    }
    const auto fd = parts_.descriptors.any(directory);
    if (!fd || !own_budget((*fd)->get())) continue;
    const MutexLock lock(mutex_);
    found_.emplace(id, directory);
    has_work_ = true;
    work_.notify_all();
  }
}

std::vector<InodePtr> BudgetTrees::found_by_users() {
  const MutexLock lock(mutex_);
  std::vector<InodePtr> out;
  for (auto& [id, directory] : found_) out.push_back(directory);
  found_.clear();
  return out;
}

std::shared_ptr<const BudgetTrees::Rules> BudgetTrees::rules() {
  const MutexLock lock(mutex_);
  return rules_;
}

void BudgetTrees::change_rules(Rules rules) {
  const MutexLock lock(mutex_);
  if (rules == *rules_) return;
  rules_ = std::make_shared<const Rules>(std::move(rules));
  if (is_searched_) update_active();  // before that it is active, if anybody keeps budgets
  ++searches_wanted_;
  has_work_ = true;
  work_.notify_all();
}

void BudgetTrees::directory_made(const InodePtr& parent, const std::string& name) {
  if (!is_active()) return;
  const auto rules = this->rules();
  if (rules->empty()) return;
  const std::string path = parts_.tree.path_of(parent);
  if (!budget_of(std::nullopt, *rules, (path == "/" ? "" : path) + "/" + name)) return;
  ++searches_wanted_;
  const MutexLock lock(mutex_);
  has_work_ = true;
  work_.notify_all();
}

void BudgetTrees::directory_removed(const InodePtr& directory) {
  if (!is_active()) return;
  const MutexLock lock(mutex_);
  if (!trees_.contains(directory->id())) {
    found_.erase(directory->id());
    set_owner(directory->id(), std::nullopt);
    return;
  }
  found_.emplace(directory->id(), directory);
  has_work_ = true;
  work_.notify_all();
}

void BudgetTrees::search_again() {
  ++searches_wanted_;
  for (const TreePtr& tree : all()) {
    const MutexLock lock(tree->mutex);
    tree->must_list = true;
  }
}

void BudgetTrees::set_owner(InodeId directory, std::optional<uid_t> user) {
  if (const auto old = owners_.find(directory); old != owners_.end()) {
    if (const auto count = of_user_.find(old->second); --count->second == 0) of_user_.erase(count);
    owners_.erase(old);
  }
  if (!user || *user == 0) return;
  owners_.emplace(directory, *user);
  ++of_user_[*user];
}

Result<void> BudgetTrees::count_budget(const InodePtr& directory, uid_t user) {
  const MutexLock lock(mutex_);
  const auto old = owners_.find(directory->id());
  const bool is_mine = old != owners_.end() && old->second == user;
  const auto count = of_user_.find(user);
  if (!is_mine && count != of_user_.end() && count->second >= kMostOfUser)
    return Error(EDQUOT, "the user has too many budgets");
  set_owner(directory->id(), user);
  return {};
}

std::size_t BudgetTrees::most_of_user() {
  const MutexLock lock(mutex_);
  std::size_t most = 0;
  for (const auto& [user, count] : of_user_) most = std::max(most, count);
  return most;
}

void BudgetTrees::changed(const InodePtr& directory) {
  const auto fd = parts_.descriptors.any(directory);
  const auto own = fd ? own_budget((*fd)->get()) : std::nullopt;
  if (own) is_active_ = true;
  Budget budget{kNoBudget, 0};
  if (const auto now = budget_of(own, *rules(), parts_.tree.path_of(directory))) budget = *now;
  for (const Above& each : above(climb(directory))) {
    const MutexLock lock(each.tree->mutex);
    each.tree->must_list = true;
    // The next operation counts with it.
    if (each.id != directory->id() || !fd || each.tree->budget == budget) continue;
    each.tree->files.end_spares();
    each.tree->budget = budget;
  }
  const MutexLock lock(mutex_);
  if (!own && fd) set_owner(directory->id(), std::nullopt);
  if (directory->is_directory() && (own || trees_.contains(directory->id())))
    found_.emplace(directory->id(), directory);
  has_work_ = true;
  work_.notify_all();
}

std::optional<Budget> BudgetTrees::nearest(const InodePtr& directory) {
  const auto rules = this->rules();
  for (InodePtr at = directory; at && at->id() != kRootId; at = parts_.tree.parent_of(at)) {
    const auto fd = parts_.descriptors.any(at);
    const auto own = fd ? own_budget((*fd)->get()) : std::nullopt;
    const auto budget = budget_of(own, *rules, parts_.tree.path_of(at));
    if (budget) return budget;
  }
  return std::nullopt;
}

std::vector<BudgetTrees::TreePtr> BudgetTrees::all() {
  const MutexLock lock(mutex_);
  std::vector<TreePtr> out;
  for (auto& [id, tree] : trees_) out.push_back(tree);
  return out;
}

void BudgetTrees::update_active() {
  is_active_ = !is_searched_.load() || !trees_.empty() || !rules_->empty();
}

void BudgetTrees::searched() {
  const MutexLock lock(mutex_);
  is_searched_ = true;
  update_active();
}

void BudgetTrees::put_tree(const InodePtr& directory, std::vector<InodeId> references,
                           const Budget& budget) {
  TreePtr tree = tree_of(directory->id());
  if (!tree) tree = std::make_shared<Tree>();
  {
    const MutexLock lock(tree->mutex);
    tree->directory = directory;
    tree->references.insert(tree->references.end(), references.begin(), references.end());
    // Another user may delete other files.
    if (tree->budget != budget) tree->files.end_spares();
    tree->budget = budget;
  }
  {
    // Only now others may find it, because it must have a directory.
    const MutexLock lock(mutex_);
    trees_.emplace(directory->id(), std::move(tree));
    if (!owners_.contains(directory->id())) set_owner(directory->id(), budget.user);
    update_active();
  }
  wake();
}

std::vector<InodeId> BudgetTrees::drop_tree(InodeId directory) {
  TreePtr tree;
  {
    const MutexLock lock(mutex_);
    set_owner(directory, std::nullopt);
    const auto found = trees_.find(directory);
    if (found == trees_.end()) return {};
    tree = std::move(found->second);
    trees_.erase(found);
    update_active();
  }
  wake();  // somebody may wait for room in it
  const MutexLock lock(tree->mutex);
  tree->budget.bytes = kNoBudget;  // for files that wait for room in it
  return std::exchange(tree->references, {});
}

std::vector<InodePtr> BudgetTrees::unseen() {
  const MutexLock lock(mutex_);
  std::vector<InodePtr> out;
  for (const auto& [id, directory] : found_) {
    if (!trees_.contains(id)) out.push_back(directory);
  }
  return out;
}

std::vector<BudgetTrees::Report> BudgetTrees::reports() {
  std::vector<Report> out;
  for (const TreePtr& tree : all()) {
    Report report;
    const Place where = place(*tree);
    report.path = where.path;
    report.directory = where.directory->id();
    const MutexLock lock(tree->mutex);
    report.budget = tree->budget;
    report.used = tree->files.used();
    report.files = tree->files.all().size();
    report.is_known = tree->is_known;
    report.deleted = tree->deleted;
    report.deleted_bytes = tree->deleted_bytes;
    report.let_in = tree->let_in;
    report.is_stuck = tree->is_stuck;
    if (report.budget.bytes != kNoBudget) out.push_back(std::move(report));
  }
  for (const InodePtr& directory : unseen()) {
    const auto budget = nearest(directory);
    if (!budget) continue;
    Report report;
    report.path = parts_.tree.path_of(directory);
    report.directory = directory->id();
    report.budget = *budget;
    out.push_back(std::move(report));
  }
  std::sort(out.begin(), out.end(),
            [](const Report& a, const Report& b) { return a.path < b.path; });
  return out;
}

BudgetTrees::TreePtr BudgetTrees::tree_of(InodeId directory) {
  const MutexLock lock(mutex_);
  const auto found = trees_.find(directory);
  return found == trees_.end() ? nullptr : found->second;
}

std::vector<BudgetTrees::TreePtr> BudgetTrees::trees_with(const InodePtr& file) {
  std::vector<TreePtr> out;
  if (!is_active()) return out;
  const bool has_links = size_of(parts_.descriptors, file).has_links;
  for (const Above& each : trees_of(climb_from_file(file), has_links)) {
    const MutexLock lock(each.tree->mutex);
    if (each.tree->files.contains(file->id())) out.push_back(each.tree);
  }
  return out;
}

// After a directory was renamed: a rule may name it now.
void BudgetTrees::paths_changed() {
  const MutexLock lock(mutex_);
  if (!rules_->empty()) ++searches_wanted_;
}

}  // namespace sluice
