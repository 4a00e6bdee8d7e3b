// SPDX-License-Identifier: BSD-2-Clause
// What can be seen of a pool as a whole: `sluice usage`, `sluice pin` without a path, restarts.
#include <csignal>

#include "tests/mount/tiering.hpp"
#include "tests/support/user.hpp"

namespace sluice::test {
namespace {

class UsageTest : public TieringTest {
 protected:
  Json usage(const std::string& directory, Strings options = {}) const {
    options.insert(options.begin(), {"usage", "--json"});
    options.push_back(*this / directory);
    const CommandResult result = sluice(options);
    if (!result.ok()) throw std::runtime_error(result.err);
    return Json::parse(result.out);
  }
  static std::string names(const Json& usage) {
    std::string out;
    for (const Json& child : usage.at("children")) {
      out += child.at("name").get<std::string>() + (child.at("directory") == true ? "/ " : " ");
    }
    return out;
  }
  std::string pins() const {
    std::string out;
    const Json answer = ask({"pin"});
    for (const Json& pin : answer.at("pins")) {
      out += pin.at("tier").get<std::string>() + ":" + pin.at("path").get<std::string>() + " ";
    }
    return out;
  }
};

TEST_F(UsageTest, CountsWhatIsBelowADirectoryByTierAndLargestFirst) {
  put("nvme", "d/small", std::string(64 << 10, 's'));
  put("hdd", "d/e/large", std::string(4 << 20, 'l'));
  put("ssd", "d/e/other", std::string(1 << 20, 'o'));
  put("hdd", "top", "t");
  start();

  const Json below = usage("d");  // counts by itself: no pass was made yet

  EXPECT_EQ(names(below), "e/ small ");
  EXPECT_EQ(below.at("files"), 3);
  EXPECT_EQ(below.at("tier_files"), (Json{{"nvme", 1}, {"ssd", 1}, {"hdd", 1}}));
  const Json& e = below.at("children").at(0);
  EXPECT_EQ(e.at("tier_files"), (Json{{"ssd", 1}, {"hdd", 1}}));
  EXPECT_GE(e.at("tiers").at("hdd").get<std::uint64_t>(), 4 * kMiB);
  EXPECT_EQ(names(usage("")), "d/ top ");
}

TEST_F(UsageTest, KnowsNewFilesAfterCountingAgain) {
  start();
  write_file(*this / "first", pattern(100'000, 1));
  EXPECT_EQ(names(usage("")), "first ");
  write_file(*this / "second", pattern(50'000, 1));
  EXPECT_EQ(names(usage("")), "first ");
  EXPECT_EQ(names(usage("", {"--now"})), "first second ");
  // The daemon has not heard of this directory.
  ASSERT_EQ(::mkdir((*this / "new").c_str(), 0755), 0);
  write_file(*this / "new/third", pattern(10'000, 1));
  EXPECT_EQ(names(usage("new")), "third ");
}

TEST_F(UsageTest, TheTableAddsUpWhatItDoesNotShow) {
  put("hdd", "a", std::string(300'000, 'a'));
  put("hdd", "b", std::string(200'000, 'b'));
  put("ssd", "c", std::string(100'000, 'c'));
  start();
  const CommandResult result = sluice({"usage", "--limit", "1", root()});
  EXPECT_NE(result.out.find("3 files, counted "), std::string::npos) << result.out;
  EXPECT_NE(result.out.find("  a\n"), std::string::npos) << result.out;
  EXPECT_EQ(result.out.find("  b\n"), std::string::npos) << result.out;
  EXPECT_NE(result.out.find("(all others)"), std::string::npos) << result.out;
}

TEST_F(UsageTest, SaysWhatItCanNotShow) {
  put("hdd", "file", "f");
  start();
  EXPECT_NE(sluice({"usage", *this / "file"}).err.find("not a directory"), std::string::npos);
  EXPECT_NE(sluice({"usage", base_ / "nothing"}).err.find("No such file"), std::string::npos);
  EXPECT_NE(sluice({"usage", base_.path()}).err.find("not on a mount of sluice"),
            std::string::npos);
}

TEST_F(UsageTest, ListsPinsOfFilesAndDirectories) {
  put("hdd", "kept/f", "f");
  put("hdd", "kept/g", "g");
  put("ssd", "h", "h");
  start();
  EXPECT_EQ(pins(), "");
  EXPECT_EQ(tell({"pin"}).out, "nothing is pinned\n");
  ASSERT_TRUE(sluice({"pin", "nvme", *this / "kept"}).ok());
  ASSERT_TRUE(sluice({"pin", "hdd", *this / "kept/g"}).ok());
  EXPECT_EQ(pins(), "nvme:/kept hdd:/kept/g ");
  EXPECT_NE(tell({"pin"}).out.find("nvme  /kept/\n"), std::string::npos);
  ASSERT_TRUE(sluice({"unpin", *this / "kept"}).ok());
  EXPECT_EQ(pins(), "hdd:/kept/g ");
  EXPECT_NE(sluice({"pin", "nvme"}).err.find("missing PATH"), std::string::npos);
}

TEST_F(UsageTest, TheStatusSaysWhyTheDaemonWasStartedAgain) {
  start();
  EXPECT_EQ(tell({"status"}).out.find("restarts"), std::string::npos);
  const auto reason = [&] { return ask({"status"}).at("restart_reason").get<std::string>(); };
  const auto daemon = ask({"status"}).at("pid").get<pid_t>();
  ASSERT_EQ(::kill(daemon, SIGKILL), 0);
  ASSERT_TRUE(eventually([&] { return ask({"status"}).at("restarts") == 1; }));
  EXPECT_EQ(reason(), "the daemon ended: signal 9, Killed");
  EXPECT_NE(tell({"status"}).out.find("restarts    1, the last because the daemon ended: "),
            std::string::npos);
  ASSERT_TRUE(tell({"restart"}).ok());
  EXPECT_EQ(ask({"status"}).at("restarts"), 2);
  EXPECT_EQ(reason(), "a restart was asked for");
}

}  // namespace
}  // namespace sluice::test
