// SPDX-License-Identifier: BSD-2-Clause
// Files and tiers for tests of the planner.
#pragma once

#include <gtest/gtest.h>

#include <ostream>

#include "tests/unit/tiering/plans.hpp"
#include "tiering/choose/planner.hpp"

namespace sluice {

inline bool operator==(const PlannedMove& a, const PlannedMove& b) {
  return a.file == b.file && a.to == b.to && a.reason == b.reason;
}
inline void PrintTo(const PlannedMove& move, std::ostream* out) {
  *out << "file " << move.file << " to " << unsigned{move.to} << ' ' << name_of(move.reason);
}

namespace test {

using Moves = std::vector<PlannedMove>;

// By default, tiers have 100 GiB and files 1 GiB, so that a file is one percent.
class PlannerStage : public testing::Test {
 protected:
  static FileFacts new_file_on(TierIndex tier, float score) {
    FileFacts file = file_on(tier, score);
    file.arrived = kNow - 1;
    return file;
  }
  static FileFacts pinned(FileFacts file, TierIndex pin) {
    file.pin = pin;
    return file;
  }
  FileFacts ruled(FileFacts file, TierIndex tier) {
    Rule rule;
    rule.tier = tier;
    world_.policy.rules.push_back(rule);
    file.rule = static_cast<std::uint16_t>(world_.policy.rules.size() - 1);
    return file;
  }

  World world_;
};

}  // namespace test
}  // namespace sluice
