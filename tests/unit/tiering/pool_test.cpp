// SPDX-License-Identifier: BSD-2-Clause
#include "tiering/pool/pool.hpp"

#include <linux/fs.h>
#include <sys/ioctl.h>

#include "tests/unit/tiering/pools.hpp"

namespace sluice {
namespace {

using Missing = Pool::Missing;
using NewTiers = Pool::NewTiers;

class PoolOpenTest : public test::PoolTest {
 protected:
  bool says(const std::string& text) const { return why_.find(text) != std::string::npos; }
  // Creates a pool of these tiers and closes it.
  std::vector<TierSettings> made(const std::string& letters) {
    auto settings = make_tiers(letters);
    pool_id_ = open(settings)->id();
    return settings;
  }
  Marker marker(const std::string& name) const {
    return **read_marker(test::open_directory(dir_ / name).get());
  }
  static void set_immutable(const std::string& path, bool on) {
    const auto fd = test::open_directory(path);
    int flags = 0;
    if (::ioctl(fd.get(), FS_IOC_GETFLAGS, &flags) < 0) throw std::runtime_error("get flags");
    flags = on ? flags | FS_IMMUTABLE_FL : flags & ~FS_IMMUTABLE_FL;
    if (::ioctl(fd.get(), FS_IOC_SETFLAGS, &flags) < 0) throw std::runtime_error("set flags");
  }

  std::string pool_id_;
};

TEST_F(PoolOpenTest, ANewPoolMarksItsTiers) {
  const auto pool = open(make_tiers("ab"));
  ASSERT_EQ(pool->size(), 2u);
  EXPECT_EQ((*pool)[0].name(), "a");
  EXPECT_EQ((*pool)[1].name(), "b");
  EXPECT_TRUE((*pool)[0].online() && (*pool)[1].online());
  EXPECT_EQ(pool->id().size(), 36u);
  EXPECT_EQ(marker("a").pool, pool->id());
  EXPECT_EQ(marker("b").pool, pool->id());
  EXPECT_EQ(marker("a").self, (*pool)[0].member());
  EXPECT_EQ(marker("a").members.size(), 2u);
  EXPECT_EQ(marker("b").members, marker("a").members);
  EXPECT_NE((*pool)[0].member().slot, (*pool)[1].member().slot);
  EXPECT_EQ(pool->by_slot((*pool)[1].member().slot), &(*pool)[1]);
  EXPECT_EQ(pool->by_slot(17), nullptr);
}

TEST_F(PoolOpenTest, ReopeningFindsTheSamePool) {
  const auto settings = make_tiers("ab");
  auto pool = open(settings);
  const std::string id = pool->id();
  const Member first = (*pool)[0].member(), second = (*pool)[1].member();
  pool.reset();
  pool = open(settings);
  EXPECT_EQ(pool->id(), id);
  EXPECT_EQ((*pool)[0].member(), first);
  EXPECT_EQ((*pool)[1].member(), second);
}

TEST_F(PoolOpenTest, TiersAreInTheOrderOfTheConfiguration) {
  auto settings = made("ab");
  std::swap(settings[0], settings[1]);
  const auto pool = open(settings);
  EXPECT_EQ((*pool)[0].name(), "b");
  EXPECT_EQ((*pool)[0].index(), 0);
}

TEST_F(PoolOpenTest, ASecondUserOfThePoolIsRefused) {
  const auto settings = make_tiers("ab");
  auto pool = open(settings);
  EXPECT_EQ(try_open(settings), nullptr);
  EXPECT_TRUE(says("already in use")) << why_;
  EXPECT_TRUE(says("pid " + std::to_string(::getpid()) + ", used by a test")) << why_;
  pool.reset();
  EXPECT_NE(try_open(settings), nullptr) << why_;
}

TEST_F(PoolOpenTest, ASecondUserOfOneTierIsRefused) {
  const auto settings = make_tiers("ab");
  const auto pool = open(settings);
  EXPECT_EQ(try_open({settings[1]}, Missing::Tolerate), nullptr);
  EXPECT_TRUE(says("already in use")) << why_;
}

TEST_F(PoolOpenTest, ARefusedUserChangesNothing) {
  const auto settings = make_tiers("ab");
  auto pool = open(settings);
  EXPECT_EQ(try_open(make_tiers("abc")), nullptr);
  pool.reset();
  EXPECT_EQ(marker("a").members.size(), 2u);
  EXPECT_NE(try_open(settings), nullptr) << why_;
}

TEST_F(PoolOpenTest, ATierThatComesBackLaterIsLockedToo) {
  const auto settings = made("ab");
  ASSERT_EQ(::rename((dir_ / "b").c_str(), (dir_ / "away").c_str()), 0);
  const auto pool = open(settings, Missing::Tolerate);
  ASSERT_EQ(::rename((dir_ / "away").c_str(), (dir_ / "b").c_str()), 0);
  ASSERT_TRUE((*pool)[1].check_presence());
  ASSERT_TRUE((*pool)[1].present());
  EXPECT_EQ(try_open({settings[1]}, Missing::Tolerate), nullptr);
}

TEST_F(PoolOpenTest, AMissingTierIsRefusedUnlessTolerated) {
  const auto settings = made("ab");
  ASSERT_EQ(::rename((dir_ / "b").c_str(), (dir_ / "away").c_str()), 0);
  EXPECT_EQ(try_open(settings), nullptr);
  EXPECT_TRUE(says("tier b: " + (dir_ / "b"))) << why_;
  EXPECT_TRUE(says("--degraded")) << why_;

  const auto pool = try_open(settings, Missing::Tolerate);
  ASSERT_NE(pool, nullptr) << why_;
  EXPECT_EQ(pool->id(), pool_id_);
  ASSERT_EQ(pool->size(), 2u);
  EXPECT_TRUE((*pool)[0].online());
  EXPECT_FALSE((*pool)[1].online());
  EXPECT_NE((*pool)[1].why_offline(), "");
  EXPECT_EQ((*pool)[1].member().name, "b");
  EXPECT_EQ(pool->placement(), std::vector<TierIndex>{0});

  ASSERT_EQ(::rename((dir_ / "away").c_str(), (dir_ / "b").c_str()), 0);
  EXPECT_TRUE((*pool)[1].check_presence());
  (*pool)[1].admit();
  EXPECT_TRUE((*pool)[1].online());
  EXPECT_EQ(pool->placement(), (std::vector<TierIndex>{0, 1}));
}

TEST_F(PoolOpenTest, AnUnknownMissingTierIsAlwaysRefused) {
  auto settings = made("a");
  settings.push_back(tier("b", dir_ / "nowhere"));
  EXPECT_EQ(try_open(settings, Missing::Tolerate), nullptr);
  EXPECT_TRUE(says("does not know this tier")) << why_;
}

TEST_F(PoolOpenTest, AnEmptyDirectoryInPlaceOfAKnownTierIsRefused) {
  const auto settings = made("ab");
  ASSERT_EQ(::rename((dir_ / "b").c_str(), (dir_ / "away").c_str()), 0);
  dir_.make_dir("b");
  EXPECT_EQ(try_open(settings), nullptr);
  EXPECT_TRUE(says("has no .sluice/tier.json")) << why_;
  EXPECT_TRUE(test::names_in(dir_ / "b").empty()) << "and stays as it was";

  const auto pool = try_open(settings, Missing::Tolerate);
  ASSERT_NE(pool, nullptr) << why_;
  EXPECT_FALSE((*pool)[1].online());
  EXPECT_TRUE(test::names_in(dir_ / "b").empty());
}

TEST_F(PoolOpenTest, ATierOfAnotherPoolIsRefused) {
  const auto settings = made("ab");
  open({tier("c", dir_.make_dir("c"))});
  auto mixed = settings;
  mixed.push_back(tier("c", dir_ / "c"));
  EXPECT_EQ(try_open(mixed), nullptr);
  EXPECT_TRUE(says("tier c") && says("belongs to another pool")) << why_;
  EXPECT_EQ(try_open(mixed, Missing::Tolerate), nullptr);
}

TEST_F(PoolOpenTest, SwappedPathsAreRefused) {
  auto settings = made("ab");
  std::swap(settings[0].path, settings[1].path);
  EXPECT_EQ(try_open(settings), nullptr);
  EXPECT_TRUE(says("is this pool's tier b")) << why_;
}

TEST_F(PoolOpenTest, ATierCanBeAddedAndKeepsTheOldSlots) {
  const auto before = made("ab");
  const Member a = marker("a").self;
  auto pool = open(make_tiers("abc"));
  EXPECT_EQ(pool->id(), pool_id_);
  EXPECT_EQ((*pool)[0].member(), a);
  EXPECT_EQ((*pool)[2].member().slot, 3u);
  for (const char* name : {"a", "b", "c"}) EXPECT_EQ(marker(name).members.size(), 3u) << name;
  pool.reset();
  EXPECT_EQ(try_open(before), nullptr) << "c's files would be missing";
}

TEST_F(PoolOpenTest, AMemberThatIsNotConfiguredIsRefusedUnlessTolerated) {
  const auto settings = made("ab");
  EXPECT_EQ(try_open({settings[0]}), nullptr);
  EXPECT_TRUE(says("also has a tier b")) << why_;
  const auto pool = try_open({settings[0]}, Missing::Tolerate);
  ASSERT_NE(pool, nullptr) << why_;
  EXPECT_EQ(pool->size(), 1u);
}

TEST_F(PoolOpenTest, ASlotIsNeverReused) {
  made("ab");
  // b is gone and c is new. c must not get b's slot, which is part of the ids of b's files.
  const auto pool = try_open(make_tiers("ac"), Missing::Tolerate);
  ASSERT_NE(pool, nullptr) << why_;
  EXPECT_EQ((*pool)[1].member().slot, 3u);
}

TEST_F(PoolOpenTest, ThereAreThirtySlots) {
  std::vector<TierSettings> settings;
  for (int i = 0; i < 31; ++i) {
    const std::string name = "t" + std::to_string(i);
    settings.push_back(tier(name, dir_.make_dir(name)));
  }
  EXPECT_EQ(try_open(settings), nullptr);
  EXPECT_TRUE(says("30 tiers")) << why_;
  settings.pop_back();
  const auto pool = try_open(settings);
  ASSERT_NE(pool, nullptr) << why_;
  EXPECT_EQ((*pool)[29].member().slot, 30u);
}

TEST_F(PoolOpenTest, NewTiersAreRefusedOnRequest) {
  const auto settings = make_tiers("ab");
  EXPECT_EQ(try_open(settings, Missing::Refuse, NewTiers::Refuse), nullptr);
  EXPECT_TRUE(says("never been part of a pool")) << why_;
  EXPECT_TRUE(test::names_in(dir_ / "a").empty());
  made("ab");
  EXPECT_NE(try_open(settings, Missing::Refuse, NewTiers::Refuse), nullptr) << why_;
}

TEST_F(PoolOpenTest, DamagedAndNewerMarkersAreRefused) {
  const auto settings = made("ab");
  const std::string good = test::read_file(at("b", ".sluice/tier.json"));
  test::write_file(at("b", ".sluice/tier.json"), "garbage");
  EXPECT_EQ(try_open(settings, Missing::Tolerate), nullptr);
  EXPECT_TRUE(says("restore it from a backup")) << why_;
  EXPECT_EQ(test::read_file(at("b", ".sluice/tier.json")), "garbage");
  test::write_file(at("b", ".sluice/tier.json"), "{\"version\": 9}");
  EXPECT_EQ(try_open(settings), nullptr);
  EXPECT_TRUE(says("newer Sluice")) << why_;
  test::write_file(at("b", ".sluice/tier.json"), good);
  EXPECT_NE(try_open(settings), nullptr) << why_;
}

TEST_F(PoolOpenTest, CanBeRepeatedAfterAFailureHalfway) {
  if (!test::require("unit", test::on_ext4(dir_.path()), "needs ext4's immutable flag")) return;
  const auto settings = make_tiers("ab");
  set_immutable(dir_ / "b", true);
  const bool opened = try_open(settings) != nullptr;
  set_immutable(dir_ / "b", false);
  ASSERT_FALSE(opened);
  EXPECT_TRUE(says("tier b: ")) << why_;
  EXPECT_NE(try_open(settings), nullptr) << why_;
}

TEST_F(PoolOpenTest, AnAddedTierBecomesTheSlowest) {
  const auto pool = open(make_tiers("ab"));
  ASSERT_TRUE(add(*pool, tier("c", dir_.make_dir("c")))) << why_;
  ASSERT_EQ(pool->size(), 3u);
  EXPECT_EQ((*pool)[2].name(), "c");
  EXPECT_EQ((*pool)[2].index(), 2);
  EXPECT_EQ((*pool)[2].member().slot, 3u);
  EXPECT_TRUE((*pool)[2].online());
  EXPECT_EQ(pool->by_name("c"), &(*pool)[2]);
  EXPECT_EQ(pool->placement().back(), 2);
}

TEST_F(PoolOpenTest, AnAddedTierIsLockedAndRecordedOnAllTiers) {
  auto pool = open(make_tiers("ab"));
  ASSERT_TRUE(add(*pool, tier("c", dir_.make_dir("c")))) << why_;
  for (const char* name : {"a", "b", "c"}) EXPECT_EQ(marker(name).members.size(), 3u) << name;
  EXPECT_EQ(marker("c").pool, pool->id());
  EXPECT_EQ(try_open({tier("c", dir_ / "c")}, Missing::Tolerate), nullptr);
  EXPECT_TRUE(says("already in use")) << why_;
  const Member added = (*pool)[2].member();
  pool.reset();
  EXPECT_EQ(try_open(make_tiers("ab")), nullptr) << "c's files would be missing";
  pool = try_open(make_tiers("abc"));
  ASSERT_NE(pool, nullptr) << why_;
  EXPECT_EQ((*pool)[2].member(), added);
}

TEST_F(PoolOpenTest, ADirectoryThatBelongsToAPoolIsNotAdded) {
  made("x");
  const auto pool = open(make_tiers("ab"));
  EXPECT_FALSE(add(*pool, tier("x", dir_ / "x")));
  EXPECT_TRUE(says("belongs to a pool already")) << why_;
  EXPECT_FALSE(add(*pool, tier("again", dir_ / "a")));
  EXPECT_TRUE(says("is this pool's tier a already")) << why_;
  EXPECT_EQ(pool->size(), 2u);
}

TEST_F(PoolOpenTest, AMissingDirectoryIsNotAdded) {
  const auto pool = open(make_tiers("ab"));
  EXPECT_FALSE(add(*pool, tier("c", dir_ / "nowhere")));
  EXPECT_TRUE(says("tier c")) << why_;
  EXPECT_EQ(pool->size(), 2u);
}

TEST_F(PoolOpenTest, ATierWithAKnownNameIsNotAdded) {
  const auto pool = open(make_tiers("ab"));
  EXPECT_FALSE(add(*pool, tier("b", dir_.make_dir("c"))));
  EXPECT_TRUE(says("another name")) << why_;
  EXPECT_TRUE(test::names_in(dir_ / "c").empty());
}

TEST_F(PoolOpenTest, AddingATierBeyondTheLastSlotFailsWithAReason) {
  std::vector<TierSettings> settings;
  for (unsigned i = 0; i < kMaxSlot; ++i) {
    const std::string name = "t" + std::to_string(i);
    settings.push_back(tier(name, dir_.make_dir(name)));
  }
  const auto pool = open(settings);
  EXPECT_FALSE(add(*pool, tier("more", dir_.make_dir("more"))));
  EXPECT_NE(why_, "");
}

TEST_F(PoolOpenTest, ARetiredTierMayBeMissing) {
  const auto settings = make_tiers("ab");
  auto pool = open(settings);
  ASSERT_TRUE(pool->set_retired(1, true));
  pool.reset();
  pool = try_open({settings[0]});
  ASSERT_NE(pool, nullptr) << why_;
  EXPECT_EQ(pool->size(), 1u);
  EXPECT_TRUE(pool->placement() == std::vector<TierIndex>{0});
}

TEST_F(PoolOpenTest, ATierThatIsNoLongerRetiredMayNotBeMissing) {
  const auto settings = make_tiers("ab");
  auto pool = open(settings);
  ASSERT_TRUE(pool->set_retired(1, true));
  pool.reset();
  pool = open(settings);
  ASSERT_TRUE(pool->set_retired(1, false));
  pool.reset();
  EXPECT_EQ(try_open({settings[0]}), nullptr);
  pool = open(settings);
  pool.reset();
  EXPECT_EQ(try_open({settings[0]}), nullptr);
}

// As on a disk without a free block.
TEST_F(PoolOpenTest, ATierThatIsNotRetiredNeedsNoRoomToStaySo) {
  const auto settings = make_tiers("ab");
  const auto pool = open(settings);
  dir_.make_dir("b/.sluice/tier.json.new");  // in the way of any other marker
  EXPECT_TRUE(pool->set_retired(1, false));
  EXPECT_FALSE(pool->set_retired(1, true));
  EXPECT_FALSE(pool->set_retired(1, true)) << "what could not be written was taken as written";
  ASSERT_EQ(::rmdir((dir_ / "b/.sluice/tier.json.new").c_str()), 0);
  EXPECT_TRUE(pool->set_retired(1, true));
}

TEST_F(PoolOpenTest, ATierThatWasAwayLearnsOfARetiredTier) {
  const auto settings = made("abc");
  ASSERT_EQ(::rename((dir_ / "b").c_str(), (dir_ / "away").c_str()), 0);
  auto pool = open(settings, Missing::Tolerate);
  ASSERT_TRUE(pool->set_retired(2, true));
  pool.reset();
  ASSERT_EQ(::rename((dir_ / "away").c_str(), (dir_ / "b").c_str()), 0);
  for (const auto& order :
       {std::vector{settings[0], settings[1]}, std::vector{settings[1], settings[0]}})
    EXPECT_NE(try_open(order), nullptr) << why_;
}

TEST_F(PoolOpenTest, TheNameOfARetiredTierIsNotReused) {
  const auto settings = make_tiers("ab");
  auto pool = open(settings);
  ASSERT_TRUE(pool->set_retired(1, true));
  pool.reset();
  pool = open({settings[0]});
  EXPECT_FALSE(add(*pool, tier("b", dir_.make_dir("c"))));
  ASSERT_TRUE(add(*pool, tier("c", dir_ / "c"))) << why_;
  EXPECT_EQ((*pool)[1].member().slot, 3u);
}

TEST_F(PoolOpenTest, ADrainingTierIsStillDrainingAfterReopening) {
  const auto settings = make_tiers("ab");
  auto pool = open(settings);
  EXPECT_FALSE((*pool)[0].is_draining());
  ASSERT_TRUE((*pool)[0].set_draining(true));
  pool.reset();
  pool = open(settings);
  EXPECT_TRUE((*pool)[0].is_draining());
  EXPECT_FALSE((*pool)[1].is_draining());
  ASSERT_TRUE((*pool)[0].set_draining(false));
  ASSERT_TRUE((*pool)[0].set_draining(false)) << "twice is no error";
  pool.reset();
  EXPECT_FALSE((*open(settings))[0].is_draining());
}

class PoolReplaceTest : public PoolOpenTest {
 protected:
  // A pool of three tiers of which the disk of "b" is gone; it is in "away".
  std::unique_ptr<Pool> without_b() {
    settings_ = made("abc");
    if (::rename((dir_ / "b").c_str(), (dir_ / "away").c_str()) < 0)
      throw std::runtime_error("rename");
    return open(settings_, Missing::Tolerate);
  }
  std::optional<unsigned> replace(Pool& pool, const std::string& path) {
    auto replacement = pool.prepare_replacement(tier("b", path));
    why_ = replacement ? "" : replacement.error().text();
    if (!replacement) return std::nullopt;
    const auto lost = pool.replace(*std::move(replacement));
    pool.announce();
    return lost;
  }
  std::vector<TierSettings> with_b_at(const std::string& path) {
    auto changed = settings_;
    changed[1].path = path;
    return changed;
  }

  std::vector<TierSettings> settings_;
};

TEST_F(PoolReplaceTest, TheNewDiskHasTheNameAndTheIndexAndASlotOfItsOwn) {
  auto pool = without_b();
  const Tier& old = (*pool)[1];
  EXPECT_EQ(replace(*pool, dir_.make_dir("new")), 2u) << why_;
  Tier& now = (*pool)[1];
  EXPECT_EQ(pool->size(), 3u);
  EXPECT_EQ(now.name(), "b");
  EXPECT_EQ(now.member().slot, 4u);
  EXPECT_EQ(old.member().slot, 2u) << "threads may still use it";
  EXPECT_EQ(pool->by_slot(2), nullptr);
  EXPECT_TRUE(pool->is_lost(2));
  EXPECT_FALSE(now.online());
  EXPECT_TRUE(now.check_presence());
  now.admit();
  EXPECT_TRUE(now.online());
  pool.reset();
  pool = open(with_b_at(dir_ / "new"));
  EXPECT_EQ((*pool)[1].member().slot, 4u);
  EXPECT_TRUE(pool->is_lost(2));
}

TEST_F(PoolReplaceTest, TheOldDiskIsNotTakenForTheNewOne) {
  auto pool = without_b();
  ASSERT_TRUE(replace(*pool, dir_.make_dir("new"))) << why_;
  pool.reset();
  EXPECT_EQ(try_open(with_b_at(dir_ / "away")), nullptr);
  EXPECT_TRUE(says("before another disk took its place")) << why_;
  pool = open(with_b_at(dir_ / "away"), Missing::Tolerate);
  EXPECT_FALSE((*pool)[1].present());
  EXPECT_FALSE((*pool)[1].check_presence());
}

TEST_F(PoolReplaceTest, TheOldDiskCanBeAddedUnderAnotherName) {
  auto pool = without_b();
  ASSERT_TRUE(replace(*pool, dir_.make_dir("new"))) << why_;
  EXPECT_FALSE(add(*pool, tier("b", dir_ / "away")));
  ASSERT_TRUE(add(*pool, tier("old", dir_ / "away"))) << why_;
  EXPECT_EQ((*pool)[3].member().slot, 2u) << "so that its files keep their identity";
  EXPECT_FALSE(pool->is_lost(2));
  EXPECT_TRUE((*pool)[3].check_presence());
  pool.reset();
  auto all = with_b_at(dir_ / "new");
  all.push_back(tier("old", dir_ / "away"));
  pool = open(all);
  EXPECT_EQ((*pool)[3].member().slot, 2u);
}

TEST_F(PoolReplaceTest, ReplacingAgainAfterTheDaemonDiedFinishes) {
  auto pool = without_b();
  const Marker before = marker("a");
  ASSERT_TRUE(replace(*pool, dir_.make_dir("new"))) << why_;
  pool.reset();
  // As if the daemon had died before the other tiers knew.
  for (const char* name : {"a", "c"}) {
    Marker old = before;
    old.self = marker(name).self;
    ASSERT_TRUE(write_marker(test::open_directory(dir_ / name).get(), old));
  }
  pool = open(settings_, Missing::Tolerate);
  EXPECT_EQ((*pool)[1].member().slot, 2u) << "as before";
  EXPECT_TRUE(replace(*pool, dir_ / "new")) << why_;
  pool.reset();
  EXPECT_NE(try_open(with_b_at(dir_ / "new")), nullptr) << why_;
  EXPECT_EQ(marker("a").members, marker("new").members);
}

TEST_F(PoolReplaceTest, TheNextMountTellsTheTiersThatDoNotKnowTheNewDisk) {
  auto pool = without_b();
  const Marker before = marker("c");
  ASSERT_TRUE(replace(*pool, dir_.make_dir("new"))) << why_;
  pool.reset();
  ASSERT_TRUE(write_marker(test::open_directory(dir_ / "c").get(), before));
  pool = open(with_b_at(dir_ / "new"));
  EXPECT_EQ(marker("c").members, marker("new").members);
}

TEST_F(PoolReplaceTest, WhatIsInUseOrUnknownIsRefused) {
  auto pool = without_b();
  EXPECT_FALSE(replace(*pool, dir_ / "c"));
  EXPECT_TRUE(says("is this pool's tier c")) << why_;
  EXPECT_FALSE(replace(*pool, dir_ / "nowhere"));
  EXPECT_TRUE(says("give a directory that exists")) << why_;
  EXPECT_FALSE(pool->prepare_replacement(tier("x", dir_.make_dir("new"))));
  EXPECT_FALSE(pool->prepare_replacement(tier("a", dir_ / "new")));
  ASSERT_EQ(::rename((dir_ / "away").c_str(), (dir_ / "b").c_str()), 0);
  EXPECT_FALSE(replace(*pool, dir_ / "new"));
  EXPECT_TRUE(says("is not lost")) << why_;
  EXPECT_FALSE(test::exists(dir_ / "new/.sluice"));
}

class PlacementTest : public test::PoolTest {
 protected:
  // Fills the settings so that the tier looks...
  static void roomy(TierSettings& s) {
    s.high_watermark = 100;
    s.reserve = 0;
  }
  static void above_watermark(TierSettings& s) {
    s.high_watermark = 0;
    s.reserve = 0;
  }
  static void low(TierSettings& s) {
    s.high_watermark = 100;
    s.capacity = 1;  // less than is used, so nothing is free
    s.reserve = 1 << 20;
  }
  using Make = void (*)(TierSettings&);
  std::vector<TierIndex> order(std::vector<Make> states) {
    auto settings = make_tiers(std::string("abcd").substr(0, states.size()));
    for (std::size_t i = 0; i < states.size(); ++i) states[i](settings[i]);
    return open(settings)->placement();
  }
};

using Order = std::vector<TierIndex>;

TEST_F(PlacementTest, TheFastestComesFirst) {
  EXPECT_EQ(order({roomy, roomy, roomy}), (Order{0, 1, 2}));
}

TEST_F(PlacementTest, TiersAboveTheirWatermarkComeAfterOthers) {
  EXPECT_EQ(order({above_watermark, roomy, roomy}), (Order{1, 2, 0}));
  EXPECT_EQ(order({above_watermark, above_watermark, roomy}), (Order{2, 0, 1}));
}

TEST_F(PlacementTest, TiersBelowTheirReserveComeLast) {
  EXPECT_EQ(order({low, roomy, roomy}), (Order{1, 2, 0}));
  EXPECT_EQ(order({low, above_watermark, roomy}), (Order{2, 1, 0}));
  EXPECT_EQ(order({low, above_watermark, low, roomy}), (Order{3, 1, 0, 2}));
}

TEST_F(PlacementTest, IfAllAreFullTheFastestIsStillTriedFirst) {
  EXPECT_EQ(order({low, low}), (Order{0, 1}));
  EXPECT_EQ(order({above_watermark, above_watermark}), (Order{0, 1}));
}

TEST_F(PlacementTest, OfflineTiersAreLeftOut) {
  const auto pool = open(make_tiers("ab"));
  ASSERT_EQ(::rename((dir_ / "a").c_str(), (dir_ / "away").c_str()), 0);
  ASSERT_TRUE((*pool)[0].check_presence());
  EXPECT_EQ(pool->placement(), Order{1});
  ASSERT_EQ(::rename((dir_ / "b").c_str(), (dir_ / "away2").c_str()), 0);
  ASSERT_TRUE((*pool)[1].check_presence());
  EXPECT_TRUE(pool->placement().empty());
}

TEST_F(PlacementTest, ADrainingTierIsUsedOnlyIfThereIsNoOther) {
  const auto pool = open(make_tiers("abc"));
  ASSERT_TRUE((*pool)[0].set_draining(true));
  EXPECT_EQ(pool->placement(), (Order{1, 2}));
  ASSERT_TRUE((*pool)[1].set_draining(true));
  ASSERT_TRUE((*pool)[2].set_draining(true));
  EXPECT_EQ(pool->placement(), (Order{0, 1, 2}));
}

class TemporariesTest : public test::PoolTest {};

TEST_F(TemporariesTest, OnlyTemporariesAreClearedOnEveryTier) {
  const auto pool = open(make_tiers("ab"));
  for (const char* name : {"a", "b"}) {
    test::write_file(at(name, ".sluice/tmp/t1"), "half a copy");
    ASSERT_EQ(::mkdir(at(name, ".sluice/tmp/t2").c_str(), 0700), 0);
    test::write_file(at(name, "file"), "content");
  }
  pool->clear_temporaries();
  for (const char* name : {"a", "b"}) {
    EXPECT_TRUE(test::names_in(at(name, ".sluice/tmp")).empty());
    EXPECT_EQ(test::read_file(at(name, "file")), "content");
    EXPECT_TRUE(test::exists(at(name, ".sluice/tier.json")));
  }
}

}  // namespace
}  // namespace sluice
