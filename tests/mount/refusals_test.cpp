// SPDX-License-Identifier: BSD-2-Clause
// What a command says when it refuses or fails: why, and what to do next.
#include <ctime>
#include <map>
#include <sstream>

#include "tests/mount/tiering.hpp"
#include "tests/support/user.hpp"

namespace sluice::test {
namespace {

class RefusalsTest : public TieringTest {
 protected:
  // `sluice VERB...` with its stdout at `where`, which is a redirection of the shell.
  static CommandResult print_to(const std::string& where, Strings arguments) {
    arguments.insert(arguments.begin(), {"bash", "-c", "\"$0\" \"$@\" >" + where, sluice_binary()});
    return run_command(arguments);
  }
  // Runs `sluice VERB...`, expects that it fails, and returns what it says.
  static std::string refusal(const Strings& arguments) {
    const CommandResult result = sluice(arguments);
    EXPECT_EQ(result.exit_code, 1) << arguments[0] << " says " << result.out;
    return result.err;
  }
  void expect_refused(Strings arguments, const std::string& words) const {
    arguments.push_back(root());
    const std::string said = refusal(arguments);
    EXPECT_NE(said.find(words), std::string::npos) << said;
  }
};

// The verbs that print about a mount, with arguments that make them do so.
using Verbs = std::multimap<std::string, std::vector<std::string>>;

TEST_F(RefusalsTest, OutputThatCannotBeWrittenMakesEveryVerbFail) {
  put("hdd", "d/file", pattern(100'000, 1));
  put("hdd", "d/other", pattern(100'000, 2));
  start();
  const std::string file = *this / "d/file", mount = root(), spare = base_.make_dir("spare");
  ASSERT_TRUE(sluice({"budget", *this / "d", "1GiB"}).ok());
  const Verbs verbs{
      {"init", {"--tier", "a=/a", "--dry-run"}},
      {"reload", {"--help"}},  // the mount has no configuration
      {"set", {"bandwidth", "1MiB", mount}},
      {"set", {"bandwidth", mount}},
      {"restart", {mount}},
      {"status", {mount}},
      {"status", {"--json", mount}},
      {"top", {"--once", "--interval", "0.1", mount}},
      {"top", {"--json", "--interval", "0.1", mount}},
      {"web", {mount}},
      {"usage", {mount}},
      {"explain", {file}},
      {"plan", {mount}},
      {"move", {"--to", "ssd", "--wait", file}},
      {"moves", {mount}},
      {"pin", {mount}},
      {"budget", {*this / "d"}},
      {"tier", {"run", mount}},
      {"tier", {"drain", "ssd", mount}},
      {"tier", {"close", "--dry-run", on("hdd", "")}},
      {"tier", {"add", "spare=" + spare, mount}},
      {"trace", {"record", "-o", "-", "--for", "0s", mount}},
      {"origin", {"scan", spare}},
      {"gpu", {"read", "--host", file}},
      {"doctor", {mount}},
      {"bundle", {"--output", base_ / "bundle.tar", mount}},
      {"fsck", {"--help"}},  // the pool is mounted
  };
  std::istringstream listed(sluice({"complete", ""}).out);
  for (std::string line; std::getline(listed, line);) {
    const std::string verb = line.substr(0, line.find('\t'));
    const bool is_silent = verb == "mount" || verb == "umount" || verb == "unpin";
    if (verb.starts_with("-") || is_silent) continue;
    EXPECT_TRUE(verbs.contains(verb)) << verb << " is not tried";
  }
  for (const auto& [verb, arguments] : verbs) {
    Strings words = arguments;
    words.insert(words.begin(), verb);
    const CommandResult result = print_to("/dev/full", words);
    EXPECT_EQ(result.exit_code, 1) << verb << " " << arguments[0] << ": " << result.err;
    EXPECT_NE(result.err.find("sluice: " + verb + ": cannot write"), std::string::npos)
        << verb << " " << arguments[0] << ": " << result.err;
    // The tier is added: whoever appends the lines to the configuration needs them elsewhere.
    if (arguments[0] == "add") {
      EXPECT_NE(result.err.find("[[tier]]\nname = \"spare\""), std::string::npos) << result.err;
    }
  }
}

TEST_F(RefusalsTest, AReaderThatWentAwayEndsAVerbWithoutWords) {
  start();
  const std::string pipe = base_ / "pipe";
  ASSERT_EQ(::mkfifo(pipe.c_str(), 0600), 0);
  // A writer of a pipe that nobody reads any more.
  const std::string prepare = "exec 3<>'" + pipe + "' 4>'" + pipe + "' 3>&-; ";
  for (const char* verb :
       {"status", "plan", "usage", "top --json --interval 0.1", "trace record -o - --for 20s"}) {
    const CommandResult result = run_command(
        {"bash", "-c", prepare + "exec \"$0\" " + verb + " \"$1\" >&4", sluice_binary(), root()});
    EXPECT_EQ(result.exit_code, 1) << verb << ": " << result.err;
    EXPECT_EQ(result.err.find("sluice: "), std::string::npos) << result.err;
  }
}

// The rest of an answer that did not fit into a buffer is not written any more, and is no error.
TEST_F(RefusalsTest, AReaderThatReadALittleEndsTopToo) {
  start();
  const std::string directory = *this / std::string(200, 'd');
  ASSERT_EQ(::mkdir(directory.c_str(), 0755), 0);
  for (int i = 0; i < 20; ++i) write_file(directory + "/" + std::to_string(i), "x");
  ASSERT_TRUE(eventually([&] { return ask({"top", "--once"}).dump().size() > 6000; }));
  const CommandResult result = run_command(
      {"bash", "-c", "\"$0\" top --json --interval 0.1 \"$1\" | head -c 1; exit ${PIPESTATUS[0]}",
       sluice_binary(), root()});
  EXPECT_EQ(result.exit_code, 1) << result.err;
}

TEST_F(RefusalsTest, SetSaysWhyAnOptionIsNotChanged) {
  start();
  expect_refused({"set", "bandwith", "1MiB"}, "no such option; did you mean 'bandwidth'?");
  expect_refused({"set", "nosuch.reserve", "1MiB"}, "the mount has no such tier");
  expect_refused({"set", "bandwidth", "fast"}, "must be a size per second");
  expect_refused({"set", "bandwidth", "50"}, "which is 50 bytes per second");
  expect_refused({"set", "small_file", "1MiB"}, "cannot change while the pool is mounted");
  expect_refused({"set", "nvme.high_watermark", "10"}, "must be below high_watermark (10)");
  expect_refused({"set", "--reset", "bandwidth"}, "was not set on trial");
  EXPECT_EQ(ask({"status"}).at("trials"), Json::object());

  const CommandResult done = sluice({"set", "bandwidth", "50MB", root()});
  EXPECT_EQ(done.exit_code, 0) << done.err;
  EXPECT_EQ(done.out, "bandwidth: 0 -> 50MiB\n");
  EXPECT_EQ(xattr_of(root(), "user.sluice.set.bandwidth"), "50MiB");
  EXPECT_EQ(sluice({"set", "bandwidth", root()}).out, "50MiB\n");
  EXPECT_EQ(ask({"status"}).at("trials"), (Json{{"bandwidth", "50MiB"}}));
  EXPECT_EQ(sluice({"set", "small_file", root()}).out, "128KiB\n");
  EXPECT_EQ(sluice({"set", "--reset", "bandwidth", root()}).out, "bandwidth: 50MiB -> 0\n");
  EXPECT_EQ(ask({"status"}).at("trials"), Json::object());
  const std::string user = as_user(kAlice, [&] {
    return sluice({"set", "bandwidth", "1MiB", root()}).err;
  });
  EXPECT_NE(user.find("only root may do this; try sudo"), std::string::npos) << user;
}

TEST_F(RefusalsTest, AMoveToATierThatIsOfflineNamesItAndSaysSinceWhen) {
  put("hdd", "file", "f");
  put("ssd", "d/there", "t");
  start();
  const std::time_t before = std::time(nullptr);
  EXPECT_EQ(ask({"status"}).at("tiers").at(1).at("offline_since"), 0);
  EXPECT_EQ(read_file(*this / "d/there"), "t");  // so that its name is known
  disk("ssd").vanish();
  ASSERT_TRUE(eventually([&] { return ask({"status"}).at("tiers").at(1).at("online") == false; }));
  EXPECT_GE(ask({"status"}).at("tiers").at(1).at("offline_since"), before);
  const std::string said = refusal({"move", "--to", "ssd", *this / "file"});
  EXPECT_NE(said.find("tier ssd has been offline since 20"), std::string::npos) << said;
  EXPECT_EQ(said.find("Input/output error"), std::string::npos) << said;
  for (const char* path : {"d/there", "d", ""}) {
    const std::string of_it = refusal({"move", "--to", "hdd", *this / path});
    EXPECT_NE(of_it.find("on a tier that is offline"), std::string::npos) << of_it;
    EXPECT_NE(of_it.find(": ssd since 20"), std::string::npos) << of_it;
  }
  expect_refused({"tier", "drain", "ssd"},
                 "or give it up with its files ('sluice tier drain ssd --lost')");
  EXPECT_NE(
      sluice({"usage", "--now", root()}).out.find("not counted: files on ssd, which is offline"),
      std::string::npos);
  disk("ssd").come_back();
  ASSERT_TRUE(eventually([&] { return ask({"status"}).at("tiers").at(1).at("online") == true; }));
  EXPECT_EQ(ask({"status"}).at("tiers").at(1).at("offline_since"), 0);
  EXPECT_TRUE(sluice({"move", "--to", "ssd", "--wait", *this / "file"}).ok());
}

TEST_F(RefusalsTest, FsckByAUserAsksForSudo) {
  put("hdd", "file", "f");
  start();
  const Strings arguments = mount().pool().fsck_arguments();
  mount().umount();
  Strings words{"fsck"};
  words.insert(words.end(), arguments.begin(), arguments.end());
  const std::string said = as_user(kAlice, [&] { return sluice(words).err; });
  EXPECT_NE(said.find("Permission denied"), std::string::npos) << said;
  EXPECT_NE(said.find("only root can check a pool: try sudo"), std::string::npos) << said;
  EXPECT_TRUE(sluice(words).ok());
}

TEST_F(RefusalsTest, AReadOnlyTierAtMountSaysWhatDegradedCanDo) {
  put("hdd", "file", "f");
  put("ssd", "other", "o");
  start();
  Pool pool = mount().pool();
  mount().umount();
  disk("ssd").remount_read_only();
  const auto try_mount = [&](const Strings& flags) {
    pool.flags = flags;
    Strings words = pool.mount_arguments();
    words.insert(words.begin(), "mount");
    return sluice(words);
  };
  for (const Strings& flags : {Strings{}, Strings{"--degraded"}}) {
    const CommandResult refused = try_mount(flags);
    EXPECT_EQ(refused.exit_code, 1);
    EXPECT_NE(refused.err.find("remount it writable, or unmount its disk and mount the pool with "
                               "--degraded"),
              std::string::npos)
        << refused.err;
  }
  disk("ssd").vanish();
  const CommandResult missing = try_mount({});
  EXPECT_NE(missing.err.find("mount its disk, or the pool without it by --degraded"),
            std::string::npos)
      << missing.err;
  EXPECT_TRUE(try_mount({"--degraded"}).ok());
  EXPECT_EQ(read_file(*this / "file"), "f");
  // Nobody knows how long it has been away.
  const std::string said = refusal({"move", "--to", "ssd", *this / "file"});
  EXPECT_NE(said.find("tier ssd has been offline since before the daemon was started"),
            std::string::npos)
      << said;
  EXPECT_TRUE(sluice({"umount", root()}).ok());
}

}  // namespace
}  // namespace sluice::test
