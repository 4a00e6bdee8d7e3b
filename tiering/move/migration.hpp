// SPDX-License-Identifier: BSD-2-Clause
// Migration runs automatic tiering: at intervals it takes a census, asks the planner for a plan,
// and gives the moves to the mover. It also serves requests from users: show the plan, run a pass
// now, pause, empty a tier.
//
// Ownership: it owns the mover and its own threads ("sluice-plan", "sluice-resume").
// Threads: every member may be called from any thread at once; one pass runs at a time.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "base/clock.hpp"
#include "base/mutex.hpp"
#include "base/result.hpp"
#include "tiering/heat/census.hpp"
#include "tiering/move/mover.hpp"
#include "tiering/move/price_history.hpp"
#include "tiering/move/window.hpp"
#include "tiering/pool/speed_meter.hpp"
#include "tiering/pool/twins.hpp"

namespace sluice {

class Migration {
 public:
  // The settings that can change while it runs.
  struct Tuning {
    Policy policy;
    std::chrono::seconds interval{};
    bool automatic = true;  // run passes automatically
    Windows windows;        // when automatic passes may run
    Mover::Settings mover;
  };
  struct Settings : Tuning {
    std::chrono::seconds half_life{};
    Mover::Requests requests;
    // Observe: measure how fast the tiers are.
    SpeedMeter::Mode speeds = SpeedMeter::Mode::Load;
    // Called with each census and its time, before the census is discarded.
    std::function<void(const Census& census, std::int64_t time)> census_taken;
  };

  // `flush_heat` writes the counts that are still in memory to the store, so that the plan uses
  // them.
  Migration(Pool& pool, Store& store, Switcher& switcher, MoveHost& host,
            std::function<void()> flush_heat, Settings settings, const Clock& clock = real_clock());
  ~Migration();

  // The next plan uses these. If the policy has changed, or the limits of tiers have, an automatic
  // pass that is running makes no further moves, and the next one follows soon.
  enum class Limits { Same, Changed };
  void change(Tuning tuning, Limits limits);

  // The moves that a pass would make now.
  struct Proposal {
    std::int64_t time = 0;  // of the census, in seconds since the epoch
    Policy policy;          // that it was made with
    Census census;
    std::vector<TierFacts> tiers;
    Plan plan;
    std::vector<Move> moves;            // the planned moves that can be executed
    std::vector<std::size_t> files;     // for each of them, the index of its file in the census
    std::uint64_t blocked_links = 0;    // files with a hard link that was not found
    std::uint64_t blocked_pending = 0;  // files whose move is pending already
    std::vector<Relief> relief;         // by tier; NextPass if it has room
  };
  // Returning false stops the census with ECANCELED.
  using CensusProgress = std::function<bool(std::uint64_t files)>;
  Result<Proposal> propose(const CensusProgress& progress);

  // Runs one pass now and waits for its end.
  struct Listener {
    CensusProgress census;
    // Reports the progress of the pass's moves. Returning false stops the pass; moves in progress
    // are finished.
    std::function<bool(const Mover::Tally& now)> moves;
    Mover::Report ended;
  };
  struct Outcome {
    std::uint64_t moved = 0, moved_bytes = 0, failed = 0;
  };
  Result<Outcome> run(const Listener& listener);

  // Moves a file because a user asked for it. Fails with EAGAIN if this user has too many pending
  // moves.
  Result<void> request(Move move) { return mover_.request(std::move(move)); }
  // Queues the requests that an earlier mount left, and those whose files were on a tier that was
  // offline. Returns at once; a thread looks for the files.
  void resume_requests();
  // Whether some of them may not be in the queue yet.
  bool is_resuming() const;
  // Brings the next automatic pass forward after a change that affects the plan.
  void replan_soon();
  // Called every second.
  void tick();

  Mover& mover() { return mover_; }
  const SpeedMeter& speeds() const { return speeds_; }
  const PriceHistory& prices() const { return prices_; }
  Policy policy() const { return tuning()->policy; }
  // When the next pass begins at the latest, in seconds since the epoch, as things are now; 0 if
  // passes are not automatic. Another change may bring it forward.
  std::int64_t next_pass() const;
  // Whether a pass runs now.
  bool is_passing() const { return is_passing_.load(std::memory_order_relaxed); }
  // Whether files leave a tier by themselves when it has less room than it should.
  Relief relief(TierIndex tier) const;
  // The tiers as the planner sees them, except for the facts that need a census.
  std::vector<TierFacts> tier_facts() const;
  // The market of the last plan. Without prices before the first one.
  Market market() const;
  // For Twins::start(): the files' value per byte at the border above `tier`, or their scores if
  // the policy goes by thresholds.
  std::vector<double> standing(TierIndex tier, std::span<const Twins::Sized> files) const;

 private:
  using TuningPtr = std::shared_ptr<const Tuning>;
  TuningPtr tuning() const;
  bool is_open_at(std::int64_t time) const;  // Tuning::windows
  void keep_planning(const std::stop_token& stop);
  void keep_resuming(const std::stop_token& stop);
  std::vector<TierFacts> tier_facts(const Census& census) const;
  void find_relief(Proposal& proposal) const;
  bool has_crowded_tier() const;
  std::int64_t due_for_crowded(std::int64_t now) const REQUIRES(mutex_);

  Pool& pool_;
  Store& store_;
  const std::function<void()> flush_heat_;
  const std::chrono::seconds half_life_;
  const std::function<void(const Census& census, std::int64_t time)> census_taken_;
  const Clock& clock_;
  Mutex pass_ ACQUIRED_BEFORE(mutex_);  // held for the length of a pass
  mutable Mutex mutex_;
  TuningPtr tuning_ GUARDED_BY(mutex_);  // never null; replaced as a whole
  // Raised when plans that were made are out of date. Atomic because the running pass reads it.
  std::atomic<std::uint64_t> changes_{0};
  StopCondVar wake_;
  std::atomic<std::uint64_t> deep_before_{0};  // previous Census::too_deep(), to log changes only
  // Atomic because a thread that waits for it reads it without a lock.
  std::atomic<std::int64_t> next_pass_{0};
  std::atomic<bool> is_passing_{false};  // for the status
  // By tier, of the last plan; NextPass if the tier had room then.
  std::vector<Relief> relief_ GUARDED_BY(mutex_);
  std::int64_t last_pass_ GUARDED_BY(mutex_) = 0;
  PriceHistory prices_;  // of each plan
  SpeedMeter speeds_;
  Market market_ GUARDED_BY(mutex_);
  bool resume_due_ GUARDED_BY(mutex_) = false;
  bool resumes_ GUARDED_BY(mutex_) = false;
  std::chrono::steady_clock::time_point next_search_ GUARDED_BY(mutex_){};  // for renamed files
  Mover mover_;
  std::jthread planner_;
  std::jthread resumer_;
};

}  // namespace sluice
