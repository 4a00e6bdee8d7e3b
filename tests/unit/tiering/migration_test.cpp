// SPDX-License-Identifier: BSD-2-Clause
#include "tiering/move/migration.hpp"

#include <sys/xattr.h>

#include <algorithm>
#include <numeric>
#include <tuple>

#include "tests/support/fake_clock.hpp"
#include "tests/support/wait.hpp"
#include "tests/unit/tiering/move_host.hpp"
#include "tests/unit/tiering/pools.hpp"
#include "tiering/pool/pin.hpp"

namespace sluice {
namespace {

using std::chrono::hours;
using std::chrono::seconds;
using test::MemoryStore;
using Moved = std::tuple<std::string, std::string, std::string>;  // path, from, to

// Tier a has the threshold 10 and tier b the threshold 1.
class MigrationTest : public test::PoolTest {
 protected:
  void prepare() override {
    auto settings = make_tiers("abc");
    settings[0].threshold = 10;
    settings[1].threshold = 1;
    for (TierSettings& s : settings) s.moves = 1;
    pool_ = open(settings);
    host_ = std::make_unique<test::FakeHost>(*pool_, store_);
  }
  // Starts without automatic passes.
  void start() { start_every(seconds(0), 0); }
  void start_every(seconds interval, std::uint64_t bandwidth) {
    Migration::Settings settings;
    settings.policy.method = Method::Thresholds;
    settings.policy.min_stay = {};
    settings.half_life = hours(24);
    settings.automatic = interval > seconds(0);
    settings.interval = interval;
    settings.mover.bandwidth = bandwidth;
    migration_ = std::make_unique<Migration>(
        *pool_, store_, host_->switcher(), *host_,
        [this] {
          ++flushes_;
          if (on_flush_) on_flush_();
        },
        std::move(settings), clock_);
  }

  // Creates a file with this score.
  InodeId make(const std::string& name, double score) {
    const std::string path = dir_.make_file(name, test::pattern(10'000, 1));
    const InodeId id = identity_of(*pool_->by_name(name.substr(0, 1)), path).id;
    if (score > 0) {
      const Heat heat{.score = score, .last_access = clock_.seconds(), .opens = 5};
      if (!store_.add_heat({{id, heat}})) throw std::runtime_error("add heat");
    }
    return id;
  }
  void pin(const std::string& name, const std::string& to) const {
    ASSERT_EQ(::setxattr((dir_ / name).c_str(), kPinXattr, to.data(), to.size(), 0), 0);
  }
  Migration::Proposal propose() {
    auto proposal = migration_->propose({});
    if (!proposal) throw std::runtime_error(proposal.error().operation);
    return *std::move(proposal);
  }
  std::vector<Moved> proposed() {
    std::vector<Moved> out;
    for (const Move& move : propose().moves) {
      out.emplace_back(move.paths[0], (*pool_)[move.from].name(), (*pool_)[move.to].name());
    }
    return out;
  }
  // Runs a pass and returns its moves.
  std::vector<Moved> run() {
    std::vector<Moved> out;
    Migration::Listener listener;
    listener.ended = [&](const Receipt& receipt, bool pending) {
      if (!pending) out.emplace_back(receipt.path, receipt.from, receipt.to);
    };
    const auto outcome = migration_->run(listener);
    if (!outcome) throw std::runtime_error(outcome.error().operation);
    outcome_ = *outcome;
    return out;
  }
  std::string where(const std::string& name) const {
    std::string out;
    for (const char* tier : {"a", "b", "c"}) {
      if (test::exists(at(tier, name))) out += tier;
    }
    return out;
  }

  test::FakeClock clock_;
  MemoryStore store_{hours(24)};
  std::unique_ptr<Pool> pool_;
  std::unique_ptr<test::FakeHost> host_;
  std::atomic<int> flushes_{0};
  std::function<void()> on_flush_;  // set before the start
  Migration::Outcome outcome_;
  std::unique_ptr<Migration> migration_;
};

TEST_F(MigrationTest, MovesFilesToTheTiersOfTheirHeat) {
  make("c/hot", 100);
  make("c/warm", 5);
  make("a/cold", 0);
  make("a/stays", 50);
  start();
  run();
  EXPECT_EQ(where("hot"), "a");
  EXPECT_EQ(where("warm"), "b");
  EXPECT_EQ(where("cold"), "c");
  EXPECT_EQ(where("stays"), "a");
  EXPECT_EQ(outcome_.moved, 3u);
  EXPECT_EQ(outcome_.moved_bytes, 30'000u);
  EXPECT_EQ(outcome_.failed, 0u);
}

TEST_F(MigrationTest, ProposesTheMovesThatAPassMakes) {
  make("c/hot1", 100);
  make("c/hot2", 200);
  make("b/hot3", 300);
  make("a/cold1", 0);
  make("a/cold2", 0);
  make("b/pinned", 0);
  pin("b/pinned", "c");
  start();
  const std::vector<Moved> before = proposed();
  EXPECT_EQ(before.size(), 6u);
  EXPECT_EQ(run(), before);
}

TEST_F(MigrationTest, AProposalMovesNothing) {
  make("c/hot", 100);
  start();
  EXPECT_EQ(proposed().size(), 1u);
  EXPECT_EQ(where("hot"), "c");
  EXPECT_TRUE(host_->begun().empty());
}

TEST_F(MigrationTest, AProposalHasTheReasonAndTheFileOfEachMove) {
  make("c/hot", 100);
  start();
  const Migration::Proposal proposal = propose();
  ASSERT_EQ(proposal.moves.size(), 1u);
  EXPECT_EQ(proposal.moves[0].reason, Reason::Hot);
  EXPECT_NE(proposal.moves[0].why, "");
  ASSERT_EQ(proposal.files.size(), 1u);
  EXPECT_EQ(proposal.census.path(proposal.files[0]), "/hot");
}

TEST_F(MigrationTest, AfterAPassNothingMoreMoves) {
  make("c/hot", 100);
  make("a/cold", 0);
  start();
  run();
  EXPECT_TRUE(proposed().empty());
}

TEST_F(MigrationTest, TheCountsInMemoryAreWrittenBeforeAPlan) {
  start();
  propose();
  EXPECT_EQ(flushes_, 1);
}

TEST_F(MigrationTest, APendingMoveIsNotProposedAgain) {
  make("c/hot", 100);
  make("c/busy", 100);
  host_->refuse("/busy", EBUSY);
  start();
  run();
  EXPECT_EQ(outcome_.failed, 0u) << "it yields and is retried";
  const Migration::Proposal proposal = propose();
  EXPECT_TRUE(proposal.moves.empty());
  EXPECT_EQ(proposal.blocked_pending, 1u);
}

TEST_F(MigrationTest, AMoveToAnotherTierThanThePendingOneIsProposed) {
  const InodeId id = make("c/busy", 100);
  host_->refuse("/busy", EBUSY);
  start();
  Move elsewhere;
  elsewhere.id = id;
  elsewhere.paths = {"/busy"};
  elsewhere.from = 2;
  elsewhere.to = 1;
  ASSERT_TRUE(migration_->request(elsewhere));
  ASSERT_TRUE(test::eventually([&] { return migration_->mover().is_waiting(id); }));
  EXPECT_EQ(proposed(), (std::vector<Moved>{{"/busy", "c", "a"}}));
}

TEST_F(MigrationTest, AFileWithAMissingNameIsNotProposed) {
  make("c/hot", 100);
  ASSERT_EQ(::link(at("c", "hot").c_str(), (dir_ / "outside").c_str()), 0);
  start();
  const Migration::Proposal proposal = propose();
  EXPECT_TRUE(proposal.moves.empty());
  EXPECT_EQ(proposal.blocked_links, 1u);
}

TEST_F(MigrationTest, AFileMovesWithAllItsNames) {
  make("c/hot", 100);
  ASSERT_EQ(::link(at("c", "hot").c_str(), at("c", "second").c_str()), 0);
  start();
  run();
  EXPECT_EQ(where("hot"), "a");
  EXPECT_EQ(where("second"), "a");
  EXPECT_EQ(test::lstat_of(at("a", "hot")).st_ino, test::lstat_of(at("a", "second")).st_ino);
}

TEST_F(MigrationTest, ADrainingTierIsEmptied) {
  make("a/hot", 100);
  make("a/cold", 0);
  make("a/pinned", 0);
  pin("a/pinned", "a");
  make("b/other", 2);
  ASSERT_TRUE((*pool_)[0].set_draining(true));
  start();
  run();
  EXPECT_EQ(test::names_in(dir_ / "a"), std::vector<std::string>{".sluice"});
  EXPECT_EQ(where("hot"), "b");
  EXPECT_EQ(where("cold"), "c");
  EXPECT_EQ(where("other"), "b");
}

TEST_F(MigrationTest, TiersOnOneFilesystemAreAsFullAsTheirFiles) {
  make("a/f", 100);
  make("a/g", 100);
  make("b/h", 5);
  start();
  const Migration::Proposal proposal = propose();
  std::vector<std::uint64_t> held(3, 0);
  for (const FileFacts& file : proposal.census.files()) held[file.tier] += file.bytes;
  ASSERT_EQ(proposal.tiers.size(), 3u);
  for (std::size_t i = 0; i < 3; ++i) EXPECT_EQ(proposal.tiers[i].used, held[i]) << i;
  EXPECT_GE(proposal.tiers[0].used, 20'000u);
  EXPECT_EQ(proposal.tiers[2].used, 0u);
}

TEST_F(MigrationTest, HeatOfDeletedFilesIsForgotten) {
  const Heat old{.score = 1, .last_access = clock_.seconds() - 3 * 86400, .opens = 1};
  ASSERT_TRUE(store_.add_heat({{InodeId{2}, old}}));
  const auto slot = static_cast<std::uint8_t>((*pool_)[0].member().slot);
  ASSERT_TRUE(store_.add_ghosts({{InodeId{2}, {clock_.seconds(), slot}}}));
  start();
  run();
  EXPECT_EQ(store_.heat(InodeId{2})->opens, 0u);
  ASSERT_TRUE(store_.each_ghost([&](InodeId, const Ghost&) {
    ADD_FAILURE();
    return true;
  }));
}

TEST_F(MigrationTest, AListenerCanStopAPass) {
  for (int i = 0; i < 5; ++i) make("c/f" + std::to_string(i), 100);
  start();
  Migration::Listener listener;
  listener.moves = [](const Mover::Tally&) { return false; };
  migration_->mover().pause();
  ASSERT_TRUE(migration_->run(listener));
  EXPECT_EQ(migration_->mover().progress().queued, 0u);
  EXPECT_EQ(where("f0"), "c");
}

TEST_F(MigrationTest, AListenerGetsTheTotals) {
  make("c/f", 100);
  make("c/g", 100);
  start();
  std::uint64_t files = 0, bytes = 0;
  Migration::Listener listener;
  listener.moves = [&](const Mover::Tally& now) {
    files = now.files;
    bytes = now.bytes;
    EXPECT_LE(now.done_bytes, now.bytes);
    return true;
  };
  ASSERT_TRUE(migration_->run(listener));
  EXPECT_EQ(files, 2u);
  EXPECT_GE(bytes, 20'000u);
}

TEST_F(MigrationTest, NoPassIsDueIfPassesAreNotAutomatic) {
  start();
  migration_->replan_soon();
  migration_->tick();
  EXPECT_EQ(migration_->next_pass(), 0);
}

TEST_F(MigrationTest, AChangeBringsTheNextPassForward) {
  start_every(hours(1), 0);
  const std::int64_t now = clock_.seconds();
  EXPECT_GE(migration_->next_pass(), now + 3590);
  migration_->replan_soon();
  EXPECT_LE(migration_->next_pass(), now + 10);
}

TEST_F(MigrationTest, TheNextPassIsInAWindow) {
  const std::int64_t now = clock_.seconds();
  const auto two = [](int hour) { return (hour < 10 ? "0" : "") + std::to_string(hour) + ":00"; };
  const std::time_t later = now + 3 * 3600;
  std::tm local{};
  ::localtime_r(&later, &local);
  Migration::Tuning tuning;
  tuning.interval = std::chrono::minutes(15);
  tuning.windows = parse_windows(two(local.tm_hour) + "-" + two((local.tm_hour + 1) % 24)).value();
  start_every(hours(1), 0);
  migration_->change(tuning, Migration::Limits::Changed);
  EXPECT_GT(migration_->next_pass(), now + 2 * 3600 - 60);
  EXPECT_LT(migration_->next_pass(), now + 3 * 3600 + 16 * 60);
}

TEST_F(MigrationTest, ACrowdedTierBringsTheNextPassForward) {
  make("a/f", 100);
  start_every(hours(1), 0);
  ASSERT_TRUE(migration_->run({}));
  EXPECT_EQ(migration_->relief(0), Relief::NextPass);
  TierLimits limits = (*pool_)[0].limits();
  limits.capacity = 1 << 20;  // others use more of the filesystem
  (*pool_)[0].change(limits);
  const std::int64_t now = clock_.seconds();
  EXPECT_LE(migration_->next_pass(), now + 60);
  // Its file may leave, but that would not help: all tiers are on one filesystem.
  ASSERT_TRUE(migration_->propose({}));
  EXPECT_EQ(migration_->relief(0), Relief::Shared);
  migration_->mover().pause();
  EXPECT_EQ(migration_->relief(0), Relief::Paused);
}

TEST_F(MigrationTest, AChangeDuringAPassBringsTheNextPassForward) {
  on_flush_ = [this] { migration_->replan_soon(); };
  start_every(hours(1), 0);
  migration_->replan_soon();
  clock_.advance(seconds(10));
  EXPECT_TRUE(test::eventually([&] {
    migration_->tick();
    const std::int64_t soon = migration_->next_pass() - clock_.seconds();
    return flushes_ >= 1 && soon > 0 && soon <= 10;
  })) << "the change waits for an hour";
}

TEST_F(MigrationTest, PassesRunAutomatically) {
  make("c/hot", 100);
  start_every(hours(1), 0);
  clock_.advance(hours(1));
  EXPECT_TRUE(test::eventually([&] {
    migration_->tick();
    return where("hot") == "a";
  }));
}

TEST_F(MigrationTest, ChangedSettingsEndTheRunningPassAndSpeedUpItsCopies) {
  make("b/f", 100);
  make("c/g", 100);
  start_every(hours(1), 1);
  clock_.advance(hours(1));
  ASSERT_TRUE(test::eventually([&] {
    migration_->tick();
    const Mover::Progress now = migration_->mover().progress();
    return now.copied_bytes > 0 && now.queued == 1;
  })) << "one of the two copies, the other waits for it";

  Migration::Tuning tuning;
  tuning.policy.method = Method::Thresholds;
  tuning.interval = hours(2);
  tuning.policy.min_stay = {};
  tuning.mover.bandwidth = 1;
  migration_->change(tuning, Migration::Limits::Same);
  EXPECT_EQ(migration_->mover().progress().queued, 1u) << "the plan is still right";
  migration_->change(tuning, Migration::Limits::Changed);
  EXPECT_TRUE(test::eventually([&] { return migration_->mover().progress().queued == 0; }));
  EXPECT_EQ(where("f") + where("g"), "bc");
  EXPECT_LE(migration_->next_pass(), clock_.seconds() + 10) << "the next one is soon";

  tuning.automatic = false;
  tuning.mover.bandwidth = 0;
  migration_->change(tuning, Migration::Limits::Same);
  EXPECT_EQ(migration_->next_pass(), 0);
  EXPECT_TRUE(test::eventually([&] { return where("f") == "a" || where("g") == "a"; }));
}

TEST_F(MigrationTest, CanBeDestroyedDuringAPass) {
  for (int i = 0; i < 3; ++i) make("c/f" + std::to_string(i), 100);
  start_every(hours(1), 1);
  clock_.advance(hours(1));
  ASSERT_TRUE(test::eventually([&] {
    migration_->tick();
    return migration_->mover().progress().copied_bytes > 0;
  }));
  migration_.reset();
  EXPECT_EQ(where("f0"), "c");
  EXPECT_TRUE(test::names_in(at("a", ".sluice/tmp")).empty());
}

}  // namespace
}  // namespace sluice
