// SPDX-License-Identifier: BSD-2-Clause
#include "tiering/move/migration.hpp"

#include <sys/resource.h>
#include <sys/stat.h>

#include <algorithm>
#include <ctime>
#include <map>

#include "base/log.hpp"
#include "base/thread.hpp"
#include "tiering/choose/judge.hpp"
#include "tiering/choose/worth.hpp"

namespace sluice {
namespace {

constexpr std::int64_t kSoon = 3;  // delay in seconds, so that many new pins cause only one pass
// In seconds; passes cannot help a tier that stays full.
constexpr std::int64_t kBetweenAlarms = 60;

// Files that were renamed while their move was queued are searched for together. The search walks
// all tiers: it rests this long, and this many times as long as it took.
constexpr std::chrono::seconds kBetweenSearches{2};
constexpr int kSearchShare = 20;

// Raises a flag while it exists.
class Passing {
 public:
  explicit Passing(std::atomic<bool>& flag) : flag_(flag) { flag_ = true; }
  ~Passing() { flag_ = false; }
  Passing(const Passing&) = delete;
  Passing& operator=(const Passing&) = delete;

 private:
  std::atomic<bool>& flag_;
};

}  // namespace

Migration::Migration(Pool& pool, Store& store, Switcher& switcher, MoveHost& host,
                     std::function<void()> flush_heat, Settings settings, const Clock& clock)
    : pool_(pool),
      store_(store),
      flush_heat_(std::move(flush_heat)),
      half_life_(settings.half_life),
      census_taken_(std::move(settings.census_taken)),
      clock_(clock),
      tuning_(std::make_shared<const Tuning>(settings)),
      speeds_(pool, settings.speeds),
      mover_(pool, store, switcher, host, settings.mover, clock, settings.requests) {
  if (settings.automatic) next_pass_ = clock_.seconds() + settings.interval.count();
  planner_ = std::jthread([this](const std::stop_token& stop) {
    begin_thread("sluice-plan");
    ::setpriority(PRIO_PROCESS, 0, 10);  // this thread only: a census is not urgent
    keep_planning(stop);
  });
  resumer_ = std::jthread([this](const std::stop_token& stop) {
    begin_thread("sluice-resume");
    ::setpriority(PRIO_PROCESS, 0, 10);
    keep_resuming(stop);
  });
}

Migration::~Migration() {
  planner_.request_stop();
  resumer_.request_stop();
  wake_.notify_all();
}

Migration::TuningPtr Migration::tuning() const {
  const MutexLock lock(mutex_);
  return tuning_;
}

void Migration::change(Tuning tuning, Limits limits) {
  mover_.change(tuning.mover);
  const std::int64_t now = clock_.seconds();
  const std::int64_t due = now + tuning.interval.count();
  {
    const MutexLock lock(mutex_);
    const bool begins = tuning.automatic && !tuning_->automatic;
    const bool is_same = limits == Limits::Same && tuning.policy == tuning_->policy && !begins;
    const std::int64_t before = next_pass_.load();
    next_pass_ = !tuning.automatic ? 0 : before == 0 ? due : std::min(before, due);
    tuning_ = std::make_shared<const Tuning>(std::move(tuning));
    if (is_same) return;
    ++changes_;
  }
  replan_soon();
}

bool Migration::is_open_at(std::int64_t time) const {
  const std::time_t at = time;
  std::tm local{};
  ::localtime_r(&at, &local);
  return is_open(tuning()->windows, local);
}

bool Migration::has_crowded_tier() const {
  return std::any_of(pool_.begin(), pool_.end(), [](const auto& tier) {
    const TierFacts facts = tier->facts();
    return can_leave(facts) && is_crowded(facts);
  });
}

// When a pass begins because a tier has less room than it should.
std::int64_t Migration::due_for_crowded(std::int64_t now) const {
  return std::max(now,
                  last_pass_ + std::min<std::int64_t>(kBetweenAlarms, tuning_->interval.count()));
}

std::int64_t Migration::next_pass() const {
  constexpr std::int64_t kDay = 86400, kMinute = 60;
  const bool is_crowded = has_crowded_tier();
  const std::int64_t now = clock_.seconds();
  std::int64_t due = 0, step = 0;
  {
    const MutexLock lock(mutex_);
    if (next_pass_.load() == 0) return 0;
    due = std::max(next_pass_.load(), now);
    step = std::max<std::int64_t>(tuning_->interval.count(), kMinute);
    if (is_crowded) {
      due = std::min(due, due_for_crowded(now));
      step = kMinute;
    }
  }
  // A pass that is due outside of the windows is left out.
  for (std::int64_t at = due; at <= due + kDay + step; at += step) {
    if (is_open_at(at)) return at;
  }
  return due;
}

Relief Migration::relief(TierIndex tier) const {
  if (!tuning()->automatic) return Relief::Off;
  if (mover_.is_paused()) return Relief::Paused;
  const bool has_slower = std::any_of(pool_.begin(), pool_.end(), [&](const auto& other) {
    return other->index() > tier && is_usable(other->facts());
  });
  if (!has_slower) return Relief::Slowest;
  Relief last = Relief::NextPass;
  {
    const MutexLock lock(mutex_);
    if (tier < relief_.size()) last = relief_[tier];
  }
  // These were reasons of the last plan, and they have ended.
  const bool is_over = last == Relief::Slowest || (last == Relief::Waits && !mover_.waits_on(tier));
  return is_over ? Relief::NextPass : last;
}

std::vector<TierFacts> Migration::tier_facts() const {
  std::vector<TierFacts> facts;
  const std::vector<TierSpeed> speeds = speeds_.speeds();
  for (const auto& tier : pool_) {
    if (facts.size() == speeds.size()) break;  // a tier was added meanwhile
    TierFacts each = tier->facts();
    each.speed = speeds[facts.size()];
    facts.push_back(each);
  }
  return facts;
}

Market Migration::market() const {
  const MutexLock lock(mutex_);
  return market_;
}

std::vector<double> Migration::standing(TierIndex tier, std::span<const Twins::Sized> files) const {
  const std::vector<TierFacts> tiers = tier_facts();
  const Market market = this->market();
  const TuningPtr tuning = this->tuning();
  const Policy& policy = tuning->policy;
  const std::int64_t now = clock_.seconds();
  std::vector<double> out;
  for (const Twins::Sized& each : files) {
    const auto found = store_.heat(each.file);
    FileFacts facts;
    facts.bytes = each.bytes;
    if (found) set_heat(facts, *found, half_life_, now);
    const bool by_value = policy.method == Method::Value && tier > 0;
    out.push_back(by_value ? appraise(facts, tiers, policy, market, now).per_byte[tier - 1U]
                           : facts.score);
  }
  return out;
}

std::vector<TierFacts> Migration::tier_facts(const Census& census) const {
  std::vector<TierFacts> facts = tier_facts();
  // Tiers on the same filesystem share its free space, and a move between them does not change
  // that. For such tiers, the bytes of their files count as used.
  std::map<dev_t, unsigned> sharing;
  std::vector<dev_t> devices(facts.size(), 0);
  for (std::size_t i = 0; i < facts.size(); ++i) {
    const auto root = pool_[static_cast<TierIndex>(i)].root();
    struct stat st {};
    if (root && ::fstat((*root)->get(), &st) == 0) devices[i] = st.st_dev;
    ++sharing[devices[i]];
  }
  std::vector<std::uint64_t> file_bytes(facts.size(), 0);
  for (const FileFacts& file : census.files()) {
    if (file.tier < file_bytes.size()) file_bytes[file.tier] += file.bytes;
  }
  for (std::size_t i = 0; i < facts.size(); ++i) {
    if (facts[i].online && sharing[devices[i]] > 1)
      facts[i].used = std::min(file_bytes[i], facts[i].total);
  }
  return facts;
}

// What the plan does for each tier that has less room than it should.
void Migration::find_relief(Proposal& proposal) const {
  const std::vector<TierFacts>& tiers = proposal.tiers;
  std::vector<Relief>& relief = proposal.relief;
  relief.assign(tiers.size(), Relief::NextPass);
  for (std::size_t i = 0; i < tiers.size(); ++i) {
    if (!is_crowded(tiers[i])) continue;
    const bool has_slower =
        std::any_of(tiers.begin() + static_cast<std::ptrdiff_t>(i) + 1, tiers.end(), is_usable);
    relief[i] = !has_slower                            ? Relief::Slowest
                : tiers[i].used <= high_mark(tiers[i]) ? Relief::Shared
                                                       : Relief::NoneMoves;
  }
  for (const Move& move : proposal.moves) {
    if (move.to > move.from && is_crowded(tiers[move.from])) relief[move.from] = Relief::Comes;
  }
  const std::vector<FileFacts>& files = proposal.census.files();
  for (std::size_t i = 0; i < files.size(); ++i) {
    const FileFacts& file = files[i];
    Relief& of_tier = relief[file.tier];
    const bool is_open = of_tier == Relief::NoneMoves || of_tier == Relief::NoRoom;
    if (!is_open || file.bytes == 0 || !proposal.census.has_all_names(i)) continue;
    if (home_of(file, tiers, proposal.policy).tier == file.tier) continue;
    of_tier = mover_.destination(file.id)  ? Relief::Comes
              : mover_.is_waiting(file.id) ? Relief::Waits
                                           : Relief::NoRoom;
  }
}

Result<Migration::Proposal> Migration::propose(const CensusProgress& progress) {
  flush_heat_();
  const std::int64_t now = clock_.seconds();
  Proposal out;
  out.time = now;
  out.policy = policy();
  out.census = SLUICE_TRY(Census::take({pool_, store_, out.policy, half_life_, now, progress}));
  if (const std::uint64_t deep = out.census.too_deep();
      deep_before_.exchange(deep) != deep && deep > 0) {
    log::get().warn(
        "skipped directories whose path is longer than 4096 bytes, their files stay where "
        "they "
        "are: directories={}",
        deep);
  }
  if (census_taken_) census_taken_(out.census, now);
  out.tiers = tier_facts(out.census);
  out.plan = make_plan(out.census.files(), out.tiers, out.policy, now);
  if (!out.plan.market.prices.empty()) prices_.add({now, out.plan.market.prices});
  std::vector<std::string> names;
  for (const auto& tier : pool_) names.push_back(tier->name());
  for (const PlannedMove& planned : out.plan.moves) {
    const FileFacts& file = out.census.files()[planned.file];
    if (!out.census.has_all_names(planned.file)) {
      ++out.blocked_links;
      continue;
    }
    if (const auto pending = mover_.pending(file.id); pending && pending->move.to == planned.to) {
      ++out.blocked_pending;
      continue;
    }
    out.moves.push_back({.id = file.id,
                         .paths = out.census.paths(planned.file),
                         .from = file.tier,
                         .to = planned.to,
                         .bytes = file.bytes,
                         .reason = planned.reason,
                         .why = explain_worth(file, planned.reason, planned.to, out.tiers, names,
                                              out.policy, out.plan.market, now),
                         .slack = file.slack});
    out.files.push_back(planned.file);
  }
  find_relief(out);
  const MutexLock lock(mutex_);
  market_ = out.plan.market;
  relief_ = out.relief;
  return out;
}

Result<Migration::Outcome> Migration::run(const Listener& listener) {
  // The pass that is running may take hours, so the caller can give up.
  while (!pass_.try_lock()) {
    if (listener.census && !listener.census(0))
      return Error(ECANCELED, "gave up waiting for the pass that is running");
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
  }
  const MutexLock pass(pass_, std::adopt_lock);
  const Passing passing(is_passing_);
  {
    const MutexLock lock(mutex_);
    last_pass_ = clock_.seconds();
  }
  Proposal proposal = SLUICE_TRY(propose(listener.census));
  // If this fails, the next pass finds the same entries again.
  [[maybe_unused]] const auto heat = store_.forget_heat(proposal.census.stale_heat());
  [[maybe_unused]] const auto ghosts = store_.forget_ghosts(proposal.census.stale_ghosts());
  [[maybe_unused]] const auto times = store_.forget_times(proposal.census.stale_times());
  proposal.census = {};  // frees a hundred bytes per file; the moves may take hours

  Mover::Tally tally;
  {
    // However this function ends, the mover must not call the caller's listener afterwards.
    const auto withdraw = [](Mover* mover) { mover->withdraw_reported(); };
    const std::unique_ptr<Mover, decltype(withdraw)> reports(&mover_, withdraw);
    const std::uint64_t number = mover_.add(
        std::move(proposal.moves), Mover::Where::Back,
        listener.ended ? listener.ended : [](const Receipt&, bool) {});
    bool stopped = false;
    mover_.wait_idle([&] {
      stopped = stopped || (listener.moves && !listener.moves(mover_.tally(number)));
      return stopped;
    });
    tally = mover_.tally(number);
  }
  {
    // What it moved is no sign that the next one moves anything.
    const MutexLock lock(mutex_);
    std::replace(relief_.begin(), relief_.end(), Relief::Comes, Relief::NextPass);
  }
  return Outcome{tally.moved, tally.moved_bytes, tally.failed};
}

void Migration::replan_soon() {
  const std::int64_t soon = clock_.seconds() + kSoon;
  const MutexLock lock(mutex_);
  if (tuning_->automatic && next_pass_.load() > soon) next_pass_ = soon;
}

void Migration::resume_requests() {
  const MutexLock lock(mutex_);
  resume_due_ = true;
  wake_.notify_all();
}

bool Migration::is_resuming() const {
  // A move that did not find its file is searched for again.
  if (mover_.must_search()) return true;
  const MutexLock lock(mutex_);
  return resume_due_ || resumes_;
}

void Migration::keep_resuming(const std::stop_token& stop) {
  for (;;) {
    {
      const MutexLock lock(mutex_);
      if (!wake_.wait(mutex_, stop, [&]() REQUIRES(mutex_) { return resume_due_; })) return;
      resume_due_ = false;
      resumes_ = true;
    }
    const auto began = std::chrono::steady_clock::now();
    const auto resumed = mover_.resume_requests([&] { return !stop.stop_requested(); });
    if (!resumed && !stop.stop_requested())
      log::get().warn("cannot continue requested moves: why={}", resumed.error().text());
    if (resumed && *resumed > 0)
      log::get().info("continuing the moves that users asked for: count={}", *resumed);
    const MutexLock lock(mutex_);
    resumes_ = false;
    const auto ended = std::chrono::steady_clock::now();
    next_search_ = ended + std::max<std::chrono::steady_clock::duration>(
                               kBetweenSearches, kSearchShare * (ended - began));
  }
}

void Migration::tick() {
  mover_.tick();
  if (mover_.must_search()) {
    const MutexLock lock(mutex_);
    resume_due_ = resume_due_ || std::chrono::steady_clock::now() >= next_search_;
    if (resume_due_) wake_.notify_all();
  }
  const bool is_crowded = has_crowded_tier();
  const std::int64_t now = clock_.seconds();
  const MutexLock lock(mutex_);
  if (!tuning_->automatic) return;
  if (is_crowded && due_for_crowded(now) == now) next_pass_ = std::min(next_pass_.load(), now);
  if (now >= next_pass_.load()) wake_.notify_all();
}

void Migration::keep_planning(const std::stop_token& stop) {
  const auto is_due = [&] {
    const std::int64_t due = next_pass_.load();
    return due != 0 && clock_.seconds() >= due;
  };
  while (!stop.stop_requested()) {
    {
      const MutexLock lock(mutex_);
      if (!wake_.wait(mutex_, stop, is_due)) return;
    }
    // Set before the pass, because replan_soon() may bring it forward while the pass runs.
    const std::uint64_t changes = changes_;
    {
      const MutexLock lock(mutex_);
      if (!tuning_->automatic) continue;  // turned off just now
      next_pass_ = clock_.seconds() + tuning_->interval.count();
    }
    if (is_open_at(clock_.seconds()) && !mover_.is_paused()) {
      Listener listener;
      listener.census = [&](std::uint64_t) { return !stop.stop_requested(); };
      listener.moves = [&](const Mover::Tally&) {
        return !stop.stop_requested() && is_open_at(clock_.seconds()) && changes_ == changes &&
               tuning()->automatic;
      };
      const auto outcome = run(listener);
      if (!outcome) {
        log::get().warn("migration pass failed: why={}", outcome.error().text());
      } else if (outcome->moved + outcome->failed > 0) {
        log::get().info("migration pass ended: moved={} bytes={} failed={}", outcome->moved,
                        outcome->moved_bytes, outcome->failed);
      }
    }
  }
}

}  // namespace sluice
