// SPDX-License-Identifier: BSD-2-Clause
#include "fs/core/deletion/budget_keeper.hpp"

#include <sys/resource.h>

#include <algorithm>
#include <optional>

#include "base/check.hpp"
#include "base/log.hpp"
#include "base/thread.hpp"
#include "base/units.hpp"

namespace sluice {
namespace {

// While files are being written in a tree, and otherwise.
constexpr std::chrono::milliseconds kWaitingPause{25}, kBusyPause{100}, kIdlePause{1000};
constexpr std::chrono::milliseconds kListPause{100};

// Marks a file, so that from now on it cannot be opened. EBUSY if somebody uses it.
class Doomed {
 public:
  static Result<Doomed> mark(const InodePtr& file) {
    Inode::Locked state(*file);
    DeletionFacts facts;
    DeletionRule::add_use(facts, *state);
    if (facts.is_in_use || facts.is_moving || state->is_doomed)
      return Error(EBUSY, "the file is in use");
    state->is_doomed = true;
    return Doomed(file);
  }
  Doomed(Doomed&&) = default;
  Doomed(const Doomed&) = delete;
  Doomed& operator=(const Doomed&) = delete;
  ~Doomed() {
    if (!file_) return;
    Inode::Locked state(*file_);
    state->is_doomed = false;
  }
  // The file is gone: an open by a name that the kernel has cached must look the name up again.
  void keep() { file_ = nullptr; }

 private:
  explicit Doomed(InodePtr file) : file_(std::move(file)) {}
  InodePtr file_;
};

}  // namespace

void BudgetKeeper::start() {
  SLUICE_CHECK(!keeper_.joinable(), "the keeper of budgets is started once");
  parts_.trees.begin();
  keeper_ = std::jthread([this](const std::stop_token& stop) {
    begin_thread("sluice-budget");
    keep(stop);
  });
  lister_ = std::jthread([this](const std::stop_token& stop) {
    begin_thread("sluice-list");
    ::setpriority(PRIO_PROCESS, 0, 10);  // this thread only
    list(stop);
  });
  teller_ = std::jthread([this](const std::stop_token& stop) {
    begin_thread("sluice-tell");
    tell(stop);
  });
}

void BudgetKeeper::stop() {
  for (std::jthread* thread : {&keeper_, &lister_, &teller_}) thread->request_stop();
  parts_.trees.wake();
  for (std::jthread* thread : {&keeper_, &lister_, &teller_}) {
    if (thread->joinable()) thread->join();
  }
  for (const BudgetTrees::TreePtr& tree : parts_.trees.all())
    give_back(parts_.trees.drop_tree(parts_.trees.place(*tree).directory->id()));
}

void BudgetKeeper::give_back(const std::vector<InodeId>& references) {
  for (const InodeId id : references) parts_.table.forget(id, 1);
}

void BudgetKeeper::keep(const std::stop_token& stop) {
  bool is_busy = false, somebody_waits = false;
  while (!stop.stop_requested()) {
    parts_.trees.wait_for_work(stop, somebody_waits ? kWaitingPause
                                     : is_busy      ? kBusyPause
                                                    : kIdlePause);
    is_busy = parts_.budgets.poll();
    bool has_deleted = false;
    for (const BudgetTrees::TreePtr& tree : parts_.trees.all()) {
      if (stop.stop_requested()) return;
      has_deleted = trim(stop, *tree) || has_deleted;
    }
    somebody_waits = parts_.budgets.answer_waiting();
    if (somebody_waits && has_deleted) parts_.trees.wake();  // there may be more to delete
  }
}

bool BudgetKeeper::trim(const std::stop_token& stop, BudgetTrees::Tree& tree) {
  // Files that turn out to be in use are spared, and others are chosen.
  constexpr int kMostRounds = 8;
  bool has_deleted = false;
  for (int round = 0; round < kMostRounds; ++round) {
    const auto victims = parts_.trees.choose(tree);
    if (victims.empty()) return has_deleted;
    const Place place = parts_.trees.place(tree);
    // What was noted may be old, and a mistake cannot be undone.
    if (budget_now(place.directory) != place.budget) {
      parts_.trees.changed(place.directory);
      return has_deleted;
    }
    bool is_spared = false;
    for (const BudgetTrees::Victim& victim : victims) {
      // A user may correct a rule while files are being deleted because of it.
      if (stop.stop_requested() || budget_now(place.directory) != place.budget) return has_deleted;
      std::vector<InodePtr> parents;
      const auto removed = remove(place, victim, parents);
      if (removed) {
        parts_.trees.deleted(tree, victim, parents);
        has_deleted = true;
        parts_.budgets.answer_waiting();  // who waits must not wait for all of this
        continue;
      }
      is_spared = true;
      const int code = removed.error().code;
      if (code == ESTALE || code == ENOENT) {
        parts_.trees.spare(tree, victim.id, BudgetTrees::Spare::ForNow);
        if (parts_.trees.suspect(tree, victim)) return has_deleted;
        continue;
      }
      parts_.trees.spare(tree, victim.id,
                         code == EBUSY ? BudgetTrees::Spare::ForNow : BudgetTrees::Spare::Always);
      if (code != EBUSY && code != EPERM)
        log::get().warn("cannot delete a file of a directory with a budget: path={} why={}",
                        log::escaped(place.path + victim.names[0]), removed.error().text());
    }
    if (!is_spared) return has_deleted;
  }
  return has_deleted;
}

Result<void> BudgetKeeper::remove(const Place& place, const BudgetTrees::Victim& victim,
                                  std::vector<InodePtr>& parents) {
  SLUICE_TRY(remove_named(place, victim, parents));
  const std::vector<InodeId> gone{victim.id};
  // If this fails, the next census finds the entries.
  [[maybe_unused]] const auto heat = parts_.store.forget_heat(gone);
  [[maybe_unused]] const auto ghosts = parts_.store.forget_ghosts(gone);
  parts_.file_is_gone(victim.id);
  return {};
}

Result<void> BudgetKeeper::remove_named(const Place& place, const BudgetTrees::Victim& victim,
                                        std::vector<InodePtr>& parents) {
  DeletionRule::Candidate candidate = SLUICE_TRY(rule_.find(place, victim));
  const InodePtr& file = candidate.file;
  const std::vector<Names::Place>& names = candidate.names;
  for (const Names::Place& name : names) parents.push_back(name.parent);
  if (candidate.facts.is_in_use || candidate.facts.is_moving)
    return Error(EBUSY, "the file is in use");
  bool is_agreed = false;
  std::optional<Doomed> doomed;
  // No name changes while this runs.
  const auto agree = [&](const Located& found, const OpenCopy& parent) -> Result<void> {
    SLUICE_TRY(rule_.add(candidate.facts, found, parent));
    if (candidate.facts.directory_owners.size() < names.size()) return {};
    if (const auto kept = rule_.decide(candidate, place.budget))
      return is_for_now(*kept) ? Error(EBUSY, "the file stays for now")
                               : Error(EPERM, "the file stays");
    is_agreed = true;
    SLUICE_TRY(parts_.store.add_receipts({receipt_for(place, victim, found.tier)}));
    // Since find(), the file or a directory above it may have left the tree, or got a pin.
    if (SLUICE_TRY(rule_.has_pin(place.directory, candidate)))
      return Error(EPERM, "the file is pinned");
    if (budget_now(place.directory) != place.budget) return Error(EBUSY, "the budget has changed");
    // As late as possible: an open of a file that is doomed, and still has its name, fails.
    doomed.emplace(SLUICE_TRY(Doomed::mark(file)));
    return {};
  };
  if (const auto removed = parts_.names.remove_unused(file, names, agree); !removed) {
    if (!is_agreed) return removed;
    // The receipt was too early; another one corrects it.
    Receipt receipt = receipt_for(place, victim, file->tier());
    receipt.code = removed.error().code;
    [[maybe_unused]] const auto added = parts_.store.add_receipts({receipt});
    return removed;
  }
  doomed->keep();
  const MutexLock lock(mutex_);
  for (const Names::Place& name : names)
    removed_.push_back({name.parent->id(), victim.id, name.name});
  wake_.notify_all();
  return {};
}

Receipt BudgetKeeper::receipt_for(const Place& place, const BudgetTrees::Victim& victim,
                                  TierIndex tier) const {
  const std::int64_t now = parts_.clock.seconds();
  const auto idle = now - static_cast<std::int64_t>(victim.last_use);
  Receipt receipt;
  receipt.time = now;
  receipt.id = victim.id;
  receipt.path = place.path + victim.names[0];
  receipt.from = parts_.pool[tier].name();
  receipt.bytes = victim.bytes;
  receipt.reason = log::escaped(place.path) + " has a budget of " +
                   format_size(place.budget.bytes) + "; last used " +
                   format_duration(std::chrono::seconds(std::max<std::int64_t>(idle, 0))) + " ago";
  return receipt;
}

void BudgetKeeper::tell(const std::stop_token& stop) {
  while (!stop.stop_requested()) {
    Removed removed;
    {
      const MutexLock lock(mutex_);
      const auto is_there = [&]() REQUIRES(mutex_) { return !removed_.empty(); };
      if (!wake_.wait(mutex_, stop, is_there)) return;
      removed = std::move(removed_.front());
      removed_.pop_front();
    }
    parts_.kernel.drop_name(removed.parent, removed.name);
    parts_.kernel.drop_attributes(removed.file);
    parts_.kernel.drop_pages(removed.parent);  // its listing
    parts_.kernel.drop_attributes(removed.parent);
  }
}

void BudgetKeeper::list(const std::stop_token& stop) {
  Mutex mutex;
  StopCondVar never;
  const MutexLock lock(mutex);
  while (!stop.stop_requested()) {
    list_trees(stop);
    if (const unsigned wanted = parts_.trees.searches_wanted(); wanted != searched_) {
      // A search of the whole pool may take minutes. The trees that users use do not wait for it.
      auto listed = std::chrono::steady_clock::now();
      const auto go_on = [&] {
        if (std::chrono::steady_clock::now() - listed > kListPause) {
          list_trees(stop);
          listed = std::chrono::steady_clock::now();
        }
        return !stop.stop_requested();
      };
      if (search(go_on)) searched_ = wanted;
      list_trees(stop);
    }
    never.sleep(mutex, stop, kListPause);
  }
}

void BudgetKeeper::list_trees(const std::stop_token& stop) {
  const auto go_on = [&] { return !stop.stop_requested(); };
  for (const InodePtr& directory : parts_.trees.found_by_users()) look_at(directory);
  for (const BudgetTrees::TreePtr& tree : parts_.trees.all()) {
    if (stop.stop_requested()) return;
    if (!parts_.trees.begin_listing(*tree)) continue;
    const Place place = parts_.trees.place(*tree);
    const auto listed = list_tree(parts_.pool, place.path, go_on);
    if (listed && !place.path.empty()) {
      parts_.trees.install(*tree, *listed);
    } else {
      parts_.trees.fail_listing(*tree);
    }
  }
}

// Finds all directories with a budget. Users find those that they use before that.
bool BudgetKeeper::search(const GoOn& go_on) {
  const auto found = find_budgets(parts_.pool, *parts_.trees.rules(), go_on);
  if (!found) return false;
  std::unordered_set<InodeId> kept;
  for (const auto& [path, budget] : *found) {
    if (const InodePtr directory = put(path)) kept.insert(directory->id());
  }
  // A tree that was not found stays if its directory still has a budget: it was renamed or made
  // meanwhile, or its tier is offline.
  for (const BudgetTrees::TreePtr& tree : parts_.trees.all()) {
    const Place place = parts_.trees.place(*tree);
    if (!kept.contains(place.directory->id())) look_at(place.directory);
  }
  parts_.trees.searched();
  return true;
}

std::optional<Budget> BudgetKeeper::budget_now(const InodePtr& directory) {
  const std::string path = parts_.tree.path_of(directory);
  const auto fd = parts_.descriptors.any(directory);
  if (!fd || path.empty() || path == "/") return std::nullopt;
  return budget_of(own_budget((*fd)->get()), *parts_.trees.rules(), path);
}

// The path is only a hint: another directory may have it by now.
InodePtr BudgetKeeper::put(const std::string& path) {
  std::vector<InodeId> references;
  const auto directory = parts_.tree.walk(path, references);
  const auto budget =
      directory && (*directory)->is_directory() ? budget_now(*directory) : std::nullopt;
  if (!budget) {
    give_back(references);
    return nullptr;
  }
  if (parts_.trees.has_tree((*directory)->id())) give_back(std::exchange(references, {}));
  parts_.trees.put_tree(*directory, std::move(references), *budget);
  return *directory;
}

// Reads the budget of a directory that may have got or lost one.
void BudgetKeeper::look_at(const InodePtr& directory) {
  bool is_gone = false;
  {
    Inode::Locked state(*directory);
    is_gone = state->directory.removed;
  }
  if (!is_gone && !parts_.descriptors.any(directory)) return;  // its tier is offline
  if (!is_gone && budget_now(directory)) {
    put(parts_.tree.path_of(directory));
  } else {
    give_back(parts_.trees.drop_tree(directory->id()));
  }
}

}  // namespace sluice
