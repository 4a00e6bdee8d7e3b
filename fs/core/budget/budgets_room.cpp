// SPDX-License-Identifier: BSD-2-Clause
// Who gets room at once, and whose first write waits.
#include <algorithm>

#include "fs/core/budget/budget_tree.hpp"
#include "fs/core/budget/budgets.hpp"

namespace sluice {
namespace {

using std::chrono::steady_clock;

// Of the first write of a new file. The kernel holds the file's lock meanwhile, so whoever unlinks
// or renames it waits, too, with the locks of directories.
constexpr std::chrono::milliseconds kLongestWait{100};
// Asynchronous direct writes are among the requests of which the kernel sends only so many at a
// time for all users (Session::negotiate()), so not all of these may wait.
constexpr std::size_t kMostWaiting = 32, kMostWaitingOfUser = 16;

}  // namespace

void Budgets::Room::give_back() {
  if (trees_.empty()) return;
  for (const TreePtr& tree : trees_) {
    const MutexLock lock(tree->mutex);
    --tree->admitted;
  }
  budgets_->may_have_room();
}

Result<Budgets::Room> Budgets::admit(const InodePtr& parent) {
  if (!trees_.is_active()) return Room(*this);
  return reserve(trees_.climb(parent), nullptr, {});
}

Result<Budgets::Room> Budgets::admit_link(const InodePtr& file, const InodePtr& to) {
  if (!trees_.is_active() || !S_ISREG(file->type)) return Room(*this);
  return reserve(trees_.climb(to), file, {});
}

Result<Budgets::Room> Budgets::admit_rename(const InodePtr& from, const InodePtr& to) {
  if (!trees_.is_active() || from == to) return Room(*this);
  return reserve(trees_.climb(to), nullptr, trees_.climb(from));
}

Result<Budgets::Room> Budgets::reserve(const Way& way, const InodePtr& file, const Way& from) {
  trees_.note_unknown(way);
  Room room(*this);
  bool is_full = false;
  for (const Above& each : trees_.above(way)) {
    if (std::find(from.ids.begin(), from.ids.end(), each.id) != from.ids.end()) continue;
    Tree& tree = *each.tree;
    const MutexLock lock(tree.mutex);
    if (file && tree.files.contains(file->id())) continue;
    if (tree.has_room()) {
      ++tree.admitted;
      room.trees_.push_back(each.tree);
      continue;
    }
    room.is_there_ = false;
    is_full = is_full || tree.is_full();
  }
  if (!room.is_there_) trees_.wake();  // to make room, or to see whether that is possible by now
  if (is_full) return Error(ENOSPC, "the directory's budget is used up");
  return room;
}

// Grants room in each tree that has some, and says whether the file now has it in all.
Budgets::Claim Budgets::try_claim(const InodePtr& file) {
  if (!file->waits_for_room) return Claim::Granted;
  Claim answer = Claim::Granted;
  for (const Above& each : trees_.above(trees_.climb_from_file(file))) {
    Tree& tree = *each.tree;
    const MutexLock lock(tree.mutex);
    const auto owing = tree.owing.find(file->id());
    if (owing == tree.owing.end()) continue;
    if (tree.has_room()) {
      tree.owing.erase(owing);
      tree.put_growing(file->id());
    } else if (answer != Claim::Refused) {
      answer = tree.is_full() ? Claim::Refused : Claim::Waits;
    }
  }
  if (answer == Claim::Granted) file->waits_for_room = false;
  return answer;
}

void Budgets::give_up_claim(const InodePtr& file) {
  for (const Above& each : trees_.above(trees_.climb_from_file(file))) {
    const MutexLock lock(each.tree->mutex);
    if (each.tree->owing.erase(file->id()) == 0) continue;
    each.tree->put_growing(file->id());
    ++each.tree->let_in;
  }
  file->waits_for_room = false;
}

Result<void> Budgets::claim_room(const InodePtr& file, const KernelRequest& request) {
  const Claim claim = try_claim(file);
  if (claim == Claim::Granted) return {};
  if (claim == Claim::Waits && request.must_not_wait())
    return Error(kNoRoomYet, "a budget is used up");
  return Error(ENOSPC, "the directory's budget is used up");
}

void Budgets::when_room(InodeId id, uid_t user, std::function<void()> go_on) {
  const InodePtr file = parts_.table.find(id);
  if (file) {
    const auto now = steady_clock::now();
    for (const Above& each : trees_.above(trees_.climb_from_file(file))) {
      const MutexLock lock(each.tree->mutex);
      if (const auto owing = each.tree->owing.find(id); owing != each.tree->owing.end())
        owing->second = now;
    }
    const MutexLock lock(waiting_mutex_);
    const auto of_user = std::count_if(waiting_.begin(), waiting_.end(),
                                       [&](const Waiting& each) { return each.user == user; });
    if (nobody_waits_) return;
    if (waiting_.size() < kMostWaiting && static_cast<std::size_t>(of_user) < kMostWaitingOfUser) {
      waiting_.push_back({file, user, now + kLongestWait, std::move(go_on)});
      somebody_waits_ = true;
      trees_.wake();
      return;
    }
  }
  // The tree holds a file more than it should, which is better than an error that nobody expects.
  if (file) give_up_claim(file);
  go_on();
}

bool Budgets::answer_waiting() {
  if (!somebody_waits_) return false;
  const MutexLock lock(waiting_mutex_);
  const auto now = steady_clock::now();
  std::erase_if(waiting_, [&](const Waiting& each) {
    if (try_claim(each.file) == Claim::Waits) {
      if (now < each.deadline) return false;
      give_up_claim(each.file);
    }
    each.go_on();
    return true;
  });
  somebody_waits_ = !waiting_.empty();
  return somebody_waits_;
}

void Budgets::stop_waiting() {
  const MutexLock lock(waiting_mutex_);
  nobody_waits_ = true;
  waiting_.clear();
}

// A user's operation may have made room. The keeper checks whether somebody waits for it.
void Budgets::may_have_room() {
  if (somebody_waits_) trees_.wake();
}

}  // namespace sluice
