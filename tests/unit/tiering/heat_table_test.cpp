// SPDX-License-Identifier: BSD-2-Clause
#include "tiering/heat/heat_table.hpp"

#include <gtest/gtest.h>

#include <map>
#include <random>

#include "metadata/decay.hpp"

namespace sluice {
namespace {

using std::chrono::seconds;

constexpr seconds kHalfLife{10};
constexpr InodeId kRow{7};

TEST(HeatTableTest, AnEmptyTableFindsNothing) {
  const HeatTable table;
  EXPECT_EQ(table.size(), 0u);
  EXPECT_FALSE(table.find(kRow));
}

TEST(HeatTableTest, HasTheSameEntriesAsAMap) {
  std::mt19937_64 random(1);
  // Ids that differ in high bits only, in low bits only, and in all.
  for (const unsigned shift : {40, 0, 64}) {
    HeatTable table;
    std::map<InodeId, Heat> map;
    for (int i = 0; i < 20'000; ++i) {
      const std::uint64_t number = 1 + random() % 5000;
      const InodeId id{shift < 64 ? number << shift : number * 0x9E3779B97F4A7C15};
      const Heat delta{double(random() % 10), std::int64_t(1000 + random() % 100), random() % 10,
                       random()};
      table.add(id, delta, kHalfLife);
      map[id] = map.contains(id) ? sum(map[id], delta, kHalfLife) : delta;
    }
    EXPECT_EQ(table.size(), map.size());
    for (const auto& [id, heat] : map) EXPECT_EQ(table.find(id), heat);
    EXPECT_FALSE(table.find(InodeId{0x123}) && !map.contains(InodeId{0x123}));
    std::vector<HeatTable::Entry> entries;
    table.append_to(entries);
    EXPECT_EQ((std::map<InodeId, Heat>(entries.begin(), entries.end())), map);
    EXPECT_EQ(entries.size(), map.size());
  }
}

TEST(HeatTableTest, ValuesAreClampedToTheirMaximum) {
  HeatTable table;
  table.add(kRow, {1, std::int64_t{1} << 40, std::uint64_t{1} << 40, 1}, kHalfLife);
  EXPECT_EQ(*table.find(kRow), (Heat{1, UINT32_MAX, UINT32_MAX, 1}));
  table.add(kRow, {0, 0, 1, UINT64_MAX}, kHalfLife);
  EXPECT_EQ(*table.find(kRow), (Heat{1, UINT32_MAX, UINT32_MAX, UINT64_MAX}));
  table.add(InodeId{8}, {1, -5, 1, 0}, kHalfLife);
  EXPECT_EQ(*table.find(InodeId{8}), (Heat{1, 0, 1, 0}));
}

}  // namespace
}  // namespace sluice
