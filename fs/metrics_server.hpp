// SPDX-License-Identifier: BSD-2-Clause
// MetricsServer hands a text to whoever asks for /metrics by HTTP, and knows nothing else of HTTP.
// It has no means to tell friend from foe: it listens on a socket in the state directory, which
// only root can open, or on a loopback address.
//
// A client can't hold up the daemon: one thread of its own ("sluice-metrics") serves all
// connections without blocking; there are at most kMostClients, each has kPatience in all, and a
// request is at most kLongestRequest bytes.
#pragma once

#include <sys/socket.h>

#include <chrono>
#include <cstddef>
#include <functional>
#include <list>
#include <memory>
#include <optional>
#include <string>
#include <thread>

#include "base/result.hpp"
#include "base/unique_fd.hpp"

namespace sluice {

struct SocketAddress {
  sockaddr_storage storage{};
  socklen_t size = 0;
};
// "127.0.0.1:9464", "[::1]:9464" or "localhost:9464"; nothing if `text` is none of these, or no
// loopback address.
std::optional<SocketAddress> loopback_address(const std::string& text);

class MetricsServer {
 public:
  static constexpr std::size_t kMostClients = 16;
  static constexpr std::size_t kLongestRequest = 8 << 10;
  static constexpr std::chrono::seconds kPatience{5};

  // `body` is called for each GET, by the server's thread.
  using Body = std::function<std::string()>;
  // A unix socket, in the place of one that an earlier daemon left; a port.
  static Result<std::unique_ptr<MetricsServer>> listen_at(const std::string& path, Body body);
  static Result<std::unique_ptr<MetricsServer>> listen_on(const SocketAddress& address, Body body);
  ~MetricsServer();

 private:
  struct Client;

  MetricsServer(UniqueFd socket, UniqueFd wake, std::string path, Body body);
  void serve(const std::stop_token& stop);
  void accept_one();
  // False once the client is done with, or we with it.
  bool go_on(Client& client);
  std::string answer_to(const std::string& request) const;

  const UniqueFd socket_;
  const UniqueFd wake_;     // an eventfd: readable once we are to end
  const std::string path_;  // of a unix socket
  const Body body_;
  std::list<Client> clients_;  // only the thread touches it
  std::jthread thread_;
};

}  // namespace sluice
