// SPDX-License-Identifier: BSD-2-Clause
#include "tools/common/move_summary.hpp"

#include <gtest/gtest.h>

namespace sluice::tools {
namespace {

using Json = nlohmann::ordered_json;

Json small_move(int second, const std::string& path, const std::string& to = "nvme") {
  return {{"time", 1000 + second}, {"path", path}, {"from", "ssd"},     {"to", to},
          {"bytes", 4096},         {"ms", 5},      {"result", "moved"}, {"reason", "used often"}};
}

TEST(MoveSummaryTest, ABurstOfSmallMovesIsOneRow) {
  MoveSummary summary;
  for (int i = 0; i < 1234; ++i)
    summary.add(small_move(i / 400, "/d/x" + std::to_string(i % 2) + "/f" + std::to_string(i)));
  EXPECT_EQ(summary.size(), 1u);
  const MoveRow row = summary.rows().at(0);
  EXPECT_EQ(row.files, 1234u);
  EXPECT_EQ(row.time, 1003);
  EXPECT_EQ(row.path, "/d/");
  EXPECT_EQ(row.reason, "used often");
  EXPECT_EQ(summary_of(row), "1,234 files, 4.8 MiB, ssd -> nvme in 3 s");
}

TEST(MoveSummaryTest, AFewMovesAreListedEach) {
  MoveSummary summary;
  for (int i = 0; i < 4; ++i) summary.add(small_move(0, "/f" + std::to_string(i)));
  ASSERT_EQ(summary.size(), 4u);
  EXPECT_EQ(summary.rows()[3].path, "/f3");
  EXPECT_EQ(summary.rows()[3].files, 1u);
}

TEST(MoveSummaryTest, OtherMovesEndABurst) {
  MoveSummary summary;
  const auto burst = [&](int second, const std::string& to) {
    for (int i = 0; i < 10; ++i) summary.add(small_move(second, "/f", to));
  };
  burst(0, "nvme");
  burst(1, "hdd");  // another tier
  burst(9, "hdd");  // a pause
  Json large = small_move(9, "/large", "hdd");
  large["bytes"] = 1 << 30;
  summary.add(large);
  Json failed = small_move(9, "/failed", "hdd");
  failed["result"] = "failed";
  summary.add(failed);
  const auto rows = summary.rows();
  ASSERT_EQ(rows.size(), 5u);
  EXPECT_EQ(summary.size(), 5u);
  EXPECT_EQ(rows[3].path, "/large");
  EXPECT_EQ(rows[4].result, "failed");
}

}  // namespace
}  // namespace sluice::tools
