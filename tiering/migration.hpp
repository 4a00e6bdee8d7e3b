// SPDX-License-Identifier: BSD-2-Clause
// Migration is tiering as a running thing: every so often it takes a census, asks the planner, and
// hands the moves to the mover. It also answers those who want to know or to interfere: what would
// move, move it now, pause, empty a tier.
//
// Ownership: it owns the mover and a thread of its own ("sluice-plan"). Threads: every member may
// be called from any thread at once; one pass runs at a time.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <string>
#include <thread>
#include <vector>

#include "base/clock.hpp"
#include "base/mutex.hpp"
#include "base/result.hpp"
#include "tiering/census.hpp"
#include "tiering/mover.hpp"
#include "tiering/window.hpp"

namespace sluice {

class Migration {
 public:
  struct Settings {
    Policy policy;
    std::chrono::seconds half_life{};
    std::chrono::seconds interval{};
    bool automatic = true;  // passes happen by themselves
    Windows windows;        // when they may
    Mover::Settings mover;
    // Told of each census, and its time, before it is thrown away.
    std::function<void(const Census& census, std::int64_t time)> census_taken;
  };

  // `flush_heat` writes out the counts that are still in memory, so that a plan knows them.
  Migration(Pool& pool, Store& store, MoveHost& host, std::function<void()> flush_heat,
            Settings settings, const Clock& clock = real_clock());
  ~Migration();

  // What would move now.
  struct Proposal {
    Census census;
    std::vector<TierFacts> tiers;
    Plan plan;
    std::vector<Move> moves;         // of plan.moves, those that can be carried out
    std::vector<std::size_t> files;  // and the file in the census that each is about
    std::uint64_t held_links = 0;    // files with a name that can't be found
    std::uint64_t held_waiting = 0;  // files whose move waits for something
  };
  using CensusProgress = std::function<bool(std::uint64_t files)>;  // false stops it: ECANCELED
  Result<Proposal> propose(const CensusProgress& progress);

  // One pass, at once.
  struct Listener {
    CensusProgress census;
    // The pass is this far. False stops it; what is under way is finished.
    std::function<bool(const Mover::Progress& now, std::uint64_t total, std::uint64_t total_bytes)>
        moves;
    Mover::Report ended;
  };
  struct Outcome {
    std::uint64_t moved = 0, moved_bytes = 0, failed = 0;
  };
  Result<Outcome> run(const Listener& listener);

  // Somebody wants this file there, now. EAGAIN if too many moves of the same user wait.
  Result<void> request(Move move) { return mover_.request(std::move(move)); }
  // Something changed that the next plan should know soon.
  void replan_soon();
  // Called every second.
  void tick();

  Mover& mover() { return mover_; }
  const Policy& policy() const { return settings_.policy; }
  std::chrono::seconds half_life() const { return settings_.half_life; }
  std::chrono::seconds interval() const { return settings_.interval; }
  // When the next pass is due, in seconds since the epoch; 0: never by itself.
  std::int64_t next_pass() const { return next_pass_.load(std::memory_order_relaxed); }
  // The tiers as the planner sees them, but for what only a census knows.
  std::vector<TierFacts> tier_facts() const;

 private:
  bool is_open_now() const;  // Settings::windows
  void keep_planning(const std::stop_token& stop);
  std::vector<TierFacts> tier_facts(const Census& census) const;

  Pool& pool_;
  Store& store_;
  const std::function<void()> flush_heat_;
  const Settings settings_;
  const Clock& clock_;
  Mutex pass_;  // held for the length of a pass
  Mutex mutex_;
  StopCondVar wake_;
  std::atomic<std::uint64_t> deep_before_{0};  // Census::too_deep() last time, for the log
  std::atomic<std::int64_t> next_pass_{0};     // a time to look at, for tick() and the status
  std::int64_t last_pass_ GUARDED_BY(mutex_) = 0;
  Mover mover_;
  std::jthread planner_;
};

}  // namespace sluice
