// SPDX-License-Identifier: BSD-2-Clause
// `sluice bundle`: the content of a bundle, which must not contain names or content of files.
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <csignal>
#include <map>

#include "tests/mount/tiering.hpp"
#include "tests/support/user.hpp"

namespace sluice::test {
namespace {

constexpr const char* kMarker = "tOpSeCrEt";

class BundleTest : public TieringTest {
 protected:
  std::string file() const { return base_ / "report.tar"; }
  CommandResult bundle(Strings more = {}) const {
    more.insert(more.begin(), {"bundle", "--output", file()});
    return sluice(more);
  }
  // The files of the archive, as tar extracts them, by name.
  std::map<std::string, std::string> unpacked() const {
    const std::string folder = base_.make_dir("unpacked");
    const CommandResult tar = run_command({"tar", "-xf", file(), "-C", folder});
    if (!tar.ok()) throw std::runtime_error(tar.err);
    std::map<std::string, std::string> out;
    for (const auto& name : names_in(folder)) out[name] = read_file(folder + "/" + name);
    return out;
  }
  static std::string all(const std::map<std::string, std::string>& files) {
    std::string out;
    for (const auto& [name, text] : files) out += "== " + name + "\n" + text;
    return out;
  }
  // Makes a file with a secret name and content that appears in receipts, log and hottest files.
  void use_secret() {
    const std::string name = std::string(kMarker) + " dir/" + kMarker + ".bin";
    put("hdd", name, std::string("content ") + kMarker);
    // Receipts name a rule by its pattern.
    const std::string ruled = std::string("ruled.") + kMarker, config = base_ / "rules.toml";
    put("hdd", ruled, "x");
    write_file(config, std::string("[[rule]]\nmatch = \"*.") + kMarker + "\"\ntier = \"ssd\"\n");
    start({"--config", config, "--log-level", "debug", "--metrics", "unix"});
    run_pass();
    EXPECT_EQ(tier_of(ruled), "ssd");
    read_often(name, 5);
    move(name, "nvme");
    // A file that cannot be moved is logged with its name.
    const int writer = ::open((*this / name).c_str(), O_RDWR | O_CLOEXEC);
    tell({"move", "--to", "ssd", "--wait", *this / name});
    ::close(writer);
    EXPECT_TRUE(eventually([&] { return !ask({"top", "--once"}).at("hottest").empty(); }));
  }
};

TEST_F(BundleTest, ContainsTheDataOfAReportAndNoFileNames) {
  use_secret();
  ASSERT_NE(mount().log().find(kMarker), std::string::npos) << "the log does not contain the name";
  const CommandResult made = bundle({root()});
  ASSERT_TRUE(made.ok()) << made.err;
  const auto files = unpacked();
  for (const char* name : {"README.txt", "activity.json", "doctor.json", "log.txt", "metrics.txt",
                           "mounts.txt", "moves.json", "status.json", "system.txt"}) {
    EXPECT_TRUE(files.contains(name)) << name << "\n" << made.out;
    EXPECT_NE(made.out.find(name), std::string::npos) << made.out;
  }
  EXPECT_EQ(all(files).find(kMarker), std::string::npos) << all(files);
  EXPECT_EQ(made.out.find(kMarker), std::string::npos);
  // The file has the same hash in the receipts and in the log.
  const Json receipts = Json::parse(files.at("moves.json")).at("receipts");
  ASSERT_FALSE(receipts.empty());
  EXPECT_TRUE(receipts.back().at("reason").get<std::string>().starts_with("rule <")) << receipts;
  const std::string path = receipts.front().at("path");
  EXPECT_TRUE(path.ends_with(">.bin")) << path;
  EXPECT_NE(files.at("log.txt").find("path=" + path), std::string::npos) << files.at("log.txt");
  EXPECT_NE(files.at("mounts.txt").find("fuse.sluice"), std::string::npos);
  EXPECT_NE(files.at("metrics.txt").find("# TYPE"), std::string::npos);
  EXPECT_NE(files.at("status.json").find(on("nvme", "").substr(0, 10)), std::string::npos);
}

TEST_F(BundleTest, KeepsNamesIfRequested) {
  use_secret();
  ASSERT_TRUE(bundle({"--names", root()}).ok());
  const auto files = unpacked();
  EXPECT_NE(files.at("moves.json").find(kMarker), std::string::npos);
  EXPECT_NE(files.at("log.txt").find(kMarker), std::string::npos);
  EXPECT_EQ(all(files).find(std::string("content ") + kMarker), std::string::npos);
}

TEST_F(BundleTest, BundleOfABindMountCoversTheWholePool) {
  put("hdd", std::string(kMarker) + "/f", "x");
  start();
  const std::string part = base_.make_dir("part");
  ASSERT_TRUE(run_command({"mount", "--bind", *this / kMarker, part}).ok());
  const CommandResult made = bundle({part});
  EXPECT_TRUE(run_command({"umount", part}).ok());
  ASSERT_TRUE(made.ok()) << made.err;
  const auto files = unpacked();
  EXPECT_TRUE(files.contains("status.json")) << made.out;
  EXPECT_EQ(all(files).find(kMarker), std::string::npos) << all(files);
}

TEST_F(BundleTest, ContainsTheLogOfTheDaemon) {
  const std::string log = base_ / "elsewhere.log";
  start({"--log-file", log});
  write_file(base_ / "state/sluice.log", "of long ago");
  ASSERT_TRUE(bundle({root()}).ok());
  const auto files = unpacked();
  EXPECT_NE(files.at("log.txt").find("mounted: "), std::string::npos) << files.at("log.txt");
  EXPECT_NE(files.at("README.txt").find(log + ", last written "), std::string::npos)
      << files.at("README.txt");
}

TEST_F(BundleTest, UnderSudoBelongsToTheCaller) {
  start();
  ASSERT_EQ(::setenv("SUDO_UID", "4242", 1) + ::setenv("SUDO_GID", "4243", 1), 0);
  const CommandResult made = bundle({root()});
  ASSERT_EQ(::unsetenv("SUDO_UID") + ::unsetenv("SUDO_GID"), 0);
  ASSERT_TRUE(made.ok()) << made.err;
  EXPECT_EQ(lstat_of(file()).st_uid, 4242u);
  EXPECT_EQ(lstat_of(file()).st_gid, 4243u);
  EXPECT_EQ(lstat_of(file()).st_mode & 07777, 0600u);
}

TEST_F(BundleTest, IsPrivateAndReplacesNoFile) {
  start();
  write_file(file(), "mine");
  const CommandResult refused = bundle({root()});
  EXPECT_EQ(refused.exit_code, 1);
  EXPECT_EQ(read_file(file()), "mine");
  ASSERT_EQ(::unlink(file().c_str()), 0);
  ASSERT_TRUE(bundle({root()}).ok());
  EXPECT_EQ(lstat_of(file()).st_mode & 07777, 0600u);
}

TEST_F(BundleTest, BundleOfADeadMountUsesTheConfiguration) {
  const std::string config = base_ / "pool.toml";
  write_file(config, "# " + std::string(kMarker) + "\nmountpoint = \"" + base_ / "mnt" +
                         "\"\nstate = \"" + base_ / "state" +
                         "\"\n[[tier]]\nname = \"nvme\"\npath = \"" + on("nvme", "") +
                         "\"\n[[rule]]\nmatch = \"" + kMarker + "\"\ntier = \"nvme\"\n");
  for (const char* other : {"nvme", "ssd", "hdd"}) leave_out(other);
  start({"--config", config});
  mount().kill_daemon();
  const CommandResult made = bundle({root()});
  ASSERT_TRUE(made.ok()) << made.err;
  const auto files = unpacked();
  EXPECT_NE(made.out.find("left out: status.json"), std::string::npos) << made.out;
  EXPECT_NE(files.at("README.txt").find("status.json"), std::string::npos);
  EXPECT_NE(files.at("doctor.json").find("has died"), std::string::npos) << files.at("doctor.json");
  EXPECT_NE(files.at("log.txt").find("mounted: "), std::string::npos);
  EXPECT_NE(files.at("config.toml").find("name = \"nvme\""), std::string::npos);
  EXPECT_EQ(all(files).find(kMarker), std::string::npos) << all(files);
}

TEST_F(BundleTest, BundleOfAHangingDaemonEnds) {
  start();
  ASSERT_EQ(::kill(mount().pid(), SIGSTOP), 0);
  const CommandResult made = bundle({root()});
  ASSERT_EQ(::kill(mount().pid(), SIGCONT), 0);
  ASSERT_TRUE(made.ok()) << made.err;
  EXPECT_NE(made.out.find("left out: status.json: sluice: status"), std::string::npos) << made.out;
  EXPECT_TRUE(unpacked().contains("doctor.json"));
}

TEST_F(BundleTest, ContainsMetricsServedOnAPort) {
  const std::string config = base_ / "port.toml";
  write_file(config, "metrics = \"127.0.0.1:39465\"\n");
  start({"--config", config});
  ASSERT_TRUE(bundle({root()}).ok());
  EXPECT_NE(unpacked()["metrics.txt"].find("# TYPE"), std::string::npos);
}

TEST_F(BundleTest, IsNotWrittenToAHangingMount) {
  start();
  ASSERT_EQ(::kill(mount().pid(), SIGSTOP), 0);
  const CommandResult made = sluice({"bundle", "--output", *this / "report.tar", root()});
  ASSERT_EQ(::kill(mount().pid(), SIGCONT), 0);
  EXPECT_EQ(made.exit_code, 1);
  EXPECT_NE(made.err.find("does not answer"), std::string::npos) << made.err;
}

TEST_F(BundleTest, BundleWithoutRootReportsWhatIsMissing) {
  put("hdd", kMarker, "x");
  start();
  ASSERT_EQ(::chmod(base_.path().c_str(), 0777), 0);
  const std::string said = as_user(kNobody, [&] {
    const CommandResult made = bundle({root()});
    return made.ok() ? made.out : "failed: " + made.err;
  });
  EXPECT_NE(said.find("status.json"), std::string::npos) << said;
  EXPECT_NE(said.find("left out: moves.json"), std::string::npos) << said;
  EXPECT_EQ(all(unpacked()).find(kMarker), std::string::npos);
}

}  // namespace
}  // namespace sluice::test
