// SPDX-License-Identifier: BSD-2-Clause
// What BudgetKeeper does with the trees: what a listing found, and which files go.
#include <algorithm>
#include <map>

#include "fs/core/budget/budget_tree.hpp"

namespace sluice {
namespace {

using std::chrono::steady_clock;

constexpr std::chrono::minutes kBetweenListings{10};
constexpr int kListingShare = 20;  // at most 1/20 of the time is spent on listing a tree
constexpr std::chrono::seconds kSpared{2};
constexpr std::chrono::milliseconds kLongChoice{5}, kAfterVainChoice{20};
constexpr int kChoiceShare = 10;  // at most 1/10 of the time is spent on choosing in vain

Expendable expendable(InodeId id, const BudgetFiles::File& file) {
  return {file.bytes, file.uses, file.last_use, static_cast<double>(file.written), to_number(id)};
}

}  // namespace

bool BudgetTrees::has_tree(InodeId directory) {
  const MutexLock lock(mutex_);
  return trees_.contains(directory);
}

BudgetTrees::Place BudgetTrees::place(Tree& tree) {
  Place place;
  {
    const MutexLock lock(tree.mutex);
    place.directory = tree.directory;
    place.budget = tree.budget;
  }
  place.path = parts_.tree.path_of(place.directory);
  return place;
}

bool BudgetTrees::begin_listing(Tree& tree) {
  const MutexLock lock(tree.mutex);
  const auto now = steady_clock::now();
  if (now < (tree.must_list ? tree.soonest_listing : tree.next_listing)) return false;
  tree.is_listing = true;
  tree.listing_began = now;
  tree.must_list = false;
  tree.begin_notes();
  return true;
}

void BudgetTrees::fail_listing(Tree& tree) {
  const MutexLock lock(tree.mutex);
  tree.is_listing = false;
  tree.soonest_listing = steady_clock::now() + std::chrono::seconds(1);
  tree.must_list = true;
}

// What is known of the listed files besides their names. Reads the store and the inodes.
BudgetTrees::Facts BudgetTrees::facts_of(const TreeList& list) {
  const double now = static_cast<double>(parts_.clock.seconds());
  Facts facts;
  for (const TreeList::File& each : list.files) {
    const auto [at, is_new] = facts.files.try_emplace(each.id);
    if (!is_new) continue;
    BudgetFiles::File& file = at->second;
    file.bytes = each.bytes;
    // A time in the future says nothing.
    file.written = static_cast<double>(each.mtime) > now ? 0 : each.mtime;
    file.last_use = static_cast<double>(file.written);
    if (const auto heat = parts_.store.heat(each.id); heat && heat->last_access > 0) {
      file.uses = std::max(1.0, heat->score);
      file.last_use = std::max(file.last_use, static_cast<double>(heat->last_access));
    }
    const InodePtr inode = parts_.table.find(each.id);
    if (inode && has_writers(*inode)) facts.growing.push_back(each.id);
  }
  return facts;
}

void BudgetTrees::install(Tree& tree, const TreeList& list) {
  const Facts facts = facts_of(list);
  BudgetFiles files;  // in the end the old ones, which are freed without the lock
  const MutexLock lock(tree.mutex);
  const auto now = steady_clock::now();
  const auto took = now - tree.listing_began;
  tree.is_listing = false;
  tree.soonest_listing = now + took;
  tree.next_listing =
      now + std::max<steady_clock::duration>(kBetweenListings, kListingShare * took);
  // A directory that was renamed meanwhile may be listed twice or not at all.
  const auto changes = std::exchange(tree.directory_changes, {});
  const auto touched = std::exchange(tree.touched, {});
  const bool is_doubtful = !changes.empty() || tree.is_listed_in_vain;
  if (is_doubtful) tree.must_list = true;
  if (is_doubtful && tree.is_known) return;
  const auto put = [&](InodeId id, BudgetFiles::Below directory, const std::string& name,
                       const BudgetFiles::File& known) {
    BudgetFiles::File& file = files.add_name(id, directory, name, known.written);
    files.set_bytes(file, known.bytes);
    file.uses = known.uses;
    file.last_use = known.last_use;
    file.written = known.written;
    file.spared_until = known.spared_until;
  };
  std::uint32_t directory = 0;
  std::vector<std::string> names;  // of `directory`
  for (const TreeList::File& each : list.files) {
    if (touched.contains(each.id)) continue;
    BudgetFiles::File known = facts.files.at(each.id);
    if (const BudgetFiles::File* const old = tree.files.find(each.id)) {
      known.uses = std::max(known.uses, old->uses);
      known.last_use = std::max(known.last_use, old->last_use);
      known.written = std::max(known.written, old->written);
      known.spared_until = old->spared_until;
    }
    if (each.directory != directory) names = list.names_up(directory = each.directory);
    put(each.id, names, each.name, known);
  }
  for (const Tree::DirectoryChange& change : changes) apply(files, change.from, change.to);
  // What users changed while the tree was listed counts as they left it.
  for (const InodeId id : touched) {
    // A file that was not known before may have more names than those that were touched.
    if (!tree.is_known && facts.files.contains(id)) tree.must_list = true;
    for (const auto& [where, name] : tree.files.names(id))
      put(id, where, name, *tree.files.find(id));
  }
  std::swap(tree.files, files);
  for (const InodeId id : facts.growing) tree.growing.try_emplace(id);
  tree.erase_gone();
  if (tree.largest == 0 && !tree.files.all().empty())
    tree.largest = tree.files.used() / tree.files.all().size();
  tree.is_known = true;
  tree.is_suspect = tree.is_listed_in_vain;
  wake();
}

std::vector<Expendable> BudgetTrees::candidates(Tree& tree, std::vector<InodeId>& ids) const {
  tree.mutex.assert_held();
  std::vector<Expendable> out;
  const std::int64_t rested = parts_.clock.seconds() - parts_.rest.count();
  const auto now = steady_clock::now();
  for (const auto& [id, file] : tree.files.all()) {
    if (file.is_spared || file.spared_until > now || file.written > rested) continue;
    if (tree.growing.contains(id)) continue;
    ids.push_back(id);
    out.push_back(expendable(id, file));
  }
  return out;
}

std::vector<BudgetTrees::Victim> BudgetTrees::choose(Tree& tree) {
  const MutexLock lock(tree.mutex);
  if (!tree.is_known || tree.is_suspect) return {};
  const std::uint64_t budget = tree.budget.bytes;
  std::uint64_t needed = tree.files.used();
  if (const std::size_t wanting = tree.wanting(); wanting > 0) {
    // A part of the budget at most: the files of the writers may turn out smaller.
    const auto next = std::min(tree.expected_size() * wanting, budget / 4);
    needed += tree.expected_growth() + std::max({next, budget_step(budget), std::uint64_t{1}});
  }
  if (needed <= budget) {
    tree.is_stuck = false;
    return {};
  }
  const auto began = steady_clock::now();
  if (began < tree.next_choice) return {};
  std::vector<InodeId> ids;
  const auto files = candidates(tree, ids);
  std::vector<Victim> victims;
  for (const std::uint32_t each :
       choose_victims(files, needed - budget, static_cast<double>(parts_.clock.seconds()))) {
    victims.push_back(victim_locked(tree, ids[each]));
  }
  tree.is_stuck = victims.empty();
  // Users of the tree wait for its lock. A choice among many files takes long, and after one that
  // found nothing the next one would soon find nothing, either.
  const auto ended = steady_clock::now();
  if (tree.is_stuck) {
    tree.next_choice =
        ended + std::max<steady_clock::duration>(kChoiceShare * (ended - began), kAfterVainChoice);
  } else if (ended - began > kLongChoice) {
    tree.next_choice = ended + (ended - began);
  }
  return victims;
}

BudgetTrees::Victim BudgetTrees::victim_locked(Tree& tree, InodeId id) {
  tree.mutex.assert_held();
  const BudgetFiles::File* const file = tree.files.find(id);
  if (file == nullptr) return {};
  return {id, tree.files.paths(id), file->bytes, file->uses, file->last_use, file->written};
}

BudgetTrees::Victim BudgetTrees::victim(Tree& tree, InodeId file) {
  const MutexLock lock(tree.mutex);
  return victim_locked(tree, file);
}

BudgetTrees::Contents BudgetTrees::contents(Tree& tree) {
  const MutexLock lock(tree.mutex);
  Contents out;
  out.is_known = tree.is_known && !tree.is_suspect;
  if (!out.is_known) return out;
  out.used = tree.files.used();
  out.ids.reserve(tree.files.all().size());
  out.files.reserve(tree.files.all().size());
  for (const auto& [id, file] : tree.files.all()) {
    out.ids.push_back(id);
    out.files.push_back(expendable(id, file));
  }
  return out;
}

BudgetTrees::TreePtr BudgetTrees::draft(const InodePtr& directory, const TreeList& list) {
  auto tree = std::make_shared<Tree>();
  {
    const MutexLock lock(tree->mutex);
    tree->directory = directory;
  }
  install(*tree, list);
  return tree;
}

void BudgetTrees::deleted(Tree& tree, const Victim& victim, const std::vector<InodePtr>& parents) {
  {
    const MutexLock lock(tree.mutex);
    ++tree.deleted;
    tree.deleted_bytes += victim.bytes;
    tree.note(victim.id);
    tree.erase(victim.id);
  }
  for (const InodePtr& parent : parents) {
    for (const Above& each : above(climb(parent))) {
      const MutexLock lock(each.tree->mutex);
      each.tree->note(victim.id);
      each.tree->erase(victim.id);
    }
  }
}

void BudgetTrees::spare(Tree& tree, InodeId id, Spare how_long) {
  const MutexLock lock(tree.mutex);
  BudgetFiles::File* const file = tree.files.find(id);
  if (file == nullptr) return;
  file->is_spared = how_long == Spare::Always;
  file->spared_until = steady_clock::now() + kSpared;
}

void BudgetTrees::unspare(Tree& tree, InodeId id) {
  const MutexLock lock(tree.mutex);
  if (BudgetFiles::File* const file = tree.files.find(id)) file->end_spare();
}

bool BudgetTrees::suspect(Tree& tree, const Victim& victim) {
  const MutexLock lock(tree.mutex);
  if (tree.files.paths(victim.id) != victim.names) return false;  // a user was faster
  tree.is_suspect = true;
  tree.must_list = true;
  return true;
}

void BudgetTrees::wait_for_work(const std::stop_token& stop, std::chrono::milliseconds time) {
  const auto deadline = steady_clock::now() + time;
  const MutexLock lock(mutex_);
  while (!has_work_ && !stop.stop_requested() && steady_clock::now() < deadline)
    work_.wait_for(mutex_, deadline - steady_clock::now());
  has_work_ = false;
}

void BudgetTrees::wake() {
  const MutexLock lock(mutex_);
  has_work_ = true;
  work_.notify_all();
}

}  // namespace sluice
