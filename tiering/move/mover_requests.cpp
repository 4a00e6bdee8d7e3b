// SPDX-License-Identifier: BSD-2-Clause
// The moves that users ask for. They are stored before the user gets an answer, and forgotten once
// they are made, so a daemon that ends or dies in between leaves them to the next one.
#include <algorithm>
#include <limits>
#include <utility>

#include "base/log.hpp"
#include "tiering/move/mover.hpp"

namespace sluice {
namespace {

// How often a file that disappears from its path is searched for. More than once only if it is
// renamed again and again.
constexpr unsigned kMostSearches = 3;

}  // namespace

Result<void> Mover::request(Move move) {
  const MutexLock keeping(keeping_.mutex);
  {
    const MutexLock lock(mutex_);
    const auto waiting = waiting_of_user_.find(move.user);
    const std::size_t all =
        queue_.count_of(move.user) + (waiting == waiting_of_user_.end() ? 0 : waiting->second);
    if (move.user != 0 && all >= kMostOfUser && queue_.find(move.id) == nullptr)
      return Error(EAGAIN, "the user has too many moves in the queue");
  }
  // Not an error for the user: a move may be what makes room for the database.
  if (const auto kept = keeping_.requests.keep(move); !kept)
    log::get().warn("cannot store a requested move, an unmount would lose it: path={} why={}",
                    log::escaped(move.paths.empty() ? "" : move.paths[0]), kept.error().text());
  if (keeping_.touched) keeping_.touched->insert(move.id);
  const MutexLock lock(mutex_);
  lost_.times.erase(move.id);
  erase_waiting(move.id);
  queue_.put({std::move(move), 0}, MoveQueue::Place::Asked);
  wake_.notify_all();
  return {};
}

std::size_t Mover::most_requested() const {
  const MutexLock lock(mutex_);
  std::map<uid_t, std::size_t> all = waiting_of_user_;
  queue_.add_counts(all);
  std::size_t most = 0;
  for (const auto& [user, count] : all) most = std::max(most, count);
  return most;
}

bool Mover::erase_queued(InodeId id) {
  const bool found =
      lost_.times.contains(id) || queue_.find(id) != nullptr || waiting_.contains(id);
  lost_.times.erase(id);
  queue_.erase(id);
  erase_waiting(id);
  idle_.notify_all();
  return found;
}

void Mover::cancel(InodeId id) {
  // A request of an earlier mount may be on its way into the queue; settle() stops it.
  const bool may_come = keeping_.is_resuming;
  {
    const MutexLock lock(mutex_);
    if (!erase_queued(id) && !may_come) return;
  }
  settle({id});
}

void Mover::end_drain(TierIndex tier) {
  const auto is_of_drain = [&](const Move& move) {
    return move.reason == Reason::Draining && move.from == tier;
  };
  std::uint64_t all = 0;
  const auto queue = queued(
      std::numeric_limits<std::size_t>::max(), [](InodeId, const std::string&) { return true; },
      all);
  const MutexLock lock(mutex_);
  std::vector<InodeId> ids;
  for (const Queued& each : queue) {
    // Users may have asked for another move meanwhile.
    const Move* now = queue_.find(each.move.id);
    if (now != nullptr && is_of_drain(*now)) ids.push_back(each.move.id);
  }
  for (const auto& [id, waiting] : waiting_) {
    if (is_of_drain(waiting.pending.move)) ids.push_back(id);
  }
  for (const InodeId id : ids) erase_queued(id);
}

Mover::Withdrawal Mover::withdraw(InodeId id) {
  Withdrawal out;
  {
    const MutexLock lock(mutex_);
    if (erase_queued(id)) out.what = Withdrawn::Ended;
    const auto running = under_way_.find(id);
    if (running != under_way_.end() && !running->second.is_void()) {
      Active& active = running->second;
      out = {active.stage == Active::Stage::Copying ? Withdrawn::Ended : Withdrawn::TooLate,
             active.to};
      active.is_withdrawn = true;
    }
  }
  // A request of an earlier mount may not be in the queue yet. An error is ignored: the store can't
  // be read, so it will not be in the queue later, either.
  if (out.what == Withdrawn::Nothing) {
    const auto kept = keeping_.requests.has(id);
    if (kept && *kept) out.what = Withdrawn::Ended;
  }
  settle({id});
  return out;
}

bool Mover::is_requested(InodeId id) const {
  const Move* queued = queue_.find(id);
  if (queued != nullptr && queued->reason == Reason::Requested) return true;
  const auto waiting = waiting_.find(id);
  return waiting != waiting_.end() && waiting->second.pending.move.reason == Reason::Requested;
}

void Mover::settle(std::vector<InodeId> ids) {
  const MutexLock keeping(keeping_.mutex);
  {
    const MutexLock lock(mutex_);
    // A newer request for the file stays.
    std::erase_if(ids, [&](InodeId id) REQUIRES(mutex_) { return is_requested(id); });
  }
  if (keeping_.touched) keeping_.touched->insert(ids.begin(), ids.end());
  if (const auto forgotten = keeping_.requests.forget(ids); !forgotten)
    log::get().warn("cannot forget a requested move: why={}", forgotten.error().text());
}

bool Mover::note_lost(InodeId id) {
  unsigned& searches = lost_.times[id];
  if (++searches > kMostSearches) {
    lost_.times.erase(id);
    return false;
  }
  lost_.must_search = true;
  return true;
}

bool Mover::must_search() const {
  const MutexLock lock(mutex_);
  return lost_.must_search;
}

Result<std::size_t> Mover::resume_requests(const std::function<bool()>& go_on) {
  keeping_.is_resuming = true;
  auto resumed = find_requests(go_on);
  keeping_.is_resuming = false;
  return resumed;
}

Result<std::size_t> Mover::find_requests(const std::function<bool()>& go_on) {
  {
    const MutexLock keeping(keeping_.mutex);
    keeping_.touched.emplace();
    const MutexLock lock(mutex_);
    lost_.must_search = false;
  }
  const auto is_queued = [this](InodeId id) {
    const MutexLock lock(mutex_);
    return under_way_.contains(id) || is_requested(id);
  };
  auto searched = keeping_.requests.find(is_queued, go_on);
  const MutexLock keeping(keeping_.mutex);
  const auto touched = *std::exchange(keeping_.touched, std::nullopt);
  KeptRequests::Found found = SLUICE_TRY(std::move(searched));
  // What users asked for or what has moved in the meantime is newer than what was found.
  std::erase_if(found.obsolete, [&](InodeId id) { return touched.contains(id); });
  std::erase_if(found.moves, [&](const Move& move) { return touched.contains(move.id); });
  SLUICE_TRY(keeping_.requests.forget(found.obsolete));
  const MutexLock lock(mutex_);
  for (const InodeId id : found.obsolete) lost_.times.erase(id);
  for (Move& move : found.moves) {
    erase_waiting(move.id);
    queue_.put({std::move(move), 0}, MoveQueue::Place::Asked);
  }
  wake_.notify_all();
  return found.moves.size();
}

}  // namespace sluice
