// SPDX-License-Identifier: BSD-2-Clause
// HttpServer answers GET requests, one to a connection, and knows nothing else of HTTP. It has no
// means to tell friend from foe: it listens on a socket that only its owner can open, or on a
// loopback address; whatever else is needed is the handler's.
//
// A client holds up neither the process nor other clients: it has kPatience to say what it wants
// and kPatience to take the answer, a request is at most kLongestRequest bytes, and where there are
// kMostConnections the one that has been silent for longest makes room for a new one.
// Threads: one that reads all requests and sends all answers, and at most kMostHandlers that call
// the handler. So the handler must be thread-safe; one that waits holds up nobody but its client,
// and the server's end.
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
// "127.0.0.1:9464", "[::1]:9464" or "localhost:9464"; nothing if `text` is none of these, or no
// loopback address.
std::optional<SocketAddress> loopback_address(const std::string& text);
// 127.0.0.1; port 0 is any that is free.
SocketAddress loopback_address(std::uint16_t port);

using HttpHeaders = std::vector<std::pair<std::string, std::string>>;

struct HttpRequest {
  std::string path;          // as it came, still encoded; begins with a slash
  std::string query;         // what follows the first '?'
  HttpHeaders headers = {};  // names in lower case, each at most once

  // Empty if there is none. `name` is in lower case.
  std::string_view header(std::string_view name) const;
  // Whether it was asked by a loopback name, such as "localhost:9465"; with any port, as it may
  // come through a tunnel. What is not may be of a web page whose own name leads here (DNS
  // rebinding).
  bool is_for_loopback() const;
  // The member `name` of the query, decoded; nothing if there is none.
  std::optional<std::string> parameter(std::string_view name) const;
};

struct HttpResponse {
  std::string status = "200 OK";
  std::string type = "text/plain";
  std::string body = {};
  HttpHeaders headers = {};

  // Its status's words as a text.
  static HttpResponse complaint(std::string_view status);
};

// "%2F" and its like as bytes; nothing if a '%' is followed by something else.
std::optional<std::string> percent_decoded(std::string_view text);
// All but letters, digits and "-._~" so written.
std::string percent_encoded(std::string_view bytes);

class HttpServer {
 public:
  static constexpr std::size_t kMostConnections = 256, kMostHandlers = 16;
  static constexpr std::size_t kLongestRequest = 16 << 10;
  static constexpr std::chrono::seconds kPatience{5};

  using Handler = std::function<HttpResponse(const HttpRequest&)>;
  // A unix socket, in the place of one that an earlier process left; a port. `name` is the
  // threads', at most 15 characters.
  static Result<std::unique_ptr<HttpServer>> listen_at(const std::string& path, const char* name,
                                                       Handler handler);
  static Result<std::unique_ptr<HttpServer>> listen_on(const SocketAddress& address,
                                                       const char* name, Handler handler);
  // Waits for handlers that are at work.
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
  const UniqueFd wake_;     // an eventfd: readable once a client is done with, or we are to end
  const std::string path_;  // of a unix socket
  const char* const name_;
  const Handler handler_;
  // Only the serving thread touches these.
  std::list<ClientPtr> clients_;     // oldest first
  std::list<ClientPtr> unanswered_;  // whose requests wait for a handler
  std::list<Worker> workers_;
  std::jthread thread_;
};

}  // namespace sluice
