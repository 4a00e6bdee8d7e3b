// SPDX-License-Identifier: BSD-2-Clause
#include "tiering/heat/heat.hpp"

#include <algorithm>

#include "metadata/decay.hpp"

namespace sluice {
namespace {

// Deltas per write to the store. One write of everything could be a batch, and then a write buffer,
// of a hundred megabytes after five busy seconds.
constexpr std::ptrdiff_t kBatch = 8192;

bool is_before(const HeatTable::Entry& a, const HeatTable::Entry& b) { return a.first < b.first; }

bool has_more(const HeatTable::Entry& a, const HeatTable::Entry& b) {
  return a.second.score > b.second.score;
}

}  // namespace

void HeatRecorder::add(InodeId id, const Heat& delta) {
  Shard& s = shard(id);
  MutexLock lock(s.mutex);
  if (s.pending.size() >= kMostInShard && !s.pending.find(id)) return;
  s.pending.add(id, delta, half_life_);
}

std::size_t HeatRecorder::pending() const {
  std::size_t sum = 0;
  for (const Shard& s : shards_) {
    MutexLock lock(s.mutex);
    sum += s.pending.size();
  }
  return sum;
}

void HeatRecorder::record(InodeId id, const Access& access) {
  const double count = access.opens + (access.gpu_bytes > 0 ? 1.0 : 0.0);
  const std::int64_t now = clock_.seconds();
  add(id, {.score = count,
           .last_access = now,
           .opens = access.opens,
           .gpu_bytes = access.gpu_bytes,
           .recent = count,
           .since = now});
}

Result<Heat> HeatRecorder::heat(InodeId id) const {
  SharedLock lock(handing_over_);
  Heat known = SLUICE_TRY(store_.heat(id));
  const HeatTable::Entry wanted{id, {}};
  const auto taken = std::lower_bound(taken_.begin() + written_, taken_.end(), wanted, is_before);
  if (taken != taken_.end() && taken->first == id) known = sum(known, taken->second, half_life_);
  const Shard& s = shard(id);
  MutexLock shard_lock(s.mutex);
  const auto pending = s.pending.find(id);
  return pending ? sum(known, *pending, half_life_) : known;
}

void HeatRecorder::take_pending() {
  ExclusiveLock lock(handing_over_);
  std::vector<HeatTable> tables(shards_.size());
  std::size_t size = 0;
  for (std::size_t i = 0; i < shards_.size(); ++i) {
    MutexLock shard_lock(shards_[i].mutex);
    std::swap(tables[i], shards_[i].pending);
    size += tables[i].size();
  }
  taken_.reserve(size);
  for (HeatTable& table : tables) {
    table.append_to(taken_);
    table = {};  // frees the memory now: it may be tens of megabytes
  }
  // Sorted like the database: its tables then cover narrow ranges, and compaction rewrites a few of
  // them instead of all.
  std::sort(taken_.begin(), taken_.end(), is_before);
  std::vector<HeatTable::Entry> most(std::min(kBusiest, taken_.size()));
  std::partial_sort_copy(taken_.begin(), taken_.end(), most.begin(), most.end(), has_more);
  busiest_.clear();
  for (const auto& [id, delta] : most) busiest_.push_back(id);
}

std::vector<InodeId> HeatRecorder::busiest() const {
  SharedLock lock(handing_over_);
  return busiest_;
}

Result<bool> HeatRecorder::write_some() {
  ExclusiveLock lock(handing_over_);
  const auto first = taken_.begin() + written_;
  if (first == taken_.end()) return false;
  const auto end = first + std::min<std::ptrdiff_t>(kBatch, taken_.end() - first);
  SLUICE_TRY(store_.add_heat({first, end}));
  written_ += end - first;
  return true;
}

void HeatRecorder::put_back_rest() {
  ExclusiveLock lock(handing_over_);
  for (auto left = taken_.begin() + written_; left != taken_.end(); ++left) {
    add(left->first, left->second);
  }
  taken_ = {};
  written_ = 0;
}

Result<void> HeatRecorder::flush() {
  MutexLock lock(flush_);
  take_pending();
  // Each piece takes the lock separately, because heat() waits for it.
  for (;;) {
    const auto more = write_some();
    if (more && *more) continue;
    put_back_rest();
    if (!more) return more.error();
    return {};
  }
}

}  // namespace sluice
