// SPDX-License-Identifier: BSD-2-Clause
// The side of Budgets that users' operations use: what they add and remove, and waiting for room.
#include "fs/core/budgets.hpp"

#include <sys/stat.h>

#include <algorithm>
#include <set>

#include "fs/core/budget_tree.hpp"
#include "fs/core/no_waiting.hpp"

namespace sluice {
namespace {

using std::chrono::steady_clock;

constexpr std::size_t kStatBlock = 512;          // unit of st_blocks
constexpr std::size_t kMostAncestors = 4096;     // above that, the next listing counts the file
constexpr std::chrono::seconds kLongestWait{2};  // of a new file for room
constexpr std::chrono::seconds kStillGrows{1};   // after a file was seen to grow
constexpr std::uint64_t kRemembered = 256;       // about how many files Tree::largest is of

}  // namespace

BudgetSize size_of(Descriptors& descriptors, const InodePtr& file) {
  struct stat st {};
  const auto fd = descriptors.any(file);
  if (!fd || ::fstatat((*fd)->get(), "", &st, AT_EMPTY_PATH) < 0) return {0, false};
  return {static_cast<std::uint64_t>(st.st_blocks) * kStatBlock, st.st_nlink > 0};
}

bool has_writers(Inode& file) {
  Inode::Locked state(file);
  return state->open && state->open->writers > 0;
}

std::vector<Budgets::Ancestor> Budgets::climb(const InodePtr& directory) {
  std::vector<Ancestor> out;
  for (InodePtr at = directory; at && at->id() != kRootId && out.size() < kMostAncestors;) {
    InodeName name = at->last_name();
    // A predecessor leaves only a hash of the name; path_of() finds the name.
    if (name.text.empty() && !parts_.tree.path_of(at).empty()) name = at->last_name();
    out.push_back({at->id(), std::move(name.text)});
    at = parts_.table.find(name.parent);
  }
  return out;
}

template <typename Act>
void Budgets::each_above(const std::vector<Ancestor>& ancestors, Act act) {
  std::string below;
  for (const Ancestor& ancestor : ancestors) {
    if (const auto found = trees_.find(ancestor.id); found != trees_.end()) {
      act(*found->second, below);
    }
    below.insert(0, "/" + ancestor.name);
  }
}

// Before the pool was searched, users find the trees that they use.
void Budgets::note_unknown(const std::vector<Ancestor>& ancestors) {
  if (is_searched_.load()) return;
  for (const Ancestor& ancestor : ancestors) {
    const InodePtr directory = parts_.table.find(ancestor.id);
    if (!directory) continue;
    {
      const MutexLock lock(mutex_);
      if (trees_.contains(ancestor.id) || found_.contains(ancestor.id)) continue;
    }
    const auto fd = parts_.descriptors.any(directory);
    if (!fd || !own_budget((*fd)->get())) continue;
    const MutexLock lock(mutex_);
    found_.emplace(ancestor.id, directory);
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

// A new file is expected to become as large as the largest of late. One that was far larger than
// others must not empty the tree, so that is limited.
std::uint64_t Budgets::expected_size(const Tree& tree) {
  const std::size_t files = tree.files.all().size();
  const std::uint64_t mean = files == 0 ? 0 : tree.files.used() / files;
  return std::min(tree.largest, std::max(tree.budget.bytes / 64, mean));
}

// A file that is open but does not grow, like a lock file, is not expected to become larger.
std::uint64_t Budgets::expected_growth(const Tree& tree) const {
  const std::uint64_t size = expected_size(tree);
  std::uint64_t sum = tree.admitted * size;
  const auto long_ago = steady_clock::now() - kStillGrows;
  for (const auto& [id, grew] : tree.growing) {
    const BudgetFiles::File* const file = tree.files.find(id);
    if (file != nullptr && grew > long_ago && file->bytes < size) sum += size - file->bytes;
  }
  return sum;
}

bool Budgets::has_room(const Tree& tree) const {
  return !tree.is_known || tree.files.used() + expected_growth(tree) < tree.budget.bytes;
}

void Budgets::Room::give_back() {
  if (trees_.empty()) return;
  const MutexLock lock(budgets_->mutex_);
  for (const TreePtr& tree : trees_) --tree->admitted;
  budgets_->room_.notify_all();
}

Result<Budgets::Room> Budgets::admit(const InodePtr& parent) {
  if (!is_active()) return Room(*this);
  return reserve(climb(parent), [](const Tree&) { return false; });
}

Result<Budgets::Room> Budgets::admit_link(const InodePtr& file, const InodePtr& to) {
  if (!is_active() || !S_ISREG(file->type)) return Room(*this);
  return reserve(climb(to), [&](const Tree& tree) { return tree.files.contains(file->id()); });
}

Result<Budgets::Room> Budgets::admit_rename(const InodePtr& from, const InodePtr& to) {
  if (!is_active() || from == to) return Room(*this);
  const auto old_place = climb(from);
  return reserve(climb(to), [&](const Tree& tree) {
    return std::any_of(old_place.begin(), old_place.end(),
                       [&](const Ancestor& each) { return each.id == tree.directory->id(); });
  });
}

template <typename HasIt>
Result<Budgets::Room> Budgets::reserve(const std::vector<Ancestor>& ancestors, HasIt has_it) {
  note_unknown(ancestors);
  const auto deadline = steady_clock::now() + kLongestWait;
  Room room(*this);  // before the lock, which its destructor takes
  const MutexLock lock(mutex_);
  std::vector<TreePtr> above;
  each_above(ancestors, [&](Tree& tree, const std::string&) REQUIRES(mutex_) {
    if (!has_it(tree)) above.push_back(trees_.at(tree.directory->id()));
  });
  for (TreePtr& tree : above) {
    SLUICE_TRY(wait_for_room(*tree, deadline));
    ++tree->admitted;
    room.trees_.push_back(std::move(tree));
  }
  return room;
}

Result<void> Budgets::wait_for_room(Tree& tree, steady_clock::time_point deadline) {
  if (has_room(tree)) return {};
  if (must_not_wait) return Error(kWouldWait, "the directory's budget is used up");
  const std::uint64_t stuck = tree.stuck;
  ++tree.waiting;
  has_work_ = true;
  work_.notify_all();
  // If the tree is not full yet, files that are being written may turn out smaller than expected.
  const auto is_full = [&]() REQUIRES(mutex_) {
    return tree.stuck != stuck && tree.files.used() >= tree.budget.bytes;
  };
  bool is_late = false;
  while (!has_room(tree) && !is_full() && !is_late) is_late = !room_.wait_until(mutex_, deadline);
  --tree.waiting;
  if (!has_room(tree)) return Error(ENOSPC, "the directory's budget is used up");
  return {};
}

void Budgets::erase(Tree& tree, InodeId id) {
  tree.files.erase(id);
  tree.growing.erase(id);
  room_.notify_all();
}

void Budgets::name_came(const InodePtr& parent, const std::string& name, const InodePtr& file,
                        Growth growth) {
  if (!is_active() || !S_ISREG(file->type)) return;
  const auto ancestors = climb(parent);
  note_unknown(ancestors);
  const BudgetSize size =
      growth == Growth::Growing ? BudgetSize{} : size_of(parts_.descriptors, file);
  const bool is_written = has_writers(*file);
  const MutexLock lock(mutex_);
  each_above(ancestors, [&](Tree& tree, const std::string& below) REQUIRES(mutex_) {
    BudgetFiles::File& known = tree.files.add_name(file->id(), below, name, parts_.clock.seconds());
    tree.files.set_bytes(known, size.bytes);
    if (is_written) tree.growing[file->id()] = steady_clock::now();
    if (tree.is_listing) tree.touched.insert(file->id());
    has_work_ = true;
  });
  if (has_work_) work_.notify_all();
}

void Budgets::name_gone(const InodePtr& parent, const std::string& name, InodeId id) {
  if (!is_active()) return;
  const auto ancestors = climb(parent);
  const MutexLock lock(mutex_);
  each_above(ancestors, [&](Tree& tree, const std::string& below) REQUIRES(mutex_) {
    if (tree.is_listing) tree.touched.insert(id);
    tree.files.remove_name(id, below, name);
    if (!tree.files.contains(id)) tree.growing.erase(id);
  });
  room_.notify_all();
}

void Budgets::opened_for_writing(const InodePtr& file) {
  if (!is_active()) return;
  const InodeName name = file->last_name();
  const InodePtr parent = parts_.table.find(name.parent);
  if (!parent || name.text.empty()) return;
  const auto ancestors = climb(parent);
  note_unknown(ancestors);
  const MutexLock lock(mutex_);
  for (auto& [id, tree] : trees_) {
    if (!tree->files.contains(file->id())) continue;
    tree->growing.try_emplace(file->id());
    has_work_ = true;
  }
  // A file that was made past the mount.
  each_above(ancestors, [&](Tree& tree, const std::string& below) REQUIRES(mutex_) {
    if (!tree.is_known || tree.files.contains(file->id())) return;
    tree.files.add_name(file->id(), below, name.text, parts_.clock.seconds());
    tree.growing.try_emplace(file->id());
    has_work_ = true;
  });
  if (has_work_) work_.notify_all();
}

void Budgets::written(const InodePtr& file) {
  if (!is_active()) return;
  const BudgetSize size = size_of(parts_.descriptors, file);
  const bool is_open = has_writers(*file);
  const MutexLock lock(mutex_);
  for (auto& [id, tree] : trees_) {
    BudgetFiles::File* const known = tree->files.find(file->id());
    if (known == nullptr) continue;
    if (tree->is_listing) tree->touched.insert(file->id());
    if (!size.has_name) {
      erase(*tree, file->id());
      continue;
    }
    tree->files.set_bytes(*known, size.bytes);
    known->written = parts_.clock.seconds();
    has_work_ = has_work_ || tree->files.used() > tree->budget.bytes;
    if (is_open || tree->growing.erase(file->id()) == 0) continue;
    tree->largest = std::max(size.bytes, tree->largest - tree->largest / kRemembered);
  }
  room_.notify_all();
  if (has_work_) work_.notify_all();
}

void Budgets::accessed(InodeId id, double uses) {
  if (!is_active()) return;
  const MutexLock lock(mutex_);
  for (auto& [directory, tree] : trees_) {
    BudgetFiles::File* const file = tree->files.find(id);
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
  const auto old_place = climb(from), new_place = climb(to);
  const MutexLock lock(mutex_);
  std::map<Tree*, Tree::DirectoryChange> changes;
  each_above(old_place, [&](Tree& tree, const std::string& below) {
    changes[&tree].from = below + "/" + name;
  });
  each_above(new_place, [&](Tree& tree, const std::string& below) {
    changes[&tree].to = below + "/" + new_name;
  });
  for (auto& entry : changes) {
    Tree* const tree = entry.first;
    const Tree::DirectoryChange& change = entry.second;
    if (change.from.empty()) {
      tree->must_list = true;  // its files are not known
      continue;
    }
    apply(tree->files, change.from, change.to);
    std::erase_if(tree->growing,
                  [&](const auto& each) { return !tree->files.contains(each.first); });
    if (tree->is_listing) tree->directory_changes.push_back(change);
  }
  if (!rules_->empty()) ++searches_wanted_;
  room_.notify_all();
}

void Budgets::directory_came(const InodePtr& parent) {
  if (!is_active()) return;
  const auto ancestors = climb(parent);
  const MutexLock lock(mutex_);
  each_above(ancestors, [](Tree& tree, const std::string&) { tree.must_list = true; });
}

void Budgets::directory_gone(const InodePtr& parent, const std::string& name) {
  if (!is_active()) return;
  const auto ancestors = climb(parent);
  const MutexLock lock(mutex_);
  each_above(ancestors, [&](Tree& tree, const std::string& below) {
    tree.files.directory_left(below + "/" + name);
    if (tree.is_listing) tree.directory_changes.push_back({below + "/" + name, ""});
  });
}

void Budgets::search_again() {
  ++searches_wanted_;
  const MutexLock lock(mutex_);
  for (auto& [id, tree] : trees_) tree->must_list = true;
}

void Budgets::changed(const InodePtr& directory) {
  const auto fd = parts_.descriptors.any(directory);
  const auto own = fd ? own_budget((*fd)->get()) : std::nullopt;
  if (own) is_active_ = true;
  const auto ancestors = climb(directory);
  const MutexLock lock(mutex_);
  each_above(ancestors, [](Tree& tree, const std::string&) { tree.must_list = true; });
  if (directory->is_directory()) found_.emplace(directory->id(), directory);
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
  const MutexLock lock(mutex_);
  TreePtr& tree = trees_[directory->id()];
  if (!tree) tree = std::make_shared<Tree>();
  tree->directory = directory;
  tree->references.insert(tree->references.end(), references.begin(), references.end());
  tree->budget = budget;
  room_.notify_all();
  update_active();
}

std::vector<InodeId> Budgets::drop_tree(InodeId directory) {
  const MutexLock lock(mutex_);
  std::vector<InodeId> references;
  if (const auto tree = trees_.find(directory); tree != trees_.end()) {
    tree->second->budget.bytes = UINT64_MAX;  // for threads that wait for room in it
    references = std::move(tree->second->references);
    trees_.erase(tree);
  }
  room_.notify_all();
  update_active();
  return references;
}

std::vector<Budgets::Report> Budgets::reports() {
  std::vector<Report> out;
  for (const TreePtr& tree : trees()) {
    Report report;
    const Place where = place(*tree);
    report.path = where.path;
    report.directory = where.directory->id();
    const MutexLock lock(mutex_);
    report.budget = tree->budget;
    report.used = tree->files.used();
    report.files = tree->files.all().size();
    report.is_known = tree->is_known;
    report.deleted = tree->deleted;
    report.deleted_bytes = tree->deleted_bytes;
    report.is_stuck = tree->is_stuck;
    out.push_back(std::move(report));
  }
  std::sort(out.begin(), out.end(),
            [](const Report& a, const Report& b) { return a.path < b.path; });
  return out;
}

std::vector<Budgets::Next> Budgets::next_victims(InodeId directory, std::uint64_t bytes,
                                                 std::size_t most) {
  std::vector<Next> out;
  const MutexLock lock(mutex_);
  const auto found = trees_.find(directory);
  if (found == trees_.end()) return out;
  const Tree& tree = *found->second;
  std::vector<InodeId> ids;
  const auto files = candidates(tree, ids);
  const std::uint64_t needed =
      std::max(tree.files.used() + bytes, tree.budget.bytes) - tree.budget.bytes;
  for (const std::uint32_t each :
       choose_victims(files, needed, static_cast<double>(parts_.clock.seconds()))) {
    if (out.size() == most) break;
    const Expendable& file = files[each];
    out.push_back({tree.files.paths(ids[each])[0], file.bytes, file.uses, file.last_use});
  }
  return out;
}

std::vector<Budgets::Standing> Budgets::standing(InodeId id) {
  std::vector<Standing> out;
  const auto now = static_cast<double>(parts_.clock.seconds());
  const MutexLock lock(mutex_);
  for (const auto& [directory, tree] : trees_) {
    const BudgetFiles::File* const file = tree->files.find(id);
    if (file == nullptr) continue;
    const auto rank = [&](const BudgetFiles::File& each) {
      return std::pair(value_of({each.bytes, each.uses, each.last_use, 0}, now), each.written);
    };
    Standing standing{directory, tree->budget, tree->files.used(), 0};
    for (const auto& [other, each] : tree->files.all()) {
      if (other != id && rank(each) < rank(*file)) standing.before += each.bytes;
    }
    out.push_back(standing);
  }
  return out;
}

}  // namespace sluice
