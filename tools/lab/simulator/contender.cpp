// SPDX-License-Identifier: BSD-2-Clause
#include "tools/lab/simulator/contender.hpp"

#include <algorithm>
#include <array>

#include "base/check.hpp"
#include "tools/lab/simulator/budget_cache.hpp"
#include "tools/lab/simulator/caches.hpp"
#include "tools/lab/simulator/movers.hpp"

namespace sluice::tools::lab {
namespace {

using Maker = std::unique_ptr<Contender> (*)(const Trace&, const SimulationOptions&);

template <typename Kind>
std::unique_ptr<Contender> make(const Trace& trace, const SimulationOptions& options) {
  return std::make_unique<Kind>(trace, options);
}

struct Entry {
  std::string_view name;
  Maker make;
};
constexpr std::array kEntries{Entry{"sluice", make<PlannerMover>},
                              Entry{"lru", make<LruCache>},
                              Entry{"lfu", make<LfuCache>},
                              Entry{"arc", make<ArcCache>},
                              Entry{"s3fifo", make<S3FifoCache>},
                              Entry{"gdsf", make<GdsfCache>},
                              Entry{"autotier", make<AutotierMover>},
                              Entry{"belady", make<BeladyCache>},
                              Entry{"belady-size", make<BeladySizeCache>},
                              Entry{"budget", make<BudgetCache>}};

constexpr auto kNames = [] {
  std::array<std::string_view, kEntries.size()> names;
  for (std::size_t i = 0; i < names.size(); ++i) names[i] = kEntries[i].name;
  return names;
}();

std::vector<TierSpeed> speeds_of(const SimulationOptions& options) {
  std::vector<TierSpeed> speeds;
  for (std::size_t i = 0; i < options.tiers.size(); ++i) {
    const TierSpeed& speed = options.tiers[i].speed;
    speeds.push_back(speed.is_known() ? speed : usual_speed(i, options.tiers.size()));
  }
  return speeds;
}

}  // namespace

Contender::Contender(const Trace& trace, const SimulationOptions& options)
    : trace_(trace), options_(options), disks_(speeds_of(options)) {}

std::span<const std::string_view> contender_names() { return kNames; }

bool is_oracle(std::string_view name) { return name.starts_with("belady"); }

std::unique_ptr<Contender> make_contender(std::string_view name, const Trace& trace,
                                          const SimulationOptions& options) {
  const auto* const found = std::find_if(kEntries.begin(), kEntries.end(),
                                         [&](const Entry& e) { return e.name == name; });
  SLUICE_CHECK(found != std::end(kEntries), "the contender has one of contender_names()");
  return found->make(trace, options);
}

}  // namespace sluice::tools::lab
