// SPDX-License-Identifier: BSD-2-Clause
// A directory with a budget as a contender: the fastest tier's size is the budget, and the function
// that the daemon uses chooses what is deleted. The minute in which the daemon spares a new file is
// left out. Threads: caller locks.
#pragma once

#include <cstdint>
#include <vector>

#include "tools/lab/simulator/caches.hpp"

namespace sluice::tools::lab {

class BudgetCache final : public Cache {
 public:
  BudgetCache(const Trace& trace, const SimulationOptions& options)
      : Cache(trace, options), uses_(trace.sizes.size()), places_(trace.sizes.size()) {}
  bool access(std::uint32_t record, Access kind) override;

 private:
  struct Use {
    double count = 0, last = 0, written = 0;
  };
  void make_room(std::uint64_t bytes);

  double clock_ = 0;                   // seconds; when the present record is
  std::vector<Use> uses_;              // by object; what was deleted begins anew
  std::vector<std::uint32_t> cached_;  // objects in the cache, in any order
  std::vector<std::uint32_t> places_;  // by object: where it is in cached_
};

}  // namespace sluice::tools::lab
