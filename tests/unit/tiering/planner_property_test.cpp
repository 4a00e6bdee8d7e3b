// SPDX-License-Identifier: BSD-2-Clause
// What holds of every plan, tried on random pools: ordinary ones, and ones that are full, lame or
// misconfigured.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
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
  // Evenly over the orders of magnitude.
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
  Ordinary,  // thresholds in order, all tiers well, and the slowest can take whatever there is
  Any
};

FileFacts random_file(Random& random, const World& world) {
  FileFacts file;
  file.bytes = random.chance(0.03) ? 0 : static_cast<std::uint64_t>(random.magnitude(1, 1e9));
  file.score = random.chance(0.2) ? 0 : static_cast<float>(random.magnitude(0.01, 1000));
  file.opens = static_cast<std::uint32_t>(random.whole(0, 6));
  file.last_use = kNow - static_cast<std::int64_t>(random.magnitude(1, 30 * kDay));
  file.arrived = kNow - static_cast<std::int64_t>(random.magnitude(1, 30 * kDay));
  file.tier = random.tier(world);
  if (random.chance(0.1)) file.pin = random.tier(world);
  if (random.chance(0.1)) file.rule = static_cast<std::uint16_t>(random.whole(0, 3));
  if (random.chance(0.1)) file.ghost_of = random.tier(world);
  return file;
}

World random_world(Random& random, Pool kind) {
  World world;
  const bool is_ordinary = kind == Pool::Ordinary;
  world.tiers.assign(random.whole(is_ordinary ? 2 : 1, 5), TierFacts{});
  for (TierFacts& tier : world.tiers) {
    tier.threshold = random.chance(0.2) ? 0 : random.magnitude(0.1, 300);
    tier.high_watermark = static_cast<unsigned>(random.whole(40, 100));
    tier.low_watermark =
        static_cast<unsigned>(random.whole(20, is_ordinary ? tier.high_watermark : 100));
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

// For comparing plans of the same files in another order.
using NamedMove = std::tuple<InodeId, TierIndex, Reason>;
std::vector<NamedMove> named_moves(const World& world, const Plan& plan) {
  std::vector<NamedMove> moves;
  for (const PlannedMove& move : plan.moves)
    moves.emplace_back(world.files[move.file].id, move.to, move.reason);
  return moves;
}

class PlannerPropertyTest : public testing::TestWithParam<Pool> {
 protected:
  // Calls `check` with random worlds and what is planned for them.
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

  // Calls `check` with the world as it is before each move.
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

TEST_P(PlannerPropertyTest, EveryMoveGoesFromATierThatIsThereToAnotherThatTakesFiles) {
  for_each_move([](const World& world, const PlannedMove& move, const FileFacts& file) {
    EXPECT_NE(file.tier, move.to);
    EXPECT_TRUE(world.tiers[file.tier].online);
    EXPECT_TRUE(world.tiers[move.to].online);
    EXPECT_FALSE(world.tiers[move.to].draining);
  });
}

TEST_P(PlannerPropertyTest, HeatNeverLiftsATierAboveItsHighWatermark) {
  for_each_move([](const World& world, const PlannedMove& move, const FileFacts& file) {
    const TierFacts& to = world.tiers[move.to];
    if (is_by_heat(move.reason)) {
      EXPECT_LE(to.used + file.bytes, percent(to, to.high_watermark));
    }
  });
}

TEST_P(PlannerPropertyTest, EveryMoveFitsBelowTheBrimWhenItsTurnComes) {
  for_each_move([](const World& world, const PlannedMove& move, const FileFacts& file) {
    const TierFacts& to = world.tiers[move.to];
    EXPECT_LE(to.used + file.bytes, percent(to, 98));
  });
}

TEST_P(PlannerPropertyTest, OnlyTheSlowestTierTakesCrowdsAboveItsHighWatermark) {
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

TEST_P(PlannerPropertyTest, MovesGoTheWayTheirReasonSays) {
  for_each_move([](const World&, const PlannedMove& move, const FileFacts& file) {
    if (move.reason == Reason::Hot || move.reason == Reason::Returning) {
      EXPECT_LT(move.to, file.tier);
    }
    if (move.reason == Reason::Cold || is_for_want_of_room(move.reason)) {
      EXPECT_GT(move.to, file.tier);
    }
  });
}

TEST_P(PlannerPropertyTest, PinsAndRulesAlwaysWinOverHeat) {
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

TEST_P(PlannerPropertyTest, HeatMovesAndReplacesOnlyWhatHasStayedLongEnough) {
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
      const bool is_content = verdict.wants == world.files[i].tier && verdict.hold == Hold::None;
      waiting += !is_content && !moves.contains(i);
    }
    EXPECT_EQ(waiting,
              plan.held_min_stay + plan.held_only_once + plan.held_no_room + plan.held_offline);
  });
}

TEST_P(PlannerPropertyTest, TheTiersAreAsFullAsThePlanSaid) {
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

// In a pool without room, what one plan frees another may use; but that ends.
TEST_P(PlannerPropertyTest, PlanningAgainAtTheSameInstantSoonMovesNothing) {
  const int most = GetParam() == Pool::Ordinary ? 1 : 3;
  for_each_world([most](World& world, Plan plan, Random&) {
    for (int plans = 0; plans < most; ++plans) {
      world.execute(plan);
      plan = world.plan();
    }
    EXPECT_TRUE(plan.moves.empty());
  });
}

// An hour of nothing but time may let go what min_stay held, but nothing may go back.
TEST_P(PlannerPropertyTest, NothingGoesToAndFroWhileNothingIsUsed) {
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

INSTANTIATE_TEST_SUITE_P(Pools, PlannerPropertyTest, testing::Values(Pool::Ordinary, Pool::Any),
                         [](const auto& pool) {
                           return pool.param == Pool::Ordinary ? "Ordinary" : "Any";
                         });

}  // namespace
}  // namespace sluice
