// SPDX-License-Identifier: BSD-2-Clause
// Which files a pass moves, what it reports, and when passes run.
#include "tests/mount/tiering.hpp"

#include <algorithm>
#include <ctime>
#include <map>
#include <set>
#include <tuple>

namespace sluice::test {
namespace {

class PassTest : public TieringTest {
 protected:
  // How full a tier is, in percent.
  double fill_of(const std::string& name) {
    const Json status = mount().status();
    for (const Json& tier : status.at("tiers")) {
      if (tier.at("name") != name) continue;
      return 100.0 * tier.at("used").get<double>() / tier.at("total").get<double>();
    }
    throw std::invalid_argument(name);
  }

  using Moves = std::set<std::tuple<std::string, std::string, std::string>>;  // path, from, to
  static Moves moves_of(const Json& list) {
    Moves moves;
    for (const Json& each : list) {
      moves.insert({each.at("path").get<std::string>(), each.at("from").get<std::string>(),
                    each.at("to").get<std::string>()});
    }
    return moves;
  }
};

TEST_F(PassTest, FileReadOver100TimesIsOnTheFastestTierAfterTheNextPass) {
  put("hdd", "hot", "read all day");
  start();
  read_often("hot", 101);
  run_pass();
  EXPECT_EQ(tier_of("hot"), "nvme");
  EXPECT_EQ(tiers_with("hot"), "nvme");
  EXPECT_EQ(read_file(*this / "hot"), "read all day");
}

TEST_F(PassTest, ColderFilesMoveToTheTierOfTheirScore) {
  put("hdd", "warm", "w");
  put("nvme", "lukewarm", "l");
  put("nvme", "d/cold", "c");
  start();
  read_often("warm", 20);
  read_often("lukewarm", 20);
  run_pass();
  EXPECT_EQ(tiers_with("warm"), "ssd");
  EXPECT_EQ(tiers_with("lukewarm"), "ssd");
  EXPECT_EQ(tiers_with("d/cold"), "hdd");
  EXPECT_EQ(read_file(*this / "d/cold"), "c");
}

TEST_F(PassTest, BetweenHalfTheThresholdAndTheThresholdNothingMoves) {
  put("nvme", "above", "a");
  put("ssd", "below", "b");
  start();
  read_often("above", 60);
  read_often("below", 60);
  run_pass();
  EXPECT_EQ(tiers_with("above"), "nvme");
  EXPECT_EQ(tiers_with("below"), "ssd");
}

TEST_F(PassTest, SingleUseDoesNotPromote) {
  set_options("nvme", "threshold=1");
  set_options("ssd", "threshold=1");
  put("hdd", "once", "o");
  put("hdd", "twice", "t");
  start();
  read_often("once", 1);
  read_often("twice", 2);
  EXPECT_EQ(ask({"plan"}).at("held").at("only_once"), 1);
  run_pass();
  EXPECT_EQ(tiers_with("once"), "hdd");
  EXPECT_EQ(tiers_with("twice"), "nvme");
}

// Files of 5% of the fastest tier each; the first is the coldest. Scores of 2 and more keep them
// there if they fit.
class CrowdTest : public PassTest {
 protected:
  void put_files(int count) {
    set_options("nvme", "capacity=40MiB,threshold=1,high_watermark=70,low_watermark=50");
    set_options("ssd", "threshold=1");
    for (int i = 0; i < count; ++i) put("nvme", name_of(i), content_);
  }
  void heat_files(int count) {
    for (int i = 0; i < count; ++i) read_often(name_of(i), i + 2);
  }
  static std::string name_of(int number) { return "f" + std::to_string(number); }

  const std::string content_ = pattern(2 * kMiB, 7);
};

TEST_F(CrowdTest, ColdestFilesLeaveATierAboveItsHighWatermark) {
  put_files(12);
  start();
  for (const int last : {12, 13}) {
    write_file(*this / name_of(last), content_);
    ASSERT_EQ(tier_of(name_of(last)), "nvme");
  }
  ASSERT_TRUE(eventually([&] { return fill_of("nvme") > 70; })) << fill_of("nvme");
  heat_files(14);
  run_pass();
  // The status may be slightly old.
  EXPECT_TRUE(eventually([&] { return fill_of("nvme") <= 50; })) << fill_of("nvme");
  EXPECT_GT(fill_of("nvme"), 45) << "and not more than needed";
  for (int i = 0; i < 14; ++i) {
    EXPECT_EQ(tiers_with(name_of(i)), i < 5 ? "ssd" : "nvme") << i;
    EXPECT_EQ(read_file(*this / name_of(i)), content_) << i;
  }
}

TEST_F(CrowdTest, TierAboveItsCapacityIsRelievedInOnePass) {
  put_files(25);
  start();
  heat_files(25);
  run_pass();
  EXPECT_TRUE(eventually([&] { return fill_of("nvme") <= 50; })) << fill_of("nvme");
}

TEST_F(PassTest, PassMakesExactlyThePlannedMoves) {
  write_file(base_ / "sluice.toml",
             "[[rule]]\nmatch = \"*.iso\"\ntier = \"hdd\"\n"
             "[[rule]]\nmatch = \"/keep/**\"\ntier = \"stay\"\n");
  put("hdd", "hot", "1");
  put("hdd", "warm", "2");
  put("hdd", "cold", "3");
  put("nvme", "d/stale", "4");
  put("nvme", "disk.iso", "5");
  put("nvme", "keep/me", "6");
  put("ssd", "pinned", "7");
  put("nvme", "two", "8");
  ASSERT_EQ(::link(on("nvme", "two").c_str(), on("nvme", "names").c_str()), 0);
  start({"--config", base_ / "sluice.toml"});
  read_often("hot", 120);
  read_often("warm", 15);
  ASSERT_TRUE(sluice({"pin", "hdd", *this / "pinned"}).ok());

  const Json plan = ask({"plan"});
  const Moves planned = moves_of(plan.at("list"));
  ASSERT_TRUE(receipts().empty()) << "a plan moves nothing";
  run_pass();
  const Json made = receipts();

  const std::string linked = planned.contains({"/two", "nvme", "hdd"}) ? "/two" : "/names";
  const Moves expected{{"/hot", "hdd", "nvme"},     {"/warm", "hdd", "ssd"},
                       {"/d/stale", "nvme", "hdd"}, {"/disk.iso", "nvme", "hdd"},
                       {"/pinned", "ssd", "hdd"},   {linked, "nvme", "hdd"}};
  EXPECT_EQ(planned, expected);
  EXPECT_EQ(moves_of(made), planned);
  EXPECT_EQ(plan.at("moves"), planned.size());
  EXPECT_EQ(plan.at("files"), 8);
  for (const auto& [path, from, to] : planned) EXPECT_EQ(tier_of(path.substr(1)), to) << path;
  EXPECT_EQ(tier_of("keep/me"), "nvme");
  EXPECT_EQ(ask({"plan"}).at("moves"), 0) << "nothing is left to do";
}

TEST_F(PassTest, PlanGivesReasons) {
  put("hdd", "hot", "1");
  put("nvme", "cold", "3");
  put("ssd", "pinned", "7");
  start();
  read_often("hot", 120);
  ASSERT_TRUE(sluice({"pin", "hdd", *this / "pinned"}).ok());
  std::map<std::string, std::string> reasons;
  const Json plan = ask({"plan"});
  for (const Json& move : plan.at("list")) {
    reasons[move.at("path")] = move.at("reason");
    EXPECT_NE(move.at("why"), "");
  }
  EXPECT_EQ(reasons, (std::map<std::string, std::string>{
                         {"/hot", "hot"}, {"/cold", "cold"}, {"/pinned", "pinned"}}));
}

TEST_F(PassTest, EveryMoveLeavesAReceipt) {
  const std::string content = pattern(300'000, 1);
  put("nvme", "d/f", content);
  start();
  const std::time_t before = std::time(nullptr);
  run_pass();
  move("d/f", "ssd");
  const Json made = receipts();
  ASSERT_EQ(made.size(), 2u);
  const Json& asked = made[0];
  const Json& passed = made[1];
  EXPECT_EQ(passed.at("path"), "/d/f");
  EXPECT_EQ(passed.at("from"), "nvme");
  EXPECT_EQ(passed.at("to"), "hdd");
  EXPECT_EQ(passed.at("bytes"), content.size());
  EXPECT_EQ(passed.at("code"), 0);
  EXPECT_GE(passed.at("time"), before);
  EXPECT_LE(passed.at("time"), std::time(nullptr));
  EXPECT_NE(passed.at("reason").get<std::string>().find("below 50"), std::string::npos) << passed;
  EXPECT_EQ(asked.at("from"), "hdd");
  EXPECT_EQ(asked.at("to"), "ssd");
  EXPECT_EQ(asked.at("reason"), "asked for");
  EXPECT_EQ(asked.at("hash"), passed.at("hash")) << "the same bytes";
}

TEST_F(PassTest, ReceiptsSurviveARemount) {
  put("nvme", "f", "x");
  start();
  run_pass();
  const Json before = receipts();
  ASSERT_EQ(before.size(), 1u);
  mount().remount();
  EXPECT_EQ(receipts(), before);
}

TEST_F(PassTest, VerboseListsMovedFiles) {
  put("nvme", "f", "x");
  start();
  const CommandResult result = tell({"tier", "run", "--verbose"});
  EXPECT_TRUE(result.ok()) << result.err;
  EXPECT_NE(result.out.find("nvme -> hdd"), std::string::npos) << result.out;
  EXPECT_NE(result.out.find("/f\n"), std::string::npos) << result.out;
  EXPECT_NE(result.out.find("moved 1 file"), std::string::npos) << result.out;
}

TEST_F(PassTest, ExplainGivesTierAndReasonAsText) {
  put("nvme", "d/f", "hello");
  start();
  read_often("d/f", 3);
  const CommandResult cold = sluice({"explain", *this / "d/f"});
  EXPECT_TRUE(cold.ok()) << cold.err;
  for (const std::string& words :
       {std::string("nvme, 5 B"), on("nvme", "d/f"), std::string("score 3"),
        std::string("opened 3 times"), std::string("to move to hdd"), std::string("below 50")}) {
    EXPECT_NE(cold.out.find(words), std::string::npos) << words << " in:\n" << cold.out;
  }
  ASSERT_TRUE(sluice({"pin", "nvme", *this / "d"}).ok());
  const CommandResult pinned = sluice({"explain", *this / "d/f"});
  EXPECT_NE(pinned.out.find("nvme, from /d"), std::string::npos) << pinned.out;
}

TEST_F(PassTest, ExplainGivesTierAndReasonAsJson) {
  put("hdd", "d/f", "hello");
  start();
  read_often("d/f", 12);
  const Json before = explain("d/f");
  EXPECT_EQ(before.at("path"), "/d/f");
  EXPECT_EQ(before.at("tier"), "hdd");
  EXPECT_EQ(before.at("location"), on("hdd", "d/f"));
  EXPECT_EQ(before.at("bytes"), 5);
  EXPECT_NEAR(before.at("score").get<double>(), 12, 0.1);
  EXPECT_EQ(before.at("opens"), 12);
  EXPECT_EQ(before.at("wants"), "ssd");
  EXPECT_EQ(before.at("reason"), "hot");
  EXPECT_EQ(before.at("hold"), nullptr);
  EXPECT_EQ(before.at("pin"), nullptr);
  EXPECT_EQ(before.at("promote").at("tier"), "nvme") << "the next after the one it wants";
  EXPECT_EQ(before.at("promote").at("at"), 100);
  run_pass();
  const Json after = explain("d/f");
  EXPECT_EQ(after.at("tier"), "ssd");
  EXPECT_EQ(after.at("wants"), "ssd");
  EXPECT_EQ(after.at("reason"), "stays");
  EXPECT_EQ(after.at("demote").at("tier"), "hdd");
  EXPECT_EQ(after.at("demote").at("below"), 5);
  EXPECT_GE(after.at("arrived"), before.at("arrived"));
}

TEST_F(PassTest, ExplainOutsideOfAMountFailsWithAReason) {
  start();
  const CommandResult missing = sluice({"explain", *this / "missing"});
  EXPECT_EQ(missing.exit_code, 1);
  EXPECT_NE(missing.err.find("missing: No such file"), std::string::npos) << missing.err;
  const CommandResult outside = sluice({"explain", base_.path()});
  EXPECT_EQ(outside.exit_code, 1);
  EXPECT_NE(outside.err.find("not on a mount of sluice"), std::string::npos) << outside.err;
}

TEST_F(PassTest, WhilePausedNothingMovesAndRunReportsIt) {
  start({"--interval", "1s"}, Passes::Automatic);
  ASSERT_TRUE(tell({"tier", "pause"}).ok());
  put("nvme", "f", "x");  // now, because a pass may come before the pause
  EXPECT_EQ(mount().status().at("migration").at("paused"), true);
  const CommandResult run = tell({"tier", "run"});
  EXPECT_EQ(run.exit_code, 1);
  EXPECT_NE(run.err.find("paused"), std::string::npos) << run.err;
  EXPECT_FALSE(eventually([&] { return tier_of("f") != "nvme"; }, std::chrono::milliseconds(2500)));
  ASSERT_TRUE(tell({"tier", "resume"}).ok());
  EXPECT_TRUE(eventually([&] { return tier_of("f") == "hdd"; }));
}

// The help of `sluice tier pause` promises it.
TEST_F(PassTest, RequestedMovesAreMadeWhilePaused) {
  put("nvme", "f", "x");
  start();
  ASSERT_TRUE(tell({"tier", "pause"}).ok());
  ASSERT_TRUE(sluice({"move", "--to", "ssd", *this / "f"}).ok());
  EXPECT_TRUE(eventually([&] { return tier_of("f") == "ssd"; }));
  EXPECT_TRUE(tell({"tier", "resume"}).ok());
}

TEST_F(PassTest, AutomaticMigrationRunsPasses) {
  put("hdd", "hot", "h");
  put("nvme", "cold", "c");
  start({"--interval", "1s"}, Passes::Automatic);
  read_often("hot", 101);
  EXPECT_TRUE(eventually([&] { return tier_of("hot") == "nvme" && tier_of("cold") == "hdd"; }))
      << tier_of("hot") << " " << tier_of("cold");
}

TEST_F(PassTest, NoPassRunsIfMigrationIsOff) {
  put("nvme", "cold", "c");
  start({"--interval", "1s"}, Passes::OnlyWhenAsked);
  EXPECT_EQ(mount().status().at("migration").at("automatic"), false);
  EXPECT_FALSE(
      eventually([&] { return tier_of("cold") != "nvme"; }, std::chrono::milliseconds(2500)));
}

// Windows that contain now and that do not. They are in whole minutes, so both avoid the next
// minute.
std::string window(int from_hours, int to_hours) {
  const auto clock = [](int hours) {
    const std::time_t then = std::time(nullptr) + hours * 3600;
    std::tm local{};
    ::localtime_r(&then, &local);
    char text[8];
    std::snprintf(text, sizeof text, "%02d:%02d", local.tm_hour, local.tm_min);
    return std::string(text);
  };
  return clock(from_hours) + "-" + clock(to_hours);
}

TEST_F(PassTest, OutsideOfItsWindowsOnlyTierRunMovesFiles) {
  put("nvme", "cold", "c");
  start({"--interval", "1s", "--windows", window(6, 8)}, Passes::Automatic);
  EXPECT_FALSE(
      eventually([&] { return tier_of("cold") != "nvme"; }, std::chrono::milliseconds(2500)));
  run_pass();
  EXPECT_EQ(tier_of("cold"), "hdd");
}

TEST_F(PassTest, WithinItsWindowsPassesRun) {
  put("nvme", "cold", "c");
  start({"--interval", "1s", "--windows", window(-2, 2)}, Passes::Automatic);
  EXPECT_TRUE(eventually([&] { return tier_of("cold") == "hdd"; }));
}

TEST_F(PassTest, FileStaysForMinStay) {
  put("nvme", "cold", "c");
  min_stay_ = "1h";
  start();
  const Json plan = ask({"plan"});
  EXPECT_EQ(plan.at("moves"), 0);
  EXPECT_EQ(plan.at("held").at("min_stay"), 1);
  run_pass();
  EXPECT_EQ(tiers_with("cold"), "nvme");
}

TEST_F(PassTest, ByValueAFileMovesToWhereItSavesWaitingAndTheWordsSayHowMuch) {
  policy_ = "value";
  put("hdd", "hot", pattern(kMiB, 1));
  put("hdd", "cold", pattern(kMiB, 2));
  start();
  read_often("hot", 50);
  const Json plan = ask({"plan"});
  ASSERT_EQ(moves_of(plan.at("list")), (Moves{{"/hot", "hdd", "nvme"}})) << plan;
  const std::string why = plan.at("list")[0].at("why");
  EXPECT_TRUE(why.starts_with("saves about ")) << why;
  EXPECT_NE(why.find(" of waiting a day on nvme"), std::string::npos) << why;
  EXPECT_GT(plan.at("saves").get<double>(), 0);
  EXPECT_EQ(plan.at("tiers")[0].at("price"), 0) << "everything has room";
  const CommandResult text = tell({"plan"});
  EXPECT_NE(text.out.find("they save about "), std::string::npos) << text.out;

  run_pass();
  EXPECT_EQ(tier_of("hot"), "nvme");
  EXPECT_EQ(tier_of("cold"), "hdd");
  const Json hot = explain("hot");
  EXPECT_GT(hot.at("uses_per_day").get<double>(), 1);
  EXPECT_EQ(hot.at("promote"), nullptr) << "thresholds have no part in it";
  EXPECT_EQ(hot.at("demote"), nullptr);
  ASSERT_EQ(hot.at("worth").size(), 2u);
  EXPECT_EQ(hot.at("worth")[0].at("tier"), "nvme");
  EXPECT_EQ(hot.at("worth")[0].at("against"), "ssd");
  EXPECT_GT(hot.at("worth")[0].at("saves").get<double>(), 0);
  const std::string words = sluice({"explain", *this / "hot"}).out;
  EXPECT_NE(words.find(" of waiting a day on nvme against ssd"), std::string::npos) << words;
  EXPECT_EQ(mount().status().at("tiers")[0].at("price"), 0);
}

}  // namespace
}  // namespace sluice::test
