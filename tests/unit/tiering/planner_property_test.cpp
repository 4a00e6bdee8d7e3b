// SPDX-License-Identifier: BSD-2-Clause
// Properties of every plan, checked on random pools: ordinary ones, and ones that are full, partly
// offline or misconfigured.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <random>
#include <tuple>

#include "tests/support/seed.hpp"
#include "tests/unit/tiering/plans.hpp"

namespace sluice {
namespace {

using test::kDay;
using test::kNow;
using test::World;

class Random {
 public:
  explicit Random(std::uint64_t seed) : engine_(seed) {}

  // In [least, most].
  std::uint64_t whole(std::uint64_t least, std::uint64_t most) {
    return std::uniform_int_distribution<std::uint64_t>(least, most)(engine_);
  }
  bool chance(double probability) { return std::bernoulli_distribution(probability)(engine_); }
  // Evenly distributed over the orders of magnitude.
  double magnitude(double least, double most) {
    return std::exp(
        std::uniform_real_distribution<double>(std::log(least), std::log(most))(engine_));
  }
  TierIndex tier(const World& world) {
    return static_cast<TierIndex>(whole(0, world.tiers.size() - 1));
  }
  std::mt19937_64& engine() { return engine_; }

 private:
  std::mt19937_64 engine_;
};

enum class Pool {
  Ordinary,  // thresholds in order, all tiers online, and the slowest has room for everything
  Any
};

FileFacts random_file(Random& random, const World& world) {
  FileFacts file;
  file.bytes = random.chance(0.03) ? 0 : static_cast<std::uint64_t>(random.magnitude(1, 1e9));
  file.score = random.chance(0.2) ? 0 : static_cast<float>(random.magnitude(0.01, 1000));
  file.opens = static_cast<std::uint32_t>(random.whole(0, 6));
  file.last_use = kNow - static_cast<std::int64_t>(random.magnitude(1, 30 * kDay));
  file.arrived = kNow - static_cast<std::int64_t>(random.magnitude(1, 30 * kDay));
  file.since = file.last_use - static_cast<std::int64_t>(random.magnitude(1, 30 * kDay));
  file.recent = file.score * static_cast<float>(random.magnitude(0.01, 1));
  file.tier = random.tier(world);
  if (random.chance(0.1)) file.pin = random.tier(world);
  if (random.chance(0.1)) file.rule = static_cast<std::uint16_t>(random.whole(0, 3));
  if (random.chance(0.1)) file.ghost_of = random.tier(world);
  return file;
}

struct Kind {
  Pool pool;
  Method method;
  Objective objective = Objective::Time;
};

World random_world(Random& random, const Kind& kind) {
  World world;
  world.policy.method = kind.method;
  world.policy.objective = kind.objective;
  const bool is_ordinary = kind.pool == Pool::Ordinary;
  world.tiers.assign(random.whole(is_ordinary ? 2 : 1, 5), TierFacts{});
  for (TierFacts& tier : world.tiers) {
    tier.threshold = random.chance(0.2) ? 0 : random.magnitude(0.1, 300);
    tier.high_watermark = static_cast<unsigned>(random.whole(40, 100));
    tier.low_watermark =
        static_cast<unsigned>(random.whole(20, is_ordinary ? tier.high_watermark : 100));
    if (random.chance(0.5))
      tier.speed = {.latency = random.magnitude(1e-5, 1e-2),
                    .bandwidth = random.magnitude(1e7, 1e10)};
    if (is_ordinary) continue;
    tier.online = !random.chance(0.1);
    tier.draining = random.chance(0.1);
  }
  if (is_ordinary) {
    std::sort(world.tiers.begin(), world.tiers.end(),
              [](const TierFacts& a, const TierFacts& b) { return a.threshold > b.threshold; });
  }
  for (int i = 0; i < 4; ++i) {
    Rule rule;
    if (!random.chance(0.3)) rule.tier = random.tier(world);
    world.policy.rules.push_back(rule);
  }
  for (std::uint64_t i = random.whole(0, 150); i > 0; --i) world.add(random_file(random, world));
  std::uint64_t everything = 0;
  for (TierFacts& tier : world.tiers) {
    tier.used += random.chance(0.5) ? 0 : static_cast<std::uint64_t>(random.magnitude(1, 1e9));
    tier.total =
        static_cast<std::uint64_t>(static_cast<double>(tier.used) / random.magnitude(0.3, 1.05)) +
        1;
    everything += tier.used;
  }
  if (is_ordinary) world.tiers.back().total = 4 * everything + 1;
  return world;
}

std::uint64_t percent(const TierFacts& tier, unsigned part) {
  return tier.total / 100 * part + tier.total % 100 * part / 100;
}

bool is_by_heat(Reason reason) {
  return reason == Reason::Hot || reason == Reason::Returning || reason == Reason::Cold;
}

bool is_for_want_of_room(Reason reason) {
  return reason == Reason::Crowded || reason == Reason::Outranked;
}

// For comparing plans of the same files in different orders.
using NamedMove = std::tuple<InodeId, TierIndex, Reason>;
std::vector<NamedMove> named_moves(const World& world, const Plan& plan) {
  std::vector<NamedMove> moves;
  for (const PlannedMove& move : plan.moves)
    moves.emplace_back(world.files[move.file].id, move.to, move.reason);
  return moves;
}

class PlannerPropertyTest : public testing::TestWithParam<Kind> {
 protected:
  // Calls `check` with random worlds and their plans.
  template <typename Check>
  void for_each_world(Check check) {
    const std::uint64_t seed = test::test_seed();
    const int worlds = test::rounds(1000, 100'000);
    for (int i = 0; i < worlds && !HasFailure(); ++i) {
      SCOPED_TRACE("world " + std::to_string(i));
      Random random(seed + static_cast<std::uint64_t>(i));
      World world = random_world(random, GetParam());
      const Plan plan = world.plan();
      check(world, plan, random);
    }
  }

  // Calls `check` with the state of the world before each move.
  template <typename Check>
  void for_each_move(Check check) {
    for_each_world([&](World& world, const Plan& plan, Random&) {
      for (const PlannedMove& move : plan.moves) {
        check(world, move, world.files[move.file]);
        world.execute(move);
      }
    });
  }
};

TEST_P(PlannerPropertyTest, EveryFileMovesAtMostOnce) {
  for_each_world([](const World&, const Plan& plan, Random&) {
    EXPECT_EQ(test::by_file(plan).size(), plan.moves.size());
  });
}

TEST_P(PlannerPropertyTest, EveryMoveGoesFromAnOnlineTierToAnotherUsableTier) {
  for_each_move([](const World& world, const PlannedMove& move, const FileFacts& file) {
    EXPECT_NE(file.tier, move.to);
    EXPECT_TRUE(world.tiers[file.tier].online);
    EXPECT_TRUE(world.tiers[move.to].online);
    EXPECT_FALSE(world.tiers[move.to].draining);
  });
}

TEST_P(PlannerPropertyTest, HeatNeverFillsATierAboveItsHighWatermark) {
  for_each_move([](const World& world, const PlannedMove& move, const FileFacts& file) {
    const TierFacts& to = world.tiers[move.to];
    if (is_by_heat(move.reason)) {
      EXPECT_LE(to.used + file.bytes, percent(to, to.high_watermark));
    }
  });
}

TEST_P(PlannerPropertyTest, EveryMoveFitsBelow98PercentAtItsTurn) {
  for_each_move([](const World& world, const PlannedMove& move, const FileFacts& file) {
    const TierFacts& to = world.tiers[move.to];
    EXPECT_LE(to.used + file.bytes, percent(to, 98));
  });
}

TEST_P(PlannerPropertyTest, OnlyTheSlowestTierAcceptsEvictedFilesAboveItsHighWatermark) {
  for_each_move([](const World& world, const PlannedMove& move, const FileFacts& file) {
    const TierFacts& to = world.tiers[move.to];
    const bool has_slower =
        std::any_of(world.tiers.begin() + move.to + 1, world.tiers.end(),
                    [](const TierFacts& tier) { return tier.online && !tier.draining; });
    if (is_for_want_of_room(move.reason) && has_slower) {
      EXPECT_LE(to.used + file.bytes, percent(to, to.high_watermark));
    }
  });
}

TEST_P(PlannerPropertyTest, TheDirectionOfAMoveMatchesItsReason) {
  for_each_move([](const World&, const PlannedMove& move, const FileFacts& file) {
    if (move.reason == Reason::Hot || move.reason == Reason::Returning) {
      EXPECT_LT(move.to, file.tier);
    }
    if (move.reason == Reason::Cold || is_for_want_of_room(move.reason)) {
      EXPECT_GT(move.to, file.tier);
    }
  });
}

TEST_P(PlannerPropertyTest, PinsAndRulesTakePrecedenceOverHeat) {
  for_each_move([](const World& world, const PlannedMove& move, const FileFacts& file) {
    if (file.pin == kNoTier && file.rule == kNoRule) return;
    EXPECT_FALSE(is_by_heat(move.reason));
    if (move.reason == Reason::Pinned) {
      EXPECT_EQ(move.to, file.pin);
    }
    if (move.reason == Reason::Ruled) {
      EXPECT_EQ(move.to, world.policy.rules[file.rule].tier);
    }
  });
}

TEST_P(PlannerPropertyTest, NothingButADrainMovesAFileFromItsPinnedTier) {
  for_each_move([](const World&, const PlannedMove& move, const FileFacts& file) {
    if (file.pin == file.tier) {
      EXPECT_EQ(move.reason, Reason::Draining);
    }
  });
}

TEST_P(PlannerPropertyTest, HeatMovesAndReplacesOnlyFilesOlderThanMinStay) {
  for_each_move([](const World& world, const PlannedMove& move, const FileFacts& file) {
    if (is_by_heat(move.reason) || move.reason == Reason::Outranked) {
      EXPECT_LE(file.arrived, kNow - world.policy.min_stay.count());
    }
  });
}

TEST_P(PlannerPropertyTest, EveryFileThatWantsToMoveMovesOrIsCounted) {
  for_each_world([](const World& world, const Plan& plan, Random&) {
    const auto moves = test::by_file(plan);
    std::uint64_t waiting = 0;
    for (std::uint32_t i = 0; i < world.files.size(); ++i) {
      const Verdict verdict = world.judge(i);
      const bool is_content =
          verdict.wants == world.files[i].tier && verdict.blocker == Blocker::None;
      waiting += !is_content && !moves.contains(i);
    }
    EXPECT_EQ(waiting, std::accumulate(plan.blocked.begin(), plan.blocked.end(), std::uint64_t{0}));
  });
}

TEST_P(PlannerPropertyTest, TheTiersAreAsFullAsPlanned) {
  for_each_world([](World& world, const Plan& plan, Random&) {
    world.execute(plan);
    for (std::size_t i = 0; i < world.tiers.size(); ++i)
      EXPECT_EQ(world.tiers[i].used, plan.used_after[i]);
  });
}

TEST_P(PlannerPropertyTest, TheOrderOfTheFilesDoesNotMatter) {
  for_each_world([](World& world, const Plan& plan, Random& random) {
    const auto moves = named_moves(world, plan);
    std::shuffle(world.files.begin(), world.files.end(), random.engine());
    EXPECT_EQ(named_moves(world, world.plan()), moves);
  });
}

// In a pool without room, a plan may use what an earlier plan freed, but this must end.
TEST_P(PlannerPropertyTest, RepeatedPlansAtTheSameTimeSoonMoveNothing) {
  const int most = GetParam().pool == Pool::Ordinary ? 1 : 3;
  for_each_world([most](World& world, Plan plan, Random&) {
    for (int plans = 0; plans < most; ++plans) {
      world.execute(plan);
      plan = world.plan();
    }
    EXPECT_TRUE(plan.moves.empty());
  });
}

// After an hour, min_stay may no longer block some files, but no file may move back.
TEST_P(PlannerPropertyTest, NothingMovesBackAndForthWithoutAccesses) {
  for_each_world([](World& world, const Plan& first, Random&) {
    std::vector<TierIndex> came_from(world.files.size(), kNoTier);
    Plan plan = first;
    for (int hour = 1; hour < 6; ++hour) {
      for (const PlannedMove& move : plan.moves) {
        if (is_by_heat(move.reason)) {
          EXPECT_NE(move.to, came_from[move.file]) << "hour " << hour;
        }
        came_from[move.file] = world.files[move.file].tier;
        world.execute(move);
        world.files[move.file].arrived += (hour - 1) * test::kHour;
      }
      plan = make_plan(world.files, world.tiers, world.policy, kNow + hour * test::kHour);
    }
  });
}

// By its own measure: what the files save within the horizon, less what the moves cost. Moves that
// a pin, a rule, a drain or a watermark demands may cost more than they gain.
TEST_P(PlannerPropertyTest, WhatIsMovedByValueGains) {
  if (GetParam().method != Method::Value) return;
  int worlds = 0, exchanges = 0;
  for_each_world([&](World& world, const Plan&, Random&) {
    for (FileFacts& file : world.files) {
      file.pin = kNoTier;
      file.rule = kNoRule;
    }
    for (TierFacts& tier : world.tiers) tier.draining = false;
    const Plan plan = world.plan();
    const Savings savings(world.tiers, world.policy.objective);
    constexpr double kHorizon = 7 * kDay;
    double gain = 0, sum = 0;
    bool exchanged = false;
    for (const PlannedMove& move : plan.moves) {
      if (move.reason == Reason::Crowded) return;
      exchanged |= move.reason == Reason::Outranked;
      const FileFacts& file = world.files[move.file];
      const double saved =
          kHorizon * plan.market.rates.rate_of(file, kNow) *
          (savings.in_all(move.to, file.bytes) - savings.in_all(file.tier, file.bytes));
      const double cost = savings.of_not_copying(file.bytes, file.tier, move.to);
      gain += saved - cost;
      sum += std::abs(saved) + cost;
    }
    worlds += !plan.moves.empty();
    exchanges += exchanged;
    EXPECT_GE(gain, -1e-6 * sum);
  });
  // Otherwise the worlds are not those that this is about.
  EXPECT_GT(worlds, 50);
  EXPECT_GT(exchanges, 10);
}

TEST_P(PlannerPropertyTest, OnlyFilesAboveThePriceGoUp) {
  if (GetParam().method != Method::Value) return;
  for_each_world([](const World& world, const Plan& plan, Random&) {
    for (const PlannedMove& move : plan.moves) {
      if (move.reason != Reason::Hot && move.reason != Reason::Returning) continue;
      const auto worth =
          appraise(world.files[move.file], world.tiers, world.policy, plan.market, kNow);
      EXPECT_GE(worth.per_byte[move.to], plan.market.prices[move.to] * (1 - 1e-6));
    }
  });
}

INSTANTIATE_TEST_SUITE_P(
    Pools, PlannerPropertyTest,
    testing::Values(Kind{Pool::Ordinary, Method::Thresholds}, Kind{Pool::Any, Method::Thresholds},
                    Kind{Pool::Ordinary, Method::Value}, Kind{Pool::Any, Method::Value},
                    Kind{Pool::Ordinary, Method::Value, Objective::Hits},
                    Kind{Pool::Any, Method::Value, Objective::Hits}),
    [](const auto& kind) {
      return std::string(kind.param.pool == Pool::Ordinary ? "Ordinary" : "Any") +
             (kind.param.method == Method::Thresholds   ? "ByThresholds"
              : kind.param.objective == Objective::Time ? "ByTime"
                                                        : "ByHits");
    });

}  // namespace
}  // namespace sluice
