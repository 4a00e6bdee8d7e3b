// SPDX-License-Identifier: BSD-2-Clause
// A Contender is one policy under test: it decides what the fastest tier holds while a trace is
// replayed. docs/simulator.md describes each and how it differs from the published one.
//
// Threads: caller locks; a contender and its trace belong to one replay.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/ids.hpp"
#include "tiering/choose/policy.hpp"
#include "tiering/choose/tier_speed.hpp"
#include "tools/lab/simulator/disks.hpp"
#include "tools/lab/simulator/trace.hpp"

namespace sluice::tools::lab {

struct SimulatedTier {
  std::string name;
  std::uint64_t bytes = 0;
  double threshold = 0;  // score that makes an object eligible
  TierSpeed speed = {};
};

// Where objects are at the beginning of the trace.
enum class Placing {
  Slowest,  // all exist, on the slowest tier
  Fastest,  // none exists: the first record of an object creates it, on the fastest tier that is
            // below its watermark
};

struct SimulationOptions {
  std::vector<SimulatedTier> tiers;  // fastest first, two or more
  unsigned high_watermark = 90;
  unsigned low_watermark = 80;
  std::chrono::seconds half_life = std::chrono::hours(7 * 24);  // 0: never
  std::chrono::seconds interval = std::chrono::minutes(15);
  std::chrono::seconds min_stay = std::chrono::hours(1);
  Method method = Method::Value;
  Objective objective = Objective::Time;
  Placing placing = Placing::Slowest;
  std::chrono::seconds warmup{0};  // not counted
};

// What was moved to and from the fastest tier.
struct Traffic {
  std::uint64_t bytes_in = 0, bytes_out = 0, moves = 0;
};

class Contender {
 public:
  enum class Access { Use, Creation };

  virtual ~Contender() = default;
  Contender(const Contender&) = delete;
  Contender& operator=(const Contender&) = delete;

  // The tier that has the record's object when it is requested.
  // REQUIRES: called for each record before access().
  virtual TierIndex locate(std::uint32_t record) = 0;
  // Serves the next record. Returns whether the object was on the fastest tier before; for a
  // Creation the result has no meaning.
  // REQUIRES: called once for each record, in order.
  virtual bool access(std::uint32_t record, Access kind) = 0;

  const Traffic& traffic() const { return traffic_; }
  const Disks& disks() const { return disks_; }

 protected:
  Contender(const Trace& trace, const SimulationOptions& options);

  // Seconds.
  double time_of(std::uint32_t record) const {
    return static_cast<double>(trace_.times[record]) / 1e6;
  }

  std::uint32_t object_of(std::uint32_t record) const { return trace_.objects[record]; }
  std::uint64_t size_of(std::uint32_t object) const { return trace_.sizes[object]; }
  // An object that was created on a tier was not moved there.
  void count_in(std::uint32_t object, Access kind) {
    if (kind == Access::Creation) return;
    traffic_.bytes_in += size_of(object);
    ++traffic_.moves;
  }
  void count_out(std::uint32_t object) {
    traffic_.bytes_out += size_of(object);
    ++traffic_.moves;
  }

  const Trace& trace_;
  const SimulationOptions& options_;
  Disks disks_;

 private:
  Traffic traffic_;
};

// Every name that make_contender() knows, in the order of tables.
std::span<const std::string_view> contender_names();
// Whether it is an oracle, which knows future accesses.
bool is_oracle(std::string_view name);

// CHECKED: `name` is one of contender_names(). REQUIRES: `trace` and `options` outlive the
// contender.
std::unique_ptr<Contender> make_contender(std::string_view name, const Trace& trace,
                                          const SimulationOptions& options);

}  // namespace sluice::tools::lab
