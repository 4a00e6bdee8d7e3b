// SPDX-License-Identifier: BSD-2-Clause
// The contract of Store, tested for every implementation.
#include "metadata/store.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <set>
#include <thread>

#include "metadata/rocks_store.hpp"
#include "tests/support/memory_store.hpp"
#include "tests/support/temp_dir.hpp"

namespace sluice {
namespace {

using std::chrono::seconds;

constexpr InodeId kFile{7};
constexpr InodeId kOther{8};

Receipt receipt(std::uint64_t number) {
  return {.time = 1'700'000'000,
          .id = InodeId{number},
          .path = "/some/where/" + std::to_string(number),
          .from = "ssd",
          .to = "hdd",
          .bytes = number * 4096,
          .hash = ~number,
          .milliseconds = 12,
          .code = static_cast<std::int32_t>(number % 3),
          .reason = "score 3 is below 5"};
}

std::vector<Receipt> receipts_from(std::uint64_t first, std::uint64_t count) {
  std::vector<Receipt> made;
  for (std::uint64_t i = 0; i < count; ++i) made.push_back(receipt(first + i));
  return made;
}

using Heats = std::vector<std::pair<InodeId, Heat>>;
using Ghosts = std::vector<std::pair<InodeId, Ghost>>;

// The first `most` records that a walk visits.
Heats heats_in(const Store& store, std::size_t most = SIZE_MAX) {
  Heats found;
  EXPECT_TRUE(store.each_heat([&](InodeId id, const Heat& heat) {
    found.emplace_back(id, heat);
    return found.size() < most;
  }));
  return found;
}

Ghosts ghosts_in(const Store& store, std::size_t most = SIZE_MAX) {
  Ghosts found;
  EXPECT_TRUE(store.each_ghost([&](InodeId id, const Ghost& ghost) {
    found.emplace_back(id, ghost);
    return found.size() < most;
  }));
  return found;
}

// Each maker owns what its store needs.
struct MemoryMaker {
  std::unique_ptr<Store> make(seconds half_life) {
    return std::make_unique<test::MemoryStore>(half_life);
  }
};

struct RocksMaker {
  std::unique_ptr<Store> make(seconds half_life) {
    auto store = RocksStore::open(directory / "metadata", half_life);
    if (!store) throw std::runtime_error(store.error().operation);
    return *std::move(store);
  }
  test::TempDir directory;
};

template <typename Maker>
class StoreTest : public testing::Test {
 protected:
  Maker maker_;
  std::unique_ptr<Store> store_ = maker_.make(seconds(10));
};

using Makers = testing::Types<MemoryMaker, RocksMaker>;
TYPED_TEST_SUITE(StoreTest, Makers);

TYPED_TEST(StoreTest, AnUnknownFileIsCold) {
  auto heat = this->store_->heat(kFile);
  ASSERT_TRUE(heat);
  EXPECT_EQ(*heat, Heat{});
}

TYPED_TEST(StoreTest, DeltasAddUpWithDecay) {
  ASSERT_TRUE(this->store_->add_heat({{kFile, {8, 100, 3, 5}}}));
  ASSERT_TRUE(this->store_->add_heat({{kFile, {1, 110, 1, 7}}, {kOther, {2, 50, 1, 0}}}));
  EXPECT_EQ(*this->store_->heat(kFile), (Heat{5, 110, 4, 12}));
  EXPECT_EQ(*this->store_->heat(kOther), (Heat{2, 50, 1, 0}));
}

TYPED_TEST(StoreTest, OneFileMayBeInABatchMoreThanOnce) {
  ASSERT_TRUE(this->store_->add_heat({{kFile, {8, 100, 1, 0}}, {kFile, {8, 100, 1, 0}}}));
  EXPECT_EQ(*this->store_->heat(kFile), (Heat{16, 100, 2, 0}));
}

TYPED_TEST(StoreTest, ALateDeltaOfAnEarlierAccessIsDecayed) {
  ASSERT_TRUE(this->store_->add_heat({{kFile, {1, 110, 1, 0}}}));
  ASSERT_TRUE(this->store_->add_heat({{kFile, {8, 100, 1, 0}}}));
  EXPECT_EQ(*this->store_->heat(kFile), (Heat{5, 110, 2, 0}));
}

TYPED_TEST(StoreTest, AnEmptyBatchSucceeds) { EXPECT_TRUE(this->store_->add_heat({})); }

TYPED_TEST(StoreTest, ABatchWithAnImpossibleScoreIsRejectedCompletely) {
  for (const double score : {-1.0, std::nan(""), HUGE_VAL}) {
    EXPECT_TRUE(failed_with(
        this->store_->add_heat({{kFile, {1, 1, 1, 1}}, {kOther, {score, 1, 1, 1}}}), EINVAL));
  }
  EXPECT_EQ(*this->store_->heat(kFile), Heat{});
}

TYPED_TEST(StoreTest, ForgottenHeatStartsFromZero) {
  ASSERT_TRUE(this->store_->add_heat({{kFile, {8, 100, 3, 5}}, {kOther, {1, 1, 1, 1}}}));
  ASSERT_TRUE(this->store_->forget_heat({kFile}));
  EXPECT_EQ(*this->store_->heat(kFile), Heat{});
  EXPECT_EQ(this->store_->heat(kOther)->opens, 1u);
  ASSERT_TRUE(this->store_->add_heat({{kFile, {1, 100, 1, 0}}}));
  EXPECT_EQ(*this->store_->heat(kFile), (Heat{1, 100, 1, 0}));
}

TYPED_TEST(StoreTest, ForgettingAnUnknownFileSucceeds) {
  EXPECT_TRUE(this->store_->forget_heat({kFile}));
}

TYPED_TEST(StoreTest, ManyFilesAreForgottenAtOnce) {
  Heats deltas;
  std::vector<InodeId> ids;
  for (std::uint64_t i = 1; i <= 25'000; ++i) {
    deltas.push_back({InodeId{i}, {1, 1, 1, 1}});
    ids.push_back(InodeId{i});
  }
  ids.pop_back();
  ASSERT_TRUE(this->store_->add_heat(deltas));
  ASSERT_TRUE(this->store_->forget_heat(ids));
  EXPECT_EQ(heats_in(*this->store_), Heats{deltas.back()});
  EXPECT_TRUE(this->store_->forget_heat({}));
}

TYPED_TEST(StoreTest, AWalkVisitsTheTotalsSortedById) {
  EXPECT_TRUE(heats_in(*this->store_).empty());
  // These ids would show it if the store sorted by bytes instead of numbers.
  ASSERT_TRUE(this->store_->add_heat({{InodeId{1u << 20}, {1, 100, 1, 0}},
                                      {InodeId{255}, {8, 100, 3, 5}},
                                      {InodeId{256}, {2, 100, 2, 0}}}));
  ASSERT_TRUE(this->store_->add_heat({{InodeId{255}, {1, 110, 1, 7}}}));
  EXPECT_EQ(heats_in(*this->store_), (Heats{{InodeId{255}, {5, 110, 4, 12}},
                                            {InodeId{256}, {2, 100, 2, 0}},
                                            {InodeId{1u << 20}, {1, 100, 1, 0}}}));
}

TYPED_TEST(StoreTest, AWalkEndsWhenTheVisitorReturnsFalse) {
  ASSERT_TRUE(this->store_->add_heat({{kFile, {1, 1, 1, 1}}, {kOther, {2, 2, 2, 2}}}));
  EXPECT_EQ(heats_in(*this->store_, 1), (Heats{{kFile, {1, 1, 1, 1}}}));
  ASSERT_TRUE(this->store_->add_ghosts({{kFile, {1, 1}}, {kOther, {2, 2}}}));
  EXPECT_EQ(ghosts_in(*this->store_, 1), (Ghosts{{kFile, {1, 1}}}));
}

TYPED_TEST(StoreTest, AWalkUsesASnapshot) {
  ASSERT_TRUE(this->store_->add_heat({{kFile, {1, 1, 1, 1}}, {kOther, {2, 2, 2, 2}}}));
  Heats found;
  ASSERT_TRUE(this->store_->each_heat([&](InodeId id, const Heat& heat) {
    found.emplace_back(id, heat);
    // In another thread, because a visitor may not call the store.
    std::jthread([&] {
      EXPECT_TRUE(this->store_->forget_heat({kOther}));
      EXPECT_TRUE(this->store_->add_heat({{InodeId{9}, {3, 3, 3, 3}}}));
    });
    return true;
  }));
  EXPECT_EQ(found, (Heats{{kFile, {1, 1, 1, 1}}, {kOther, {2, 2, 2, 2}}}));
}

TYPED_TEST(StoreTest, ReceiptsAreListedNewestFirst) {
  EXPECT_TRUE(this->store_->receipts(10)->empty());
  EXPECT_TRUE(this->store_->add_receipts({}));
  ASSERT_TRUE(this->store_->add_receipts(receipts_from(1, 299)));
  ASSERT_TRUE(this->store_->add_receipts({receipt(300)}));
  EXPECT_EQ(*this->store_->receipts(2), (std::vector{receipt(300), receipt(299)}));
  EXPECT_TRUE(this->store_->receipts(0)->empty());
  const auto all = this->store_->receipts(SIZE_MAX);
  ASSERT_TRUE(all);
  ASSERT_EQ(all->size(), 300u);
  EXPECT_EQ(all->back(), receipt(1));
}

TYPED_TEST(StoreTest, OnlyTheNewestReceiptsAreKept) {
  constexpr std::uint64_t kBatch = 7000;
  std::uint64_t last = 0;
  while (last < Store::kMostReceipts + 2 * kBatch) {
    ASSERT_TRUE(this->store_->add_receipts(receipts_from(last + 1, kBatch)));
    last += kBatch;
  }
  const auto all = this->store_->receipts(SIZE_MAX);
  ASSERT_TRUE(all);
  ASSERT_EQ(all->size(), Store::kMostReceipts);
  EXPECT_EQ(all->front(), receipt(last));
  EXPECT_EQ(all->back(), receipt(last - Store::kMostReceipts + 1));
}

TYPED_TEST(StoreTest, AnOversizedBatchOfReceiptsKeepsItsNewest) {
  ASSERT_TRUE(this->store_->add_receipts({receipt(1)}));
  ASSERT_TRUE(this->store_->add_receipts(receipts_from(2, Store::kMostReceipts + 10)));
  const auto all = this->store_->receipts(SIZE_MAX);
  ASSERT_EQ(all->size(), Store::kMostReceipts);
  EXPECT_EQ(all->front(), receipt(Store::kMostReceipts + 11));
  EXPECT_EQ(all->back(), receipt(12));
}

TYPED_TEST(StoreTest, ALaterGhostReplacesTheEarlierUntilForgotten) {
  EXPECT_TRUE(ghosts_in(*this->store_).empty());
  EXPECT_TRUE(this->store_->add_ghosts({}));
  ASSERT_TRUE(this->store_->add_ghosts({{kOther, {100, 1}}, {kFile, {100, 255}}}));
  ASSERT_TRUE(this->store_->add_ghosts({{kFile, {200, 0}}}));
  EXPECT_EQ(ghosts_in(*this->store_), (Ghosts{{kFile, {200, 0}}, {kOther, {100, 1}}}));
  ASSERT_TRUE(this->store_->forget_ghosts({kFile, InodeId{99}}));
  EXPECT_EQ(ghosts_in(*this->store_), (Ghosts{{kOther, {100, 1}}}));
  EXPECT_TRUE(this->store_->forget_ghosts({}));
}

TYPED_TEST(StoreTest, LaterTimesReplaceTheEarlierUntilForgotten) {
  const KeptTimes first{.is_directory = false, .copies = {{1, 10, 5, 1}}};
  const KeptTimes second{.is_directory = false, .copies = {{2, 20, 5, 1}}};
  const KeptTimes directory{.is_directory = true, .copies = {{1, 7, 6, 0}, {2, 8, 0, 0}}};
  EXPECT_EQ(*this->store_->times(kFile), KeptTimes{});
  EXPECT_TRUE(this->store_->keep_times({}));
  ASSERT_TRUE(this->store_->keep_times({{kOther, directory}, {kFile, first}}));
  ASSERT_TRUE(this->store_->keep_times({{kFile, second}}));
  EXPECT_EQ(*this->store_->times(kFile), second);
  EXPECT_EQ(*this->store_->times(kOther), directory);
  std::vector<InodeId> seen;
  ASSERT_TRUE(this->store_->each_times([&](InodeId id, const KeptTimes&) {
    seen.push_back(id);
    return true;
  }));
  EXPECT_EQ(seen, (std::vector<InodeId>{kFile, kOther}));
  ASSERT_TRUE(this->store_->forget_times({kFile, InodeId{99}}));
  EXPECT_EQ(*this->store_->times(kFile), KeptTimes{});
  EXPECT_EQ(*this->store_->times(kOther), directory);
}

TYPED_TEST(StoreTest, LaterRequestsReplaceTheEarlierUntilForgotten) {
  using Requests = std::vector<std::pair<InodeId, MoveRequest>>;
  const auto stored = [&] {
    Requests found;
    EXPECT_TRUE(this->store_->each_request([&](InodeId id, const MoveRequest& request) {
      found.emplace_back(id, request);
      return true;
    }));
    return found;
  };
  EXPECT_TRUE(this->store_->keep_requests({}));
  EXPECT_TRUE(stored().empty());
  const MoveRequest first{1, 0, "ssd", "/a"}, second{2, 1000, "hdd", "/b"},
      third{3, 0, "hdd", "/a"};
  ASSERT_TRUE(this->store_->keep_requests({{kOther, second}, {kFile, first}}));
  ASSERT_TRUE(this->store_->keep_requests({{kFile, third}}));
  EXPECT_EQ(stored(), (Requests{{kFile, third}, {kOther, second}}));
  EXPECT_TRUE(*this->store_->has_request(kFile));
  ASSERT_TRUE(this->store_->forget_requests({kFile, InodeId{99}}));
  EXPECT_FALSE(*this->store_->has_request(kFile));
  EXPECT_EQ(stored(), (Requests{{kOther, second}}));
}

TYPED_TEST(StoreTest, ReceiptsCanBeReadInPiecesAndByFile) {
  ASSERT_TRUE(this->store_->add_receipts(receipts_from(1, 30)));
  std::vector<std::int64_t> times;
  std::uint64_t before = Store::kNewest;
  for (bool is_over = false; !is_over;) {
    std::size_t count = 0;
    ASSERT_TRUE(this->store_->each_receipt(before, [&](std::uint64_t number, const Receipt& each) {
      times.push_back(each.time);
      before = number;
      return ++count < 7;
    }));
    is_over = count == 0;
  }
  ASSERT_EQ(times.size(), 30u);
  for (std::size_t i = 0; i < times.size(); ++i)
    EXPECT_EQ(times[i], receipt(static_cast<int>(30 - i)).time);

  Receipt mine = receipt(1);
  mine.id = InodeId{4711};
  for (int i = 0; i < 3; ++i) {
    mine.time = 100 + i;
    ASSERT_TRUE(this->store_->add_receipts({mine, receipt(40 + i)}));
  }
  const auto found = this->store_->receipts_of(mine.id, 2);
  ASSERT_TRUE(found);
  ASSERT_EQ(found->size(), 2u);
  EXPECT_EQ((*found)[0].time, 102);
  EXPECT_EQ((*found)[1].time, 101);
  mine.time = 103;
  ASSERT_TRUE(this->store_->add_receipts({mine}));
  EXPECT_EQ(this->store_->receipts_of(mine.id, 1)->at(0).time, 103);
  EXPECT_TRUE(this->store_->receipts_of(InodeId{4712}, 9)->empty());
}

TYPED_TEST(StoreTest, RecordsOfDifferentKindsAreSeparate) {
  ASSERT_TRUE(this->store_->add_heat({{kFile, {1, 1, 1, 1}}}));
  ASSERT_TRUE(this->store_->add_ghosts({{kFile, {100, 1}}}));
  ASSERT_TRUE(this->store_->add_receipts(receipts_from(1, 10)));
  ASSERT_TRUE(this->store_->begin_intents({"x"}));
  ASSERT_TRUE(this->store_->forget_heat({kFile}));
  EXPECT_EQ(ghosts_in(*this->store_).size(), 1u);
  EXPECT_EQ(this->store_->receipts(SIZE_MAX)->size(), 10u);
  EXPECT_EQ(this->store_->intents()->size(), 1u);
}

TYPED_TEST(StoreTest, IntentsAreListedOldestFirstUntilCleared) {
  // More than 256, so that sorting by bytes instead of numbers would show.
  std::vector<std::uint64_t> sequences;
  for (int i = 0; i < 300; ++i) {
    auto sequence = this->store_->begin_intents({"intent " + std::to_string(i)});
    ASSERT_TRUE(sequence);
    sequences.push_back(*sequence);
  }
  ASSERT_TRUE(this->store_->clear_intents({sequences[1]}));

  auto intents = this->store_->intents();

  ASSERT_TRUE(intents);
  ASSERT_EQ(intents->size(), 299u);
  EXPECT_EQ((*intents)[0].sequence, sequences[0]);
  EXPECT_EQ((*intents)[0].bytes, "intent 0");
  EXPECT_EQ((*intents)[1].bytes, "intent 2");
  EXPECT_EQ(intents->back().bytes, "intent 299");
}

TYPED_TEST(StoreTest, IntentsMayContainAnyBytes) {
  const std::string bytes("\0\xff\n", 3);
  ASSERT_TRUE(this->store_->begin_intents({bytes}));
  ASSERT_TRUE(this->store_->begin_intents({""}));
  auto intents = this->store_->intents();
  ASSERT_EQ(intents->size(), 2u);
  EXPECT_EQ((*intents)[0].bytes, bytes);
  EXPECT_EQ((*intents)[1].bytes, "");
}

TYPED_TEST(StoreTest, ClearingTwiceSucceeds) {
  auto sequence = this->store_->begin_intents({"x"});
  ASSERT_TRUE(this->store_->clear_intents({*sequence}));
  EXPECT_TRUE(this->store_->clear_intents({*sequence}));
}

TYPED_TEST(StoreTest, ConcurrentWritersLoseNoHeatAndGetDistinctSequences) {
  constexpr int kThreads = 4;
  constexpr int kRounds = 50;
  std::array<std::vector<std::uint64_t>, kThreads> sequences;
  {
    std::vector<std::jthread> threads;
    for (auto& mine : sequences) {
      threads.emplace_back([&] {
        for (int i = 0; i < kRounds; ++i) {
          auto sequence = this->store_->begin_intents({"x"});
          if (sequence) mine.push_back(*sequence);
          EXPECT_TRUE(this->store_->add_heat({{kFile, {1, 100, 1, 2}}}));
          EXPECT_TRUE(this->store_->heat(kFile));
          EXPECT_TRUE(this->store_->intents());
          EXPECT_TRUE(this->store_->add_receipts(receipts_from(1, 2)));
          EXPECT_EQ(heats_in(*this->store_).size(), 1u);
        }
      });
    }
  }
  std::set<std::uint64_t> distinct;
  for (const auto& mine : sequences) distinct.insert(mine.begin(), mine.end());
  EXPECT_EQ(distinct.size(), kThreads * kRounds);
  EXPECT_EQ(*this->store_->heat(kFile), (Heat{200, 100, 200, 400}));
  EXPECT_EQ(this->store_->receipts(SIZE_MAX)->size(), 2u * kThreads * kRounds);
}

}  // namespace
}  // namespace sluice
