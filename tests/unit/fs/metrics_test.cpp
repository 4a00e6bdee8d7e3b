// SPDX-License-Identifier: BSD-2-Clause
#include "fs/control/metrics.hpp"

#include <gtest/gtest.h>

#include <fstream>
#include <nlohmann/json.hpp>
#include <regex>
#include <set>
#include <sstream>

namespace sluice {
namespace {

using nlohmann::json;
using NameList = std::set<std::string>;

json migration() {
  return {{"moved", 3},
          {"moved_bytes", 30},
          {"failed", 1},
          {"copied_bytes", 40},
          {"share", 0.25},
          {"between", {{{"from", "nvme"}, {"to", "tmp"}, {"moved", 3}, {"moved_bytes", 30}}}},
          {"twins", {{"kept", 4}, {"used", 3}, {"used_bytes", 2}, {"dropped", 1}}},
          {"active", 2},
          {"queued", 5},
          {"queued_bytes", 50},
          {"pending", 1},
          {"paused", true}};
}

json activity() {
  const json route = {{"operations", 4},    {"failures", 1}, {"bytes", 4096}, {"busy_s", 0.5},
                      {"average_us", 10.0}, {"p50_us", 9.0}, {"p99_us", 20.0}};
  json all = route;
  all["failures"] = 3;
  const json hbm = {{"limit", 100},    {"reserve", 10},      {"bytes", 60},
                    {"files", 2},      {"pinned", 1},        {"hits", 7},
                    {"hit_bytes", 70}, {"filled_bytes", 80}, {"evictions", 3}};
  return {{"version", "0.1.0"},
          {"pool", "p"},
          {"mountpoint", "/mnt"},
          {"uptime_s", 12.5},
          {"inodes", 3},
          {"open_files", 2},
          {"opens", 9},
          {"requests", {{"LOOKUP", 7}, {"READ", 1}}},
          {"request_times",
           {{"READ", {{"sum_s", 0.25}, {"counts", {1, 0, 2, 0, 0, 0, 0, 0, 0, 0, 0, 0, 4}}}}}},
          {"tiers",
           {{{"name", "nvme"},
             {"online", true},
             {"draining", false},
             {"states", {{{"name", "full"}, {"words", "no room"}, {"serious", false}}}},
             {"total", 100},
             {"used", 40},
             {"twins", 2},
             {"twin_bytes", 30},
             {"free", 60},
             {"high_watermark", 90},
             {"low_watermark", 80},
             {"speed", {{"latency_us", 120}, {"bytes_per_s", 2e9}, {"source", "probe"}}},
             {"price", 0.25},
             {"read_bytes", 5},
             {"written_bytes", 18446744073709551615u},
             {"disk",
              {{"name", "nvme0n1"},
               {"reads", 1},
               {"read_bytes", 512},
               {"writes", 2},
               {"written_bytes", 1024},
               {"busy_ms", 1500}}}},
            {{"name", "tmp"},
             {"online", false},
             {"draining", true},
             {"states", json::array()},
             {"total", 0},
             {"used", 0},
             {"twins", 0},
             {"twin_bytes", 0},
             {"free", 0},
             {"high_watermark", 90},
             {"low_watermark", 80},
             {"speed", {{"latency_us", 5}, {"bytes_per_s", 4e9}, {"source", "kind"}}},
             {"price", nullptr},
             {"read_bytes", 0},
             {"written_bytes", 0},
             {"disk", nullptr}}}},
          {"budgets",
           {{"trees", 2},
            {"budget", 300},
            {"used", 250},
            {"over", 1},
            {"stuck", 0},
            {"deleted", 7},
            {"deleted_bytes", 70}}},
          {"migration", migration()},
          {"gpu",
           {{"routes", {{"all", all}, {"mapped", route}}},
            {"devices", {{{"uuid", "GPU-1"}, {"name", "H200"}, {"lost", false}, {"hbm", hbm}}}},
            {"buffers", 1},
            {"buffer_bytes", 2},
            {"host_bytes", 3},
            {"host_bytes_limit", 4},
            {"pinned_bytes", 5},
            {"mapped_bytes", 6}}}};
}

bool has_line(const std::string& text, const std::string& line) {
  return ("\n" + text).find("\n" + line + "\n") != std::string::npos;
}

std::string read_source(const std::string& name) {
  std::ifstream in(std::string(SLUICE_SOURCE_DIR) + "/" + name);
  std::stringstream out;
  out << in.rdbuf();
  return out.str();
}

NameList matches(const std::string& text, const std::string& pattern) {
  NameList out;
  const std::regex regex(pattern);
  for (std::sregex_iterator it(text.begin(), text.end(), regex), end; it != end; ++it)
    out.insert((*it)[1]);
  return out;
}

TEST(MetricsTest, ShowTheActivityOfTheMount) {
  const std::string text = metrics_text(activity());
  for (const char* line :
       {"sluice_info{version=\"0.1.0\",pool=\"p\",mountpoint=\"/mnt\"} 1",
        "sluice_uptime_seconds 12.5",
        "sluice_requests_total{kind=\"LOOKUP\"} 7",
        "sluice_tier_online{tier=\"nvme\"} 1",
        "sluice_tier_online{tier=\"tmp\"} 0",
        "sluice_tier_high_watermark_ratio{tier=\"nvme\"} 0.9",
        "sluice_tier_read_latency_seconds{tier=\"nvme\"} 0.00012",
        "sluice_tier_read_bandwidth_bytes{tier=\"nvme\"} 2e+09",
        "sluice_tier_price{tier=\"nvme\"} 0.25",
        "sluice_tier_written_bytes_total{tier=\"nvme\"} 18446744073709551615",
        "sluice_tier_disk_busy_seconds_total{tier=\"nvme\",disk=\"nvme0n1\"} 1.5",
        "sluice_tier_state{tier=\"nvme\",state=\"full\"} 1",
        "sluice_tier_state{tier=\"nvme\",state=\"offline\"} 0",
        "sluice_request_seconds_bucket{kind=\"READ\",le=\"1e-05\"} 1",
        "sluice_request_seconds_bucket{kind=\"READ\",le=\"0.0001\"} 3",
        "sluice_request_seconds_bucket{kind=\"READ\",le=\"+Inf\"} 7",
        "sluice_request_seconds_sum{kind=\"READ\"} 0.25",
        "sluice_request_seconds_count{kind=\"READ\"} 7",
        "sluice_moves_total{from=\"nvme\",to=\"tmp\"} 3",
        "sluice_moved_bytes_total{from=\"nvme\",to=\"tmp\"} 30",
        "sluice_moves_share_ratio 0.25",
        "sluice_moves_waiting 1",
        "sluice_migration_paused 1",
        "sluice_budget_trees 2",
        "sluice_budget_bytes 300",
        "sluice_budget_used_bytes 250",
        "sluice_budget_trees_over 1",
        "sluice_budget_trees_stuck 0",
        "sluice_budget_deleted_total 7",
        "sluice_budget_deleted_bytes_total 70",
        "sluice_gpu_bytes_total{route=\"mapped\"} 4096",
        "sluice_gpu_failures_total{route=\"mapped\"} 1",
        "sluice_gpu_failures_total{route=\"none\"} 2",
        "sluice_gpu_request_seconds{route=\"mapped\",quantile=\"0.99\"} 2e-05",
        "sluice_gpu_request_seconds_sum{route=\"mapped\"} 4e-05",
        "sluice_gpu_request_seconds_count{route=\"mapped\"} 4",
        "sluice_gpu_lost{gpu=\"GPU-1\",name=\"H200\"} 0",
        "sluice_hbm_bytes{gpu=\"GPU-1\"} 60",
        "sluice_hbm_limit_bytes{gpu=\"GPU-1\"} 100",
        "sluice_hbm_hits_total{gpu=\"GPU-1\"} 7",
        "sluice_hbm_evictions_total{gpu=\"GPU-1\"} 3"}) {
    EXPECT_TRUE(has_line(text, line)) << line << " is not in\n" << text;
  }
  EXPECT_EQ(text.find("sluice_tier_price{tier=\"tmp\"}"), std::string::npos) << "not known";
  EXPECT_EQ(text.find("disk=\"\""),
            std::string::npos);  // a tier without a disk has no disk metrics
}

TEST(MetricsTest, EveryLineFollowsTheFormat) {
  const std::regex comment("# (HELP|TYPE) [a-z_]+ .+");
  const std::regex sample(R"re([a-z_]+(\{([a-z]+="([^"\\]|\\.)*",?)+\})? -?[0-9.e+-]+)re");
  std::istringstream lines(metrics_text(activity()));
  for (std::string line; std::getline(lines, line);)
    EXPECT_TRUE(std::regex_match(line, line.starts_with('#') ? comment : sample)) << line;
}

TEST(MetricsTest, NamesCannotBreakOutOfTheirLabel) {
  json odd = activity();
  odd["mountpoint"] = "/a\"} 1\nsluice_evil 1\\";
  EXPECT_TRUE(has_line(metrics_text(odd),
                       "sluice_info{version=\"0.1.0\",pool=\"p\","
                       "mountpoint=\"/a\\\"} 1\\nsluice_evil 1\\\\\"} 1"));
  odd["mountpoint"] = "/\xff";  // labels are UTF-8
  EXPECT_NE(metrics_text(odd).find("mountpoint=\"/\xef\xbf\xbd\"}"), std::string::npos);
}

TEST(MetricsTest, AreAllDocumentedAndTheDashboardAndAlertsUseNoOthers) {
  const NameList exported = matches(metrics_text(activity()), "# TYPE ([a-z_]+) ");
  const NameList described = matches(read_source("docs/metrics.md"), "- `(sluice_[a-z_]+)");
  EXPECT_EQ(described, exported);
  const std::string dashboard = read_source("packaging/grafana-dashboard.json");
  NameList shown = matches(dashboard, "\\b(sluice_[a-z_]+)");
  EXPECT_GT(shown.size(), 10u);
  const NameList alerts =
      matches(read_source("packaging/prometheus-alerts.yml"), "\\b(sluice_[a-z_]+)");
  EXPECT_GT(alerts.size(), 5u);
  shown.insert(alerts.begin(), alerts.end());
  for (std::string name : shown) {
    for (const char* suffix : {"_sum", "_count", "_bucket"}) {
      if (name.ends_with(suffix) && !exported.contains(name))
        name.resize(name.size() - std::string_view(suffix).size());
    }
    EXPECT_TRUE(exported.contains(name)) << name;
  }
  EXPECT_TRUE(json::parse(dashboard).at("panels").is_array());
}

}  // namespace
}  // namespace sluice
