// SPDX-License-Identifier: BSD-2-Clause
#include "tiering/heat/hot_list.hpp"

#include "tests/unit/tiering/pools.hpp"
#include "tiering/heat/census.hpp"

namespace sluice {
namespace {

using std::chrono::hours;
using Paths = std::vector<std::string>;

constexpr std::int64_t kAnHour = 3600;

Paths paths(const HotList& list, std::size_t most = HotList::kMost, std::int64_t now = 0) {
  Paths out;
  for (const HotList::File& file : list.hottest(most, now)) out.push_back(file.path);
  return out;
}

HotList::File file(unsigned id, double score, std::int64_t time = 0) {
  return {InodeId{id}, "/" + std::to_string(id), score, time};
}

TEST(HotListTest, ListsTheHottestFirst) {
  HotList list(hours(1));
  list.offer({file(1, 5), file(2, 9), file(3, 7)});
  EXPECT_EQ(paths(list), (Paths{"/2", "/3", "/1"}));
  EXPECT_EQ(paths(list, 2), (Paths{"/2", "/3"}));
}

TEST(HotListTest, AnOfferReplacesAnEarlierOneOfTheSameFile) {
  HotList list(hours(1));
  list.offer({file(1, 5), file(2, 9)});
  list.offer({{InodeId{1}, "/renamed", 10, 0}});
  EXPECT_EQ(paths(list), (Paths{"/renamed", "/2"}));
}

TEST(HotListTest, ScoresDecayWithoutNewOffers) {
  HotList list(hours(1));
  list.offer({file(1, 16, 0), file(2, 5, 2 * kAnHour)});
  EXPECT_EQ(paths(list, 2, 2 * kAnHour), (Paths{"/2", "/1"}));
  EXPECT_DOUBLE_EQ(list.hottest(2, 2 * kAnHour)[1].score, 4);
}

TEST(HotListTest, KeepsTheHottestOfMany) {
  HotList list(hours(1));
  for (unsigned id = 1; id <= 1000; ++id) list.offer({file(id, id)});
  const Paths all = paths(list, 1000);
  ASSERT_EQ(all.size(), HotList::kMost);
  EXPECT_EQ(all.front(), "/1000");
  EXPECT_EQ(all.back(), "/" + std::to_string(1001 - HotList::kMost));
}

TEST(HotListTest, ForgottenFilesAreRemoved) {
  HotList list(hours(1));
  list.offer({file(1, 5), file(2, 9)});
  list.forget(InodeId{2});
  EXPECT_EQ(paths(list), (Paths{"/1"}));
}

class HotListCensusTest : public test::PoolTest {
 protected:
  void prepare() override { pool_ = open(make_tiers("ab")); }
  std::unique_ptr<Pool> pool_;
  test::MemoryStore store_;
};

TEST_F(HotListCensusTest, ACensusReplacesTheListByItsHottestFiles) {
  for (unsigned i = 0; i < HotList::kMost + 10; ++i) {
    const std::string name = "f" + std::to_string(i);
    dir_.make_file("b/" + name, "x");
    const InodeId id = identity_of((*pool_)[1], at("b", name)).id;
    ASSERT_TRUE(store_.add_heat({{id, {.score = 1.0 + i, .last_access = 100, .opens = 1}}}));
  }
  dir_.make_file("a/never-used", "x");
  const Policy policy;
  const auto census = Census::take({*pool_, store_, policy, hours(1), 100});
  ASSERT_TRUE(census);
  HotList list(hours(1));
  list.offer({file(7, 1e6, 100)});  // a deleted file
  list.take(*census, 100);
  const Paths all = paths(list, 1000, 100);
  ASSERT_EQ(all.size(), HotList::kMost);
  EXPECT_EQ(all.front(), "/f" + std::to_string(HotList::kMost + 9));
  EXPECT_EQ(all.back(), "/f10");
}

}  // namespace
}  // namespace sluice
