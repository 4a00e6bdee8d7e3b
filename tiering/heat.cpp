// SPDX-License-Identifier: BSD-2-Clause
#include "tiering/heat.hpp"

#include <algorithm>
#include <ctime>
#include <utility>
#include <vector>

namespace sluice {

void HeatRecorder::count_opens(InodeId id, std::uint64_t opens) {
  const std::int64_t now = std::time(nullptr);
  Shard& s = shard(id);
  MutexLock lock(s.mutex);
  Heat& heat = s.pending[to_number(id)];
  // Within one batch, seconds, no decay is worth computing: the store decays what it adds up.
  heat.score += static_cast<double>(opens);
  heat.opens += opens;
  heat.last_access = now;
}

Result<Heat> HeatRecorder::heat(InodeId id) const {
  Heat known = SLUICE_TRY(store_.heat(id));
  const Shard& s = shard(id);
  MutexLock lock(s.mutex);
  const auto found = s.pending.find(to_number(id));
  if (found == s.pending.end()) return known;
  known.score += found->second.score;
  known.opens += found->second.opens;
  known.gpu_bytes += found->second.gpu_bytes;
  known.last_access = found->second.last_access;
  return known;
}

Result<void> HeatRecorder::flush() {
  std::vector<std::pair<InodeId, Heat>> batch;
  for (Shard& s : shards_) {
    std::unordered_map<std::uint64_t, Heat> taken;
    {
      MutexLock lock(s.mutex);
      taken.swap(s.pending);
    }
    for (const auto& [id, heat] : taken) batch.emplace_back(InodeId{id}, heat);
  }
  if (batch.empty()) return {};
  const auto added = store_.add_heat(batch);
  if (added) return {};
  for (const auto& [id, heat] : batch) {
    Shard& s = shard(id);
    MutexLock lock(s.mutex);
    Heat& pending = s.pending[to_number(id)];
    pending.score += heat.score;
    pending.opens += heat.opens;
    pending.gpu_bytes += heat.gpu_bytes;
    pending.last_access = std::max(pending.last_access, heat.last_access);
  }
  return added;
}

}  // namespace sluice
