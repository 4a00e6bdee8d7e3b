// SPDX-License-Identifier: BSD-2-Clause
// What users are told about moves: `sluice moves`, `sluice explain`, `sluice plan`.
#include <gtest/gtest.h>
#include <signal.h>

#include <algorithm>
#include <filesystem>
#include <thread>

#include "tests/mount/tiering.hpp"

namespace sluice::test {
namespace {

namespace fs = std::filesystem;

class MovesTest : public TieringTest {
 protected:
  // The paths of the receipts that `sluice moves PATH` shows, sorted.
  static Strings paths(const std::string& path) {
    const CommandResult result = sluice({"moves", "--json", path});
    EXPECT_EQ(result.exit_code, 0) << result.err;
    Strings out;
    if (!result.ok()) return out;
    const Json answer = Json::parse(result.out);
    for (const Json& each : answer.at("receipts")) out.push_back(each.at("path"));
    std::sort(out.begin(), out.end());
    return out;
  }
  std::string explained(const std::string& name) const {
    const CommandResult result = sluice({"explain", *this / name});
    return result.out + result.err;
  }
};

TEST_F(MovesTest, APathShowsOnlyItsMoves) {
  for (const char* name : {"a/f", "a/g", "ab/h"}) put("ssd", name, name);
  start();
  for (const char* name : {"a/f", "a/g", "ab/h"}) move(name, "hdd");
  // A receipt is stored a moment after the file has moved.
  EXPECT_TRUE(eventually([&] { return paths(root()).size() == 3; }));
  EXPECT_EQ(paths(root()), (Strings{"/a/f", "/a/g", "/ab/h"}));
  EXPECT_EQ(paths(*this / "a"), (Strings{"/a/f", "/a/g"}));
  EXPECT_EQ(paths(*this / "a/"), (Strings{"/a/f", "/a/g"}));
  EXPECT_EQ(paths(*this / "ab/h"), Strings{"/ab/h"});

  // A file that was renamed, one that is gone, and a path as the list shows it.
  fs::rename(*this / "a/f", *this / "ab/renamed");
  EXPECT_EQ(paths(*this / "ab/renamed"), Strings{"/a/f"});
  fs::remove(*this / "a/g");
  EXPECT_EQ(paths(*this / "a/g"), Strings{"/a/g"});
  const fs::path here = fs::current_path();
  fs::current_path(root());
  EXPECT_EQ(paths("/ab/h"), Strings{"/ab/h"});
  fs::current_path(here);
  EXPECT_NE(sluice({"moves", "/proc/self/status"}).exit_code, 0);
  const CommandResult none = sluice({"moves", *this / "nothing"});
  EXPECT_NE(none.out.find("nothing has moved at /nothing"), std::string::npos) << none.out;
}

TEST_F(MovesTest, ABurstIsOneLineAndExplainShowsTheLastMoves) {
  for (int i = 0; i < 50; ++i) put("ssd", "d/f" + std::to_string(i), "x");
  start();
  ASSERT_EQ(sluice({"move", "--to", "hdd", "--wait", *this / "d"}).exit_code, 0);
  const CommandResult list = sluice({"moves", root()});
  EXPECT_NE(list.out.find(" below /d/"), std::string::npos) << list.out;
  EXPECT_LT(std::count(list.out.begin(), list.out.end(), '\n'), 20) << list.out;
  const Json story = explain("d/f0");
  ASSERT_EQ(story.at("moves").size(), 1u) << story;
  EXPECT_EQ(story.at("moves")[0].at("to"), "hdd");
  EXPECT_NE(explained("d/f0").find("ssd -> hdd: asked for"), std::string::npos);
}

TEST_F(MovesTest, FollowShowsMovesAsTheyEndAndWhatIsLeft) {
  put("ssd", "f", "x");
  start();
  const std::string out = base_ / "out", pid = base_ / "pid";
  std::jthread follower([&] {
    run_command({"sh", "-c",
                 sluice_binary() + " moves --follow --json " + root() + " > " + out +
                     " & echo $! > " + pid + "; wait"});
  });
  const auto has = [&](const std::string& text) {
    return exists(out) && read_file(out).find(text) != std::string::npos;
  };
  EXPECT_TRUE(eventually([&] { return has(R"({"left":{"bytes":0,"files":0)"); }));
  move("f", "hdd");
  EXPECT_TRUE(eventually([&] { return has(R"("path":"/f")"); })) << read_file(out);
  ::kill(std::stoi(read_file(pid)), SIGTERM);
}

TEST_F(MovesTest, AnExplanationDoesNotContradictItself) {
  set_options("nvme", "threshold=3");
  set_options("ssd", "threshold=2");
  put("ssd", "pinned", "x");
  put("hdd", "hot", "x");
  start();
  ASSERT_EQ(sluice({"pin", "ssd", *this / "pinned"}).exit_code, 0);
  const Json pinned = explain("pinned");
  EXPECT_TRUE(pinned.at("demote").is_null() && pinned.at("promote").is_null()) << pinned;
  EXPECT_EQ(explained("pinned").find("falls below"), std::string::npos);
  read_often("hot", 5);
  const Json hot = explain("hot");
  EXPECT_EQ(hot.at("wants"), "nvme") << hot;
  EXPECT_TRUE(hot.at("promote").is_null()) << "there is nothing above nvme: " << hot;
  EXPECT_TRUE(hot.at("demote").is_null()) << hot;
}

TEST_F(MovesTest, AQueuedFileIsNotMovingNow) {
  put("ssd", "first", std::string(1 << 20, 'x'));
  for (int i = 0; i < 20; ++i) put("ssd", "f" + std::to_string(i), std::string(5 << 20, 'x'));
  start({"--bandwidth", "64KiB"});
  ASSERT_EQ(sluice({"move", "--to", "hdd", *this / "first"}).exit_code, 0);
  for (int i = 0; i < 20; ++i)
    ASSERT_EQ(sluice({"move", "--to", "hdd", *this / "f" + std::to_string(i)}).exit_code, 0);
  const auto is_moving = [&] { return explain("first").at("moving").is_object(); };
  ASSERT_TRUE(eventually(is_moving));
  EXPECT_TRUE(eventually([&] { return explain("first").at("moving").at("bytes") > 0; }));
  const Json last = explain("f19");
  EXPECT_TRUE(last.at("moving").is_null()) << last;
  EXPECT_EQ(last.at("queued").at("to"), "hdd") << last;
  const Json migration = mount().status().at("migration");
  EXPECT_GT(migration.at("bytes_left"), 50 << 20) << migration;
  EXPECT_TRUE(
      eventually([&] { return mount().status().at("migration").at("time_left_s").is_number(); }));
}

TEST_F(MovesTest, AnOfflineTierIsExplained) {
  put("hdd", "f", "x");
  start();
  ASSERT_EQ(read_file(*this / "f"), "x");
  disk("hdd").vanish();
  ASSERT_TRUE(eventually([&] {
    const std::string text = explained("f");
    return text.find("offline") != std::string::npos;
  })) << explained("f");
  EXPECT_EQ(explained("f").find("Input/output error"), std::string::npos) << explained("f");
}

TEST_F(MovesTest, PlanAndPassCountTheSameBytes) {
  put("ssd", "d/f", "12345");
  put("ssd", "d/g", std::string(5000, 'x'));
  start();
  ASSERT_EQ(sluice({"pin", "hdd", *this / "d"}).exit_code, 0);
  const Json plan = ask({"plan"});
  EXPECT_EQ(plan.at("bytes"), 5005) << plan;
  const auto check = [](const auto& self, const Json& value) -> void {
    if (!value.is_structured()) return;
    for (const auto& [key, each] : value.items()) {
      EXPECT_EQ(key.find('-'), std::string::npos) << key;
      self(self, each);
    }
  };
  check(check, plan);
  EXPECT_EQ(plan.at("held").at("hard_links"), 0);
  const CommandResult pass = tell({"tier", "run"});
  EXPECT_NE(pass.out.find("moved 2 files, 4.9 KiB"), std::string::npos) << pass.out;
  Json bytes = Json::array();
  for (const Json& each : receipts()) bytes.push_back(each.at("bytes"));
  std::sort(bytes.begin(), bytes.end());
  EXPECT_EQ(bytes, Json::array({5, 5000}));
}

}  // namespace
}  // namespace sluice::test
