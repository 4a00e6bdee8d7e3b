// SPDX-License-Identifier: BSD-2-Clause
#include "tiering/planner.hpp"

#include <algorithm>
#include <utility>

#include "tiering/judge.hpp"

namespace sluice {
namespace {

// No plan fills a tier further than this, in percent: a filesystem that is quite full is slow, and
// writers need a little.
constexpr unsigned kBrim = 98;
// "Clearly": a newcomer that ranks no more than this above a resident doesn't take its place. It
// would be copying bytes to and fro for next to nothing.
constexpr float kClearly = 1.5F;

std::uint64_t percent_of(std::uint64_t total, unsigned percent) {
  return total / 100 * percent + total % 100 * percent / 100;
}

// Sums over the beginnings of an array whose elements only ever change one at a time.
class PrefixSums {
 public:
  explicit PrefixSums(std::size_t size) : tree_(size + 1) {}

  // Unsigned arithmetic wraps, so that adding the negative of a value takes it away.
  void add(std::size_t index, std::uint64_t value) {
    for (std::size_t i = index + 1; i < tree_.size(); i += i & (~i + 1)) tree_[i] += value;
  }
  std::uint64_t before(std::size_t index) const {
    std::uint64_t sum = 0;
    for (std::size_t i = index; i > 0; i &= i - 1) sum += tree_[i];
    return sum;
  }

 private:
  std::vector<std::uint64_t> tree_;
};

// Finds room for what wants to move. It carries the plan out on paper as it goes (`used`), so the
// moves come in an order in which each fits.
//
// INVARIANT: no file moves twice.
class Planner {
 public:
  Planner(std::span<const FileFacts> files, std::span<const TierFacts> tiers, const Policy& policy,
          std::int64_t now);
  Plan make();

 private:
  using File = std::uint32_t;  // index into files_

  enum Flag : std::uint8_t {
    kMoved = 1,
    kNew = 2,        // hasn't stayed for min_stay
    kAtHome = 4,     // by pin or rule: nothing but a drain moves it
    kHomebound = 8,  // its pin or rule wants it elsewhere, and that tier is there
    kLeaving = 16,   // homebound, and its home is going to have room
    kEvictable = 32  // counted in its tier's `evictable`
  };

  // Those of a tier that may have to go, lowest rank first. Sorted only if somebody asks.
  struct Residents {
    std::vector<File> order;
    PrefixSums evictable{0};     // bytes of those that a newcomer may replace, in that order
    std::size_t lowest = 0;      // none before it is evictable
    std::size_t bottom = 0;      // none before it stays and has been here for min_stay
    std::vector<File> stranded;  // not evictable in this round: no tier below could take them
    bool is_sorted = false;
  };

  struct Tier {
    std::uint64_t used, high, low, brim;
    std::uint64_t incoming = 0, outgoing = 0;  // bytes of those that are kLeaving
    bool usable = false, has_slower = false;   // slower ones that are usable
    std::vector<File> cold;                    // highest rank first, as are the lists below
    Residents residents;

    std::uint64_t projected() const {
      return used + incoming - std::min(outgoing, used + incoming);
    }
    bool fits(std::uint64_t bytes, std::uint64_t limit) const {
      const std::uint64_t most = std::max(used, projected());
      return most <= limit && bytes <= limit - most;
    }
  };

  void judge_all();
  void sort_up(std::vector<File>& list) const;
  void sort_down(std::vector<File>& list) const;
  bool is_clearly_above(File file, File resident) const {
    return rank_[resident] * kClearly < rank_[file];
  }
  void emit(File file, TierIndex to, Reason reason);
  Residents& residents_of(TierIndex tier);
  void set_evictable(File file, bool evictable);
  void set_leaving(File file, bool leaving);

  bool place_down(File file, std::size_t first, Reason reason);
  bool replace(TierIndex tier, File newcomer, std::uint64_t limit);
  bool may_enter_above_low(TierIndex tier, File newcomer);

  void choose_homecomers();
  void go_home();
  void shed(TierIndex tier);
  void take_in(File file, std::uint64_t Tier::*limit);
  void promote_to(TierIndex tier);
  void one_round();

  const std::span<const FileFacts> files_;
  const std::span<const TierFacts> facts_;
  const Policy& policy_;
  const std::int64_t now_;

  std::vector<Tier> tiers_;
  std::vector<Verdict> verdicts_;
  std::vector<float> rank_;
  std::vector<std::uint8_t> flags_;
  std::vector<File> position_;  // in its tier's residents' order
  std::vector<File> homebound_, climbers_, drained_;
  Plan plan_;
};

Planner::Planner(std::span<const FileFacts> files, std::span<const TierFacts> tiers,
                 const Policy& policy, std::int64_t now)
    : files_(files), facts_(tiers), policy_(policy), now_(now), tiers_(tiers.size()) {
  bool has_slower = false;
  for (std::size_t i = tiers.size(); i-- > 0;) {
    Tier& tier = tiers_[i];
    tier.used = tiers[i].used;
    tier.brim = percent_of(tiers[i].total, kBrim);
    tier.high = std::min(percent_of(tiers[i].total, tiers[i].high_watermark), tier.brim);
    tier.low = std::min(percent_of(tiers[i].total, tiers[i].low_watermark), tier.high);
    tier.usable = is_usable(tiers[i]);
    tier.has_slower = has_slower;
    has_slower |= tier.usable;
  }
}

void Planner::judge_all() {
  verdicts_.resize(files_.size());
  rank_.resize(files_.size());
  flags_.resize(files_.size());
  for (File i = 0; i < files_.size(); ++i) {
    const FileFacts& file = files_[i];
    const Home home = home_of(file, facts_, policy_);
    const Verdict verdict = judge_with_home(file, home, facts_, policy_, now_);
    verdicts_[i] = verdict;
    rank_[i] = static_cast<float>(rank_of(file));
    if (is_new(file, policy_, now_)) flags_[i] |= kNew;
    if (home.tier == file.tier) flags_[i] |= kAtHome;
    if (verdict.wants == file.tier || verdict.hold != Hold::None) continue;
    if (home.tier == verdict.wants) {
      flags_[i] |= kHomebound;
      homebound_.push_back(i);
    }
    if (verdict.reason == Reason::Draining) drained_.push_back(i);
    if (verdict.reason == Reason::Cold) tiers_[file.tier].cold.push_back(i);
    if (verdict.reason == Reason::Hot || verdict.reason == Reason::Returning)
      climbers_.push_back(i);
  }
  sort_down(homebound_);
  // Pins come before rules where both can't have it.
  std::stable_partition(homebound_.begin(), homebound_.end(),
                        [&](File i) { return files_[i].pin < tiers_.size(); });
  sort_down(drained_);
  sort_down(climbers_);
  for (Tier& tier : tiers_) sort_down(tier.cold);
}

// Lowest rank first; of the same rank, what was used longest ago. The keys are copied beside each
// other, because a million files are too many to look each up twenty times.
void Planner::sort_up(std::vector<File>& list) const {
  struct Key {
    float rank;
    File file;
    std::int64_t last_use;
  };
  std::vector<Key> keys;
  keys.reserve(list.size());
  for (const File i : list) keys.push_back({rank_[i], i, files_[i].last_use});
  std::sort(keys.begin(), keys.end(), [&](const Key& a, const Key& b) {
    if (a.rank != b.rank) return a.rank < b.rank;
    if (a.last_use != b.last_use) return a.last_use < b.last_use;
    return files_[a.file].id < files_[b.file].id;
  });
  for (std::size_t i = 0; i < list.size(); ++i) list[i] = keys[i].file;
}

void Planner::sort_down(std::vector<File>& list) const {
  sort_up(list);
  std::reverse(list.begin(), list.end());
}

void Planner::emit(File file, TierIndex to, Reason reason) {
  const std::uint64_t bytes = files_[file].bytes;
  Tier& from = tiers_[files_[file].tier];
  set_evictable(file, false);
  flags_[file] |= kMoved;
  // What a tier says it uses may lag behind what its files add up to.
  from.used -= std::min(from.used, bytes);
  tiers_[to].used += bytes;
  plan_.moves.push_back({file, to, reason});
}

Planner::Residents& Planner::residents_of(TierIndex tier) {
  Residents& residents = tiers_[tier].residents;
  if (residents.is_sorted) return residents;
  residents.is_sorted = true;
  for (File i = 0; i < files_.size(); ++i) {
    // To send an empty file away gains nothing.
    if (files_[i].tier == tier && files_[i].bytes > 0 && !(flags_[i] & (kMoved | kAtHome)))
      residents.order.push_back(i);
  }
  sort_up(residents.order);
  residents.evictable = PrefixSums(residents.order.size());
  position_.resize(files_.size());
  for (std::size_t i = 0; i < residents.order.size(); ++i) {
    const File file = residents.order[i];
    position_[file] = static_cast<File>(i);
    if (!(flags_[file] & (kNew | kLeaving))) set_evictable(file, true);
  }
  return residents;
}

// REQUIRES: to set it, that the file's tier's residents are sorted and it is one of them.
void Planner::set_evictable(File file, bool evictable) {
  if (evictable == ((flags_[file] & kEvictable) != 0)) return;
  flags_[file] ^= kEvictable;
  const std::uint64_t bytes = files_[file].bytes;
  Residents& residents = tiers_[files_[file].tier].residents;
  residents.evictable.add(position_[file], evictable ? bytes : ~bytes + 1);
  if (evictable)
    residents.lowest = std::min(residents.lowest, static_cast<std::size_t>(position_[file]));
}

void Planner::set_leaving(File file, bool leaving) {
  const FileFacts& facts = files_[file];
  Tier &from = tiers_[facts.tier], &to = tiers_[verdicts_[file].wants];
  flags_[file] ^= kLeaving;
  from.outgoing += leaving ? facts.bytes : ~facts.bytes + 1;
  to.incoming += leaving ? facts.bytes : ~facts.bytes + 1;
  if (leaving)
    set_evictable(file, false);
  else if (from.residents.is_sorted && facts.bytes > 0 && !(flags_[file] & (kNew | kAtHome)))
    set_evictable(file, true);
}

// Moves `file` to the first tier from `first` on that has room, or whose lower ranks make it.
bool Planner::place_down(File file, std::size_t first, Reason reason) {
  for (std::size_t i = first; i < tiers_.size(); ++i) {
    Tier& tier = tiers_[i];
    if (!tier.usable) continue;
    // The slowest has nowhere to send anything, so it takes what has to leave the others. What is
    // merely cold can wait.
    const bool is_last_resort = !tier.has_slower && reason != Reason::Cold;
    const std::uint64_t limit = is_last_resort ? tier.brim : tier.high;
    const auto index = static_cast<TierIndex>(i);
    if (!tier.fits(files_[file].bytes, limit) && !replace(index, file, limit)) continue;
    emit(file, index, reason);
    return true;
  }
  return false;
}

// Makes room for `newcomer` by sending away what ranks clearly lower. Gives up before it starts if
// that can't be enough.
bool Planner::replace(TierIndex index, File newcomer, std::uint64_t limit) {
  Tier& tier = tiers_[index];
  const std::uint64_t bytes = files_[newcomer].bytes;
  if (!tier.has_slower || bytes > limit) return false;
  Residents& residents = residents_of(index);
  const auto end = std::partition_point(residents.order.begin(), residents.order.end(),
                                        [&](File i) { return is_clearly_above(newcomer, i); });
  const auto most = static_cast<std::size_t>(end - residents.order.begin());
  while (!tier.fits(bytes, limit)) {
    const std::uint64_t missing = std::max(tier.used, tier.projected()) - (limit - bytes);
    if (residents.evictable.before(most) < missing) return false;
    while (!(flags_[residents.order[residents.lowest]] & kEvictable)) ++residents.lowest;
    const File victim = residents.order[residents.lowest];
    if (place_down(victim, index + 1U, Reason::Outranked)) continue;
    set_evictable(victim, false);
    residents.stranded.push_back(victim);
  }
  return true;
}

// Between the watermarks there is room, but it is for what is written next; a file that would be
// the first to be shed then had better not come.
bool Planner::may_enter_above_low(TierIndex tier, File newcomer) {
  Residents& residents = residents_of(tier);
  std::size_t& bottom = residents.bottom;
  while (bottom < residents.order.size() && flags_[residents.order[bottom]] & (kMoved | kNew))
    ++bottom;
  return bottom == residents.order.size() || is_clearly_above(newcomer, residents.order[bottom]);
}

// Decides which of those that a pin or a rule sends elsewhere are going to find room there, so that
// nothing is shed for one that won't.
void Planner::choose_homecomers() {
  std::erase_if(homebound_, [&](File i) { return flags_[i] & kMoved; });
  for (const File i : homebound_) {
    if (flags_[i] & kLeaving) set_leaving(i, false);
  }
  if (homebound_.empty()) return;
  std::vector<std::uint64_t> firm(tiers_.size());  // what no shedding gets rid of
  for (std::size_t i = 0; i < tiers_.size(); ++i) firm[i] = tiers_[i].used;
  for (File i = 0; i < files_.size(); ++i) {
    const TierIndex tier = files_[i].tier;
    if (flags_[i] & (kMoved | kAtHome)) continue;
    if (!(flags_[i] & kHomebound) && !tiers_[tier].has_slower) continue;
    firm[tier] -= std::min(firm[tier], files_[i].bytes);
  }
  for (const File i : homebound_) {
    const FileFacts& file = files_[i];
    const TierIndex to = verdicts_[i].wants;
    if (firm[to] + file.bytes > tiers_[to].brim) continue;
    firm[to] += file.bytes;
    set_leaving(i, true);
  }
}

void Planner::go_home() {
  // One's departure may be another's room.
  for (bool has_moved = true; has_moved;) {
    has_moved = false;
    for (const File i : homebound_) {
      Tier& to = tiers_[verdicts_[i].wants];
      const std::uint64_t bytes = files_[i].bytes;
      if (!(flags_[i] & kLeaving) || to.used > to.brim || bytes > to.brim - to.used) continue;
      set_leaving(i, false);
      emit(i, verdicts_[i].wants, verdicts_[i].reason);
      has_moved = true;
    }
  }
  // The room of one that couldn't go yet is kept, or it would be shed for again and again. But a
  // drain doesn't wait for a pin.
  for (const File i : homebound_) {
    if (flags_[i] & kLeaving && verdicts_[i].reason == Reason::Draining) set_leaving(i, false);
  }
}

void Planner::shed(TierIndex index) {
  Tier& tier = tiers_[index];
  if (!tier.usable || !tier.has_slower || tier.projected() <= tier.high) return;
  for (const unsigned is_new : {0U, unsigned{kNew}}) {
    for (const File i : residents_of(index).order) {
      if (tier.projected() <= tier.low) return;
      if (flags_[i] & (kMoved | kLeaving) || (flags_[i] & kNew) != is_new) continue;
      place_down(i, index + 1U, Reason::Crowded);
    }
  }
}

// A file from a tier that is being emptied has to go somewhere: if there is no better place, to a
// faster tier than it deserves, and once nothing else can move, above a high watermark.
void Planner::take_in(File file, std::uint64_t Tier::*limit) {
  const std::size_t wants = verdicts_[file].wants;
  const auto take = [&](std::size_t i) {
    if (!tiers_[i].usable || !tiers_[i].fits(files_[file].bytes, tiers_[i].*limit)) return false;
    emit(file, static_cast<TierIndex>(i), Reason::Draining);
    return true;
  };
  if (place_down(file, wants, Reason::Draining)) return;
  for (std::size_t i = wants; i < tiers_.size(); ++i) {
    if (take(i)) return;
  }
  for (std::size_t i = wants; i-- > 0;) {
    if (take(i)) return;
  }
}

// The highest ranks come first. One that its favourite tier has no room for tries the next, as long
// as that is faster than its own.
void Planner::promote_to(TierIndex index) {
  Tier& tier = tiers_[index];
  if (!tier.usable) return;
  for (const File i : climbers_) {
    const FileFacts& file = files_[i];
    if (flags_[i] & kMoved || file.tier <= index || !is_eligible(file, index, facts_)) continue;
    if (!tier.fits(file.bytes, tier.low)) {
      if (!may_enter_above_low(index, i)) continue;
      if (!tier.fits(file.bytes, tier.high) && !replace(index, i, tier.high)) continue;
    }
    emit(i, index, file.ghost_of == index ? Reason::Returning : Reason::Hot);
  }
}

// Down from the slowest tier on, because it makes room for the next; up from the fastest on, for
// the same reason.
void Planner::one_round() {
  for (Tier& tier : tiers_) {
    for (const File i : tier.residents.stranded) set_evictable(i, !(flags_[i] & kMoved));
    tier.residents.stranded.clear();
  }
  choose_homecomers();
  for (std::size_t i = tiers_.size(); i-- > 0;) {
    for (const File file : tiers_[i].cold) {
      if (!(flags_[file] & kMoved)) place_down(file, verdicts_[file].wants, Reason::Cold);
    }
    shed(static_cast<TierIndex>(i));
  }
  go_home();
  for (const File file : drained_) {
    if (!(flags_[file] & kMoved)) take_in(file, &Tier::high);
  }
  for (std::size_t i = 0; i < tiers_.size(); ++i) promote_to(static_cast<TierIndex>(i));
}

Plan Planner::make() {
  judge_all();
  // What found no room may find it now that others have moved. Rarely more than twice.
  constexpr int kMostRounds = 8;
  for (int round = 0; round < kMostRounds; ++round) {
    const std::size_t before = plan_.moves.size();
    one_round();
    if (plan_.moves.size() > before) continue;
    for (const File file : drained_) {
      if (!(flags_[file] & kMoved)) take_in(file, &Tier::brim);
    }
    if (plan_.moves.size() == before) break;
  }
  for (const Tier& tier : tiers_) plan_.used_after.push_back(tier.used);
  for (File i = 0; i < files_.size(); ++i) {
    if (flags_[i] & kMoved) continue;
    switch (verdicts_[i].hold) {
      case Hold::None:
      case Hold::NoRoom:
        plan_.held_no_room += verdicts_[i].wants != files_[i].tier;
        break;
      case Hold::MinStay:
        ++plan_.held_min_stay;
        break;
      case Hold::OnlyOnce:
        ++plan_.held_only_once;
        break;
      case Hold::Offline:
        ++plan_.held_offline;
        break;
    }
  }
  return std::move(plan_);
}

}  // namespace

Plan make_plan(std::span<const FileFacts> files, std::span<const TierFacts> tiers,
               const Policy& policy, std::int64_t now) {
  return Planner(files, tiers, policy, now).make();
}

}  // namespace sluice
