// SPDX-License-Identifier: BSD-2-Clause
#include "fs/gpu/share_socket.hpp"

#include <poll.h>
#include <sys/eventfd.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <utility>
#include <vector>

#include "base/log.hpp"
#include "base/thread.hpp"
#include "base/unix_socket.hpp"

namespace sluice {
namespace {

// Every user may enter it, whatever the umask is.
Result<void> make_public_directory(const std::string& path) {
  if (::mkdir(path.c_str(), 0755) < 0) {
    if (errno != EEXIST) return Error::last("create the directory of a socket");
    return {};
  }
  if (::chmod(path.c_str(), 0755) < 0) return Error::last("set the mode of a directory");
  return {};
}

std::string parent_of(const std::string& path) { return path.substr(0, path.rfind('/')); }

void reply(int socket, int error, const UniqueFd& memory = {}) {
  const sluice_share_reply answer{static_cast<std::uint32_t>(error), 0};
  const int fd = memory.get();
  // The buffer of a new connection has room. If the client is gone, nobody needs the answer.
  static_cast<void>(send_with_fds(socket, std::as_bytes(std::span(&answer, 1)),
                                  {&fd, memory ? 1u : 0u}, MSG_DONTWAIT));
}

}  // namespace

ShareSocket::ShareSocket(std::string path, std::chrono::milliseconds life)
    : path_(std::move(path)), life_(life), wake_(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {}

ShareSocket::~ShareSocket() {
  std::jthread thread;
  {
    MutexLock lock(mutex_);
    thread = std::move(thread_);
  }
  if (!thread.joinable()) return;
  thread.request_stop();
  const std::uint64_t one = 1;
  [[maybe_unused]] const ssize_t woken = ::write(wake_.get(), &one, sizeof one);
  thread.join();
  ::unlink(path_.c_str());
  ::rmdir(parent_of(path_).c_str());  // fails if there is anything else
}

Result<void> ShareSocket::listen() {
  if (listener_) return {};
  if (path_.empty() || !wake_) return Error(EOPNOTSUPP, "share GPU memory without a socket");
  const std::string directory = parent_of(path_);
  SLUICE_TRY(make_public_directory(parent_of(directory)));
  SLUICE_TRY(make_public_directory(directory));
  UniqueFd listener = SLUICE_TRY(listen_unix(path_, kConnections, SOCK_NONBLOCK));
  if (::chmod(path_.c_str(), 0666) < 0) return Error::last("set the mode of a socket");
  thread_ = std::jthread([this, socket = listener.get()](const std::stop_token& stop) {
    begin_thread("sluice-share");
    serve(stop, socket);
  });
  listener_ = std::move(listener);
  return {};
}

Result<ShareSocket::Token> ShareSocket::offer(uid_t user, UniqueFd memory,
                                              std::function<bool()> check) {
  Token token{};
  if (::getrandom(token.data(), token.size(), 0) != static_cast<ssize_t>(token.size())) {
    return Error::last("getrandom");
  }
  {
    MutexLock lock(mutex_);
    SLUICE_TRY(listen());
    const auto now = Clock::now();
    std::erase_if(offers_, [&](const auto& each) { return each.second.until <= now; });
    const auto of_user = std::count_if(offers_.begin(), offers_.end(),
                                       [&](const auto& each) { return each.second.user == user; });
    if (offers_.size() >= kMostOfAll || static_cast<std::size_t>(of_user) >= kMostOfUser) {
      return Error(EBUSY, "too many tokens for GPU memory wait");
    }
    offers_.emplace(token, Offer{user, std::move(memory), std::move(check), now + life_});
  }
  const std::uint64_t one = 1;  // the thread must know when the token is too old
  [[maybe_unused]] const ssize_t woken = ::write(wake_.get(), &one, sizeof one);
  return token;
}

std::size_t ShareSocket::tokens() const {
  MutexLock lock(mutex_);
  return offers_.size();
}

std::optional<ShareSocket::Offer> ShareSocket::take(const Token& token, uid_t user) {
  MutexLock lock(mutex_);
  const auto found = offers_.find(token);
  // A token stays valid if another user sends it.
  if (found == offers_.end() || found->second.user != user || found->second.until <= Clock::now()) {
    return std::nullopt;
  }
  Offer offer = std::move(found->second);
  offers_.erase(found);
  return offer;
}

int ShareSocket::next_timeout(const Connections& connections) {
  auto next = Clock::time_point::max();
  for (const Connection& each : connections) next = std::min(next, each.until);
  {
    MutexLock lock(mutex_);
    const auto now = Clock::now();
    std::erase_if(offers_, [&](const auto& each) { return each.second.until <= now; });
    for (const auto& [token, offer] : offers_) next = std::min(next, offer.until);
  }
  if (next == Clock::time_point::max()) return -1;
  const auto left = std::chrono::ceil<std::chrono::milliseconds>(next - Clock::now());
  return static_cast<int>(std::max<std::int64_t>(left.count(), 0));
}

void ShareSocket::accept_one(int listener, Connections& connections) {
  UniqueFd socket(::accept4(listener, nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
  if (!socket) {
    // No descriptor is free: the connection stays in the queue, and poll() would return at once.
    if (errno != EAGAIN) std::this_thread::sleep_for(std::chrono::milliseconds(100));
    return;
  }
  ucred peer{};
  socklen_t size = sizeof peer;
  if (::getsockopt(socket.get(), SOL_SOCKET, SO_PEERCRED, &peer, &size) < 0) return;
  const auto of_user = std::count_if(connections.begin(), connections.end(),
                                     [&](const auto& each) { return each.user == peer.uid; });
  if (connections.size() >= kConnections ||
      static_cast<std::size_t>(of_user) >= kConnectionsOfUser) {
    return;
  }
  connections.push_back({std::move(socket), peer.uid, Clock::now() + kPatience});
}

bool ShareSocket::advance(Connection& connection) {
  const ssize_t got = ::recv(connection.socket.get(), connection.token.data() + connection.got,
                             connection.token.size() - connection.got, 0);
  if (got < 0 && (errno == EAGAIN || errno == EINTR)) return true;
  if (got <= 0) return false;
  connection.got += static_cast<std::size_t>(got);
  if (connection.got < connection.token.size()) return true;
  const int socket = connection.socket.get();
  const auto offer = take(connection.token, connection.user);
  if (!offer) {
    reply(socket, ENOENT);
    return false;
  }
  reply(socket, 0, offer->memory);
  // One after the other: the memory of a GPU is as fast for one as for several.
  reply(socket, is_good(*offer) ? 0 : EAGAIN);
  return false;
}

// An exception must not leave this function: it would end the daemon.
bool ShareSocket::is_good(const Offer& offer) noexcept {
  try {
    return offer.check();
  } catch (const std::exception& error) {
    log::get().error("cannot check shared GPU memory: what={}", error.what());
    return false;
  }
}

void ShareSocket::serve(const std::stop_token& stop, int listener) {
  Connections connections;
  std::vector<pollfd> fds;
  while (!stop.stop_requested()) {
    fds.assign({{listener, POLLIN, 0}, {wake_.get(), POLLIN, 0}});
    for (const Connection& each : connections) fds.push_back({each.socket.get(), POLLIN, 0});
    if (::poll(fds.data(), fds.size(), next_timeout(connections)) < 0) continue;
    std::uint64_t count = 0;
    if (fds[1].revents != 0) {
      [[maybe_unused]] const ssize_t got = ::read(wake_.get(), &count, sizeof count);
    }
    const auto now = Clock::now();
    std::size_t at = 2;
    std::erase_if(connections, [&](Connection& each) {
      const bool has_data = fds[at++].revents != 0;
      return has_data ? !advance(each) : each.until <= now;
    });
    if (fds[0].revents != 0) accept_one(listener, connections);
  }
}

std::string share_socket_path(const std::string& pool_id, const std::string& state) {
  if (::geteuid() != 0) return state + "/share.sock";
  return "/run/sluice/" + pool_id + "/share.sock";
}

}  // namespace sluice
