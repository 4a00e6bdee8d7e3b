// SPDX-License-Identifier: BSD-2-Clause
#include "tools/cli/top_view.hpp"

#include <gtest/gtest.h>

#include <algorithm>

#include "tools/common/text_width.hpp"

namespace sluice::tools::cli {
namespace {

using Json = nlohmann::ordered_json;
using Lines = std::vector<std::string>;

constexpr std::int64_t kTime = 1'000'000;

Json tier(const std::string& name, std::uint64_t read, std::uint64_t written) {
  return {{"name", name},
          {"online", true},
          {"total", 1000 << 20},
          {"used", 620 << 20},
          {"free", 380 << 20},
          {"high_watermark", 90},
          {"low_watermark", 80},
          {"disk", {{"read_bytes", read}, {"written_bytes", written}, {"busy_ms", read >> 20}}}};
}

// The answer of a busy mount, `second` seconds after the first one.
Json at_work(unsigned second) {
  const std::uint64_t mib = 1 << 20;
  Json hottest = Json::array();
  for (int i = 0; i < 20; ++i) {
    hottest.push_back(
        {{"path", "/models/" + std::to_string(i)}, {"tier", "nvme"}, {"score", 200.5 - i}});
  }
  return {
      {"mountpoint", "/mnt/pool"},
      {"uptime_s", 7200.5 + second},
      {"open_files", 12},
      {"tiers", {tier("nvme", 500 * mib * second, 200 * mib * second), tier("hdd", 0, 0)}},
      {"requests", {{"LOOKUP", 100 * second}, {"READ", 812 * second}, {"OPEN", 5}}},
      {"migration",
       {{"active", 2},
        {"queued", 14},
        {"queued_bytes", 3 * 1024 * mib},
        {"bytes_left", 4 * 1024 * mib},
        {"time_left_s", 305},
        {"pending", 1},
        {"moved", 1204},
        {"copied_bytes", 110 * mib * second},
        {"paused", false}}},
      {"moves",
       {{{"path", "/models/llama.bin"},
         {"from", "hdd"},
         {"to", "nvme"},
         {"bytes", 400 * mib + 100 * mib * second},
         {"total", 1000 * mib},
         {"since", kTime - 5}},
        {{"path", "/queued in its batch"},
         {"from", "hdd"},
         {"to", "nvme"},
         {"bytes", 0},
         {"total", 10},
         {"since", 0}}}},
      {"gpu",
       {{"routes",
         {{"all", {{"operations", 10}}},
          {"mapped",
           {{"operations", 100 * second}, {"bytes", 2048 * mib * second}, {"p99_us", 81.5}}}}}}},
      {"hottest", hottest}};
}

Lines frame(const Json& before, const Json& now, FrameSize size, const char* color = "never") {
  return top_frame(before, now, kTime, size, *Style::create(color));
}

std::string text_of(const Lines& lines) {
  std::string out;
  for (const std::string& line : lines) out += line + "\n";
  return out;
}

// Removes the colours.
std::string bare(const std::string& line) {
  std::string out;
  for (std::size_t i = 0; i < line.size(); ++i) {
    if (line[i] == '\033') {
      i = line.find('m', i);
    } else {
      out += line[i];
    }
  }
  return out;
}

TEST(TopFrameTest, ShowsABusyMountIn80Columns) {
  const Lines lines = frame(at_work(0), at_work(1), {80, 14});
  EXPECT_EQ(text_of(lines),
            "/mnt/pool  up 2 h, 12 open files, 912/s requests\n"
            "\n"
            "TIER       FULL                           FREE          READ         WRITE  BUSY\n"
            "nvme       [##########....|.]   62%  380.0 MiB   500.0 MiB/s   200.0 MiB/s   50%\n"
            "hdd        [##########....|.]   62%  380.0 MiB             -             -    0%\n"
            "\n"
            "REQUESTS    READ 812/s  LOOKUP 100/s\n"
            "GPU         mapped       2.0 GiB/s       100/s, 2.0 GiB so far, p99 81.5 us\n"
            "MOVES       2 under way, 14 queued, 4.0 GiB left (5 min), 1 waiting, 110.0 MiB/s\n"
            " [#####.....]  50%  100.0 MiB/s  5 s left       hdd -> nvme  /models/llama.bin\n"
            "\n"
            "HOTTEST       SCORE  FILE\n"
            "nvme          200.5  /models/0\n"
            "nvme          199.5  /models/1\n");
}

TEST(TopFrameTest, FrameFitsTheScreen) {
  for (const char* color : {"never", "always"}) {
    for (const std::size_t columns : {1, 2, 9, 20, 40, 79, 80, 132, 500}) {
      for (const std::size_t rows : {1, 2, 5, 10, 24, 60}) {
        const Lines lines = frame(at_work(0), at_work(1), {columns, rows}, color);
        EXPECT_LE(lines.size(), rows) << columns;
        for (const std::string& line : lines)
          EXPECT_LE(display_width(bare(line)), columns) << bare(line);
      }
    }
  }
}

TEST(TopFrameTest, ColourChangesOnlyEscapeSequences) {
  const Lines plain = frame(at_work(0), at_work(1), {80, 24});
  const Lines painted = frame(at_work(0), at_work(1), {80, 24}, "always");
  ASSERT_EQ(plain.size(), painted.size());
  EXPECT_NE(plain, painted);
  for (std::size_t i = 0; i < plain.size(); ++i) EXPECT_EQ(bare(painted[i]), plain[i]);
}

TEST(TopFrameTest, HostileNamesAreEscapedAndDoNotBreakTheFrame) {
  Json now = at_work(1);
  const std::string evil = "/\033[2J\n\r\u202e\u009b1;1H" + std::string(5000, 'x') + "/end\t";
  now["mountpoint"] = evil;
  now["tiers"][0]["name"] = evil;
  now["tiers"][1]["online"] = false;
  now["tiers"][1]["why"] = evil;
  now["moves"][0]["path"] = now["moves"][0]["from"] = evil;
  now["hottest"][0]["path"] = now["hottest"][0]["tier"] = evil;
  now["requests"][evil] = 10'000;
  now["gpu"]["routes"][evil] = {{"operations", 1}};
  for (const std::size_t columns : {10, 80, 200}) {
    for (const std::string& line : frame(at_work(0), now, {columns, 24})) {
      EXPECT_LE(display_width(line), columns);
      EXPECT_EQ(line.find_first_of("\033\n\r\t"), std::string::npos) << line;
      EXPECT_EQ(line.find("\u202e"), std::string::npos);
      EXPECT_EQ(line.find("\u009b"), std::string::npos);
    }
  }
  EXPECT_NE(text_of(frame(at_work(0), now, {80, 24})).find("xx/end\\x09\n"), std::string::npos);
}

TEST(TopFrameTest, WideNamesAreCutByColumns) {
  Json now = at_work(1);
  std::string name = "/";
  for (int i = 0; i < 100; ++i) name += "語";
  now["hottest"][0]["path"] = name;
  for (const std::string& line : frame(at_work(0), now, {80, 24}))
    EXPECT_LE(display_width(line), 80u) << line;
}

TEST(TopFrameTest, FirstFrameHasNoRates) {
  const std::string text = text_of(frame(Json(), at_work(1), {80, 24}));
  EXPECT_EQ(text.find("MiB/s"), std::string::npos) << text;
  EXPECT_NE(text.find("hdd -> nvme"), std::string::npos);
}

TEST(TopFrameTest, RestartedDaemonHasNoNegativeRates) {
  Json now = at_work(0);
  now["uptime_s"] = 1;
  const std::string text = text_of(frame(at_work(5), now, {80, 24}));
  EXPECT_EQ(text.find("MiB/s"), std::string::npos) << text;
  EXPECT_EQ(text.find('-' + std::string("1")), std::string::npos);
}

TEST(TopFrameTest, ToleratesAnswersOfOtherVersions) {
  for (const Json& odd : {Json(), Json::object(), Json::array(), Json{{"tiers", "none"}},
                          Json{{"tiers", {1, "x", nullptr}}, {"moves", 3}, {"hottest", {{}, 7}}},
                          Json{{"uptime_s", "long"}, {"requests", {1, 2}}, {"gpu", false}}}) {
    EXPECT_LE(frame(odd, odd, {80, 24}).size(), 24u);
  }
}

TEST(TopFrameTest, ManyTiersLeaveRoomForTheRest) {
  Json now = at_work(1);
  for (int i = 0; i < 14; ++i) now["tiers"].push_back(tier("t" + std::to_string(i), 0, 0));
  const std::string text = text_of(frame(at_work(0), now, {80, 24}));
  EXPECT_NE(text.find("... and 4 more"), std::string::npos) << text;
  EXPECT_NE(text.find("llama.bin"), std::string::npos) << text;
  EXPECT_NE(text.find("HOTTEST"), std::string::npos) << text;
}

TEST(TopViewTest, AScreenShowsItsKeysInTheLastRow) {
  const auto style = *Style::create("never");
  const Lines lines = top_screen(at_work(0), at_work(1), kTime, {80, 24}, style);
  ASSERT_EQ(lines.size(), 24u);
  EXPECT_EQ(lines.back(), " q  quit");
  EXPECT_EQ(top_screen(Json::object(), Json::object(), kTime, {80, 24}, style).back(), " q  quit");
}

}  // namespace
}  // namespace sluice::tools::cli
