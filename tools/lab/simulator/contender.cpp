// SPDX-License-Identifier: BSD-2-Clause
#include "tools/lab/simulator/contender.hpp"

#include <algorithm>
#include <array>

#include "tools/lab/simulator/budget_cache.hpp"
#include "tools/lab/simulator/caches.hpp"
#include "tools/lab/simulator/movers.hpp"

namespace sluice {
namespace {

using Maker = std::unique_ptr<Contender> (*)(const Trace&, const SimulationOptions&);

template <typename Kind>
std::unique_ptr<Contender> make_cache(const Trace& trace, const SimulationOptions& options) {
  return std::make_unique<Kind>(trace, options.tiers.front().bytes);
}

template <typename Kind>
std::unique_ptr<Contender> make_mover(const Trace& trace, const SimulationOptions& options) {
  return std::make_unique<Kind>(trace, options);
}

struct Entry {
  std::string_view name;
  Maker make;
};
constexpr std::array kEntries{Entry{"sluice", make_mover<PlannerMover>},
                              Entry{"lru", make_cache<LruCache>},
                              Entry{"lfu", make_cache<LfuCache>},
                              Entry{"arc", make_cache<ArcCache>},
                              Entry{"s3fifo", make_cache<S3FifoCache>},
                              Entry{"gdsf", make_cache<GdsfCache>},
                              Entry{"autotier", make_mover<AutotierMover>},
                              Entry{"belady", make_cache<BeladyCache>},
                              Entry{"belady-size", make_cache<BeladySizeCache>},
                              Entry{"budget", make_cache<BudgetCache>}};

constexpr auto kNames = [] {
  std::array<std::string_view, kEntries.size()> names;
  for (std::size_t i = 0; i < names.size(); ++i) names[i] = kEntries[i].name;
  return names;
}();

}  // namespace

std::span<const std::string_view> contender_names() { return kNames; }

bool is_oracle(std::string_view name) { return name.starts_with("belady"); }

std::unique_ptr<Contender> make_contender(std::string_view name, const Trace& trace,
                                          const SimulationOptions& options) {
  const auto* const found = std::find_if(kEntries.begin(), kEntries.end(),
                                         [&](const Entry& e) { return e.name == name; });
  return found->make(trace, options);
}

}  // namespace sluice
