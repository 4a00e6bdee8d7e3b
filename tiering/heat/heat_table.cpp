// SPDX-License-Identifier: BSD-2-Clause
#include "tiering/heat/heat_table.hpp"

#include <algorithm>
#include <limits>

#include "base/check.hpp"
#include "metadata/decay.hpp"

namespace sluice {
namespace {

constexpr std::size_t kFirstSlots = 16;

template <typename Number>
std::uint32_t clamped(Number value) {
  constexpr Number kMost = std::numeric_limits<std::uint32_t>::max();
  return static_cast<std::uint32_t>(std::clamp<Number>(value, 0, kMost));
}

}  // namespace

void HeatTable::add(InodeId id, const Heat& delta, std::chrono::seconds half_life) {
  SLUICE_CHECK(id != InodeId{}, "heat is added to a file, whose id is not 0");
  if (4 * (size_ + 1) > 3 * slots_.size()) grow();
  Slot& slot = slots_[place_of(id)];
  if (slot.id != id) ++size_;
  const Heat total = slot.id == id ? sum(slot.heat(), delta, half_life) : delta;
  slot = {.id = id,
          .score = total.score,
          .gpu_bytes = total.gpu_bytes,
          .opens = clamped(total.opens),
          .last_access = clamped(total.last_access),
          .recent = static_cast<float>(total.recent),
          .since = clamped(total.since)};
}

std::optional<Heat> HeatTable::find(InodeId id) const {
  if (size_ == 0) return std::nullopt;
  const Slot& slot = slots_[place_of(id)];
  if (slot.id != id) return std::nullopt;
  return slot.heat();
}

void HeatTable::append_to(std::vector<Entry>& out) const {
  for (const Slot& slot : slots_) {
    if (slot.id != InodeId{}) out.emplace_back(slot.id, slot.heat());
  }
}

std::size_t HeatTable::place_of(InodeId id) const {
  SLUICE_CHECK(size_ < slots_.size(), "the heat table has a free slot");
  const std::size_t mask = slots_.size() - 1;
  // Middle bits of the product: HeatRecorder uses its top bits to choose the shard.
  std::size_t at = (to_number(id) * 0x9E3779B97F4A7C15 >> 24) & mask;
  while (slots_[at].id != id && slots_[at].id != InodeId{}) at = (at + 1) & mask;
  return at;
}

void HeatTable::grow() {
  std::vector<Slot> old(slots_.empty() ? kFirstSlots : 2 * slots_.size());
  old.swap(slots_);
  for (const Slot& slot : old) {
    if (slot.id != InodeId{}) slots_[place_of(slot.id)] = slot;
  }
}

}  // namespace sluice
