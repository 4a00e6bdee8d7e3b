// SPDX-License-Identifier: BSD-2-Clause
#include "tiering/heat/heat_tree.hpp"

#include "tests/unit/tiering/pools.hpp"
#include "tiering/heat/census.hpp"

namespace sluice {
namespace {

using std::chrono::hours;

class HeatTreeTest : public test::PoolTest {
 protected:
  void prepare() override { pool_ = open(make_tiers("ab")); }

  void make_file(const std::string& tier, const std::string& name, std::size_t kib, double score) {
    dir_.make_file(tier + "/" + name, std::string(kib << 10, 'x'));
    if (score == 0) return;
    const InodeId id = identity_of(*pool_->by_name(tier), at(tier, name)).id;
    ASSERT_TRUE(store_.add_heat({{id, {.score = score, .last_access = 100, .opens = 1}}}));
  }
  void take(std::size_t most = HeatTree::kMost) {
    const Policy policy;
    const auto census = Census::take({*pool_, store_, policy, hours(1), 100});
    ASSERT_TRUE(census);
    tree_.take(*census, 100, most);
  }
  static std::vector<std::string> names(const HeatTree::Level& level) {
    std::vector<std::string> out;
    for (const auto& child : level.children)
      out.push_back(child.name + (child.is_directory ? "/" : ""));
    return out;
  }

  std::unique_ptr<Pool> pool_;
  test::MemoryStore store_;
  HeatTree tree_;
};

constexpr std::uint64_t kKiB = 1024;
using Names = std::vector<std::string>;

TEST_F(HeatTreeTest, IsEmptyBeforeTheFirstCensus) {
  EXPECT_EQ(tree_.time(), 0);
  EXPECT_FALSE(tree_.level("", 10));
}

TEST_F(HeatTreeTest, SumsFilesBelowADirectoryOnAllTiers) {
  dir_.make_dir("a/d");
  dir_.make_dir("b/d");
  dir_.make_dir("b/d/e");
  make_file("a", "d/hot", 64, 100);
  make_file("b", "d/e/cold", 192, 0);
  make_file("b", "top", 64, 8);
  take();
  const auto root = tree_.level("/", 10);
  ASSERT_TRUE(root);
  EXPECT_EQ(root->time, 100);
  EXPECT_EQ(root->all.files, 3u);
  EXPECT_EQ(root->all.bytes, 320 * kKiB);
  EXPECT_EQ(names(*root), (Names{"d/", "top"}));
  EXPECT_EQ(root->children[0].sums.bytes, 256 * kKiB);
  EXPECT_DOUBLE_EQ(root->children[0].sums.heat(), 25);
  using OnTier = HeatTree::Sums::OnTier;
  EXPECT_EQ(root->children[0].sums.on, (std::vector<OnTier>{{1, 64 * kKiB}, {1, 192 * kKiB}}));
  EXPECT_DOUBLE_EQ(root->children[1].sums.heat(), 8);
  EXPECT_EQ(root->rest.files, 0u);
  const auto below = tree_.level("/d/", 10);
  ASSERT_TRUE(below);
  EXPECT_EQ(names(*below), (Names{"e/", "hot"}));
  EXPECT_FALSE(tree_.level("/d/hot", 10));
  EXPECT_FALSE(tree_.level("/none", 10));
}

TEST_F(HeatTreeTest, UnlistedChildrenAreCountedInTheRest) {
  for (unsigned i = 1; i <= 5; ++i) make_file("a", "f" + std::to_string(i), 64 * i, i);
  take();
  const auto level = tree_.level("", 2);
  ASSERT_TRUE(level);
  EXPECT_EQ(names(*level), (Names{"f5", "f4"}));
  EXPECT_EQ(level->rest.files, 3u);
  EXPECT_EQ(level->rest.bytes, 6 * 64 * kKiB);
  EXPECT_NEAR(level->rest.heat(), (1.0 * 1 + 2 * 2 + 3 * 3) / 6, 1e-6);
}

TEST_F(HeatTreeTest, KeepsTheLargestFilesAndTheirDirectories) {
  dir_.make_dir("a/d");
  dir_.make_dir("a/d/e");
  dir_.make_dir("a/small");
  make_file("a", "d/e/large", 256, 0);
  for (unsigned i = 0; i < 20; ++i) make_file("a", "small/f" + std::to_string(i), 4, 0);
  take(4);
  const auto root = tree_.level("", 10);
  ASSERT_TRUE(root);
  EXPECT_EQ(names(*root), (Names{"d/", "small/"}));
  EXPECT_EQ(root->rest.files, 0u);
  ASSERT_TRUE(tree_.level("/d/e", 10));
  EXPECT_EQ(names(*tree_.level("/d/e", 10)), Names{"large"});
  const auto small = tree_.level("/small", 10);
  ASSERT_TRUE(small);
  EXPECT_EQ(names(*small), Names{});
  EXPECT_EQ(small->rest.files, 20u);
}

}  // namespace
}  // namespace sluice
