// SPDX-License-Identifier: BSD-2-Clause
// Observing a mount: activity, metrics, log, top.
#include <netinet/in.h>
#include <poll.h>
#include <pty.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <sys/xattr.h>
#include <termios.h>
#include <unistd.h>

#include <cstring>
#include <set>
#include <sstream>

#include "tests/mount/tiering.hpp"

namespace sluice::test {
namespace {

// Reads `socket` until the other side closes it, for at most a minute.
std::string read_all(int socket) {
  const timeval timeout{.tv_sec = 60, .tv_usec = 0};
  ::setsockopt(socket, SOL_SOCKET, SO_RCVTIMEO, &timeout, sizeof timeout);
  std::string out;
  char piece[4096];
  for (ssize_t got; (got = ::recv(socket, piece, sizeof piece, 0)) > 0;)
    out.append(piece, static_cast<std::size_t>(got));
  return out;
}

class WatchTest : public TieringTest {
 protected:
  int connect_to(const std::string& name) const {
    const int fd = ::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    sockaddr_un address{};
    address.sun_family = AF_UNIX;
    std::strncpy(address.sun_path, (base_ / "state" + "/" + name).c_str(),
                 sizeof address.sun_path - 1);
    if (::connect(fd, reinterpret_cast<sockaddr*>(&address), sizeof address) == 0) return fd;
    ::close(fd);
    return -1;
  }
  // The last line of the answer to one request over the control socket.
  Json control(const Json& request) const {
    const int fd = connect_to("control.sock");
    if (fd < 0) throw std::runtime_error("no control socket");
    const std::string line = request.dump() + "\n";
    ::send(fd, line.data(), line.size(), MSG_NOSIGNAL);
    const std::string answer = read_all(fd);
    ::close(fd);
    const auto end = answer.find_last_not_of('\n');
    return Json::parse(answer.substr(answer.rfind('\n', end) + 1));
  }
  Json activity() const { return control({{"verb", "activity"}}); }
  static const Json& tier(const Json& activity, const std::string& name) {
    for (const Json& each : activity.at("tiers")) {
      if (each.at("name") == name) return each;
    }
    throw std::invalid_argument(name);
  }
  Strings hottest() const {
    Strings out;
    const Json now = activity();
    for (const Json& file : now.at("hottest"))
      out.push_back(file.at("path").get<std::string>() + " on " +
                    file.at("tier").get<std::string>());
    return out;
  }
};

TEST_F(WatchTest, HottestFilesAreKnownWithinSeconds) {
  put("hdd", "d/warm", "w");
  put("hdd", "hot", "h");
  start();
  read_often("d/warm", 3);
  read_often("hot", 5);
  EXPECT_TRUE(eventually([&] {
    return hottest() == Strings{"/hot on hdd", "/d/warm on hdd"};
  })) << activity().at("hottest");
}

TEST_F(WatchTest, HottestFilesFollowRenamesMovesAndRemovals) {
  put("hdd", "a", "1");
  put("hdd", "b", "2");
  start();
  read_often("a", 5);
  read_often("b", 3);
  ASSERT_TRUE(eventually([&] { return hottest() == Strings{"/a on hdd", "/b on hdd"}; }));
  ASSERT_EQ(::rename((*this / "a").c_str(), (*this / "c").c_str()), 0);
  move("b", "nvme");
  EXPECT_EQ(hottest(), (Strings{"/c on hdd", "/b on nvme"}));
  ASSERT_EQ(::unlink((*this / "c").c_str()), 0);
  EXPECT_TRUE(eventually([&] { return hottest() == Strings{"/b on nvme"}; }));
}

TEST_F(WatchTest, PassFindsTheHottestFilesOfAnEarlierMount) {
  put("hdd", "a", "1");
  start();
  read_often("a", 7);
  mount().remount();
  EXPECT_EQ(hottest(), Strings{});
  ASSERT_TRUE(tell({"plan"}).ok());
  EXPECT_EQ(hottest(), (Strings{"/a on hdd"}));
}

TEST_F(WatchTest, TreeDescribesADirectoryOfAnyNameAfterAPass) {
  put("hdd", "d \xff/cold", pattern(2 * kMiB, 1));
  put("nvme", "d \xff/hot", pattern(kMiB, 1));
  start();
  const auto tree = [&](const char* path) { return control({{"verb", "tree"}, {"path", path}}); };
  EXPECT_EQ(tree("/").at("time"), 0);
  read_often("d \xff/hot", 6);
  ASSERT_TRUE(tell({"plan"}).ok());
  const Json root = tree("/");
  ASSERT_EQ(root.at("children").size(), 1u) << root;
  EXPECT_EQ(root.at("children")[0].at("at"), "d%20%FF");
  const Json level = tree("/d%20%FF");
  ASSERT_EQ(level.at("children").size(), 2u) << level;
  EXPECT_EQ(level.at("children")[0].at("name"), "cold");
  EXPECT_EQ(level.at("children")[0].at("tiers"), (Json{{"hdd", 2 * kMiB}}));
  EXPECT_NEAR(level.at("children")[1].at("heat").get<double>(), 6, 0.1);
  EXPECT_NEAR(level.at("heat").get<double>(), 2, 0.1);
  EXPECT_NE(tree("/none").at("error").get<std::string>().find("not among"), std::string::npos);
}

TEST_F(WatchTest, MoveInProgressReportsItsProgress) {
  put("hdd", "big", pattern(40 * kMiB, 1));
  start({"--bandwidth", "8MiB"});
  ASSERT_EQ(::setxattr((*this / "big").c_str(), "user.sluice.tier", "nvme", 4, 0), 0);
  Json moves;
  ASSERT_TRUE(eventually([&] {
    moves = activity().at("moves");
    return !moves.empty() && moves[0].at("bytes").get<std::uint64_t>() > 0;
  }));
  EXPECT_EQ(moves[0].at("path"), "/big");
  EXPECT_EQ(moves[0].at("from"), "hdd");
  EXPECT_EQ(moves[0].at("to"), "nvme");
  EXPECT_EQ(moves[0].at("total"), 40 * kMiB);
  EXPECT_GT(moves[0].at("since").get<std::int64_t>(), 0);
  EXPECT_TRUE(eventually([&] { return activity().at("moves").empty(); }));
  const Json after = activity();
  EXPECT_GE(tier(after, "hdd").at("read_bytes").get<std::uint64_t>(), 40 * kMiB);
  EXPECT_GE(tier(after, "nvme").at("written_bytes").get<std::uint64_t>(), 40 * kMiB);
}

TEST_F(WatchTest, DiskCountsIncludePassthrough) {
  start();
  write_file(*this / "big", pattern(20 * kMiB, 1));
  ASSERT_TRUE(run_command({"sync", "-f", root()}).ok());
  ASSERT_TRUE(run_command({"sync", "-f", on("nvme", "")}).ok());
  const Json disk = tier(activity(), "nvme").at("disk");
  EXPECT_TRUE(disk.at("name").get<std::string>().starts_with("loop")) << disk;
  EXPECT_GE(disk.at("written_bytes").get<std::uint64_t>(), 20 * kMiB);
}

// With a foreign HTTP client.
CommandResult fetch(const std::vector<std::string>& arguments) {
  std::vector<std::string> argv{"curl", "--silent", "--show-error", "--fail", "--max-time", "20"};
  argv.insert(argv.end(), arguments.begin(), arguments.end());
  return run_command(argv);
}

TEST_F(WatchTest, MetricsAreServedOnAUnixSocketAndOnAPort) {
  put("hdd", "f", "x");
  start({"--metrics", "unix"});
  read_often("f", 3);
  const std::string socket = base_ / "state" + "/metrics.sock";
  const CommandResult local = fetch({"--unix-socket", socket, "http://localhost/metrics"});
  ASSERT_TRUE(local.ok()) << local.err;
  EXPECT_NE(local.out.find("\nsluice_opens_total 3\n"), std::string::npos) << local.out;
  EXPECT_NE(local.out.find("\nsluice_tier_online{tier=\"hdd\"} 1\n"), std::string::npos);
  EXPECT_FALSE(fetch({"--unix-socket", socket, "http://localhost/"}).ok());

  start({"--metrics", "127.0.0.1:39464"});
  const CommandResult port = fetch({"http://127.0.0.1:39464/metrics"});
  ASSERT_TRUE(port.ok()) << port.err << mount().log();
  EXPECT_NE(port.out.find("\nsluice_opens_total 0\n"), std::string::npos) << port.out;
  EXPECT_FALSE(exists(socket));
  EXPECT_FALSE(fetch({"--header", "Host: web.example", "http://127.0.0.1:39464/metrics"}).ok());
}

TEST_F(WatchTest, MountWorksIfTheMetricsPortIsInUse) {
  const int taken = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  ASSERT_EQ(::bind(taken, reinterpret_cast<sockaddr*>(&address), sizeof address), 0);
  ASSERT_EQ(::listen(taken, 1), 0);
  socklen_t size = sizeof address;
  ASSERT_EQ(::getsockname(taken, reinterpret_cast<sockaddr*>(&address), &size), 0);
  start({"--metrics", "127.0.0.1:" + std::to_string(ntohs(address.sin_port))});
  write_file(*this / "f", "x");
  EXPECT_NE(mount().log().find("cannot serve metrics"), std::string::npos);
  ::close(taken);
}

TEST_F(WatchTest, MetricsAreRefusedForOtherHosts) {
  const CommandResult refused = sluice(
      {"mount", "--tier", "a=" + on("nvme", ""), "--metrics", "0.0.0.0:9464", base_ / "mnt"});
  EXPECT_EQ(refused.exit_code, 2);
  EXPECT_NE(refused.err.find("metrics must be"), std::string::npos) << refused.err;
}

TEST_F(WatchTest, StatusShowsWhetherMigrationIsOn) {
  start();
  const auto migration = [&] {
    const std::string out = tell({"status"}).out;
    const auto at = out.find("\nmigration ");
    return at == std::string::npos ? out : out.substr(at + 13, out.find('\n', at + 1) - at - 13);
  };
  EXPECT_EQ(migration(),
            "off (only requested moves are made); 0 moved, 0 under way, 0 queued, 0 waiting");
  put("hdd", "f", "x");
  move("f", "nvme");
  ASSERT_TRUE(tell({"tier", "pause"}).ok());
  EXPECT_EQ(migration(),
            "paused (run 'sluice tier resume' to continue); 1 moved, 0 under way, 0 queued, "
            "0 waiting");
  start({}, Passes::Automatic);
  EXPECT_TRUE(migration().starts_with("on, next pass in at most ")) << migration();
}

TEST_F(WatchTest, LogCanBeJsonAndItsLevelCanChange) {
  start({"--log-format", "json"});
  const auto levels = [&] {
    std::set<std::string> out;
    std::istringstream lines(mount().log());
    for (std::string line; std::getline(lines, line);) out.insert(Json::parse(line).at("level"));
    return out;
  };
  EXPECT_EQ(levels(), std::set<std::string>{"info"});
  const CommandResult louder = tell({"set", "log_level", "debug"});
  ASSERT_TRUE(louder.ok()) << louder.err;
  EXPECT_NE(louder.out.find("info -> debug"), std::string::npos) << louder.out;
  // Refused, which is logged at debug.
  EXPECT_NE(::setxattr(root().c_str(), "user.sluice.tier", "none", 4, 0), 0);
  EXPECT_EQ(levels(), (std::set<std::string>{"debug", "info"}));  // without waiting for more
  EXPECT_EQ(control({{"verb", "set"}, {"name", "log_level"}, {"value", "a\\b"}}).at("error"),
            R"(log_level must be one of trace, debug, info, warn, error, not "a\x5cb")");
}

TEST_F(WatchTest, TopPrintsOneFrameForScripts) {
  put("hdd", "hot", "h");
  start();
  read_often("hot", 3);
  ASSERT_TRUE(eventually([&] { return !hottest().empty(); }));
  const CommandResult top = tell({"top", "--once", "--interval", "0.2"});
  ASSERT_TRUE(top.ok()) << top.err;
  EXPECT_EQ(top.out.find('\033'), std::string::npos);
  for (const char* part :
       {"\nnvme ", "\nssd ", "\nhdd ", "MOVES", "REQUESTS", "HOTTEST", "  /hot\n"})
    EXPECT_NE(top.out.find(part), std::string::npos) << part << " is not in\n" << top.out;
  const CommandResult json = tell({"top", "--once", "--json"});
  ASSERT_TRUE(json.ok()) << json.err;
  EXPECT_EQ(Json::parse(json.out).at("hottest").at(0).at("path"), "/hot");
}

constexpr const char* kEnter = "\033[?1049h";
constexpr const char* kLeave = "\033[?1049l";

// `sluice top` on a terminal of 80 columns.
class Terminal {
 public:
  explicit Terminal(const std::string& mount) {
    const winsize size{.ws_row = 24, .ws_col = 80, .ws_xpixel = 0, .ws_ypixel = 0};
    pid_ = ::forkpty(&fd_, nullptr, nullptr, &size);
    if (pid_ != 0) return;
    ::unsetenv("NO_COLOR");
    ::execl(sluice_binary().c_str(), "sluice", "top", "--interval", "0.2", mount.c_str(), nullptr);
    ::_exit(127);
  }
  ~Terminal() {
    if (pid_ > 0) ::kill(pid_, SIGKILL);
    if (pid_ > 0) ::waitpid(pid_, nullptr, 0);
    ::close(fd_);
  }
  Terminal(const Terminal&) = delete;
  Terminal& operator=(const Terminal&) = delete;

  // Whether `text` has been printed since the last call.
  bool shows(const std::string& text) {
    return eventually([&] {
      read_some();
      const auto found = said_.find(text);
      if (found == std::string::npos) return false;
      said_.erase(0, found + text.size());
      return true;
    });
  }
  void type(char key) { ASSERT_EQ(::write(fd_, &key, 1), 1); }
  void resize(unsigned short columns) {
    const winsize size{.ws_row = 24, .ws_col = columns, .ws_xpixel = 0, .ws_ypixel = 0};
    ASSERT_EQ(::ioctl(fd_, TIOCSWINSZ, &size), 0);
  }
  void signal(int number) { ASSERT_EQ(::kill(pid_, number), 0); }
  bool echoes() const {
    termios now{};
    return ::tcgetattr(fd_, &now) == 0 && (now.c_lflag & ECHO) != 0 && (now.c_lflag & ICANON) != 0;
  }
  // The alternate screen ends before the terminal settings are restored.
  bool comes_back() {
    return shows(kLeave) && eventually([&] { return echoes(); });
  }
  bool wait_for_stop() const {
    return eventually([&] {
      int status = 0;
      return ::waitpid(pid_, &status, WNOHANG | WUNTRACED) == pid_ && WIFSTOPPED(status);
    });
  }
  // The exit code, once it has ended.
  int exit_code() {
    int status = 0;
    const bool ended = eventually([&] {
      read_some();
      return ::waitpid(pid_, &status, WNOHANG) == pid_;
    });
    if (!ended) return -1;
    pid_ = -1;
    return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
  }

 private:
  void read_some() {
    pollfd ready{.fd = fd_, .events = POLLIN, .revents = 0};
    char piece[4096];
    while (::poll(&ready, 1, 0) > 0) {
      const ssize_t got = ::read(fd_, piece, sizeof piece);
      if (got <= 0) return;
      said_.append(piece, static_cast<std::size_t>(got));
    }
  }

  pid_t pid_ = -1;
  int fd_ = -1;
  std::string said_;
};

TEST_F(WatchTest, TopRestoresTheTerminalWhenAKeyEndsIt) {
  start();
  Terminal terminal(root());
  ASSERT_TRUE(terminal.shows(kEnter));
  ASSERT_TRUE(terminal.shows("MOVES"));
  EXPECT_FALSE(terminal.echoes());
  terminal.type('x');  // has no meaning
  ASSERT_TRUE(terminal.shows("MOVES"));
  terminal.type('q');
  EXPECT_TRUE(terminal.comes_back());
  EXPECT_EQ(terminal.exit_code(), 0);
}

TEST_F(WatchTest, TopRestoresTheTerminalWhenASignalEndsIt) {
  start();
  for (const int signal : {SIGINT, SIGTERM, SIGHUP, SIGQUIT, SIGSEGV}) {
    Terminal terminal(root());
    ASSERT_TRUE(terminal.shows("MOVES"));
    terminal.signal(signal);
    EXPECT_TRUE(terminal.comes_back()) << signal;
    EXPECT_EQ(terminal.exit_code(), signal == SIGSEGV ? 128 + SIGSEGV : 0) << signal;
  }
}

TEST_F(WatchTest, TopRestoresTheTerminalWhileItIsStopped) {
  start();
  Terminal terminal(root());
  ASSERT_TRUE(terminal.shows("MOVES"));
  terminal.signal(SIGTSTP);
  ASSERT_TRUE(terminal.wait_for_stop());
  EXPECT_TRUE(terminal.comes_back());
  terminal.signal(SIGCONT);
  EXPECT_TRUE(terminal.shows(kEnter));
  EXPECT_TRUE(terminal.shows("MOVES"));
  EXPECT_FALSE(terminal.echoes());
}

TEST_F(WatchTest, TopFollowsTheSizeOfTheTerminal) {
  start();
  Terminal terminal(root());
  ASSERT_TRUE(terminal.shows("BUSY"));
  terminal.resize(40);
  std::string header = "TIER       FULL";
  header.resize(40, ' ');
  EXPECT_TRUE(terminal.shows(header + "\033[0m"));
}

TEST_F(WatchTest, TopEndsWithAMessageWhenTheDaemonEnds) {
  start();
  Terminal terminal(root());
  ASSERT_TRUE(terminal.shows("MOVES"));
  mount().umount();
  EXPECT_TRUE(terminal.shows(kLeave));
  EXPECT_TRUE(terminal.shows("sluice: top: "));
  EXPECT_EQ(terminal.exit_code(), 1);
}

}  // namespace
}  // namespace sluice::test
