// SPDX-License-Identifier: BSD-2-Clause
#include "fs/metrics_server.hpp"

#include <arpa/inet.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <cstdio>
#include <cstring>
#include <string_view>
#include <vector>

#include "base/log.hpp"
#include "base/thread.hpp"

namespace sluice {
namespace {

using std::chrono::milliseconds;
using std::chrono::steady_clock;

std::string response(std::string_view status, std::string_view type, const std::string& body) {
  std::string out = "HTTP/1.1 ";
  out.append(status).append("\r\nContent-Type: ").append(type).append("; charset=utf-8");
  if (status.starts_with("405")) out += "\r\nAllow: GET";
  out += "\r\nContent-Length: " + std::to_string(body.size()) + "\r\nConnection: close\r\n\r\n";
  return out + body;
}

std::string complaint(std::string_view status) {
  return response(status, "text/plain", std::string(status.substr(4)) + "\n");
}

}  // namespace

struct MetricsServer::Client {
  UniqueFd socket;
  steady_clock::time_point deadline;
  std::string request;
  std::string answer;    // once the request is whole
  std::size_t sent = 0;  // of it
};

std::optional<SocketAddress> loopback_address(const std::string& text) {
  const auto colon = text.rfind(':');
  if (colon == std::string::npos) return std::nullopt;
  std::uint16_t port = 0;
  const char* end = text.data() + text.size();
  const auto [stopped, error] = std::from_chars(text.data() + colon + 1, end, port);
  if (error != std::errc() || stopped != end || port == 0) return std::nullopt;
  const std::string host =
      text.substr(0, colon) == "localhost" ? "127.0.0.1" : text.substr(0, colon);
  SocketAddress out;
  if (host == "[::1]") {
    auto& address = reinterpret_cast<sockaddr_in6&>(out.storage);
    address.sin6_family = AF_INET6;
    address.sin6_port = htons(port);
    address.sin6_addr = in6addr_loopback;
    out.size = sizeof address;
    return out;
  }
  auto& address = reinterpret_cast<sockaddr_in&>(out.storage);
  address.sin_family = AF_INET;
  address.sin_port = htons(port);
  out.size = sizeof address;
  const bool is_loopback = ::inet_pton(AF_INET, host.c_str(), &address.sin_addr) == 1 &&
                           ntohl(address.sin_addr.s_addr) >> 24 == 127;
  if (!is_loopback) return std::nullopt;
  return out;
}

Result<std::unique_ptr<MetricsServer>> MetricsServer::listen_at(const std::string& path,
                                                                Body body) {
  UniqueFd socket(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  UniqueFd wake(::eventfd(0, EFD_CLOEXEC));
  if (!socket || !wake) return Error::last("metrics socket");
  // The name may be longer than an address holds; its directory has a short one in /proc.
  const auto slash = path.rfind('/');
  const UniqueFd directory(::open(path.substr(0, slash).c_str(), O_PATH | O_DIRECTORY | O_CLOEXEC));
  if (!directory) return Error::last("metrics socket");
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  std::snprintf(address.sun_path, sizeof address.sun_path, "/proc/self/fd/%d/%s", directory.get(),
                path.c_str() + slash + 1);
  ::unlink(path.c_str());
  // Before it has a name: nobody else's, whatever the umask.
  if (::fchmod(socket.get(), 0600) < 0) return Error::last("metrics socket");
  if (::bind(socket.get(), reinterpret_cast<sockaddr*>(&address), sizeof address) < 0 ||
      ::listen(socket.get(), kMostClients) < 0) {
    return Error::last("metrics socket");
  }
  return std::unique_ptr<MetricsServer>(
      new MetricsServer(std::move(socket), std::move(wake), path, std::move(body)));
}

Result<std::unique_ptr<MetricsServer>> MetricsServer::listen_on(const SocketAddress& address,
                                                                Body body) {
  UniqueFd socket(
      ::socket(address.storage.ss_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  UniqueFd wake(::eventfd(0, EFD_CLOEXEC));
  if (!socket || !wake) return Error::last("metrics socket");
  const int on = 1;  // or a remount would wait a minute for the port
  ::setsockopt(socket.get(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
  if (::bind(socket.get(), reinterpret_cast<const sockaddr*>(&address.storage), address.size) < 0 ||
      ::listen(socket.get(), kMostClients) < 0) {
    return Error::last("metrics socket");
  }
  return std::unique_ptr<MetricsServer>(
      new MetricsServer(std::move(socket), std::move(wake), "", std::move(body)));
}

MetricsServer::MetricsServer(UniqueFd socket, UniqueFd wake, std::string path, Body body)
    : socket_(std::move(socket)),
      wake_(std::move(wake)),
      path_(std::move(path)),
      body_(std::move(body)),
      thread_([this](const std::stop_token& stop) {
        begin_thread("sluice-metrics");
        serve(stop);
      }) {}

MetricsServer::~MetricsServer() {
  thread_.request_stop();
  const std::uint64_t one = 1;
  [[maybe_unused]] const ssize_t woken = ::write(wake_.get(), &one, sizeof one);
  thread_.join();
  if (!path_.empty()) ::unlink(path_.c_str());
}

void MetricsServer::serve(const std::stop_token& stop) {
  std::vector<pollfd> fds;
  while (!stop.stop_requested()) {
    // With enough clients the others wait in the kernel's queue, or are refused by it.
    const bool accepts = clients_.size() < kMostClients;
    fds = {{wake_.get(), POLLIN, 0}, {accepts ? socket_.get() : -1, POLLIN, 0}};
    auto next = steady_clock::time_point::max();
    for (const Client& client : clients_) {
      const short wanted = client.answer.empty() ? POLLIN : POLLOUT;
      fds.push_back({client.socket.get(), wanted, 0});
      next = std::min(next, client.deadline);
    }
    const auto left = std::chrono::ceil<milliseconds>(next - steady_clock::now()).count();
    const int timeout = clients_.empty() ? -1 : static_cast<int>(std::clamp<long>(left, 0, 10'000));
    if (::poll(fds.data(), fds.size(), timeout) < 0) continue;
    std::size_t i = 2;
    const auto now = steady_clock::now();
    clients_.remove_if([&](Client& client) {
      const bool is_ready = fds[i++].revents != 0;
      return client.deadline <= now || (is_ready && !go_on(client));
    });
    if (fds[1].revents != 0) accept_one();
  }
  clients_.clear();
}

void MetricsServer::accept_one() {
  UniqueFd socket(::accept4(socket_.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
  if (socket) {
    clients_.push_back({std::move(socket), steady_clock::now() + kPatience, {}, {}, 0});
  } else if (errno == EMFILE || errno == ENFILE || errno == ENOBUFS || errno == ENOMEM) {
    // It stays in the queue, and poll() would return at once.
    std::this_thread::sleep_for(milliseconds(100));
  }
}

bool MetricsServer::go_on(Client& client) {
  if (client.answer.empty()) {
    std::array<char, 4096> piece{};
    const ssize_t got = ::recv(client.socket.get(), piece.data(), piece.size(), 0);
    if (got < 0) return errno == EAGAIN || errno == EINTR;
    if (got == 0) return false;
    client.request.append(piece.data(), static_cast<std::size_t>(got));
    const bool is_whole = client.request.find("\r\n\r\n") != std::string::npos;
    if (!is_whole && client.request.size() <= kLongestRequest) return true;
    client.answer =
        is_whole ? answer_to(client.request) : complaint("431 Request Header Fields Too Large");
  }
  const ssize_t put = ::send(client.socket.get(), client.answer.data() + client.sent,
                             client.answer.size() - client.sent, MSG_NOSIGNAL);
  if (put < 0) return errno == EAGAIN || errno == EINTR;
  client.sent += static_cast<std::size_t>(put);
  if (client.sent < client.answer.size()) return true;
  ::shutdown(client.socket.get(), SHUT_WR);
  return false;
}

std::string MetricsServer::answer_to(const std::string& request) const {
  const std::string_view line = std::string_view(request).substr(0, request.find("\r\n"));
  const auto first = line.find(' '), last = line.rfind(' ');
  if (first == std::string_view::npos || first == last ||
      !line.substr(last + 1).starts_with("HTTP/1.")) {
    return complaint("400 Bad Request");
  }
  if (line.substr(0, first) != "GET") return complaint("405 Method Not Allowed");
  const std::string_view target = line.substr(first + 1, last - first - 1);
  if (target.substr(0, target.find('?')) != "/metrics") return complaint("404 Not Found");
  try {
    return response("200 OK", "text/plain; version=0.0.4", body_());
  } catch (const std::exception& error) {
    log::get().error("metrics failed in a way they must not: {}", error.what());
    return complaint("500 Internal Server Error");
  }
}

}  // namespace sluice
