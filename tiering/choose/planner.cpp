// SPDX-License-Identifier: BSD-2-Clause
#include "tiering/choose/planner.hpp"

#include <algorithm>
#include <utility>

#include "base/check.hpp"
#include "tiering/choose/judge.hpp"

namespace sluice {
namespace {

// A newcomer replaces a resident only if it ranks higher by this factor. Otherwise bytes would be
// copied back and forth for little gain.
constexpr float kClearlyByScore = 1.5F;
constexpr float kClearlyByValue = 1.1F;  // a rate is known better than a score tells

// Prefix sums of an array whose elements change one at a time (a Fenwick tree).
class PrefixSums {
 public:
  explicit PrefixSums(std::size_t size) : tree_(size + 1) {}

  // Unsigned arithmetic wraps, so adding a negated value subtracts it.
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

// Finds room for the files that should move. It updates its own record of used space (`used`) with
// every move, so the moves are in an order in which each fits.
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
    kNew = 2,        // on its tier for less than min_stay
    kAtHome = 4,     // on the tier of its pin or rule; only a drain moves it
    kHomebound = 8,  // its pin or rule names another tier, which is usable
    kLeaving = 16,   // homebound, and that tier will have room
    kEvictable = 32  // counted in its tier's `evictable`
  };

  // The files that may have to leave a tier, lowest rank first. Sorted when first needed.
  struct Residents {
    std::vector<File> order;
    PrefixSums evictable{0};     // bytes of the files that a newcomer may replace, in that order
    std::size_t lowest = 0;      // no file before this index is evictable
    std::size_t bottom = 0;      // no file before this index both stays and is older than min_stay
    std::vector<File> stranded;  // not evictable in this round: no slower tier could take them
    bool is_sorted = false;
  };

  // The files on slower tiers that are eligible for a tier, highest rank first. Made when first
  // needed.
  struct Climbers {
    std::vector<File> order;
    std::vector<std::uint64_t> smallest;  // by index: the least bytes of a file from there on
    std::size_t first = 0;                // all files before this index have moved
    bool is_made = false;
  };

  struct Tier {
    std::uint64_t used, high, low, brim;
    std::uint64_t incoming = 0, outgoing = 0;  // bytes of the files that are kLeaving
    bool usable = false, has_slower = false;   // has_slower: a slower tier is usable
    std::size_t slower = 0;                    // the next one that is
    std::vector<File> cold;                    // highest rank first, as are the lists below
    Climbers climbers;                         // eligible for this tier; sorted when first needed
    Residents residents;

    std::uint64_t projected() const {
      return used + incoming - std::min(outgoing, used + incoming);
    }
    bool fits(std::uint64_t bytes, std::uint64_t limit) const {
      const std::uint64_t most = std::max(used, projected());
      return most <= limit && bytes <= limit - most;
    }
  };

  // Files that enter a tier together, and those that leave it for them.
  struct Exchange {
    std::vector<File> in, out;
    std::uint64_t bytes_in = 0, bytes_out = 0;
    std::size_t next = 0;  // no resident between the last of `out` and this index is evictable
    double gain = 0;       // of all moves together, within the horizon, less what they cost
  };

  void judge_all();
  float rank(File file, std::size_t tier) const {
    return static_cast<float>(judge_.rank(files_[file], rate_[file], tier));
  }
  template <typename TierOf>
  void sort_up(std::vector<File>& list, TierOf tier_of) const;
  void sort_down(std::vector<File>& list, TierIndex tier) const;
  void sort_down_by_wish(std::vector<File>& list) const;
  bool is_clearly_above(TierIndex tier, File file, File resident) const {
    return rank(resident, tier) * clearly_ < rank(file, tier);
  }
  void emit(File file, TierIndex to, Reason reason);
  void emit_up(File file, TierIndex to) {
    emit(file, to, files_[file].ghost_of == to ? Reason::Returning : Reason::Hot);
  }
  Residents& residents_of(TierIndex tier);
  void set_evictable(File file, bool evictable);
  void set_leaving(File file, bool leaving);
  void spare(File file);

  bool place_down(File file, std::size_t first, Reason reason);
  bool replace(TierIndex tier, File newcomer, std::uint64_t limit);
  bool may_enter_above_low(TierIndex tier, File newcomer);

  void choose_homecomers();
  void go_home();
  void shed(TierIndex tier);
  void take_in(File file, std::uint64_t Tier::*limit);
  Climbers& climbers_to(TierIndex tier);
  bool is_last(TierIndex tier, std::size_t climber, const Exchange& exchange);
  bool enter(TierIndex tier, File file);
  void promote_to(TierIndex tier);
  bool extend(Exchange& exchange, TierIndex tier, File newcomer, double gain);
  void execute(Exchange& exchange, TierIndex tier);
  bool try_out(Exchange& exchange, TierIndex tier);
  void spare_largest(const std::vector<File>& victims);
  void one_round();

  const std::span<const FileFacts> files_;
  const std::span<const TierFacts> facts_;
  const Policy& policy_;
  const std::int64_t now_;

  const Market market_;
  const Judge judge_;
  const float clearly_;

  std::vector<Tier> tiers_;
  std::vector<Verdict> verdicts_;
  std::vector<float> rate_;
  std::vector<std::uint8_t> flags_;
  std::vector<File> position_;  // index in the `order` of its tier's residents
  std::vector<File> homebound_, drained_;
  Plan plan_;
  std::vector<bool> was_evictable_;  // by move of the plan: the file, before it moved
};

Planner::Planner(std::span<const FileFacts> files, std::span<const TierFacts> tiers,
                 const Policy& policy, std::int64_t now)
    : files_(files),
      facts_(tiers),
      policy_(policy),
      now_(now),
      market_(policy.method == Method::Value ? learn_market(files, tiers, policy, now) : Market{}),
      judge_(tiers, policy, market_, now),
      clearly_(policy.method == Method::Value ? kClearlyByValue : kClearlyByScore),
      tiers_(tiers.size()) {
  std::size_t slower = tiers.size();
  for (std::size_t i = tiers.size(); i-- > 0;) {
    Tier& tier = tiers_[i];
    tier.used = tiers[i].used;
    tier.brim = brim_of(tiers[i]);
    tier.high = high_mark(tiers[i]);
    tier.low = low_mark(tiers[i]);
    tier.usable = is_usable(tiers[i]);
    tier.has_slower = slower < tiers.size();
    tier.slower = slower;
    if (tier.usable) slower = i;
  }
}

void Planner::judge_all() {
  verdicts_.resize(files_.size());
  rate_.resize(files_.size());
  flags_.resize(files_.size());
  for (File i = 0; i < files_.size(); ++i) {
    const FileFacts& file = files_[i];
    const Home home = home_of(file, facts_, policy_);
    rate_[i] = static_cast<float>(judge_.rate_of(file));
    const Verdict verdict = judge_.verdict(file, rate_[i], home);
    verdicts_[i] = verdict;
    if (is_new(file, policy_, now_)) flags_[i] |= kNew;
    if (home.tier == file.tier) flags_[i] |= kAtHome;
    if (verdict.wants == file.tier || verdict.blocker != Blocker::None) continue;
    if (home.tier == verdict.wants) {
      flags_[i] |= kHomebound;
      homebound_.push_back(i);
    }
    if (verdict.reason == Reason::Draining) drained_.push_back(i);
    if (verdict.reason == Reason::Cold) tiers_[file.tier].cold.push_back(i);
  }
  sort_down_by_wish(homebound_);
  // Pins take precedence over rules if there is not enough room for both.
  std::stable_partition(homebound_.begin(), homebound_.end(),
                        [&](File i) { return files_[i].pin < tiers_.size(); });
  sort_down_by_wish(drained_);
  for (std::size_t i = 0; i < tiers_.size(); ++i)
    sort_down(tiers_[i].cold, static_cast<TierIndex>(i));
}

// Lowest rank first; among equals, the least recently used first. The sort keys are copied into one
// array, because looking up a million files many times would be slow.
template <typename TierOf>
void Planner::sort_up(std::vector<File>& list, TierOf tier_of) const {
  struct Key {
    float rank;
    File file;
    std::int64_t last_use;
  };
  std::vector<Key> keys;
  keys.reserve(list.size());
  for (const File i : list) keys.push_back({rank(i, tier_of(i)), i, files_[i].last_use});
  std::sort(keys.begin(), keys.end(), [&](const Key& a, const Key& b) {
    if (a.rank != b.rank) return a.rank < b.rank;
    if (a.last_use != b.last_use) return a.last_use < b.last_use;
    return files_[a.file].id < files_[b.file].id;
  });
  for (std::size_t i = 0; i < list.size(); ++i) list[i] = keys[i].file;
}

void Planner::sort_down(std::vector<File>& list, TierIndex tier) const {
  sort_up(list, [tier](File) { return tier; });
  std::reverse(list.begin(), list.end());
}

// By the rank of each file on the tier that it wants.
void Planner::sort_down_by_wish(std::vector<File>& list) const {
  sort_up(list, [this](File i) { return verdicts_[i].wants; });
  std::reverse(list.begin(), list.end());
}

void Planner::emit(File file, TierIndex to, Reason reason) {
  const std::uint64_t bytes = files_[file].bytes;
  Tier& from = tiers_[files_[file].tier];
  was_evictable_.push_back((flags_[file] & kEvictable) != 0);
  set_evictable(file, false);
  flags_[file] |= kMoved;
  // The used space that a tier reports may be less than the sum of its files.
  from.used -= std::min(from.used, bytes);
  tiers_[to].used += bytes;
  plan_.moves.push_back({file, to, reason});
}

Planner::Residents& Planner::residents_of(TierIndex tier) {
  Residents& residents = tiers_[tier].residents;
  if (residents.is_sorted) return residents;
  residents.is_sorted = true;
  for (File i = 0; i < files_.size(); ++i) {
    // Evicting an empty file gains nothing.
    if (files_[i].tier == tier && files_[i].bytes > 0 && !(flags_[i] & (kMoved | kAtHome)))
      residents.order.push_back(i);
  }
  sort_up(residents.order, [tier](File) { return tier; });
  residents.evictable = PrefixSums(residents.order.size());
  position_.resize(files_.size());
  for (std::size_t i = 0; i < residents.order.size(); ++i) {
    const File file = residents.order[i];
    position_[file] = static_cast<File>(i);
    if (!(flags_[file] & (kNew | kLeaving))) set_evictable(file, true);
  }
  return residents;
}

// REQUIRES: to set the flag, the residents of the file's tier must be sorted and contain the file.
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

// Keeps a file from making room for others in this round.
void Planner::spare(File file) {
  set_evictable(file, false);
  tiers_[files_[file].tier].residents.stranded.push_back(file);
}

// Moves `file` to the first tier, starting at `first`, that has room or whose lower-ranked files
// can make room.
bool Planner::place_down(File file, std::size_t first, Reason reason) {
  for (std::size_t i = first; i < tiers_.size(); ++i) {
    Tier& tier = tiers_[i];
    if (!tier.usable) continue;
    // The slowest tier cannot send files further, so it accepts every file that has to leave
    // another tier. Files that are only cold can wait.
    const bool is_last_resort = !tier.has_slower && reason != Reason::Cold;
    const std::uint64_t limit = is_last_resort ? tier.brim : tier.high;
    const auto index = static_cast<TierIndex>(i);
    if (!tier.fits(files_[file].bytes, limit) && !replace(index, file, limit)) continue;
    emit(file, index, reason);
    return true;
  }
  return false;
}

// Makes room for `newcomer` by evicting files that rank clearly lower. Evicts nothing if that would
// not be enough.
bool Planner::replace(TierIndex index, File newcomer, std::uint64_t limit) {
  Tier& tier = tiers_[index];
  const std::uint64_t bytes = files_[newcomer].bytes;
  if (!tier.has_slower || bytes > limit) return false;
  if (policy_.method == Method::Value) {
    // What the file is worth here, and not on the next tier where it would go instead.
    Exchange exchange;
    const double gain = judge_.gain(files_[newcomer], rate_[newcomer], index) -
                        judge_.gain(files_[newcomer], rate_[newcomer], tier.slower);
    if (!extend(exchange, index, newcomer, gain) || exchange.gain <= 0) return false;
    exchange.in.clear();  // the caller moves it
    execute(exchange, index);
    return tier.fits(bytes, limit);
  }
  Residents& residents = residents_of(index);
  const auto end =
      std::partition_point(residents.order.begin(), residents.order.end(),
                           [&](File i) { return is_clearly_above(index, newcomer, i); });
  const auto most = static_cast<std::size_t>(end - residents.order.begin());
  while (!tier.fits(bytes, limit)) {
    const std::uint64_t missing = std::max(tier.used, tier.projected()) - (limit - bytes);
    if (residents.evictable.before(most) < missing) return false;
    while (!(flags_[residents.order[residents.lowest]] & kEvictable)) ++residents.lowest;
    const File victim = residents.order[residents.lowest];
    if (!place_down(victim, index + 1U, Reason::Outranked)) spare(victim);
  }
  return true;
}

// The room between the watermarks is meant for new writes. A newcomer may use it only if it would
// not be the first file to be evicted afterwards.
bool Planner::may_enter_above_low(TierIndex tier, File newcomer) {
  Residents& residents = residents_of(tier);
  std::size_t& bottom = residents.bottom;
  while (bottom < residents.order.size() && flags_[residents.order[bottom]] & (kMoved | kNew))
    ++bottom;
  return bottom == residents.order.size() ||
         is_clearly_above(tier, newcomer, residents.order[bottom]);
}

// Decides which of the files that a pin or a rule sends to another tier will find room there, so
// that nothing is evicted for a file that cannot move.
void Planner::choose_homecomers() {
  std::erase_if(homebound_, [&](File i) { return flags_[i] & kMoved; });
  for (const File i : homebound_) {
    if (flags_[i] & kLeaving) set_leaving(i, false);
  }
  if (homebound_.empty()) return;
  std::vector<std::uint64_t> firm(tiers_.size());  // bytes that no eviction can remove
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
  // Each departure may make room for another file.
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
  // Keep the room reserved for a file that could not move yet, or files would be evicted for it
  // again and again. A drain does not wait for pins.
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

// A file on a tier that is being emptied has to go somewhere. If there is no better place, it goes
// to a faster tier than it deserves; if nothing else can move, it may exceed a high watermark.
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

Planner::Climbers& Planner::climbers_to(TierIndex index) {
  Climbers& climbers = tiers_[index].climbers;
  if (std::exchange(climbers.is_made, true)) return climbers;
  for (File i = 0; i < files_.size(); ++i) {
    const Verdict& verdict = verdicts_[i];
    if (verdict.blocker != Blocker::None || verdict.wants > index || files_[i].tier <= index)
      continue;
    if (verdict.reason != Reason::Hot && verdict.reason != Reason::Returning) continue;
    if (judge_.is_eligible(files_[i], rate_[i], index)) climbers.order.push_back(i);
  }
  sort_down(climbers.order, index);
  climbers.smallest.resize(climbers.order.size());
  std::uint64_t smallest = ~std::uint64_t{0};
  for (std::size_t i = climbers.order.size(); i-- > 0;) {
    smallest = std::min(smallest, files_[climbers.order[i]].bytes);
    climbers.smallest[i] = smallest;
  }
  return climbers;
}

// Lets a climber in if nothing has to leave for it.
bool Planner::enter(TierIndex index, File file) {
  Tier& tier = tiers_[index];
  const std::uint64_t bytes = files_[file].bytes;
  // By value, the files above the price are those that fill the tier to its high watermark.
  const bool by_value = policy_.method == Method::Value;
  if (!tier.fits(bytes, by_value ? tier.high : tier.low) &&
      !(tier.fits(bytes, tier.high) && may_enter_above_low(index, file)))
    return false;
  emit_up(file, index);
  return true;
}

// If a file finds no room on the tier it wants, it tries slower tiers that are still faster than
// its own.
//
// By value, files are exchanged: a small file that is worth more per byte than a large one does not
// make up for the large one's value, but several of them may.
void Planner::promote_to(TierIndex index) {
  Tier& tier = tiers_[index];
  if (!tier.usable) return;
  Climbers& climbers = climbers_to(index);
  const bool by_value = policy_.method == Method::Value;
  constexpr int kMostTries = 1000;
  for (int tries = 0; tries < kMostTries; ++tries) {
    while (climbers.first < climbers.order.size() &&
           flags_[climbers.order[climbers.first]] & kMoved)
      ++climbers.first;
    Exchange exchange;
    for (std::size_t at = climbers.first; at < climbers.order.size(); ++at) {
      const File i = climbers.order[at];
      if (flags_[i] & kMoved || enter(index, i)) continue;
      if (!may_enter_above_low(index, i)) {
        if (by_value && !tier.fits(climbers.smallest[at], tier.high)) break;
        continue;
      }
      if (!by_value) {
        if (replace(index, i, tier.high)) emit_up(i, index);
      } else if (extend(exchange, index, i,
                        judge_.gain(files_[i], rate_[i], index) - judge_.cost(files_[i], index))) {
        if (exchange.gain <= 0) continue;
        const std::vector<File> victims = exchange.out;
        if (!try_out(exchange, index)) spare_largest(victims);
      } else if (is_last(index, at, exchange)) {
        break;
      }
    }
    if (exchange.out.empty()) return;
    spare_largest(exchange.out);
  }
}

// Whether no file that ranks below this climber could enter the tier, either.
bool Planner::is_last(TierIndex index, std::size_t climber, const Exchange& exchange) {
  Tier& tier = tiers_[index];
  const std::uint64_t smallest = tier.climbers.smallest[climber];
  if (tier.fits(smallest, tier.high)) return false;
  const std::uint64_t most = std::max(tier.used, tier.projected());
  if (most - std::min(exchange.bytes_out, most) + exchange.bytes_in + smallest <= tier.high)
    return false;
  const Residents& residents = residents_of(index);
  const std::size_t next = std::max(exchange.next, residents.lowest);
  return !tier.has_slower || next >= residents.order.size() ||
         !is_clearly_above(index, tier.climbers.order[climber], residents.order[next]);
}

// The file that wants to enter is worth less than all the files that would have to leave. It may be
// worth more if the largest of them stays.
void Planner::spare_largest(const std::vector<File>& victims) {
  spare(*std::max_element(victims.begin(), victims.end(),
                          [&](File a, File b) { return files_[a].bytes < files_[b].bytes; }));
}

// Adds a file that wants to enter, and as many of the lowest ranks as have to leave for it. Returns
// false, and changes nothing, if there are not enough that are clearly below it.
bool Planner::extend(Exchange& exchange, TierIndex index, File newcomer, double gain) {
  const Tier& tier = tiers_[index];
  if (!tier.has_slower || files_[newcomer].bytes > tier.high) return false;
  Residents& residents = residents_of(index);
  const std::uint64_t bytes = exchange.bytes_in + files_[newcomer].bytes;
  const std::uint64_t most = std::max(tier.used, tier.projected());
  const std::size_t leaving_before = exchange.out.size();
  const std::uint64_t bytes_before = exchange.bytes_out;
  const auto skip_to_evictable = [&](std::size_t& at) {
    while (at < residents.order.size() && !(flags_[residents.order[at]] & kEvictable)) ++at;
  };
  skip_to_evictable(residents.lowest);
  exchange.next = std::max(exchange.next, residents.lowest);
  skip_to_evictable(exchange.next);
  std::size_t at = exchange.next;
  while (most - std::min(exchange.bytes_out, most) + bytes > tier.high) {
    skip_to_evictable(at);
    if (at == residents.order.size() || !is_clearly_above(index, newcomer, residents.order[at])) {
      exchange.out.resize(leaving_before);
      exchange.bytes_out = bytes_before;
      return false;
    }
    const File victim = residents.order[at++];
    exchange.out.push_back(victim);
    exchange.bytes_out += files_[victim].bytes;
    gain += judge_.gain(files_[victim], rate_[victim], tier.slower) -
            judge_.cost(files_[victim], tier.slower);
  }
  exchange.next = at;
  exchange.in.push_back(newcomer);
  exchange.bytes_in = bytes;
  exchange.gain += gain;
  return true;
}

void Planner::execute(Exchange& exchange, TierIndex index) {
  Tier& tier = tiers_[index];
  for (const File victim : exchange.out) {
    if (!(flags_[victim] & kMoved) && !place_down(victim, index + 1U, Reason::Outranked))
      spare(victim);
  }
  for (const File i : exchange.in) {
    // It may have had to make room on its own tier for what left this one.
    if (!(flags_[i] & kMoved) && tier.fits(files_[i].bytes, tier.high)) emit_up(i, index);
  }
  exchange = {};
}

// Executes an exchange, but takes it back if it gains nothing after all: a file that leaves may
// find no room on the next tier and end up far below it, or push others down.
bool Planner::try_out(Exchange& exchange, TierIndex index) {
  const std::size_t before = plan_.moves.size();
  std::vector<std::uint64_t> used;
  for (const Tier& tier : tiers_) used.push_back(tier.used);
  execute(exchange, index);
  double gain = 0;
  for (std::size_t i = before; i < plan_.moves.size(); ++i) {
    const auto [file, to, reason] = plan_.moves[i];
    gain += judge_.gain(files_[file], rate_[file], to) - judge_.cost(files_[file], to);
  }
  if (gain > 0) return true;
  for (std::size_t i = before; i < plan_.moves.size(); ++i) {
    const File file = plan_.moves[i].file;
    flags_[file] &= static_cast<std::uint8_t>(~kMoved);
    if (!was_evictable_[i]) continue;
    set_evictable(file, true);
    std::size_t& bottom = tiers_[files_[file].tier].residents.bottom;
    bottom = std::min(bottom, static_cast<std::size_t>(position_[file]));
  }
  plan_.moves.resize(before);
  was_evictable_.resize(before);
  for (std::size_t i = 0; i < tiers_.size(); ++i) tiers_[i].used = used[i];
  return false;
}

// Downward moves start at the slowest tier and upward moves at the fastest, because each makes room
// for the next.
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
  // A file that found no room may find it after others have moved. Rarely more than two rounds are
  // needed.
  constexpr int kMostRounds = 64;
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
    Blocker blocker = verdicts_[i].blocker;
    if (blocker == Blocker::None && verdicts_[i].wants != files_[i].tier) blocker = Blocker::NoRoom;
    if (blocker != Blocker::None) ++plan_.blocked[static_cast<std::size_t>(blocker)];
  }
  plan_.market = market_;
  return std::move(plan_);
}

}  // namespace

Plan make_plan(std::span<const FileFacts> files, std::span<const TierFacts> tiers,
               const Policy& policy, std::int64_t now) {
  SLUICE_CHECK(files.size() <= UINT32_MAX, "a plan is made for fewer than 2^32 files");
  for (const FileFacts& file : files)
    SLUICE_CHECK(file.tier < tiers.size(), "each file of a plan is on one of its tiers");
  return Planner(files, tiers, policy, now).make();
}

}  // namespace sluice
