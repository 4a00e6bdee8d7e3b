// SPDX-License-Identifier: BSD-2-Clause
// The MoveQueue holds moves that wait for their turn. A file is in it at most once. Adding,
// replacing and finding a move costs O(log n), however many there are.
//
// Moves that somebody asked for go before planned ones. Users take turns: each user's next move
// goes before any other user's second one. Planned moves keep their order.
// Threads: caller locks.
#pragma once

#include <sys/types.h>

#include <compare>
#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <tuple>
#include <unordered_map>
#include <vector>

#include "base/ids.hpp"
#include "tiering/planner.hpp"

namespace sluice {

struct Move {
  InodeId id{};
  std::vector<std::string> paths;  // below the mount: every name the file has, or one that is known
  TierIndex from = kNoTier;
  TierIndex to = kNoTier;
  std::uint64_t bytes = 0;
  Reason reason = Reason::Requested;
  std::string why;  // for the receipt
  uid_t user = 0;   // who asked for it
};

class MoveQueue {
 public:
  struct Job {
    Move move;
    std::uint64_t report = 0;  // of the mover; 0: nobody listens
  };
  // Asked: before all planned ones, when it is its user's turn. First: before all others of its
  // kind that are there now. Last: behind all.
  enum class Place { Asked, First, Last };

  // Replaces a move of the same file.
  void put(Job job, Place place);
  void erase(InodeId file);
  // Returns whether there was any.
  bool erase_reported();
  const Move* find(InodeId file) const;

  // What may be taken now. `can_go` is asked about pairs of tiers, `is_held` about single files.
  struct Choice {
    std::function<bool(TierIndex from, TierIndex to)> can_go;
    std::function<bool(InodeId file)> is_held;
    bool only_requested = false;
  };
  // Takes the first move that may begin, and then those behind it for which `joins` says so.
  // Planned moves are not overtaken by those behind them, once the first is chosen: what is planned
  // first makes room for the rest.
  using Joins = std::function<bool(const Move& first, const Move& next)>;
  std::vector<Job> take(const Choice& choice, const Joins& joins);

  bool empty() const { return index_.empty(); }
  std::size_t size() const { return index_.size(); }
  std::uint64_t bytes() const { return bytes_; }
  // Moves in the queue that this user asked for.
  std::size_t count_of(uid_t user) const;
  void add_counts(std::map<uid_t, std::size_t>& to) const;

 private:
  struct Key {
    bool planned = false;
    std::int64_t turn = 0;
    std::uint64_t number = 0;  // in the order of put()
    auto operator<=>(const Key&) const = default;
  };
  // Moves that may begin under the same conditions.
  struct LaneId {
    bool requested = false;
    TierIndex from = kNoTier, to = kNoTier;
    auto operator<=>(const LaneId&) const = default;
  };
  using Lane = std::map<Key, Job>;
  struct Position {
    LaneId lane;
    Key key;
  };
  struct User {
    std::size_t count = 0;  // in the queue
    std::int64_t turn = 0;  // of the last one
  };

  Job extract(const Position& position);
  // Whether a move of another lane stands between those two.
  bool is_between(const LaneId& lane, const Key& first, const Key& second) const;

  std::map<LaneId, Lane> lanes_;  // none is empty
  std::unordered_map<InodeId, Position> index_;
  std::map<uid_t, User> users_;  // those with moves in the queue
  std::uint64_t bytes_ = 0;
  std::uint64_t last_number_ = 0;
  std::int64_t now_ = 0;  // the turn that moves are taken of, of those that were asked for
  std::int64_t first_ = 0, last_ = 0;  // of planned ones
};

}  // namespace sluice
