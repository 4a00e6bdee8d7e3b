// SPDX-License-Identifier: BSD-2-Clause
// HttpServer answers GET requests, one per connection, and supports nothing else of HTTP. It does
// not authenticate clients: it listens on a socket that only its owner can open, or on a loopback
// address. Any further check is up to the handler.
//
// A client cannot block the process or other clients. It has kClientTimeout to send its request and
// again to receive the response. A request has at most kLongestRequest bytes. If there are
// kMostConnections, the one that has been silent longest is closed for a new one.
// Threads: one thread reads all requests and sends all responses, and at most kMostHandlers threads
// call the handler. So the handler must be thread-safe. A handler that blocks delays only its
// client and the server's destructor.
#pragma once

#include <sys/socket.h>

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <list>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include "base/result.hpp"
#include "base/unique_fd.hpp"

namespace sluice {

struct SocketAddress {
  sockaddr_storage storage{};
  socklen_t size = 0;
};
// Parses "127.0.0.1:9464", "[::1]:9464" or "localhost:9464". Empty for any other text and for
// addresses that are not loopback.
std::optional<SocketAddress> loopback_address(const std::string& text);
// 127.0.0.1. Port 0 means any free port.
SocketAddress loopback_address(std::uint16_t port);

using HttpHeaders = std::vector<std::pair<std::string, std::string>>;

struct HttpRequest {
  std::string path;          // not decoded; begins with a slash
  std::string query;         // the part after the first '?'
  HttpHeaders headers = {};  // names in lower case, each at most once

  // Empty if there is none. `name` is in lower case.
  std::string_view header(std::string_view name) const;
  // Whether the Host header is a loopback name, such as "localhost:9465", with any port because the
  // request may come through a tunnel. Other requests may come from a web page whose host name
  // resolves to this machine (DNS rebinding).
  bool is_for_loopback() const;
  // The decoded value of the query parameter `name`; empty if there is none.
  std::optional<std::string> parameter(std::string_view name) const;
};

struct HttpResponse {
  std::string status = "200 OK";
  std::string type = "text/plain";
  std::string body = {};
  HttpHeaders headers = {};

  // A response with this status and the words of the status as its body.
  static HttpResponse error(std::string_view status);
};

// Replaces "%2F" and the like by bytes. Empty if a '%' is not followed by two hexadecimal digits.
std::optional<std::string> percent_decoded(std::string_view text);
// Replaces all bytes except letters, digits and "-._~" by "%NN".
std::string percent_encoded(std::string_view bytes);

class HttpServer {
 public:
  static constexpr std::size_t kMostConnections = 256, kMostHandlers = 16;
  static constexpr std::size_t kLongestRequest = 16 << 10;
  static constexpr std::chrono::seconds kClientTimeout{5};

  using Handler = std::function<HttpResponse(const HttpRequest&)>;
  // Listens on a unix socket, replacing one that an earlier process left, or on a port. `name` is
  // the name of the threads, at most 15 characters.
  static Result<std::unique_ptr<HttpServer>> listen_at(const std::string& path, const char* name,
                                                       Handler handler);
  static Result<std::unique_ptr<HttpServer>> listen_on(const SocketAddress& address,
                                                       const char* name, Handler handler);
  // Waits for running handlers.
  ~HttpServer();

  // The port that it listens on; 0 for a unix socket.
  std::uint16_t port() const;

 private:
  struct Client;
  using ClientPtr = std::shared_ptr<Client>;
  struct Worker;

  HttpServer(UniqueFd socket, UniqueFd wake, std::string path, const char* name, Handler handler);
  void serve(const std::stop_token& stop);
  void accept_one();
  bool make_room();
  void attend(Client& client, short events);
  void receive(Client& client);
  static void send_some(Client& client);
  void start_work();
  HttpResponse answer_to(const std::string& request) const;

  const UniqueFd socket_;
  const UniqueFd wake_;  // an eventfd, signalled when a response is ready or the server must stop
  const std::string path_;  // of a unix socket
  const char* const name_;
  const Handler handler_;
  // Used only by the serving thread.
  std::list<ClientPtr> clients_;     // oldest first
  std::list<ClientPtr> unanswered_;  // clients whose requests wait for a handler
  std::list<Worker> workers_;
  std::jthread thread_;
};

}  // namespace sluice
