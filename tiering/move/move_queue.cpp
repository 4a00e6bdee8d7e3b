// SPDX-License-Identifier: BSD-2-Clause
#include "tiering/move/move_queue.hpp"

#include <algorithm>

namespace sluice {

void MoveQueue::put(Job job, Place place) {
  const InodeId id = job.move.id;
  erase(id);
  Key key{.planned = place != Place::Asked && job.move.reason != Reason::Requested,
          .turn = 0,
          .number = ++last_number_};
  if (key.planned) {
    key.turn = place == Place::First ? --first_ : ++last_;
  } else {
    // Behind the user's other moves; the first move of a user gets the next turn.
    User& user = users_[job.move.user];
    user.turn = user.count == 0 ? now_ + 1 : std::max(user.turn, now_) + 1;
    ++user.count;
    key.turn = place == Place::First ? now_ : user.turn;
  }
  const LaneId lane{job.move.reason == Reason::Requested, job.move.from, job.move.to};
  bytes_ += job.move.size();
  index_[id] = {lane, key};
  lanes_[lane].emplace(key, std::move(job));
}

void MoveQueue::erase(InodeId file) {
  const auto found = index_.find(file);
  if (found != index_.end()) extract(Position(found->second));
}

MoveQueue::Job MoveQueue::extract(const Position& position) {
  const auto lane = lanes_.find(position.lane);
  auto node = lane->second.extract(position.key);
  if (lane->second.empty()) lanes_.erase(lane);
  Job& job = node.mapped();
  bytes_ -= job.move.size();
  if (!position.key.planned) {
    const auto user = users_.find(job.move.user);
    if (--user->second.count == 0) users_.erase(user);
  }
  index_.erase(job.move.id);
  return std::move(job);
}

bool MoveQueue::erase_reported() {
  std::vector<Position> gone;
  for (const auto& [id, lane] : lanes_) {
    for (const auto& [key, job] : lane) {
      if (job.report != 0) gone.push_back({id, key});
    }
  }
  for (const Position& each : gone) extract(each);
  return !gone.empty();
}

const Move* MoveQueue::find(InodeId file) const {
  const auto found = index_.find(file);
  if (found == index_.end()) return nullptr;
  return &lanes_.at(found->second.lane).at(found->second.key).move;
}

bool MoveQueue::visit(std::optional<Key>& after,
                      const std::function<bool(const Move&)>& visit) const {
  std::vector<std::pair<Lane::const_iterator, Lane::const_iterator>> ahead;  // of each lane
  for (const auto& [id, lane] : lanes_)
    ahead.emplace_back(after ? lane.upper_bound(*after) : lane.begin(), lane.end());
  for (;;) {
    Lane::const_iterator* next = nullptr;
    for (auto& [at, end] : ahead) {
      if (at != end && (next == nullptr || at->first < (*next)->first)) next = &at;
    }
    if (next == nullptr) return false;
    after = (*next)->first;
    const Move& move = (*next)->second.move;
    ++*next;
    if (!visit(move)) return true;
  }
}

std::size_t MoveQueue::count_of(uid_t user) const {
  const auto found = users_.find(user);
  return found == users_.end() ? 0 : found->second.count;
}

void MoveQueue::add_counts(std::map<uid_t, std::size_t>& to) const {
  for (const auto& [user, of] : users_) to[user] += of.count;
}

bool MoveQueue::is_between(const LaneId& lane, const Key& first, const Key& second) const {
  return std::any_of(lanes_.begin(), lanes_.end(), [&](const auto& other) {
    if (other.first == lane) return false;
    const auto next = other.second.upper_bound(first);
    return next != other.second.end() && next->first < second;
  });
}

std::vector<MoveQueue::Job> MoveQueue::take(const Choice& choice, const Joins& joins) {
  std::optional<Position> best;
  for (const auto& [id, lane] : lanes_) {
    if ((choice.only_requested && !id.requested) || !choice.can_go(id.from, id.to)) continue;
    const auto first = std::find_if(lane.begin(), lane.end(), [&](const auto& entry) {
      return !choice.is_moving(entry.second.move.id);
    });
    if (first != lane.end() && (!best || first->first < best->key)) best = {id, first->first};
  }
  std::vector<Job> out;
  if (!best) return out;
  const LaneId id = best->lane;
  for (Key at = best->key;;) {
    const Lane& lane = lanes_.at(id);
    const auto next = std::next(lane.find(at));
    const bool goes_on = next != lane.end() && next->first.planned == at.planned &&
                         !choice.is_moving(next->second.move.id) &&
                         !(at.planned && is_between(id, at, next->first));
    const std::optional<Key> then = goes_on ? std::optional(next->first) : std::nullopt;
    if (!at.planned) now_ = std::max(now_, at.turn);
    out.push_back(extract({id, at}));
    if (!then || !joins(out[0].move, next->second.move)) return out;
    at = *then;
  }
}

}  // namespace sluice
