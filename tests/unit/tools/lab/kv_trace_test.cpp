// SPDX-License-Identifier: BSD-2-Clause
#include "tools/lab/simulator/kv_trace.hpp"

#include <gtest/gtest.h>

#include "tests/support/files.hpp"
#include "tests/support/temp_dir.hpp"
#include "tools/lab/simulator/replay.hpp"

namespace sluice::tools::lab {
namespace {

using Blocks = std::vector<std::uint64_t>;

TEST(KvTraceTest, ReadsMooncakesLinesInMilliseconds) {
  const auto request = parse_kv_request(
      R"({"timestamp": 27482, "input_length": 6955, "output_length": 52, "hash_ids": [46, 47]})");
  ASSERT_TRUE(request);
  EXPECT_EQ(request->time, 27'482'000);
  EXPECT_EQ(request->blocks, (Blocks{46, 47}));
}

TEST(KvTraceTest, ReadsQwenBailiansLinesInSeconds) {
  const auto request = parse_kv_request(
      R"({"chat_id": 159, "parent_chat_id": 55, "timestamp": 61.114, "input_length": 521,)"
      R"( "output_length": 132, "type": "text", "turn": 2, "hash_ids": [1089, 13148]})");
  ASSERT_TRUE(request);
  EXPECT_EQ(request->time, 61'114'000);
  EXPECT_EQ(request->blocks, (Blocks{1089, 13148}));
}

TEST(KvTraceTest, SaysWhatIsWrongWithALine) {
  for (const char* line :
       {"", "[]", "{", R"({"timestamp": 1})", R"({"hash_ids": [1]})",
        R"({"timestamp": "1", "hash_ids": []})", R"({"timestamp": -1, "hash_ids": []})",
        R"({"timestamp": 1, "hash_ids": [1.5]})", R"({"timestamp": 1e300, "hash_ids": []})"}) {
    const auto request = parse_kv_request(line);
    ASSERT_FALSE(request) << line;
    EXPECT_EQ(request.error().code, EINVAL) << line;
  }
}

TEST(KvTraceTest, IsDetectedAndReplayedAsFilesOfOneSize) {
  const test::TempDir dir;
  test::write_file(dir / "t",
                   "{\"timestamp\": 0, \"hash_ids\": [1, 2]}\n"
                   "{\"timestamp\": 1000, \"hash_ids\": [1, 3]}\n");
  Trace trace;
  const auto read = read_trace(dir / "t", std::nullopt, trace);
  ASSERT_TRUE(read) << read.error().text();
  EXPECT_EQ(trace.records(), 4u);
  EXPECT_EQ(trace.span_us(), 1'000'000);
  EXPECT_EQ(trace.sizes, (std::vector<std::uint64_t>(3, kKvBlockBytes)));
  EXPECT_EQ(trace.objects, (std::vector<std::uint32_t>{0, 1, 0, 2}));
}

TEST(KvTraceTest, ErrorNamesTheLine) {
  const test::TempDir dir;
  test::write_file(dir / "t", "{\"timestamp\": 0, \"hash_ids\": [1]}\n{\"timestamp\": 0}\n");
  Trace trace;
  const auto read = read_trace(dir / "t", std::nullopt, trace);
  ASSERT_FALSE(read);
  EXPECT_NE(read.error().text().find("t:2: "), std::string::npos) << read.error().text();
}

// A prefix that all requests share, and conversations that come back once or never.
Trace conversations() {
  Trace trace;
  std::uint32_t next = 4;
  std::vector<std::uint32_t> early;
  const auto use = [&](std::uint32_t object, std::int64_t second) {
    trace.times.push_back(second * 1'000'000);
    trace.objects.push_back(object);
  };
  for (std::int64_t second = 0; second < 2000; ++second) {
    for (std::uint32_t shared = 0; shared < 4; ++shared) {
      if (second % 40 == 0) use(shared, second);
    }
    if (second % 3 == 0 && second >= 30)
      use(early[static_cast<std::size_t>(second) / 3 - 10], second);
    if (second % 3 == 0) early.push_back(next);
    use(next++, second);
  }
  trace.sizes.assign(next, kKvBlockBytes);
  return trace;
}

TEST(BudgetCacheTest, ServesAtLeastWhatLruServesAndNeverExceedsTheBudget) {
  const Trace trace = conversations();
  // 44 blocks are just enough for LRU to keep a conversation until it comes back.
  for (const std::uint64_t blocks : {8, 20, 40, 44, 50, 100}) {
    SimulationOptions options;
    options.tiers = {{"budget", blocks * kKvBlockBytes}, {"rest", trace.total_bytes()}};
    const auto budget = replay("budget", trace, options);
    EXPECT_GE(budget.hit_ratio(), replay("lru", trace, options).hit_ratio()) << blocks;
    EXPECT_LE(budget.hit_ratio(), replay("belady", trace, options).hit_ratio()) << blocks;
    EXPECT_LE(budget.traffic.bytes_in - budget.traffic.bytes_out, blocks * kKvBlockBytes);
  }
}

}  // namespace
}  // namespace sluice::tools::lab
