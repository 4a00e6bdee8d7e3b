// SPDX-License-Identifier: BSD-2-Clause
// MoveQueue stores the moves that wait for their turn. It has at most one move per file. Adding,
// replacing and finding a move takes O(log n).
//
// Requested moves go before planned ones. Users take turns: each user's next move goes before any
// other user's second one. Planned moves keep their order.
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
#include "tiering/choose/planner.hpp"

namespace sluice {

struct Move {
  InodeId id{};
  // Below the mount: all paths of the file, or those that are known.
  std::vector<std::string> paths;
  TierIndex from = kNoTier;
  TierIndex to = kNoTier;
  std::uint64_t bytes = 0;
  Reason reason = Reason::Requested;
  std::string why;  // for the receipt
  uid_t user = 0;   // the user who asked for it
  // The part of `bytes` that is behind the end of the file; a copy does not read it.
  std::uint32_t slack = 0;

  // What a copy reads, and what users are shown.
  std::uint64_t size() const { return bytes - slack; }
  // From st_size and st_blocks.
  void set_size(off_t length, blkcnt_t blocks) {
    bytes = static_cast<std::uint64_t>(blocks) * 512;
    slack = slack_of(static_cast<std::uint64_t>(length), bytes);
  }
};

inline constexpr const char* kAskedFor = "asked for";  // Move::why of a request

class MoveQueue {
 public:
  struct Job {
    Move move;
    std::uint64_t report = 0;  // the mover's report number; 0 if no listener
  };
  // Asked: before all planned moves, at its user's turn. First: before all other moves of its kind
  // that are queued now. Last: behind all.
  enum class Place { Asked, First, Last };

  // Replaces a queued move of the same file.
  void put(Job job, Place place);
  void erase(InodeId file);
  // Removes the moves that have a listener. Returns whether there were any.
  bool erase_reported();
  const Move* find(InodeId file) const;

  // Calls `visit` for queued moves, requested ones first, in the order of their turns, until it
  // returns false. Begins behind `after`, and leaves there where it ended. False if there are no
  // more.
  struct Key {
    bool planned = false;
    std::int64_t turn = 0;
    std::uint64_t number = 0;  // in the order of put()
    auto operator<=>(const Key&) const = default;
  };
  bool visit(std::optional<Key>& after, const std::function<bool(const Move&)>& visit) const;

  // Says which moves may start now. `can_go` is called with pairs of tiers. `is_moving` says that a
  // file has another move in progress.
  struct Choice {
    std::function<bool(TierIndex from, TierIndex to)> can_go;
    std::function<bool(InodeId file)> is_moving;
    bool only_requested = false;
  };
  // Takes the first move that may start, and then the moves behind it while `joins` returns true.
  // Once the first is chosen, a planned move never overtakes another planned move, because earlier
  // moves make room for later ones.
  using Joins = std::function<bool(const Move& first, const Move& next)>;
  std::vector<Job> take(const Choice& choice, const Joins& joins);

  bool empty() const { return index_.empty(); }
  std::size_t size() const { return index_.size(); }
  std::uint64_t bytes() const { return bytes_; }  // Move::size() of all
  // The number of queued moves that this user asked for.
  std::size_t count_of(uid_t user) const;
  void add_counts(std::map<uid_t, std::size_t>& to) const;

 private:
  // Moves with the same LaneId may start under the same conditions.
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
    std::int64_t turn = 0;  // turn of the last one
  };

  Job extract(const Position& position);
  // Whether a move of another lane is between `first` and `second`.
  bool is_between(const LaneId& lane, const Key& first, const Key& second) const;

  std::map<LaneId, Lane> lanes_;  // none is empty
  std::unordered_map<InodeId, Position> index_;
  std::map<uid_t, User> users_;  // users that have moves in the queue
  std::uint64_t bytes_ = 0;
  std::uint64_t last_number_ = 0;
  std::int64_t now_ = 0;               // the current turn of requested moves
  std::int64_t first_ = 0, last_ = 0;  // turns of planned moves
};

}  // namespace sluice
