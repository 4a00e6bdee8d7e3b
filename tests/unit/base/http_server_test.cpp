// SPDX-License-Identifier: BSD-2-Clause
#include "base/http_server.hpp"

#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/un.h>
#include <unistd.h>

#include <atomic>
#include <cstring>
#include <latch>
#include <stdexcept>
#include <thread>
#include <vector>

#include "tests/support/files.hpp"
#include "tests/support/temp_dir.hpp"

namespace sluice {
namespace {

class HttpServerTest : public testing::Test {
 protected:
  void SetUp() override {
    auto server = HttpServer::listen_at(
        path_, "http-test", [this](const HttpRequest& request) { return answer(request); });
    ASSERT_TRUE(server) << server.error().code;
    server_ = *std::move(server);
  }
  HttpResponse answer(const HttpRequest& request) {
    if (request.path == "/wait") {
      arrived_.count_down();
      go_on_.wait();
    }
    if (request.path == "/throw") throw std::runtime_error("thrown");
    if (request.path == "/echo") {
      return {.body = request.parameter("x").value_or("none") + "|" +
                      std::string(request.header("x-name"))};
    }
    if (request.path != "/page") return HttpResponse::error("404 Not Found");
    return {.body = body_, .headers = {{"X-Own", "yes"}}};
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
  std::string path_ = dir_ / "http.sock";
  std::string body_ = "one 1\n";
  std::latch arrived_{1}, go_on_{1};
  std::unique_ptr<HttpServer> server_;
};

TEST_F(HttpServerTest, AnswersAGet) {
  const std::string answer = ask("GET /page HTTP/1.1\r\nHost: x\r\n\r\n");
  EXPECT_TRUE(answer.starts_with("HTTP/1.1 200 OK\r\n")) << answer;
  EXPECT_NE(answer.find("\r\nContent-Type: text/plain; charset=utf-8\r\nX-Own: yes\r\n"),
            std::string::npos);
  EXPECT_NE(answer.find("\r\nContent-Length: 6\r\n"), std::string::npos);
  EXPECT_TRUE(answer.ends_with("\r\n\r\none 1\n"));
}

TEST_F(HttpServerTest, RejectsEverythingElse) {
  const auto status = [&](std::string_view request) {
    return ask(std::string(request) + "\r\n\r\n").substr(0, 12);
  };
  EXPECT_EQ(status("GET / HTTP/1.1"), "HTTP/1.1 404");
  EXPECT_EQ(status("GET /page/../../etc/passwd HTTP/1.1"), "HTTP/1.1 404");
  EXPECT_EQ(status("POST /page HTTP/1.1"), "HTTP/1.1 405");
  EXPECT_EQ(status("GET /page?x=1 HTTP/1.0"), "HTTP/1.1 200");
  EXPECT_EQ(status("GET /page"), "HTTP/1.1 400");
  EXPECT_EQ(status("GET page HTTP/1.1"), "HTTP/1.1 400");
  EXPECT_EQ(status("GET /page HTTP/1.1\r\nHost: a\r\nhost: b"), "HTTP/1.1 400");
  EXPECT_EQ(status("GET /page HTTP/1.1\r\nno header"), "HTTP/1.1 400");
  EXPECT_EQ(status("GET /throw HTTP/1.1"), "HTTP/1.1 500");
  EXPECT_EQ(status("\x16\x03\x01"), "HTTP/1.1 400");
  EXPECT_EQ(status(""), "HTTP/1.1 400");
}

TEST_F(HttpServerTest, AcceptsARequestThatArrivesByteByByte) {
  const UniqueFd fd = connect();
  for (const char c : std::string("GET /page HTTP/1.1\r\n\r\n")) send(fd, {&c, 1});
  EXPECT_TRUE(read_all(fd).starts_with("HTTP/1.1 200"));
}

TEST_F(HttpServerTest, PassesParametersAndHeadersToTheHandler) {
  const auto echo = [&](const std::string& query, const std::string& header) {
    const std::string all = ask("GET /echo?" + query + " HTTP/1.1\r\n" + header + "\r\n\r\n");
    return all.substr(all.find("\r\n\r\n") + 4);
  };
  EXPECT_EQ(echo("a=1&x=%2Fa%20b%ff&x=2", "X-NAME: \t v "), "/a b\xff|v");
  EXPECT_EQ(echo("xx=1&x", "Other: 1"), "none|");
  EXPECT_EQ(echo("x=%2", "Other: 1"), "none|");
  EXPECT_EQ(echo("x=%+1", "Other: 1"), "none|");
}

TEST_F(HttpServerTest, ABlockedHandlerDelaysNoOtherClient) {
  const UniqueFd waiting = connect();
  send(waiting, "GET /wait HTTP/1.1\r\n\r\n");
  arrived_.wait();
  EXPECT_TRUE(ask("GET /page HTTP/1.1\r\n\r\n").starts_with("HTTP/1.1 200"));
  go_on_.count_down();
  EXPECT_TRUE(read_all(waiting).starts_with("HTTP/1.1 404"));
}

TEST_F(HttpServerTest, ServesManyClientsAtOnce) {
  std::vector<std::jthread> threads;
  std::atomic<int> served{0};
  for (std::size_t i = 0; i < 2 * HttpServer::kMostHandlers; ++i) {
    threads.emplace_back([&] {
      for (int turn = 0; turn < 20; ++turn)
        served += ask("GET /page HTTP/1.1\r\n\r\n").ends_with("one 1\n") ? 1 : 0;
    });
  }
  threads.clear();
  EXPECT_EQ(served, 20 * 2 * static_cast<int>(HttpServer::kMostHandlers));
}

TEST_F(HttpServerTest, RejectsAnEndlessRequest) {
  const UniqueFd fd = connect();
  send(fd, std::string(HttpServer::kLongestRequest + 1, 'x'));
  EXPECT_TRUE(read_all(fd).starts_with("HTTP/1.1 431"));
}

TEST_F(HttpServerTest, SilentClientsDelayNoOtherClient) {
  std::vector<UniqueFd> silent;
  for (std::size_t i = 0; i < HttpServer::kMostConnections + 3; ++i) silent.push_back(connect());
  EXPECT_TRUE(ask("GET /page HTTP/1.1\r\n\r\n").starts_with("HTTP/1.1 200"));
  EXPECT_EQ(read_all(silent[0]), "") << "the oldest has made room";
}

TEST_F(HttpServerTest, ActiveClientsAreNotClosedForSilentOnes) {
  const UniqueFd waiting = connect();
  send(waiting, "GET /wait HTTP/1.1\r\n\r\n");
  arrived_.wait();
  std::vector<UniqueFd> silent;
  for (std::size_t i = 0; i < HttpServer::kMostConnections + 3; ++i) silent.push_back(connect());
  EXPECT_EQ(read_all(silent[0]), "");
  go_on_.count_down();
  EXPECT_TRUE(read_all(waiting).starts_with("HTTP/1.1 404"));
}

TEST_F(HttpServerTest, AClientThatDoesNotReadDelaysNoOtherClient) {
  body_.assign(8 << 20, 'x');
  const UniqueFd deaf = connect();
  send(deaf, "GET /page HTTP/1.1\r\n\r\n");
  EXPECT_EQ(ask("GET /page HTTP/1.1\r\n\r\n").size() > body_.size(), true);
}

TEST_F(HttpServerTest, SocketIsPrivateToItsOwnerAndIsRemoved) {
  EXPECT_EQ(test::lstat_of(path_).st_mode & 0777, 0600u);
  const UniqueFd open = connect();
  server_.reset();  // while a client is connected
  EXPECT_FALSE(test::exists(path_));
}

TEST(HttpServerPortTest, ListensOnALoopbackPortThatIsFree) {
  const auto server = HttpServer::listen_on(loopback_address(0), "http-test",
                                            [](const HttpRequest&) { return HttpResponse{}; });
  ASSERT_TRUE(server);
  const std::uint16_t port = (*server)->port();
  EXPECT_GT(port, 0);
  const auto second = HttpServer::listen_on(loopback_address(port), "http-test", {});
  ASSERT_FALSE(second);
  EXPECT_EQ(second.error().code, EADDRINUSE);
}

TEST(LoopbackAddressTest, AcceptsOnlyLoopbackAddresses) {
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
