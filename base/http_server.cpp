// SPDX-License-Identifier: BSD-2-Clause
#include "base/http_server.hpp"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <charconv>

#include "base/log.hpp"
#include "base/thread.hpp"
#include "base/unix_socket.hpp"

namespace sluice {
namespace {

using std::chrono::milliseconds;
using std::chrono::steady_clock;

constexpr int kBacklog = 64;

std::string wire_form(const HttpResponse& response) {
  std::string out = "HTTP/1.1 " + response.status;
  out += "\r\nContent-Type: " + response.type + "; charset=utf-8";
  for (const auto& [name, value] : response.headers) out += "\r\n" + name + ": " + value;
  if (response.status.starts_with("405")) out += "\r\nAllow: GET";
  out += "\r\nContent-Length: " + std::to_string(response.body.size()) +
         "\r\nConnection: close\r\n\r\n";
  return out + response.body;
}

std::string_view trimmed(std::string_view text) {
  const auto first = text.find_first_not_of(" \t");
  if (first == std::string_view::npos) return {};
  return text.substr(first, text.find_last_not_of(" \t") + 1 - first);
}

std::string lower(std::string_view text) {
  std::string out(text);
  for (char& c : out) c = c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c;
  return out;
}

// False if a line is not a header, or if a header comes twice: different readers could use
// different ones of the two.
bool parse_headers(std::string_view text, HttpHeaders& out) {
  while (!text.empty()) {
    const std::string_view line = text.substr(0, text.find("\r\n"));
    text.remove_prefix(std::min(text.size(), line.size() + 2));
    const auto colon = line.find(':');
    if (colon == 0 || colon == std::string_view::npos) return false;
    std::string name = lower(line.substr(0, colon));
    if (name.find_first_of(" \t") != std::string::npos) return false;
    for (const auto& [known, value] : out) {
      if (known == name) return false;
    }
    out.emplace_back(std::move(name), trimmed(line.substr(colon + 1)));
  }
  return true;
}

}  // namespace

// A connection. It sends a request, a handler makes the response, and it receives the response.
struct HttpServer::Client {
  enum class State { Speaks, Waits, Listens, Done };
  UniqueFd socket;
  State state = State::Speaks;
  steady_clock::time_point deadline;
  // The request, then the response; owned by the worker while a handler runs.
  std::string text = {};
  std::size_t sent = 0;
  std::atomic<bool> answered{false};  // the worker sets it last
};

struct HttpServer::Worker {
  std::atomic<bool> ended{false};  // the thread sets it last
  std::jthread thread;
};

std::string_view HttpRequest::header(std::string_view name) const {
  for (const auto& [each, value] : headers) {
    if (each == name) return value;
  }
  return {};
}

bool HttpRequest::is_for_loopback() const {
  std::string_view host = header("host");
  const auto colon = host.rfind(':');
  if (colon != std::string_view::npos &&
      host.find_first_not_of("0123456789", colon + 1) == std::string_view::npos) {
    host = host.substr(0, colon);
  }
  const bool is_address =
      host.starts_with("127.") && host.find_first_not_of("0123456789.") == std::string_view::npos;
  return is_address || host == "localhost" || host == "[::1]";
}

std::optional<std::string> HttpRequest::parameter(std::string_view name) const {
  for (std::string_view rest = query; !rest.empty();) {
    const std::string_view member = rest.substr(0, rest.find('&'));
    rest.remove_prefix(std::min(rest.size(), member.size() + 1));
    const auto equals = member.find('=');
    if (equals != std::string_view::npos && member.substr(0, equals) == name)
      return percent_decoded(member.substr(equals + 1));
  }
  return std::nullopt;
}

HttpResponse HttpResponse::error(std::string_view status) {
  return {.status = std::string(status), .body = std::string(status.substr(4)) + "\n"};
}

std::optional<std::string> percent_decoded(std::string_view text) {
  std::string out;
  for (std::size_t i = 0; i < text.size(); ++i) {
    if (text[i] != '%') {
      out += text[i];
      continue;
    }
    unsigned char byte = 0;
    const std::string_view digits = text.substr(i + 1, 2);
    const auto [end, error] =
        std::from_chars(digits.data(), digits.data() + digits.size(), byte, 16);
    if (error != std::errc() || digits.size() != 2 || end != digits.data() + 2) return std::nullopt;
    out += static_cast<char>(byte);
    i += 2;
  }
  return out;
}

std::string percent_encoded(std::string_view bytes) {
  constexpr std::string_view kPlain =
      "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-._~";
  constexpr char kHex[] = "0123456789ABCDEF";
  std::string out;
  for (const char c : bytes) {
    const auto byte = static_cast<unsigned char>(c);
    if (kPlain.find(c) != std::string_view::npos) {
      out += c;
    } else {
      out += {'%', kHex[byte >> 4], kHex[byte & 15]};
    }
  }
  return out;
}

std::optional<SocketAddress> loopback_address(const std::string& text) {
  const auto colon = text.rfind(':');
  if (colon == std::string::npos) return std::nullopt;
  std::uint16_t port = 0;
  const char* end = text.data() + text.size();
  const auto [stopped, error] = std::from_chars(text.data() + colon + 1, end, port);
  if (error != std::errc() || stopped != end || port == 0) return std::nullopt;
  const std::string host = text.substr(0, colon);
  SocketAddress out = loopback_address(port);
  if (host == "localhost") return out;
  if (host == "[::1]") {
    auto& address = reinterpret_cast<sockaddr_in6&>(out.storage);
    address = {};
    address.sin6_family = AF_INET6;
    address.sin6_port = htons(port);
    address.sin6_addr = in6addr_loopback;
    out.size = sizeof address;
    return out;
  }
  auto& address = reinterpret_cast<sockaddr_in&>(out.storage);
  const bool is_loopback = ::inet_pton(AF_INET, host.c_str(), &address.sin_addr) == 1 &&
                           ntohl(address.sin_addr.s_addr) >> 24 == 127;
  if (!is_loopback) return std::nullopt;
  return out;
}

SocketAddress loopback_address(std::uint16_t port) {
  SocketAddress out;
  auto& address = reinterpret_cast<sockaddr_in&>(out.storage);
  address.sin_family = AF_INET;
  address.sin_port = htons(port);
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  out.size = sizeof address;
  return out;
}

Result<std::unique_ptr<HttpServer>> HttpServer::listen_at(const std::string& path, const char* name,
                                                          Handler handler) {
  UniqueFd socket = SLUICE_TRY(listen_unix(path, kBacklog, SOCK_NONBLOCK));
  UniqueFd wake(::eventfd(0, EFD_CLOEXEC));
  if (!wake) return Error::last("create eventfd for HTTP");
  return std::unique_ptr<HttpServer>(
      new HttpServer(std::move(socket), std::move(wake), path, name, std::move(handler)));
}

Result<std::unique_ptr<HttpServer>> HttpServer::listen_on(const SocketAddress& address,
                                                          const char* name, Handler handler) {
  UniqueFd socket(
      ::socket(address.storage.ss_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  UniqueFd wake(::eventfd(0, EFD_CLOEXEC));
  if (!socket || !wake) return Error::last("listen for HTTP");
  const int on = 1;  // otherwise a restart could not use the port for a minute
  ::setsockopt(socket.get(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
  if (::bind(socket.get(), reinterpret_cast<const sockaddr*>(&address.storage), address.size) < 0 ||
      ::listen(socket.get(), kBacklog) < 0) {
    return Error::last("listen for HTTP");
  }
  return std::unique_ptr<HttpServer>(
      new HttpServer(std::move(socket), std::move(wake), "", name, std::move(handler)));
}

HttpServer::HttpServer(UniqueFd socket, UniqueFd wake, std::string path, const char* name,
                       Handler handler)
    : socket_(std::move(socket)),
      wake_(std::move(wake)),
      path_(std::move(path)),
      name_(name),
      handler_(std::move(handler)),
      thread_([this](const std::stop_token& stop) {
        begin_thread(name_);
        serve(stop);
      }) {}

HttpServer::~HttpServer() {
  thread_.request_stop();
  ::eventfd_write(wake_.get(), 1);
  thread_.join();
  if (!path_.empty()) ::unlink(path_.c_str());
}

std::uint16_t HttpServer::port() const {
  SocketAddress own;
  own.size = sizeof own.storage;
  ::getsockname(socket_.get(), reinterpret_cast<sockaddr*>(&own.storage), &own.size);
  if (own.storage.ss_family == AF_INET)
    return ntohs(reinterpret_cast<const sockaddr_in&>(own.storage).sin_port);
  if (own.storage.ss_family == AF_INET6)
    return ntohs(reinterpret_cast<const sockaddr_in6&>(own.storage).sin6_port);
  return 0;
}

void HttpServer::serve(const std::stop_token& stop) {
  std::vector<pollfd> fds;
  while (!stop.stop_requested()) {
    fds.assign({{wake_.get(), POLLIN, 0}, {socket_.get(), POLLIN, 0}});
    auto first = steady_clock::time_point::max();
    for (const ClientPtr& client : clients_) {
      const bool waits = client->state == Client::State::Waits;
      const bool speaks = client->state == Client::State::Speaks;
      const int watched = waits ? -1 : client->socket.get();
      fds.push_back({watched, static_cast<short>(speaks ? POLLIN : POLLOUT), 0});
      if (!waits) first = std::min(first, client->deadline);
    }
    const auto left = std::chrono::ceil<milliseconds>(first - steady_clock::now()).count();
    const bool has_deadline = first != steady_clock::time_point::max();
    const int timeout = has_deadline ? static_cast<int>(std::max<long>(left, 0)) : -1;
    if (::poll(fds.data(), fds.size(), timeout) < 0) continue;
    if (eventfd_t woken = 0; fds[0].revents != 0) ::eventfd_read(wake_.get(), &woken);
    std::size_t at = 2;
    for (const ClientPtr& client : clients_) attend(*client, fds[at++].revents);
    clients_.remove_if(
        [](const ClientPtr& client) { return client->state == Client::State::Done; });
    workers_.remove_if([](const Worker& worker) { return worker.ended.load(); });
    start_work();
    if (fds[1].revents != 0) accept_one();
  }
  // Waits for running handlers only, not for clients.
  workers_.clear();
}

void HttpServer::attend(Client& client, short events) {
  if (client.state == Client::State::Waits) {
    if (!client.answered.load()) return;
    client.state = Client::State::Listens;
    client.deadline = steady_clock::now() + kClientTimeout;
    return send_some(client);
  }
  if (events != 0) client.state == Client::State::Speaks ? receive(client) : send_some(client);
  const bool is_over =
      client.state != Client::State::Waits && steady_clock::now() >= client.deadline;
  if (is_over) client.state = Client::State::Done;
}

// Closes the oldest connection that has not sent its whole request.
bool HttpServer::make_room() {
  if (clients_.size() < kMostConnections) return true;
  const auto silent = std::find_if(clients_.begin(), clients_.end(), [](const ClientPtr& client) {
    return client->state == Client::State::Speaks;
  });
  if (silent == clients_.end()) return false;
  clients_.erase(silent);
  return true;
}

void HttpServer::accept_one() {
  UniqueFd socket(::accept4(socket_.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
  if (!socket) {
    // On lack of resources the connection stays in the queue, and poll() would return at once
    // again.
    if (errno == EMFILE || errno == ENFILE || errno == ENOBUFS || errno == ENOMEM)
      std::this_thread::sleep_for(milliseconds(100));
    return;
  }
  if (!make_room()) return;  // every connection has sent a request: close the new one
  auto client = std::make_shared<Client>();
  client->socket = std::move(socket);
  client->deadline = steady_clock::now() + kClientTimeout;
  clients_.push_back(client);
  receive(*client);  // most clients have sent their request by now
  start_work();
}

void HttpServer::receive(Client& client) {
  std::array<char, 4096> piece{};
  const ssize_t got = ::recv(client.socket.get(), piece.data(), piece.size(), 0);
  if (got < 0 && (errno == EAGAIN || errno == EINTR)) return;
  if (got <= 0) {
    client.state = Client::State::Done;
    return;
  }
  client.text.append(piece.data(), static_cast<std::size_t>(got));
  if (client.text.find("\r\n\r\n") == std::string::npos && client.text.size() <= kLongestRequest)
    return;
  client.state = Client::State::Waits;
  const auto self = std::find_if(clients_.begin(), clients_.end(),
                                 [&](const ClientPtr& each) { return each.get() == &client; });
  unanswered_.push_back(*self);
}

void HttpServer::start_work() {
  while (!unanswered_.empty() && workers_.size() < kMostHandlers) {
    const ClientPtr client = unanswered_.front();
    unanswered_.pop_front();
    Worker& worker = workers_.emplace_back();
    const auto work = [this, client, &worker] {
      begin_thread(name_);
      try {
        client->text = wire_form(answer_to(client->text));
      } catch (const std::exception& error) {
        log::get().error("HTTP handler threw an exception: what={}", error.what());
        client->text.clear();
      }
      client->answered = true;
      worker.ended = true;
      ::eventfd_write(wake_.get(), 1);
    };
    try {
      worker.thread = std::jthread(work);
    } catch (const std::system_error&) {
      workers_.pop_back();
      client->state = Client::State::Done;  // no more threads can be created now
    }
  }
}

void HttpServer::send_some(Client& client) {
  const std::string& text = client.text;
  while (client.sent < text.size()) {
    const ssize_t put = ::send(client.socket.get(), text.data() + client.sent,
                               text.size() - client.sent, MSG_NOSIGNAL);
    if (put < 0 && errno == EINTR) continue;
    if (put < 0 && errno == EAGAIN) return;
    if (put < 0) break;
    client.sent += static_cast<std::size_t>(put);
  }
  ::shutdown(client.socket.get(), SHUT_RDWR);
  client.state = Client::State::Done;
}

HttpResponse HttpServer::answer_to(const std::string& request) const {
  const auto head = request.find("\r\n\r\n");
  if (head == std::string::npos) return HttpResponse::error("431 Request Header Fields Too Large");
  const std::string_view text = std::string_view(request).substr(0, head);
  const std::string_view line = text.substr(0, text.find("\r\n"));
  const auto first = line.find(' '), last = line.rfind(' ');
  if (first == std::string_view::npos || first == last ||
      !line.substr(last + 1).starts_with("HTTP/1.")) {
    return HttpResponse::error("400 Bad Request");
  }
  if (line.substr(0, first) != "GET") return HttpResponse::error("405 Method Not Allowed");
  const std::string_view target = line.substr(first + 1, last - first - 1);
  const std::string_view path = target.substr(0, target.find('?'));
  HttpRequest parsed{std::string(path),
                     std::string(target.substr(std::min(path.size() + 1, target.size())))};
  const std::string_view headers = text.substr(std::min(line.size() + 2, text.size()));
  if (!path.starts_with('/') || !parse_headers(headers, parsed.headers))
    return HttpResponse::error("400 Bad Request");
  try {
    return handler_(parsed);
  } catch (const std::exception& error) {
    log::get().error("HTTP handler threw an exception: what={}", error.what());
    return HttpResponse::error("500 Internal Server Error");
  }
}

}  // namespace sluice
