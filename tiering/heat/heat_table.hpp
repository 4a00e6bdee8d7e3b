// SPDX-License-Identifier: BSD-2-Clause
// HeatTable is a small hash map from files to their new heat. Entries are added or increased; only
// the whole table can be cleared.
//
// It is one flat array with linear probing, 40 bytes per entry. With a million files, cache
// misses are most of the cost of counting an access, and std::unordered_map has three per access.
// Threads: caller locks.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

#include "base/ids.hpp"
#include "metadata/store.hpp"

namespace sluice {

class HeatTable {
 public:
  using Entry = std::pair<InodeId, Heat>;

  std::size_t size() const { return size_; }

  // Adds `delta` to the entry of `id`, as sum() does. CHECKED: `id` is not 0.
  void add(InodeId id, const Heat& delta, std::chrono::seconds half_life);

  std::optional<Heat> find(InodeId id) const;

  // Appends all entries in unspecified order.
  void append_to(std::vector<Entry>& out) const;

 private:
  // Small fields are enough: seconds until 2106, and four billion opens between two flushes.
  struct Slot {
    InodeId id{};  // 0: free
    double score = 0;
    std::uint64_t gpu_bytes = 0;
    std::uint32_t opens = 0;
    std::uint32_t last_access = 0;
    float recent = 0;
    std::uint32_t since = 0;

    Heat heat() const {
      return {.score = score,
              .last_access = last_access,
              .opens = opens,
              .gpu_bytes = gpu_bytes,
              .recent = recent,
              .since = since};
    }
  };
  static_assert(sizeof(Slot) == 40);

  // The index of `id`, or of the free slot where it would be. CHECKED: there is a free slot.
  std::size_t place_of(InodeId id) const;
  void grow();

  std::vector<Slot> slots_;  // the size is 0 or a power of two
  std::size_t size_ = 0;
};

}  // namespace sluice
