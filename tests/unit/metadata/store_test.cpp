// SPDX-License-Identifier: BSD-2-Clause
// What every Store promises, asked of each of them.
#include "metadata/store.hpp"

#include <gtest/gtest.h>

#include <cmath>
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

// Each maker owns what its store stands on.
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

TYPED_TEST(StoreTest, AFileNeverSeenIsCold) {
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

TYPED_TEST(StoreTest, LateNewsOfAnEarlierAccessIsWorthLess) {
  ASSERT_TRUE(this->store_->add_heat({{kFile, {1, 110, 1, 0}}}));
  ASSERT_TRUE(this->store_->add_heat({{kFile, {8, 100, 1, 0}}}));
  EXPECT_EQ(*this->store_->heat(kFile), (Heat{5, 110, 2, 0}));
}

TYPED_TEST(StoreTest, AnEmptyBatchIsFine) { EXPECT_TRUE(this->store_->add_heat({})); }

TYPED_TEST(StoreTest, ABatchWithAnImpossibleScoreIsRefusedWhole) {
  for (const double score : {-1.0, std::nan(""), HUGE_VAL}) {
    EXPECT_TRUE(failed_with(
        this->store_->add_heat({{kFile, {1, 1, 1, 1}}, {kOther, {score, 1, 1, 1}}}), EINVAL));
  }
  EXPECT_EQ(*this->store_->heat(kFile), Heat{});
}

TYPED_TEST(StoreTest, ForgottenHeatIsGoneAndStartsAnew) {
  ASSERT_TRUE(this->store_->add_heat({{kFile, {8, 100, 3, 5}}, {kOther, {1, 1, 1, 1}}}));
  ASSERT_TRUE(this->store_->forget_heat(kFile));
  EXPECT_EQ(*this->store_->heat(kFile), Heat{});
  EXPECT_EQ(this->store_->heat(kOther)->opens, 1u);
  ASSERT_TRUE(this->store_->add_heat({{kFile, {1, 100, 1, 0}}}));
  EXPECT_EQ(*this->store_->heat(kFile), (Heat{1, 100, 1, 0}));
}

TYPED_TEST(StoreTest, ForgettingAFileNeverSeenIsFine) {
  EXPECT_TRUE(this->store_->forget_heat(kFile));
}

TYPED_TEST(StoreTest, IntentsAreListedOldestFirstUntilCleared) {
  // More than 256, so that an order by bytes that is not the order of numbers would show.
  std::vector<std::uint64_t> sequences;
  for (int i = 0; i < 300; ++i) {
    auto sequence = this->store_->begin_intent("intent " + std::to_string(i));
    ASSERT_TRUE(sequence);
    sequences.push_back(*sequence);
  }
  ASSERT_TRUE(this->store_->clear_intent(sequences[1]));

  auto intents = this->store_->intents();

  ASSERT_TRUE(intents);
  ASSERT_EQ(intents->size(), 299u);
  EXPECT_EQ((*intents)[0].sequence, sequences[0]);
  EXPECT_EQ((*intents)[0].bytes, "intent 0");
  EXPECT_EQ((*intents)[1].bytes, "intent 2");
  EXPECT_EQ(intents->back().bytes, "intent 299");
}

TYPED_TEST(StoreTest, IntentsHoldAnyBytes) {
  const std::string bytes("\0\xff\n", 3);
  ASSERT_TRUE(this->store_->begin_intent(bytes));
  ASSERT_TRUE(this->store_->begin_intent(""));
  auto intents = this->store_->intents();
  ASSERT_EQ(intents->size(), 2u);
  EXPECT_EQ((*intents)[0].bytes, bytes);
  EXPECT_EQ((*intents)[1].bytes, "");
}

TYPED_TEST(StoreTest, ClearingTwiceIsFine) {
  auto sequence = this->store_->begin_intent("x");
  ASSERT_TRUE(this->store_->clear_intent(*sequence));
  EXPECT_TRUE(this->store_->clear_intent(*sequence));
}

TYPED_TEST(StoreTest, ThreadsLoseNoHeatAndShareNoSequence) {
  constexpr int kThreads = 4;
  constexpr int kRounds = 50;
  std::array<std::vector<std::uint64_t>, kThreads> sequences;
  {
    std::vector<std::jthread> threads;
    for (auto& mine : sequences) {
      threads.emplace_back([&] {
        for (int i = 0; i < kRounds; ++i) {
          auto sequence = this->store_->begin_intent("x");
          if (sequence) mine.push_back(*sequence);
          EXPECT_TRUE(this->store_->add_heat({{kFile, {1, 100, 1, 2}}}));
          EXPECT_TRUE(this->store_->heat(kFile));
          EXPECT_TRUE(this->store_->intents());
        }
      });
    }
  }
  std::set<std::uint64_t> distinct;
  for (const auto& mine : sequences) distinct.insert(mine.begin(), mine.end());
  EXPECT_EQ(distinct.size(), kThreads * kRounds);
  EXPECT_EQ(*this->store_->heat(kFile), (Heat{200, 100, 200, 400}));
}

}  // namespace
}  // namespace sluice
