// SPDX-License-Identifier: BSD-2-Clause
// HeatTable is a small hash map from files to what is new about their heat. It is only ever added
// to and emptied whole.
//
// One flat array with linear probing and two files to a cache line: with a million files, waiting
// for memory is most of what counting an access costs, and a std::unordered_map waits three times.
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

  // Adds `delta` to what is known of `id`, as sum() does.
  // REQUIRES: `id` is not 0, which is no file.
  void add(InodeId id, const Heat& delta, std::chrono::seconds half_life);

  std::optional<Heat> find(InodeId id) const;

  // Appends all entries, in no order.
  void append_to(std::vector<Entry>& out) const;

 private:
  // Seconds from 1970 to 2106, and four billion opens: enough for what a flush will soon take away.
  struct alignas(32) Slot {
    InodeId id{};  // 0: free
    double score = 0;
    std::uint64_t gpu_bytes = 0;
    std::uint32_t opens = 0;
    std::uint32_t last_access = 0;

    Heat heat() const {
      return {.score = score, .last_access = last_access, .opens = opens, .gpu_bytes = gpu_bytes};
    }
  };

  // Where `id` is, or would be. REQUIRES: there is a free slot.
  std::size_t place_of(InodeId id) const;
  void grow();

  std::vector<Slot> slots_;  // none, or a power of two of them
  std::size_t size_ = 0;
};

}  // namespace sluice
