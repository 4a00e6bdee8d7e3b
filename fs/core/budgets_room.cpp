// SPDX-License-Identifier: BSD-2-Clause
// The side of Budgets that gives out room: who gets in at once, and whose first write waits.
#include <algorithm>

#include "fs/core/budget_tree.hpp"

namespace sluice {
namespace {

using std::chrono::steady_clock;

// Of the first write of a new file. The kernel holds the file's lock meanwhile, so whoever unlinks
// or renames it waits, too, with the locks of directories.
constexpr std::chrono::milliseconds kLongestWait{100};
constexpr std::chrono::seconds kWantsRoom{2};   // after the file was made, or began to wait
constexpr std::chrono::seconds kStillGrows{1};  // after a file was seen to grow
// Asynchronous direct writes are among the requests of which the kernel sends only so many at a
// time for all users (Session::negotiate()), so not all of these may wait.
constexpr std::size_t kMostWaiting = 32, kMostWaitingOfUser = 16;
constexpr std::size_t kMostTouched = 65'536;            // and as many as the tree has files
constexpr std::size_t kMostNotedBytes = 1024UL * 1024;  // of the names of renamed directories

}  // namespace

// A new file is expected to become as large as the largest of late. One that was far larger than
// others must not empty the tree, so that is limited.
std::uint64_t Budgets::Tree::expected_size() const {
  const std::size_t count = files.all().size();
  const std::uint64_t mean = count == 0 ? 0 : files.used() / count;
  return std::min(largest, std::max(budget.bytes / 64, mean));
}

// A file that is open but does not grow, like a lock file, is not expected to become larger.
std::uint64_t Budgets::Tree::expected_growth() const {
  const std::uint64_t size = expected_size();
  std::uint64_t sum = admitted * size;
  const auto long_ago = steady_clock::now() - kStillGrows;
  for (const auto& [id, grew] : growing) {
    const BudgetFiles::File* const file = files.find(id);
    if (file != nullptr && grew > long_ago && file->bytes < size) sum += size - file->bytes;
  }
  return sum;
}

bool Budgets::Tree::has_room() const {
  return !is_known || files.used() + expected_growth() < budget.bytes;
}

// A file that is never written to, like a lock file, does not want room for long.
std::size_t Budgets::Tree::wanting() const {
  const auto long_ago = steady_clock::now() - kWantsRoom;
  return static_cast<std::size_t>(std::count_if(
      owing.begin(), owing.end(), [&](const auto& each) { return each.second > long_ago; }));
}

void Budgets::Tree::put_growing(InodeId id) { growing[id] = steady_clock::now(); }

void Budgets::Tree::erase(InodeId id) {
  files.erase(id);
  growing.erase(id);
  owing.erase(id);
}

void Budgets::Tree::erase_gone() {
  std::erase_if(growing,
                [&](const auto& each) REQUIRES(mutex) { return !files.contains(each.first); });
  std::erase_if(owing,
                [&](const auto& each) REQUIRES(mutex) { return !files.contains(each.first); });
}

void Budgets::Tree::begin_notes() {
  touched = {};
  directory_changes = {};
  noted_bytes = 0;
  is_listed_in_vain = false;
}

void Budgets::Tree::note(InodeId id) {
  if (!is_listing || touched.contains(id)) return;
  if (touched.size() >= files.all().size() + kMostTouched) {
    is_listed_in_vain = true;
  } else {
    touched.insert(id);
  }
}

void Budgets::Tree::note(DirectoryChange change) {
  if (!is_listing) return;
  std::size_t bytes = sizeof change;
  for (const auto* names : {&change.from, &change.to}) {
    for (const std::string& name : *names) bytes += sizeof name + name.size();
  }
  if (noted_bytes + bytes > kMostNotedBytes) {
    is_listed_in_vain = true;
    return;
  }
  noted_bytes += bytes;
  directory_changes.push_back(std::move(change));
}

void Budgets::Room::give_back() {
  if (trees_.empty()) return;
  for (const TreePtr& tree : trees_) {
    const MutexLock lock(tree->mutex);
    --tree->admitted;
  }
  budgets_->may_have_room();
}

Result<Budgets::Room> Budgets::admit(const InodePtr& parent) {
  if (!is_active()) return Room(*this);
  return reserve(climb(parent), nullptr, {});
}

Result<Budgets::Room> Budgets::admit_link(const InodePtr& file, const InodePtr& to) {
  if (!is_active() || !S_ISREG(file->type)) return Room(*this);
  return reserve(climb(to), file, {});
}

Result<Budgets::Room> Budgets::admit_rename(const InodePtr& from, const InodePtr& to) {
  if (!is_active() || from == to) return Room(*this);
  return reserve(climb(to), nullptr, climb(from));
}

Result<Budgets::Room> Budgets::reserve(const Way& way, const InodePtr& file, const Way& from) {
  note_unknown(way);
  Room room(*this);
  bool is_full = false;
  for (const Above& each : above(way)) {
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
  if (!room.is_there_) wake();  // to make room, or to see whether that is possible by now
  if (is_full) return Error(ENOSPC, "the directory's budget is used up");
  return room;
}

// Grants room in each tree that has some, and says whether the file now has it in all.
Budgets::Claim Budgets::try_claim(const InodePtr& file) {
  if (!file->waits_for_room) return Claim::Granted;
  Claim answer = Claim::Granted;
  for (const Above& each : above(climb_from_file(file))) {
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
  for (const Above& each : above(climb_from_file(file))) {
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
    for (const Above& each : above(climb_from_file(file))) {
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
      wake();
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

// Room may have come by what a user did. The keeper looks whether somebody waits for it.
void Budgets::may_have_room() {
  if (somebody_waits_) wake();
}

}  // namespace sluice
