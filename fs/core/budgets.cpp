// SPDX-License-Identifier: BSD-2-Clause
// The side of Budgets that users' operations use: what they add and remove.
#include "fs/core/budgets.hpp"

#include <sys/stat.h>

#include <algorithm>
#include <set>

#include "fs/core/budget_tree.hpp"

namespace sluice {
namespace {

using std::chrono::steady_clock;

constexpr std::size_t kStatBlock = 512;          // unit of st_blocks
constexpr std::size_t kMostAncestors = 4096;     // above that, the next listing counts the file
constexpr std::uint64_t kRemembered = 256;       // about how many files Tree::largest is of
constexpr std::uint64_t kNoBudget = UINT64_MAX;  // of a tree that will be dropped

}  // namespace

BudgetSize size_of(Descriptors& descriptors, const InodePtr& file) {
  struct stat st {};
  const auto fd = descriptors.any(file);
  if (!fd || ::fstatat((*fd)->get(), "", &st, AT_EMPTY_PATH) < 0) return {0, false};
  return {static_cast<std::uint64_t>(st.st_blocks) * kStatBlock, st.st_nlink > 0, st.st_nlink > 1};
}

bool has_writers(Inode& file) {
  Inode::Locked state(file);
  return state->open && state->open->writers > 0;
}

Budgets::Way Budgets::climb(const InodePtr& directory) {
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

Budgets::Way Budgets::climb_from_file(const InodePtr& file) {
  const InodePtr parent = parts_.table.find(file->last_name().parent);
  return parent ? climb(parent) : Way{};
}

std::vector<Budgets::Above> Budgets::above(const Way& way) {
  std::vector<Above> out;
  const MutexLock lock(mutex_);
  if (trees_.empty()) return out;
  for (std::size_t i = 0; i < way.ids.size(); ++i) {
    if (const auto found = trees_.find(way.ids[i]); found != trees_.end())
      out.push_back({found->second, way.ids[i], i});
  }
  return out;
}

std::vector<Budgets::Above> Budgets::trees_of(const Way& way, bool has_links) {
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
void Budgets::note_unknown(const Way& way) {
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

std::vector<InodePtr> Budgets::found_by_users() {
  const MutexLock lock(mutex_);
  std::vector<InodePtr> out;
  for (auto& [id, directory] : found_) out.push_back(directory);
  found_.clear();
  return out;
}

void Budgets::name_came(const InodePtr& parent, const std::string& name, const InodePtr& file,
                        Growth growth) {
  if (!is_active() || !S_ISREG(file->type)) return;
  const Way way = climb(parent);
  note_unknown(way);
  const BudgetSize size =
      growth == Growth::Growing ? BudgetSize{} : size_of(parts_.descriptors, file);
  const bool is_written = has_writers(*file);
  bool needs_keeper = false;
  for (const Above& each : above(way)) {
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
  if (needs_keeper) wake();
}

void Budgets::name_gone(const InodePtr& parent, const std::string& name, InodeId id) {
  if (!is_active()) return;
  const Way way = climb(parent);
  for (const Above& each : above(way)) {
    Tree& tree = *each.tree;
    const MutexLock lock(tree.mutex);
    tree.note(id);
    tree.files.remove_name(id, each.below(way), name);
    if (!tree.files.contains(id)) tree.erase(id);
  }
  may_have_room();
}

void Budgets::opened_for_writing(const InodePtr& file) {
  if (!is_active()) return;
  const std::string name = file->last_name().text;
  const Way way = climb_from_file(file);
  note_unknown(way);
  const bool has_links = size_of(parts_.descriptors, file).has_links;
  bool needs_keeper = false;
  for (const Above& each : trees_of(way, has_links)) {
    Tree& tree = *each.tree;
    const MutexLock lock(tree.mutex);
    if (!tree.files.contains(file->id())) {
      // Perhaps it was made past the mount.
      if (each.depth == kNotAbove || !tree.is_known || name.empty()) continue;
      tree.files.add_name(file->id(), each.below(way), name, parts_.clock.seconds());
    }
    needs_keeper = needs_keeper || tree.growing.empty();
    if (!tree.owing.contains(file->id())) tree.growing.try_emplace(file->id());
  }
  if (needs_keeper) wake();
}

void Budgets::written(const InodePtr& file) {
  if (!is_active()) return;
  const BudgetSize size = size_of(parts_.descriptors, file);
  const bool is_open = has_writers(*file);
  bool needs_keeper = false;
  for (const Above& each : trees_of(climb_from_file(file), size.has_links)) {
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
  needs_keeper ? wake() : may_have_room();
}

void Budgets::accessed(InodeId id, double uses) {
  if (!is_active()) return;
  // A file that the kernel has forgotten since gets its uses from the store by the next listing.
  const InodePtr inode = parts_.table.find(id);
  if (!inode) return;
  for (const Above& each : above(climb_from_file(inode))) {
    const MutexLock lock(each.tree->mutex);
    BudgetFiles::File* const file = each.tree->files.find(id);
    if (file == nullptr) continue;
    file->uses += uses;
    file->last_use = static_cast<double>(parts_.clock.seconds());
  }
}

std::shared_ptr<const Budgets::Rules> Budgets::rules() {
  const MutexLock lock(mutex_);
  return rules_;
}

void Budgets::change_rules(Rules rules) {
  const MutexLock lock(mutex_);
  if (rules == *rules_) return;
  rules_ = std::make_shared<const Rules>(std::move(rules));
  if (is_searched_) update_active();  // before that it is active, if anybody keeps budgets
  ++searches_wanted_;
  has_work_ = true;
  work_.notify_all();
}

void Budgets::directory_made(const InodePtr& parent, const std::string& name) {
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

void Budgets::directory_renamed(const InodePtr& from, const std::string& name, const InodePtr& to,
                                const std::string& new_name) {
  if (!is_active()) return;
  const Way old_way = climb(from), new_way = climb(to);
  const auto path = [](const Above& each, const Way& way, const std::string& last) {
    std::vector<std::string> out{last};
    const auto below = each.below(way);
    out.insert(out.end(), below.begin(), below.end());
    return out;
  };
  std::map<TreePtr, Tree::DirectoryChange> changes;
  for (const Above& each : above(old_way)) changes[each.tree].from = path(each, old_way, name);
  for (const Above& each : above(new_way)) changes[each.tree].to = path(each, new_way, new_name);
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
  {
    const MutexLock lock(mutex_);
    if (!rules_->empty()) ++searches_wanted_;
  }
  may_have_room();
}

void Budgets::directory_came(const InodePtr& parent) {
  if (!is_active()) return;
  for (const Above& each : above(climb(parent))) {
    const MutexLock lock(each.tree->mutex);
    each.tree->must_list = true;
  }
}

void Budgets::directory_gone(const InodePtr& parent, const std::string& name) {
  if (!is_active()) return;
  const Way way = climb(parent);
  for (const Above& each : above(way)) {
    Tree::DirectoryChange change{{name}, {}};
    const auto below = each.below(way);
    change.from.insert(change.from.end(), below.begin(), below.end());
    const MutexLock lock(each.tree->mutex);
    each.tree->files.directory_left(change.from);
    each.tree->erase_gone();
    each.tree->note(std::move(change));
  }
}

void Budgets::directory_removed(const InodePtr& directory) {
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

void Budgets::search_again() {
  ++searches_wanted_;
  for (const TreePtr& tree : trees()) {
    const MutexLock lock(tree->mutex);
    tree->must_list = true;
  }
}

void Budgets::set_owner(InodeId directory, std::optional<uid_t> user) {
  if (const auto old = owners_.find(directory); old != owners_.end()) {
    if (const auto count = of_user_.find(old->second); --count->second == 0) of_user_.erase(count);
    owners_.erase(old);
  }
  if (!user || *user == 0) return;
  owners_.emplace(directory, *user);
  ++of_user_[*user];
}

Result<void> Budgets::count_budget(const InodePtr& directory, uid_t user) {
  const MutexLock lock(mutex_);
  const auto old = owners_.find(directory->id());
  const bool is_mine = old != owners_.end() && old->second == user;
  const auto count = of_user_.find(user);
  if (!is_mine && count != of_user_.end() && count->second >= kMostOfUser)
    return Error(EDQUOT, "the user has too many budgets");
  set_owner(directory->id(), user);
  return {};
}

std::size_t Budgets::most_of_user() {
  const MutexLock lock(mutex_);
  std::size_t most = 0;
  for (const auto& [user, count] : of_user_) most = std::max(most, count);
  return most;
}

void Budgets::changed(const InodePtr& directory) {
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
  may_have_room();
  const MutexLock lock(mutex_);
  if (!own && fd) set_owner(directory->id(), std::nullopt);
  if (directory->is_directory() && (own || trees_.contains(directory->id())))
    found_.emplace(directory->id(), directory);
  has_work_ = true;
  work_.notify_all();
}

std::optional<Budget> Budgets::nearest(const InodePtr& directory) {
  const auto rules = this->rules();
  for (InodePtr at = directory; at && at->id() != kRootId; at = parts_.tree.parent_of(at)) {
    const auto fd = parts_.descriptors.any(at);
    const auto own = fd ? own_budget((*fd)->get()) : std::nullopt;
    const auto budget = budget_of(own, *rules, parts_.tree.path_of(at));
    if (budget) return budget;
  }
  return std::nullopt;
}

std::vector<Budgets::TreePtr> Budgets::trees() {
  const MutexLock lock(mutex_);
  std::vector<TreePtr> out;
  for (auto& [id, tree] : trees_) out.push_back(tree);
  return out;
}

void Budgets::update_active() {
  is_active_ = !is_searched_.load() || !trees_.empty() || !rules_->empty();
}

void Budgets::searched() {
  const MutexLock lock(mutex_);
  is_searched_ = true;
  update_active();
}

void Budgets::put_tree(const InodePtr& directory, std::vector<InodeId> references,
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

std::vector<InodeId> Budgets::drop_tree(InodeId directory) {
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
  may_have_room();
  const MutexLock lock(tree->mutex);
  tree->budget.bytes = kNoBudget;  // for files that wait for room in it
  return std::exchange(tree->references, {});
}

std::vector<InodePtr> Budgets::unseen() {
  const MutexLock lock(mutex_);
  std::vector<InodePtr> out;
  for (const auto& [id, directory] : found_) {
    if (!trees_.contains(id)) out.push_back(directory);
  }
  return out;
}

std::vector<Budgets::Report> Budgets::reports() {
  std::vector<Report> out;
  for (const TreePtr& tree : trees()) {
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

Budgets::TreePtr Budgets::tree_of(InodeId directory) {
  const MutexLock lock(mutex_);
  const auto found = trees_.find(directory);
  return found == trees_.end() ? nullptr : found->second;
}

std::vector<Budgets::TreePtr> Budgets::trees_with(const InodePtr& file) {
  std::vector<TreePtr> out;
  if (!is_active()) return out;
  const bool has_links = size_of(parts_.descriptors, file).has_links;
  for (const Above& each : trees_of(climb_from_file(file), has_links)) {
    const MutexLock lock(each.tree->mutex);
    if (each.tree->files.contains(file->id())) out.push_back(each.tree);
  }
  return out;
}

}  // namespace sluice
