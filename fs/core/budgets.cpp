// SPDX-License-Identifier: BSD-2-Clause
#include "fs/core/budgets.hpp"

#include <sys/stat.h>

#include <algorithm>
#include <set>

#include "fs/core/no_waiting.hpp"

namespace sluice {
namespace {

using std::chrono::steady_clock;

constexpr std::size_t kStatBlock = 512;          // unit of st_blocks
constexpr std::size_t kMostAncestors = 4096;     // above that, the next listing counts the file
constexpr std::chrono::seconds kLongestWait{2};  // of a new file for room
constexpr std::chrono::minutes kBetweenListings{10};
constexpr int kListingShare = 20;  // at most 1/20 of the time is spent on listing a tree
constexpr std::chrono::seconds kSpared{2};
constexpr double kNewest = 0.25;  // the weight of the last file in Tree::typical

struct Size {
  std::uint64_t bytes = 0;
  bool has_name = true;
};

Size size_of(Descriptors& descriptors, const InodePtr& file) {
  struct stat st {};
  const auto fd = descriptors.any(file);
  if (!fd || ::fstatat((*fd)->get(), "", &st, AT_EMPTY_PATH) < 0) return {0, false};
  return {static_cast<std::uint64_t>(st.st_blocks) * kStatBlock, st.st_nlink > 0};
}

bool has_writers(Inode& file) {
  Inode::Locked state(file);
  return state->open && state->open->writers > 0;
}

}  // namespace

struct Budgets::File {
  struct Name {
    std::uint32_t directory = 0;  // index into Tree::directories
    std::string text;
  };
  Name name;
  std::uint64_t bytes = 0;
  double uses = 1;
  double last_use = 0;
  std::int64_t written = 0;  // seconds since the epoch
  bool is_spared = false;    // see Spare::Always
  steady_clock::time_point spared_until{};
};

struct Budgets::Tree {
  InodePtr directory;
  std::vector<InodeId> references;  // keep the directory, and those above it, in memory
  Budget budget;
  std::vector<std::string> directories;  // "", "/a", "/a/b"
  std::unordered_map<std::string, std::uint32_t> directory_numbers;
  std::unordered_map<InodeId, File> files;
  std::unordered_map<InodeId, std::vector<File::Name>> more_names;  // of files with hard links
  std::uint64_t used = 0;
  std::set<InodeId> growing;  // files that are open for writing
  double typical = 0;         // bytes of a file here when it is closed

  bool is_known = false;  // it was listed
  bool is_dirty = true;   // it must be listed before anything is deleted
  bool is_listing = false;
  std::unordered_set<InodeId> touched;  // while it is listed
  steady_clock::time_point listing_began{}, next_listing{};

  unsigned waiting = 0;     // new files that wait for room
  std::uint64_t stuck = 0;  // how often nothing could be deleted
  bool is_stuck = false;
  std::uint64_t deleted = 0, deleted_bytes = 0;
};

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

// Files that are being written will be about as large as others here when they are closed.
std::uint64_t Budgets::expected_growth(const Tree& tree) const {
  std::uint64_t sum = 0;
  const auto typical = static_cast<std::uint64_t>(tree.typical);
  for (const InodeId id : tree.growing) {
    const auto file = tree.files.find(id);
    if (file != tree.files.end() && file->second.bytes < typical)
      sum += typical - file->second.bytes;
  }
  return sum;
}

bool Budgets::has_room(const Tree& tree) const {
  return !tree.is_known || tree.used + expected_growth(tree) < tree.budget.bytes;
}

Result<void> Budgets::admit(const InodePtr& parent) {
  if (!is_active()) return {};
  const auto ancestors = climb(parent);
  note_unknown(ancestors);
  std::vector<TreePtr> above;
  const MutexLock lock(mutex_);
  each_above(ancestors, [&](Tree& tree, const std::string&) REQUIRES(mutex_) {
    if (!has_room(tree)) above.push_back(trees_.at(tree.directory->id()));
  });
  const auto deadline = steady_clock::now() + kLongestWait;
  for (const TreePtr& tree : above) {
    if (has_room(*tree)) continue;
    if (must_not_wait) return Error(kWouldWait, "the directory's budget is used up");
    const std::uint64_t stuck = tree->stuck;
    ++tree->waiting;
    has_work_ = true;
    work_.notify_all();
    bool is_late = false;
    while (!has_room(*tree) && tree->stuck == stuck && !is_late)
      is_late = !room_.wait_until(mutex_, deadline);
    --tree->waiting;
    if (!has_room(*tree)) return Error(ENOSPC, "the directory's budget is used up");
  }
  return {};
}

Budgets::File& Budgets::add_name(Tree& tree, InodeId id, const std::string& below,
                                 const std::string& name) {
  const auto next = static_cast<std::uint32_t>(tree.directories.size());
  const auto [number, is_new] = tree.directory_numbers.emplace(below, next);
  if (is_new) tree.directories.push_back(below);
  const File::Name as{number->second, name};
  const auto [at, is_new_file] = tree.files.try_emplace(id);
  File& file = at->second;
  if (is_new_file) {
    file.name = as;
    file.last_use = static_cast<double>(parts_.clock.seconds());
    file.written = parts_.clock.seconds();
    return file;
  }
  const auto is_same = [&](const File::Name& other) {
    return other.directory == as.directory && other.text == as.text;
  };
  auto& more = tree.more_names[id];
  if (!is_same(file.name) && std::none_of(more.begin(), more.end(), is_same)) more.push_back(as);
  if (more.empty()) tree.more_names.erase(id);
  return file;
}

void Budgets::set_bytes(Tree& tree, File& file, std::uint64_t bytes) {
  tree.used += bytes - file.bytes;
  file.bytes = bytes;
}

void Budgets::erase(Tree& tree, InodeId id) {
  const auto file = tree.files.find(id);
  if (file == tree.files.end()) return;
  tree.used -= file->second.bytes;
  tree.files.erase(file);
  tree.more_names.erase(id);
  tree.growing.erase(id);
  room_.notify_all();
}

void Budgets::name_came(const InodePtr& parent, const std::string& name, const InodePtr& file,
                        Growth growth) {
  if (!is_active() || !S_ISREG(file->type)) return;
  const auto ancestors = climb(parent);
  note_unknown(ancestors);
  const Size size = growth == Growth::Growing ? Size{} : size_of(parts_.descriptors, file);
  const bool is_written = has_writers(*file);
  const MutexLock lock(mutex_);
  each_above(ancestors, [&](Tree& tree, const std::string& below) REQUIRES(mutex_) {
    set_bytes(tree, add_name(tree, file->id(), below, name), size.bytes);
    if (is_written) tree.growing.insert(file->id());
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
    const auto file = tree.files.find(id);
    const auto number = tree.directory_numbers.find(below);
    if (file == tree.files.end() || number == tree.directory_numbers.end()) return;
    const auto is_it = [&](const File::Name& each) {
      return each.directory == number->second && each.text == name;
    };
    const auto more = tree.more_names.find(id);
    if (more == tree.more_names.end()) {
      if (is_it(file->second.name)) erase(tree, id);
      return;
    }
    auto& names = more->second;
    if (is_it(file->second.name)) {
      file->second.name = names.back();
      names.pop_back();
    } else {
      std::erase_if(names, is_it);
    }
    if (names.empty()) tree.more_names.erase(more);
  });
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
    tree->growing.insert(file->id());
    has_work_ = true;
  }
  // A file that was made past the mount.
  each_above(ancestors, [&](Tree& tree, const std::string& below) REQUIRES(mutex_) {
    if (!tree.is_known || tree.files.contains(file->id())) return;
    add_name(tree, file->id(), below, name.text);
    tree.growing.insert(file->id());
    has_work_ = true;
  });
  if (has_work_) work_.notify_all();
}

void Budgets::written(const InodePtr& file) {
  if (!is_active()) return;
  const Size size = size_of(parts_.descriptors, file);
  const bool is_open = has_writers(*file);
  const MutexLock lock(mutex_);
  for (auto& [id, tree] : trees_) {
    const auto at = tree->files.find(file->id());
    if (at == tree->files.end()) continue;
    if (tree->is_listing) tree->touched.insert(file->id());
    if (!size.has_name) {
      erase(*tree, file->id());
      continue;
    }
    set_bytes(*tree, at->second, size.bytes);
    at->second.written = parts_.clock.seconds();
    if (is_open) continue;
    const bool was_growing = tree->growing.erase(file->id()) > 0;
    if (was_growing) {
      const auto bytes = static_cast<double>(size.bytes);
      tree->typical =
          tree->typical == 0 ? bytes : tree->typical + kNewest * (bytes - tree->typical);
    }
    has_work_ = has_work_ || tree->used > tree->budget.bytes;
  }
  room_.notify_all();
  if (has_work_) work_.notify_all();
}

void Budgets::accessed(InodeId id, double uses) {
  if (!is_active()) return;
  const MutexLock lock(mutex_);
  for (auto& [directory, tree] : trees_) {
    const auto file = tree->files.find(id);
    if (file == tree->files.end()) continue;
    file->second.uses += uses;
    file->second.last_use = static_cast<double>(parts_.clock.seconds());
  }
}

void Budgets::directory_made(const InodePtr& parent, const std::string& name) {
  if (parts_.rules.empty()) return;
  const std::string path = parts_.tree.path_of(parent);
  if (!budget_of(std::nullopt, parts_.rules, (path == "/" ? "" : path) + "/" + name)) return;
  ++searches_wanted_;
  const MutexLock lock(mutex_);
  has_work_ = true;
  work_.notify_all();
}

// What is below a renamed directory may count in other trees now.
void Budgets::directory_renamed(const InodePtr& from, const InodePtr& to) {
  if (!is_active()) return;
  const auto old_place = climb(from), new_place = climb(to);
  const auto list_again = [&](Tree& tree, const std::string&) {
    tree.is_dirty = true;
    has_work_ = true;
  };
  const MutexLock lock(mutex_);
  each_above(old_place, list_again);
  each_above(new_place, list_again);
  if (!parts_.rules.empty()) {
    ++searches_wanted_;
    has_work_ = true;
  }
  if (has_work_) work_.notify_all();
}

void Budgets::search_again() {
  ++searches_wanted_;
  const MutexLock lock(mutex_);
  for (auto& [id, tree] : trees_) tree->is_dirty = true;
}

void Budgets::changed(const InodePtr& directory) {
  const auto fd = parts_.descriptors.any(directory);
  const auto own = fd ? own_budget((*fd)->get()) : std::nullopt;
  if (own) is_active_ = true;
  const auto ancestors = climb(directory);
  const MutexLock lock(mutex_);
  each_above(ancestors, [](Tree& tree, const std::string&) { tree.is_dirty = true; });
  if (directory->is_directory()) found_.emplace(directory->id(), directory);
  has_work_ = true;
  work_.notify_all();
}

std::vector<Budgets::Above> Budgets::above(const InodePtr& directory) {
  const auto ancestors = climb(directory);
  std::vector<Above> out;
  const MutexLock lock(mutex_);
  each_above(ancestors, [&](Tree& tree, const std::string&) {
    out.push_back({tree.directory->id(), tree.budget});
  });
  return out;
}

std::vector<Budgets::TreePtr> Budgets::trees() {
  const MutexLock lock(mutex_);
  std::vector<TreePtr> out;
  for (auto& [id, tree] : trees_) out.push_back(tree);
  return out;
}

void Budgets::update_active() {
  is_active_ = !is_searched_.load() || !trees_.empty() || !parts_.rules.empty();
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

bool Budgets::has_tree(InodeId directory) {
  const MutexLock lock(mutex_);
  return trees_.contains(directory);
}

Budgets::Place Budgets::place(const Tree& tree) {
  Place place;
  {
    const MutexLock lock(mutex_);
    place.directory = tree.directory;
    place.budget = tree.budget;
  }
  {
    Inode::Locked state(*place.directory);
    place.is_gone = state->directory.removed;
  }
  place.path = parts_.tree.path_of(place.directory);
  return place;
}

bool Budgets::begin_listing(Tree& tree) {
  const MutexLock lock(mutex_);
  const auto now = steady_clock::now();
  if (!tree.is_dirty && now < tree.next_listing) return false;
  tree.is_listing = true;
  tree.listing_began = now;
  tree.is_dirty = false;
  tree.touched.clear();
  return true;
}

void Budgets::fail_listing(Tree& tree) {
  const MutexLock lock(mutex_);
  tree.is_listing = false;
  tree.next_listing = steady_clock::now() + std::chrono::seconds(1);
  tree.is_dirty = true;
}

void Budgets::install(Tree& tree, const TreeList& list) {
  // The store and the inodes are read before mutex_ is locked.
  const double now = static_cast<double>(parts_.clock.seconds());
  std::unordered_map<InodeId, File> facts;
  std::vector<InodeId> growing;
  for (const TreeList::File& each : list.files) {
    const auto [at, is_new] = facts.try_emplace(each.id);
    if (!is_new) continue;
    File& file = at->second;
    file.bytes = each.bytes;
    // A time in the future says nothing.
    file.written = static_cast<double>(each.mtime) > now ? 0 : each.mtime;
    file.last_use = static_cast<double>(file.written);
    if (const auto heat = parts_.store.heat(each.id); heat && heat->last_access > 0) {
      file.uses = std::max(1.0, heat->score);
      file.last_use = std::max(file.last_use, static_cast<double>(heat->last_access));
    }
    const InodePtr inode = parts_.table.find(each.id);
    if (inode && has_writers(*inode)) growing.push_back(each.id);
  }
  const MutexLock lock(mutex_);
  auto old_files = std::move(tree.files);
  auto old_names = std::move(tree.more_names);
  const auto old_directories = std::move(tree.directories);
  tree.files.clear();
  tree.more_names.clear();
  tree.directories.clear();
  tree.directory_numbers.clear();
  tree.used = 0;
  const auto put = [&](InodeId id, const std::string& below, const std::string& name,
                       const File& known) REQUIRES(mutex_) {
    File& file = add_name(tree, id, below, name);
    set_bytes(tree, file, known.bytes);
    file.uses = known.uses;
    file.last_use = known.last_use;
    file.written = known.written;
    file.spared_until = known.spared_until;
  };
  for (const TreeList::File& each : list.files) {
    if (tree.touched.contains(each.id)) continue;
    File known = facts.at(each.id);
    if (const auto old = old_files.find(each.id); old != old_files.end()) {
      known.uses = std::max(known.uses, old->second.uses);
      known.last_use = std::max(known.last_use, old->second.last_use);
      known.written = std::max(known.written, old->second.written);
      known.spared_until = old->second.spared_until;
    }
    put(each.id, list.directories[each.directory], each.name, known);
  }
  // What users changed while the tree was listed counts as they left it.
  for (const InodeId id : tree.touched) {
    const auto old = old_files.find(id);
    if (old == old_files.end()) continue;
    put(id, old_directories[old->second.name.directory], old->second.name.text, old->second);
    for (const File::Name& name : old_names[id])
      put(id, old_directories[name.directory], name.text, old->second);
  }
  tree.growing.insert(growing.begin(), growing.end());
  std::erase_if(tree.growing, [&](InodeId id) { return !tree.files.contains(id); });
  tree.touched.clear();
  tree.is_listing = false;
  tree.is_known = true;
  const auto took = steady_clock::now() - tree.listing_began;
  tree.next_listing = steady_clock::now() +
                      std::max<steady_clock::duration>(kBetweenListings, kListingShare * took);
  has_work_ = true;
  work_.notify_all();
}

bool Budgets::poll() {
  std::set<InodeId> growing;
  {
    const MutexLock lock(mutex_);
    for (auto& [id, tree] : trees_) growing.insert(tree->growing.begin(), tree->growing.end());
  }
  for (const InodeId id : growing) {
    const InodePtr file = parts_.table.find(id);
    if (!file || !has_writers(*file)) {
      if (file) {
        written(file);
        continue;
      }
      const MutexLock lock(mutex_);
      for (auto& [directory, tree] : trees_) tree->growing.erase(id);
      continue;
    }
    const Size size = size_of(parts_.descriptors, file);
    const MutexLock lock(mutex_);
    for (auto& [directory, tree] : trees_) {
      const auto at = tree->files.find(id);
      if (at != tree->files.end()) set_bytes(*tree, at->second, size.bytes);
    }
  }
  return !growing.empty();
}

std::vector<Expendable> Budgets::candidates(const Tree& tree, std::vector<InodeId>& ids) const {
  std::vector<Expendable> out;
  const std::int64_t rested = parts_.clock.seconds() - parts_.rest.count();
  const auto now = steady_clock::now();
  for (const auto& [id, file] : tree.files) {
    if (file.is_spared || file.spared_until > now || file.written > rested) continue;
    if (tree.growing.contains(id)) continue;
    ids.push_back(id);
    out.push_back({file.bytes, file.uses, file.last_use, static_cast<double>(file.written)});
  }
  return out;
}

std::string Budgets::path_below(const Tree& tree, const File& file) {
  return tree.directories[file.name.directory] + "/" + file.name.text;
}

std::vector<Budgets::Victim> Budgets::choose(Tree& tree) {
  const MutexLock lock(mutex_);
  if (!tree.is_known || tree.is_dirty) return {};
  std::uint64_t needed = tree.used;
  if (tree.waiting > 0) {
    // A part of the budget at most: the files of the writers may turn out smaller.
    const auto next =
        std::min(static_cast<std::uint64_t>(tree.typical) * tree.waiting, tree.budget.bytes / 4);
    needed +=
        expected_growth(tree) + std::max({next, budget_step(tree.budget.bytes), std::uint64_t{1}});
  }
  if (needed <= tree.budget.bytes) {
    tree.is_stuck = false;
    return {};
  }
  std::vector<InodeId> ids;
  const auto files = candidates(tree, ids);
  const auto chosen = choose_victims(files, needed - tree.budget.bytes,
                                     static_cast<double>(parts_.clock.seconds()));
  std::vector<Victim> victims;
  for (const std::uint32_t each : chosen) {
    const File& file = tree.files.at(ids[each]);
    Victim victim{ids[each], {path_below(tree, file)}, file.bytes, file.uses, file.last_use};
    if (const auto more = tree.more_names.find(victim.id); more != tree.more_names.end()) {
      for (const File::Name& name : more->second)
        victim.names.push_back(tree.directories[name.directory] + "/" + name.text);
    }
    victims.push_back(std::move(victim));
  }
  tree.is_stuck = victims.empty();
  if (tree.is_stuck) {
    ++tree.stuck;
    room_.notify_all();
  }
  return victims;
}

void Budgets::deleted(Tree& tree, const Victim& victim) {
  const MutexLock lock(mutex_);
  ++tree.deleted;
  tree.deleted_bytes += victim.bytes;
  for (auto& [id, each] : trees_) {
    if (each->is_listing) each->touched.insert(victim.id);
    erase(*each, victim.id);
  }
}

void Budgets::spare(Tree& tree, InodeId id, Spare how_long) {
  const MutexLock lock(mutex_);
  const auto file = tree.files.find(id);
  if (file == tree.files.end()) return;
  file->second.is_spared = how_long == Spare::Always;
  file->second.spared_until = steady_clock::now() + kSpared;
}

void Budgets::wait_for_work(const std::stop_token& stop, std::chrono::milliseconds time) {
  const auto deadline = steady_clock::now() + time;
  const MutexLock lock(mutex_);
  const auto is_waited_for = [](const auto& each) {
    const Tree& tree = *each.second;
    return tree.waiting > 0 && tree.is_known && !tree.is_dirty;
  };
  while (!has_work_ && !stop.stop_requested() && steady_clock::now() < deadline &&
         std::none_of(trees_.begin(), trees_.end(), is_waited_for))
    work_.wait_for(mutex_, deadline - steady_clock::now());
  has_work_ = false;
}

void Budgets::wake() {
  const MutexLock lock(mutex_);
  has_work_ = true;
  work_.notify_all();
}

std::vector<Budgets::Report> Budgets::reports() {
  std::vector<Report> out;
  for (const TreePtr& tree : trees()) {
    Report report;
    report.path = parts_.tree.path_of(tree->directory);
    report.directory = tree->directory->id();
    const MutexLock lock(mutex_);
    report.budget = tree->budget;
    report.used = tree->used;
    report.files = tree->files.size();
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
      tree.used + bytes > tree.budget.bytes ? tree.used + bytes - tree.budget.bytes : 0;
  for (const std::uint32_t each :
       choose_victims(files, needed, static_cast<double>(parts_.clock.seconds()))) {
    if (out.size() == most) break;
    const File& file = tree.files.at(ids[each]);
    out.push_back({path_below(tree, file), file.bytes, file.uses, file.last_use});
  }
  return out;
}

std::vector<Budgets::Standing> Budgets::standing(InodeId id) {
  std::vector<Standing> out;
  const auto now = static_cast<double>(parts_.clock.seconds());
  const MutexLock lock(mutex_);
  for (const auto& [directory, tree] : trees_) {
    const auto file = tree->files.find(id);
    if (file == tree->files.end()) continue;
    const auto rank = [&](const File& each) {
      return std::pair(value_of({each.bytes, each.uses, each.last_use, 0}, now), each.written);
    };
    Standing standing{directory, tree->budget, tree->used, 0};
    for (const auto& [other, each] : tree->files) {
      if (other != id && rank(each) < rank(file->second)) standing.before += each.bytes;
    }
    out.push_back(standing);
  }
  return out;
}

}  // namespace sluice
