// SPDX-License-Identifier: BSD-2-Clause
#include "fs/metrics_server.hpp"

#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/un.h>
#include <unistd.h>

#include <cstring>
#include <vector>

#include "tests/support/files.hpp"
#include "tests/support/temp_dir.hpp"

namespace sluice {
namespace {

class MetricsServerTest : public testing::Test {
 protected:
  void SetUp() override {
    auto server = MetricsServer::listen_at(path_, [this] { return body_; });
    ASSERT_TRUE(server) << server.error().code;
    server_ = *std::move(server);
  }
  UniqueFd connect() const {
    UniqueFd fd(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
    sockaddr_un address{};
    address.sun_family = AF_UNIX;
    std::strncpy(address.sun_path, path_.c_str(), sizeof address.sun_path - 1);
    EXPECT_EQ(::connect(fd.get(), reinterpret_cast<sockaddr*>(&address), sizeof address), 0);
    return fd;
  }
  static void send(const UniqueFd& fd, std::string_view text) {
    ::send(fd.get(), text.data(), text.size(), MSG_NOSIGNAL);
  }
  static std::string read_all(const UniqueFd& fd) {
    std::string out;
    char piece[4096];
    for (ssize_t got; (got = ::recv(fd.get(), piece, sizeof piece, 0)) > 0;)
      out.append(piece, static_cast<std::size_t>(got));
    return out;
  }
  std::string ask(std::string_view request) const {
    const UniqueFd fd = connect();
    send(fd, request);
    return read_all(fd);
  }

  test::TempDir dir_;
  std::string path_ = dir_ / "metrics.sock";
  std::string body_ = "one 1\n";
  std::unique_ptr<MetricsServer> server_;
};

TEST_F(MetricsServerTest, AnswersAGet) {
  const std::string answer = ask("GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n");
  EXPECT_TRUE(answer.starts_with("HTTP/1.1 200 OK\r\n")) << answer;
  EXPECT_NE(answer.find("\r\nContent-Type: text/plain; version=0.0.4; charset=utf-8\r\n"),
            std::string::npos);
  EXPECT_NE(answer.find("\r\nContent-Length: 6\r\n"), std::string::npos);
  EXPECT_TRUE(answer.ends_with("\r\n\r\none 1\n"));
}

TEST_F(MetricsServerTest, KnowsNothingElse) {
  const auto status = [&](std::string_view request) {
    return ask(std::string(request) + "\r\n\r\n").substr(0, 12);
  };
  EXPECT_EQ(status("GET / HTTP/1.1"), "HTTP/1.1 404");
  EXPECT_EQ(status("GET /metrics/../../etc/passwd HTTP/1.1"), "HTTP/1.1 404");
  EXPECT_EQ(status("POST /metrics HTTP/1.1"), "HTTP/1.1 405");
  EXPECT_EQ(status("GET /metrics?x=1 HTTP/1.0"), "HTTP/1.1 200");
  EXPECT_EQ(status("GET /metrics"), "HTTP/1.1 400");
  EXPECT_EQ(status("\x16\x03\x01"), "HTTP/1.1 400");
  EXPECT_EQ(status(""), "HTTP/1.1 400");
}

TEST_F(MetricsServerTest, ARequestThatComesByteByByteIsARequest) {
  const UniqueFd fd = connect();
  for (const char c : std::string("GET /metrics HTTP/1.1\r\n\r\n")) send(fd, {&c, 1});
  EXPECT_TRUE(read_all(fd).starts_with("HTTP/1.1 200"));
}

TEST_F(MetricsServerTest, RefusesARequestWithoutEnd) {
  const UniqueFd fd = connect();
  send(fd, std::string(MetricsServer::kLongestRequest + 1, 'x'));
  EXPECT_TRUE(read_all(fd).starts_with("HTTP/1.1 431"));
}

TEST_F(MetricsServerTest, ClientsThatSayNothingHoldUpNobody) {
  std::vector<UniqueFd> silent;
  for (std::size_t i = 0; i + 1 < MetricsServer::kMostClients; ++i) silent.push_back(connect());
  EXPECT_TRUE(ask("GET /metrics HTTP/1.1\r\n\r\n").starts_with("HTTP/1.1 200"));
  // All places taken: they are given up after a while.
  silent.push_back(connect());
  silent.push_back(connect());
  EXPECT_TRUE(ask("GET /metrics HTTP/1.1\r\n\r\n").starts_with("HTTP/1.1 200"));
  EXPECT_EQ(read_all(silent[0]), "");
}

TEST_F(MetricsServerTest, AClientThatDoesNotReadHoldsUpNobody) {
  body_.assign(8 << 20, 'x');
  const UniqueFd deaf = connect();
  send(deaf, "GET /metrics HTTP/1.1\r\n\r\n");
  EXPECT_EQ(ask("GET /metrics HTTP/1.1\r\n\r\n").size() > body_.size(), true);
}

TEST_F(MetricsServerTest, IsForItsOwnerAndLeavesNothingBehind) {
  EXPECT_EQ(test::lstat_of(path_).st_mode & 0777, 0600u);
  const UniqueFd open = connect();
  server_.reset();  // though somebody is connected
  EXPECT_FALSE(test::exists(path_));
}

TEST(LoopbackAddressTest, TakesOnlyAddressesOfThisMachine) {
  for (const char* good : {"127.0.0.1:9464", "127.1.2.3:1", "[::1]:65535", "localhost:80"})
    EXPECT_TRUE(loopback_address(good)) << good;
  for (const char* bad : {"", "9464", ":9464", "0.0.0.0:9464", "192.168.1.1:9464", "[::]:9464",
                          "::1:9464", "127.0.0.1", "127.0.0.1:", "127.0.0.1:0", "127.0.0.1:65536",
                          "127.0.0.1:80x", "127.0.0.1 :80", "example.org:80"}) {
    EXPECT_FALSE(loopback_address(bad)) << bad;
  }
}

}  // namespace
}  // namespace sluice
