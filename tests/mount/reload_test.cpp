// SPDX-License-Identifier: BSD-2-Clause
// Options that change while the pool is mounted: by `sluice reload`, SIGHUP and xattrs of the root.
#include <fcntl.h>
#include <sys/xattr.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <memory>

#include "base/unique_fd.hpp"
#include "tests/mount/tiering.hpp"
#include "tests/support/user.hpp"

namespace sluice::test {
namespace {

class ReloadTest : public TieringTest {
 protected:
  // Writes the configuration: options of the mount, of the tier nvme, and rules.
  void configure(const std::string& options, const std::string& nvme = "",
                 const std::string& rules = "") {
    const auto tier = [&](const std::string& name, const std::string& more) {
      return "[[tier]]\nname = \"" + name + "\"\npath = \"" + disk(name).path() + "\"\n" + more;
    };
    write_file(config_, "migrate = false\nmin_stay = \"0s\"\npolicy = \"thresholds\"\n" + options +
                            tier("nvme", nvme) + tier("ssd", "") + tier("hdd", "") + rules);
  }
  void mount_pool() {
    pool_ =
        std::make_unique<Mount>(Pool{{}, base_ / "state", base_ / "mnt", {"--config", config_}});
  }
  CommandResult reload() const { return sluice({"reload", pool_->path()}); }
  std::string value(const std::string& name) const {
    return xattr_of(pool_->path(), "user.sluice.set." + name).value_or("(none)");
  }
  // "ok", or the errno's name.
  std::string set(const std::string& name, const std::string& text) const {
    const int done = ::setxattr(pool_->path().c_str(), ("user.sluice.set." + name).c_str(),
                                text.data(), text.size(), 0);
    return errno_name(done < 0 ? errno : 0);
  }
  Json plan() const {
    const CommandResult result = sluice({"plan", "--json", pool_->path()});
    EXPECT_TRUE(result.ok()) << result.err;
    return Json::parse(result.out).at("list");
  }
  // Something that must not end with a reload.
  void expect_mounted(const UniqueFd& open) const {
    EXPECT_EQ(::pwrite(open.get(), "x", 1, 0), 1);
    EXPECT_EQ(pool_->status().at("pid"), pool_->pid());
  }

  const std::string config_ = base_ / "pool.toml";
  std::unique_ptr<Mount> pool_;
};

constexpr const char* kStay = "[[rule]]\nmatch = \"*.iso\"\ntier = \"stay\"\n";
constexpr const char* kToHdd = "[[rule]]\nmatch = \"*.iso\"\ntier = \"hdd\"\n";

TEST_F(ReloadTest, NextPlanAndNewFilesGoByTheNewRules) {
  put("nvme", "disk.iso", "1");
  configure("", "", kStay);
  mount_pool();
  EXPECT_EQ(plan(), Json::array());

  configure("", "", kToHdd);
  EXPECT_EQ(plan(), Json::array()) << "the file alone changes nothing";
  const CommandResult result = reload();
  EXPECT_EQ(result.exit_code, 0) << result.err;
  EXPECT_EQ(result.out, "rules: 1 -> 1\n");

  const Json moves = plan();
  ASSERT_EQ(moves.size(), 1u) << moves;
  EXPECT_EQ(moves[0].at("path"), "/disk.iso");
  EXPECT_EQ(moves[0].at("to"), "hdd");
  write_file(*pool_ / "new.iso", "2");
  EXPECT_TRUE(exists(on("hdd", "new.iso")));
  EXPECT_EQ(reload().out, "nothing has changed\n");
}

TEST_F(ReloadTest, NewFilesGoByTheNewWatermarks) {
  put("nvme", "large", pattern(30 * kMiB, 1));
  configure("");
  mount_pool();
  write_file(*pool_ / "before", "1");
  EXPECT_TRUE(exists(on("nvme", "before")));

  configure("", "high_watermark = 20\nlow_watermark = 10\nreserve = \"1MiB\"\n");
  const CommandResult result = reload();
  EXPECT_EQ(result.out,
            "nvme.high_watermark: 90 -> 20\nnvme.low_watermark: 80 -> 10\n"
            "nvme.reserve: 2% of the tier, at most 4 GiB -> 1MiB\n");
  write_file(*pool_ / "after", "2");
  EXPECT_TRUE(exists(on("ssd", "after")));
  const Json tier = pool_->status().at("tiers")[0];
  EXPECT_EQ(tier.at("high_watermark"), 20);
  EXPECT_EQ(tier.at("reserve"), kMiB);
}

TEST_F(ReloadTest, AutomaticMovesBeginAfterAReload) {
  put("nvme", "cold", "1");
  configure("");
  mount_pool();
  const std::string text = read_file(config_);
  write_file(config_, "migrate = true\n" + text.substr(text.find('\n') + 1));
  EXPECT_EQ(reload().out, "migrate: false -> true\n");
  EXPECT_TRUE(eventually([&] { return exists(on("hdd", "cold")); }));
}

TEST_F(ReloadTest, MistakeInTheFileChangesNothing) {
  configure("bandwidth = \"1GiB\"\n");
  mount_pool();
  configure("bandwidth = \"2GiB\"\nlog_level = \"debug\"\n", "", kToHdd);
  const std::string right = read_file(config_);
  write_file(config_, right + "teir = \"x\"\n");
  CommandResult result = reload();
  EXPECT_EQ(result.exit_code, 1);
  EXPECT_NE(result.err.find(config_ + ":"), std::string::npos) << result.err;
  EXPECT_NE(result.err.find("unknown key 'teir' in a rule"), std::string::npos) << result.err;
  EXPECT_EQ(value("bandwidth"), "1GiB");
  EXPECT_EQ(value("log_level"), "info");

  ::unlink(config_.c_str());
  result = reload();
  EXPECT_EQ(result.exit_code, 1);
  EXPECT_NE(result.err.find("No such file"), std::string::npos) << result.err;

  write_file(config_, right);
  EXPECT_EQ(reload().exit_code, 0);
  EXPECT_EQ(value("bandwidth"), "2GiB");
  EXPECT_EQ(value("log_level"), "debug");
}

TEST_F(ReloadTest, HangupReloadsAndTheMountStays) {
  configure("");
  mount_pool();
  const UniqueFd open(::open((*pool_ / "busy").c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0644));
  configure("bandwidth = \"1MiB\"\n");
  ASSERT_EQ(::kill(pool_->pid(), SIGHUP), 0);
  EXPECT_TRUE(eventually([&] { return value("bandwidth") == "1MiB"; }));
  expect_mounted(open);

  configure("bandwidth = \"2MiB\"\n");
  ASSERT_EQ(::kill(pool_->keeper(), SIGHUP), 0);
  EXPECT_TRUE(eventually([&] { return value("bandwidth") == "2MiB"; }));
  expect_mounted(open);

  write_file(config_, "this is not TOML");
  ASSERT_EQ(::kill(pool_->pid(), SIGHUP), 0);
  EXPECT_TRUE(eventually([&] {
    return pool_->log().find("cannot reload the configuration, nothing has changed") !=
           std::string::npos;
  }));
  expect_mounted(open);
}

TEST_F(ReloadTest, WhatNeedsAnotherMountIsNamed) {
  configure("");
  mount_pool();
  configure("small_file = \"64KiB\"\nbandwidth = \"1MiB\"\n", "moves = 3\n");
  CommandResult result = reload();
  EXPECT_EQ(result.out,
            "bandwidth: 0 -> 1MiB\n"
            "takes effect at the next mount: small_file = 64KiB (now 128KiB)\n"
            "takes effect at the next mount: nvme.moves = 3 (now 2)\n");
  EXPECT_EQ(value("small_file"), "128KiB");

  write_file(config_, read_file(config_) + "[[tier]]\nname = \"tape\"\npath = \"/tape\"\n" +
                          "[[rule]]\nmatch = \"*\"\ntier = \"tape\"\n");
  result = reload();
  EXPECT_EQ(result.exit_code, 1);
  EXPECT_NE(result.err.find("tier tape is not mounted"), std::string::npos) << result.err;
}

TEST_F(ReloadTest, ReloadedOptionsOutliveTheDaemon) {
  configure("");
  mount_pool();
  configure("bandwidth = \"1MiB\"\n", "", kToHdd);
  ASSERT_TRUE(reload().ok());
  pool_->crash_daemon();
  EXPECT_EQ(value("bandwidth"), "1MiB");
  const CommandResult restarted = sluice({"restart", pool_->path()});
  ASSERT_TRUE(restarted.ok()) << restarted.err;
  EXPECT_EQ(value("bandwidth"), "1MiB");
  EXPECT_EQ(reload().out, "nothing has changed\n");
  write_file(*pool_ / "new.iso", "2");
  EXPECT_TRUE(exists(on("hdd", "new.iso")));
}

TEST_F(ReloadTest, DaemonThatCrashesBesideAMistakeGoesOnWithTheLastGoodFile) {
  configure("");
  mount_pool();
  configure("bandwidth = \"1MiB\"\n");
  ASSERT_TRUE(reload().ok());
  const std::string right = read_file(config_);
  write_file(config_, right + "teir = 1\n");
  EXPECT_EQ(reload().exit_code, 1);
  pool_->crash_daemon();
  EXPECT_EQ(value("bandwidth"), "1MiB");
  const CommandResult restarted = sluice({"restart", pool_->path()});
  EXPECT_EQ(restarted.exit_code, 1) << "somebody can be told";
  EXPECT_NE(restarted.err.find("unknown key 'teir'"), std::string::npos) << restarted.err;
  write_file(config_, right);
  EXPECT_EQ(reload().out, "nothing has changed\n");
}

TEST_F(ReloadTest, TierThatWasAddedMayComeIntoTheFile) {
  configure("");
  mount_pool();
  const std::string cold = base_.make_dir("cold");
  const CommandResult added = sluice({"tier", "add", "cold=" + cold, pool_->path()});
  ASSERT_TRUE(added.ok()) << added.err;
  EXPECT_EQ(reload().out,
            "takes effect at the next mount: tier cold is mounted, but it is not in the "
            "configuration\n");
  write_file(config_, read_file(config_) + "[[tier]]\nname = \"cold\"\npath = \"" + cold +
                          "\"\nhigh_watermark = 70\n" +
                          "[[rule]]\nmatch = \"*.old\"\ntier = \"cold\"\n");
  EXPECT_EQ(reload().out,
            "cold.high_watermark: 90 -> 70\ncold.low_watermark: 80 -> 60\nrules: 0 -> 1\n");
  write_file(*pool_ / "a.old", "1");
  EXPECT_TRUE(exists(cold + "/a.old"));
  const CommandResult restarted = sluice({"restart", pool_->path()});
  ASSERT_TRUE(restarted.ok()) << restarted.err;
  EXPECT_EQ(pool_->status().at("tiers").size(), 4u);
  EXPECT_EQ(read_file(*pool_ / "a.old"), "1");
}

TEST_F(ReloadTest, RootTriesAnOptionOutUntilTheNextReload) {
  configure("bandwidth = \"1MiB\"\n");
  mount_pool();
  EXPECT_EQ(value("nvme.high_watermark"), "90");
  EXPECT_EQ(pool_->status().at("trials"), Json::object());
  EXPECT_EQ(set("bandwidth", "3MiB"), "ok");
  EXPECT_EQ(set("nvme.high_watermark", "95"), "ok");
  EXPECT_EQ(value("bandwidth"), "3MiB");
  EXPECT_EQ(pool_->status().at("trials"),
            (Json{{"bandwidth", "3MiB"}, {"nvme.high_watermark", "95"}}));
  EXPECT_EQ(pool_->status().at("tiers")[0].at("high_watermark"), 95);
  EXPECT_NE(sluice({"status", pool_->path()}).out.find("on trial    bandwidth = 3MiB"),
            std::string::npos);
  EXPECT_EQ(::removexattr(pool_->path().c_str(), "user.sluice.set.nvme.high_watermark"), 0);
  EXPECT_EQ(pool_->status().at("tiers")[0].at("high_watermark"), 90);

  EXPECT_EQ(set("bandwidth", "fast"), "EINVAL");
  EXPECT_EQ(set("nvme.low_watermark", "99"), "EINVAL");
  EXPECT_EQ(set("nosuch", "1"), "EINVAL");
  EXPECT_EQ(set("small_file", "1MiB"), "EPERM");
  EXPECT_EQ(value("nosuch"), "(none)");
  EXPECT_EQ(value("bandwidth"), "3MiB");
  EXPECT_EQ(as_user(kAlice, [&] { return set("bandwidth", "4MiB"); }), "EACCES")
      << "the kernel's answer, because the root of the mount is not hers";
  EXPECT_EQ(::chmod(pool_->path().c_str(), 0777), 0);
  EXPECT_EQ(as_user(kAlice, [&] { return set("bandwidth", "4MiB"); }), "EPERM");
  EXPECT_EQ(::listxattr(pool_->path().c_str(), nullptr, 0), 0) << "cp -a would copy them";

  EXPECT_EQ(reload().out, "bandwidth: 3MiB -> 1MiB\n");
  EXPECT_EQ(pool_->status().at("trials"), Json::object());
}

}  // namespace
}  // namespace sluice::test
