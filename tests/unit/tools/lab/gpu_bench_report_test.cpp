// SPDX-License-Identifier: BSD-2-Clause
#include <gtest/gtest.h>

#include "tools/lab/gpu_bench/report.hpp"

namespace sluice::tools::lab::gpu_bench {
namespace {

constexpr std::uint64_t kSize = 4'000'000'000;

Row row(const std::string& phase, const std::string& way, std::vector<double> seconds) {
  Row out;
  out.phase = phase, out.way = way, out.bytes = kSize, out.seconds = std::move(seconds);
  out.cpu_per_gb = {0.04};
  return out;
}

Report report(std::vector<Row> rows) {
  Report out;
  out.size = kSize, out.rounds = 3, out.has_gpu = true, out.memory = "a GPU";
  out.rows = std::move(rows);
  return out;
}

const Bar* find(const std::vector<Bar>& bars, const std::string& what, const std::string& unit) {
  for (const auto& bar : bars) {
    if (bar.what == what && bar.unit == unit) return &bar;
  }
  return nullptr;
}

TEST(GpuBenchReportTest, MedianAndPercentilesAreSamples) {
  EXPECT_EQ(median({}), 0);
  EXPECT_EQ(median({3, 1, 2}), 2);
  EXPECT_EQ(percentile({4, 3, 2, 1}, 0.5), 2);
  EXPECT_EQ(percentile({4, 3, 2, 1}, 0.99), 4);
}

TEST(GpuBenchReportTest, RateIsComparedWithTheFasterUpperBound) {
  const auto bars = bars_of(report(
      {row("warm", "copy, 64 MiB pieces", {0.08}), row("warm", "copy, 4 MiB pieces", {0.1}),
       row("warm", "daemon auto", {0.09, 0.1, 0.08}), row("warm", "daemon mapped", {0.081})}));
  const Bar* automatic = find(bars, "warm, daemon auto", "of the ceiling");
  ASSERT_NE(automatic, nullptr);
  EXPECT_NEAR(automatic->value, 0.08 / 0.09, 1e-9);
  EXPECT_FALSE(automatic->is_met());
  EXPECT_TRUE(find(bars, "warm, daemon mapped", "of the ceiling")->is_met());
  EXPECT_TRUE(find(bars, "warm, daemon mapped", "CPU s/GB")->is_met());
  EXPECT_EQ(find(bars, "warm, daemon auto", "of cuFile's best"), nullptr) << "there is no figure";
}

TEST(GpuBenchReportTest, SamplesThatWereNotColdAreMarkedAndNotCompared) {
  Row cold = row("cold", "daemon auto", {1.0});
  const Row disk = row("cold", "disk, O_DIRECT by 8 threads", {1.0});
  EXPECT_NE(find(bars_of(report({disk, cold})), "cold, daemon auto", "of the disk"), nullptr);
  cold.cached = 0.5;
  const auto warmish = report({disk, cold});
  EXPECT_EQ(find(bars_of(warmish), "cold, daemon auto", "of the disk"), nullptr);
  const std::string text = report_text(*Style::create("never"), warmish);
  EXPECT_NE(text.find("4.00*"), std::string::npos) << text;
}

TEST(GpuBenchReportTest, WrongBytesAndSkippedRowsAreShown) {
  Row wrong = row("warm", "daemon staged", {0.1});
  wrong.wrong_words = 1234;
  Row skipped = row("warm", "daemon gds", {});
  skipped.skipped = "no direct path";
  const std::string text = report_text(*Style::create("never"), report({wrong, skipped}));
  EXPECT_NE(text.find("WRONG: 1,234 words"), std::string::npos) << text;
  EXPECT_NE(text.find("skipped: no direct path"), std::string::npos) << text;
}

TEST(GpuBenchReportTest, ReportWithoutAGpuMakesNoClaims) {
  auto host = report({row("warm", "copy, 64 MiB pieces", {0.08}), row("warm", "daemon auto", {1})});
  host.has_gpu = false;
  EXPECT_TRUE(report_json(host).at("bars").empty());
  EXPECT_NE(report_text(*Style::create("never"), host).find("no GPU"), std::string::npos);
  host.has_gpu = true;
  EXPECT_EQ(report_json(host).at("bars").size(), 1u);
}

TEST(GpuBenchReportTest, JsonHasEverySample) {
  const auto json = report_json(report({row("warm", "daemon auto", {3, 1, 2})}));
  EXPECT_EQ(json.at("rows").at(0).at("seconds").size(), 3u);
  EXPECT_EQ(json.at("rows").at(0).at("median"), 2);
  EXPECT_EQ(json.at("rows").at(0).at("gb_per_s"), 2);
}

}  // namespace
}  // namespace sluice::tools::lab::gpu_bench
