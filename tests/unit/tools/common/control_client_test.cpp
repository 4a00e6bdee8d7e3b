// SPDX-License-Identifier: BSD-2-Clause
#include "tools/common/control_client.hpp"

#include <gtest/gtest.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <cstring>
#include <filesystem>
#include <functional>
#include <thread>
#include <vector>

#include "base/unique_fd.hpp"
#include "tests/support/temp_dir.hpp"

namespace sluice::tools {
namespace {

using Json = nlohmann::ordered_json;

// A daemon that accepts one connection, reads one line, and calls `answer`.
class FakeDaemon {
 public:
  // Returns when it listens. `answer` gets the connection.
  FakeDaemon(const std::string& directory, std::function<void(int connection)> answer) {
    // Bound by a relative name, because the path may be too long for a socket address.
    const std::string before = std::filesystem::current_path();
    std::filesystem::current_path(directory);
    listener_ = UniqueFd(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
    sockaddr_un address{};
    address.sun_family = AF_UNIX;
    std::strcpy(address.sun_path, "control.sock");
    const int bound =
        ::bind(listener_.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address);
    std::filesystem::current_path(before);
    if (bound < 0 || ::listen(listener_.get(), 1) < 0) throw std::runtime_error("can't listen");
    thread_ = std::jthread([this, answer = std::move(answer)] {
      const UniqueFd connection(::accept(listener_.get(), nullptr, nullptr));
      char c = 0;
      while (::read(connection.get(), &c, 1) == 1 && c != '\n') request_ += c;
      answer(connection.get());
    });
  }

  ~FakeDaemon() {
    ::shutdown(listener_.get(), SHUT_RDWR);
  }  // also ends accept() if no client connected
  FakeDaemon(const FakeDaemon&) = delete;
  FakeDaemon& operator=(const FakeDaemon&) = delete;

  // The line that it received. Waits until it has answered.
  std::string request() {
    thread_.join();
    return request_;
  }

 private:
  UniqueFd listener_;
  std::string request_;
  std::jthread thread_;
};

void say(int connection, const std::string& text) {
  EXPECT_EQ(::send(connection, text.data(), text.size(), MSG_NOSIGNAL),
            static_cast<ssize_t>(text.size()));
}

// True once the other end has closed the connection.
bool hears_the_end(int connection) {
  char c = 0;
  return ::read(connection, &c, 1) <= 0;
}

class ControlClientTest : public testing::Test {
 protected:
  Result<ControlAnswer> ask(const ControlListener& listener = {}) {
    return ask_socket(dir_.path(), "/mnt", {{"verb", "plan"}}, listener);
  }
  ControlListener keeping_lines() {
    ControlListener listener;
    listener.line = [this](const Json& line) {
      lines_.push_back(line.dump());
      return true;
    };
    return listener;
  }

  test::TempDir dir_;
  std::vector<std::string> lines_;
};

TEST_F(ControlClientTest, SendsOneLineAndReportsEachLineOfTheAnswer) {
  FakeDaemon daemon(dir_.path(), [](int connection) {
    say(connection, "{\"move\":{\"path\":\"/a\"}}\n{\"move\":{\"path\":\"/b\"}}\n");
    say(connection, "{\"done\":true,\"moves\":2}\n");
  });
  const auto answer = ask(keeping_lines());
  ASSERT_TRUE(answer);
  EXPECT_FALSE(answer->was_ended);
  EXPECT_EQ(answer->last["moves"], 2);
  EXPECT_EQ(lines_,
            (std::vector<std::string>{R"({"move":{"path":"/a"}})", R"({"move":{"path":"/b"}})"}));
  EXPECT_EQ(daemon.request(), R"({"verb":"plan"})");
}

TEST_F(ControlClientTest, AssemblesLinesFromPieces) {
  FakeDaemon daemon(dir_.path(), [](int connection) {
    for (const char c : std::string("{\"a\":1}\n{\"done\":true}\n")) say(connection, {c});
  });
  EXPECT_TRUE(ask(keeping_lines()));
  EXPECT_EQ(lines_, std::vector<std::string>{R"({"a":1})"});
}

TEST_F(ControlClientTest, FailedRequestHasAOneLineEscapedProblem) {
  FakeDaemon daemon(dir_.path(), [](int connection) {
    say(connection, "{\"done\":true,\"error\":\"no tier \\u001bx\"}\n");
  });
  EXPECT_EQ(ask().error().text(), "no tier \\x1bx");
}

TEST_F(ControlClientTest, StateDirectoryMayHaveALongPath) {
  const std::string deep = dir_.make_dir(std::string(100, 'd') + "/" + std::string(100, 'e'));
  FakeDaemon daemon(deep, [](int connection) { say(connection, "{\"done\":true}\n"); });
  EXPECT_TRUE(ask_socket(deep, "/mnt", {{"verb", "pause"}}));
}

TEST_F(ControlClientTest, ListenerCanEndTheRequest) {
  bool heard = false;
  FakeDaemon daemon(dir_.path(), [&](int connection) {
    say(connection, "{\"access\":{}}\n{\"access\":{}}\n");
    heard = hears_the_end(connection);
  });
  int lines = 0;
  ControlListener listener;
  listener.line = [&](const Json&) { return ++lines < 1; };
  const auto answer = ask(listener);
  ASSERT_TRUE(answer);
  EXPECT_TRUE(answer->was_ended);
  EXPECT_EQ(lines, 1);
  daemon.request();
  EXPECT_TRUE(heard);
}

TEST_F(ControlClientTest, ListenerCanEndTheRequestWhileNothingArrives) {
  FakeDaemon daemon(dir_.path(), [](int connection) { hears_the_end(connection); });
  int ticks = 0;
  ControlListener listener;
  listener.tick = [&] { return ++ticks < 3; };
  EXPECT_TRUE(ask(listener)->was_ended);
  EXPECT_EQ(ticks, 3);
}

TEST_F(ControlClientTest, ReportsThatTheDaemonEnded) {
  FakeDaemon daemon(dir_.path(), [](int connection) { say(connection, "{\"a\":1}\n{\"do"); });
  EXPECT_EQ(ask().error().text(), "/mnt: the daemon ended before it answered; see its log");
}

TEST_F(ControlClientTest, RefusesAnAnswerThatIsNotAJsonObject) {
  for (const std::string line : {"hello\n", "[1]\n", "\n", "{\"a\":\"\xff\"}\n"}) {
    std::filesystem::remove(dir_ / "control.sock");
    FakeDaemon daemon(dir_.path(), [&](int connection) { say(connection, line); });
    EXPECT_EQ(ask().error().text(),
              "/mnt: cannot parse the daemon's answer; is it another version of sluice?");
  }
}

TEST_F(ControlClientTest, RefusesALineThatIsTooLong) {
  FakeDaemon daemon(dir_.path(), [](int connection) {
    const std::string piece(64 << 10, 'x');
    for (int i = 0; i < 64; ++i) {
      if (::send(connection, piece.data(), piece.size(), MSG_NOSIGNAL) < 0) return;
    }
  });
  EXPECT_EQ(ask().error().text(),
            "/mnt: cannot parse the daemon's answer; is it another version of sluice?");
}

TEST_F(ControlClientTest, DistinguishesAnUnusedSocketFromAMissingOne) {
  EXPECT_EQ(ask().error().text(),
            "/mnt: the daemon has no control socket; is it an older version?");
  {
    FakeDaemon daemon(dir_.path(), [](int connection) { say(connection, "{\"done\":true}\n"); });
    EXPECT_TRUE(ask());
  }
  EXPECT_EQ(ask().error().text(), "/mnt: the daemon has ended or is ending; see 'sluice status'");
}

TEST_F(ControlClientTest, PermissionErrorSaysWhoMayConnect) {
  if (::geteuid() != 0) GTEST_SKIP() << "needs root, to become another user";
  FakeDaemon daemon(dir_.path(), [](int connection) { say(connection, "{\"done\":true}\n"); });
  std::filesystem::permissions(dir_ / "control.sock", std::filesystem::perms::owner_all);
  std::filesystem::permissions(dir_.path(), std::filesystem::perms::all);
  ASSERT_EQ(::seteuid(65534), 0);
  const auto answer = ask();
  ASSERT_EQ(::seteuid(0), 0);
  EXPECT_EQ(answer.error().text(), "/mnt: only root may do this; try sudo");
  EXPECT_TRUE(ask());
}

TEST_F(ControlClientTest, ReportsAPathThatIsNotAMount) {
  EXPECT_EQ(
      ask_daemon(dir_.path(), {{"verb", "plan"}}).error().text(),
      dir_.path() + " is not a mount point of sluice; 'findmnt -t fuse.sluice' lists the mounts");
}

}  // namespace
}  // namespace sluice::tools
