// SPDX-License-Identifier: BSD-2-Clause
#include "tools/common/explanation.hpp"

#include <gtest/gtest.h>

namespace sluice::tools {
namespace {

using Json = nlohmann::ordered_json;

constexpr std::int64_t kNow = 1'700'000'000;

std::string text_for(const char* json) {
  return explanation_text(*Style::create("never"), "/mnt/a.bin", Json::parse(json), kNow);
}

TEST(ExplanationTest, ExplainsAFileThatStays) {
  EXPECT_EQ(text_for(R"({"path":"/a.bin","tier":"nvme","location":"/nvme/a.bin","bytes":1288490188,
      "score":132.44,"opens":214,"last_use":1699999700,"arrived":1699740800,"pin":null,"rule":null,
      "wants":"nvme","reason":"stays","why":"score 132 is at least 100","hold":null,"promote":null,
      "demote":{"tier":"ssd","below":50},"stays_until":null,"moving":null,"pending":null,"links":1})"),
            "/mnt/a.bin\n"
            "  on      nvme, 1.2 GiB, there for 3 d\n"
            "  at      /nvme/a.bin\n"
            "  heat    score 132.4: opened 214 times, last used 5 min ago\n"
            "  why     score 132 is at least 100\n"
            "  down    to ssd when its score falls below 50\n");
}

TEST(ExplanationTest, ExplainsWhyAFileDoesNotMove) {
  EXPECT_EQ(
      text_for(R"({"path":"/a.bin","tier":"hdd","location":"/hdd/a.bin","bytes":512,"score":12.5,
      "opens":1,"last_use":1699999999,"arrived":1699999000,"pin":{"tier":"ssd","from":"/"},
      "rule":{"match":"*.bin","tier":"nvme"},"wants":"ssd","reason":"pinned","why":"its pin says so",
      "hold":"min_stay","promote":{"tier":"nvme","at":100},"demote":null,"stays_until":1700000600,
      "moving":{"to":"ssd"},"pending":{"to":"ssd","why":"it is open for writing"},"links":2})"),
      "/mnt/a.bin\n"
      "  on      hdd, 512 B, there for 16 min, 2 hard links\n"
      "  at      /hdd/a.bin\n"
      "  heat    score 12.5: opened once, last used 1 s ago\n"
      "  wants   to move to ssd: its pin says so\n"
      "  but     it arrived recently (min_stay)\n"
      "  pin     ssd, from /\n"
      "  rule    *.bin -> nvme\n"
      "  up      to nvme at score 100, 87.5 more than now\n"
      "  stays   for another 10 min (min_stay)\n"
      "  moving  to ssd, now\n"
      "  waiting to move to ssd: it is open for writing\n");
}

TEST(ExplanationTest, SaysWhatAFileIsWorth) {
  const std::string text = text_for(R"({"path":"/a.bin","tier":"hdd","uses_per_day":3.21,
      "optimize":"time","worth":[
      {"tier":"nvme","against":"ssd","saves":0.5,"per_gb":0.05,"price":0.2},
      {"tier":"ssd","against":"hdd","saves":14.2,"per_gb":3.5,"price":0}]})");
  EXPECT_NE(text.find("  value   used about 3.2 times a day\n"
                      "          saves about 0.5 s of waiting a day on nvme against ssd, "
                      "0.05 s/GB a day; room there is worth 0.2 s/GB a day\n"
                      "          saves about 14 s of waiting a day on ssd against hdd, "
                      "3.5 s/GB a day; everything has room there\n"),
            std::string::npos)
      << text;
}

TEST(ExplanationTest, ATierWithoutRoomIsNotSaidToHaveAny) {
  const auto of = [](const std::string& intake, const std::string& price) {
    return text_for((R"({"tier":"hdd","uses_per_day":3,"worth":[{"tier":"nvme","against":"hdd",
        "intake":")" +
                     intake + R"(","price":)" + price + "}]}")
                        .c_str());
  };
  EXPECT_NE(of("full", "0").find("; it is full\n"), std::string::npos) << of("full", "0");
  EXPECT_NE(of("full", "2").find("; room there is worth 2 s/GB"), std::string::npos);
  EXPECT_NE(of("offline", "2").find("; it is offline\n"), std::string::npos) << "a stale price";
}

TEST(ExplanationTest, SaysWhatEndsTheTimeThatAFileStays) {
  const auto of = [](const std::string& unless) {
    return text_for(
        (R"({"tier":"nvme","stays_until":1700000600,"stays_unless":)" + unless + "}").c_str());
  };
  EXPECT_NE(of("null").find("  stays   for another 10 min (min_stay)\n"), std::string::npos);
  EXPECT_NE(of("\"filled\"")
                .find("  stays   for another 10 min (min_stay), unless nvme lacks room "
                      "before\n"),
            std::string::npos);
  EXPECT_NE(of("\"crowded\"")
                .find("  stays   nvme lacks room, so it may have to leave; otherwise "
                      "for another 10 min (min_stay)\n"),
            std::string::npos);
}

TEST(ExplanationTest, AQueuedMoveIsNotMovingNow) {
  const std::string queued = text_for(R"({"tier":"hdd","moving":null,"queued":{"to":"ssd"}})");
  EXPECT_NE(queued.find("  queued  to move to ssd\n"), std::string::npos) << queued;
  EXPECT_EQ(queued.find("now"), std::string::npos) << queued;
  const std::string moving =
      text_for(R"({"tier":"hdd","moving":{"to":"ssd","bytes":1048576,"total":4194304}})");
  EXPECT_NE(moving.find("  moving  to ssd, now, 1.0 MiB of 4.0 MiB copied\n"), std::string::npos)
      << moving;
}

TEST(ExplanationTest, ShowsTheLastMoves) {
  const std::string text = text_for(R"({"tier":"hdd","moves":[
      {"time":1699999000,"from":"ssd","to":"hdd","code":0,"result":"moved","reason":"asked for"},
      {"time":1699998000,"from":"hdd","to":"ssd","code":28,"result":"failed","reason":"hot; no room"},
      {"time":1699997000,"from":"hdd","to":"ssd","code":16,"result":"yielded","reason":"hot"}]})");
  const auto first = text.find(": asked for\n"), second = text.find(", failed: hot; no room\n");
  EXPECT_NE(text.find("  moved   20"), std::string::npos) << text;
  EXPECT_NE(text.find("ssd -> hdd: asked for"), std::string::npos) << text;
  EXPECT_NE(second, std::string::npos) << text;
  EXPECT_LT(first, second);
  EXPECT_NE(text.find(", yielded: hot\n"), std::string::npos) << text;
}

TEST(ExplanationTest, ATierThatIsOfflineIsExplained) {
  EXPECT_EQ(text_for(R"({"path":"/a.bin","tier":"hdd","location":"/hdd/a.bin",
      "offline":"/hdd is empty","moving":null,"queued":null,"pending":null,"moves":[]})"),
            "/mnt/a.bin\n"
            "  on      hdd, which is offline: /hdd is empty\n"
            "          it can be used again when the tier is back; see 'sluice status'\n");
}

TEST(ExplanationTest, ToleratesMissingMembers) {
  EXPECT_EQ(text_for(R"({"tier":"hdd","pin":7,"hold":"whim"})"),
            "/mnt/a.bin\n"
            "  on      hdd, 0 B\n"
            "  heat    score 0: never opened\n");
}

TEST(ExplanationTest, ReportsAPinOnTheFileItself) {
  EXPECT_NE(text_for(R"({"path":"/a.bin","pin":{"tier":"hdd","from":"/a.bin"}})")
                .find("  pin     hdd, set on this file\n"),
            std::string::npos);
}

}  // namespace
}  // namespace sluice::tools
