// SPDX-License-Identifier: BSD-2-Clause
// ShareSocket hands descriptors of GPU memory to processes, over a Unix socket that every user can
// connect to. A process gets a descriptor for a token, which an ioctl gave to the same user. A
// token is valid once and for some seconds. docs/ioctl.md describes the protocol.
//
// The number of tokens, of connections and the time of each are limited, for each user too.
//
// Threads: thread-safe. Its own thread, "sluice-share", and the socket are made with the first
// token.
#pragma once

#include <sys/types.h>

#include <array>
#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "base/mutex.hpp"
#include "base/result.hpp"
#include "base/unique_fd.hpp"
#include "client/include/sluice/ioctl.h"

namespace sluice {

class ShareSocket {
 public:
  static constexpr std::size_t kMostOfUser = 16, kMostOfAll = 128;  // tokens; EBUSY beyond
  static constexpr std::size_t kConnectionsOfUser = 8, kConnections = 64;
  static constexpr std::chrono::milliseconds kPatience{2000};  // with one connection
  using Token = std::array<std::uint8_t, SLUICE_TOKEN_SIZE>;

  // `path`: of the socket; its directory is made if there is none. `life`: of a token.
  explicit ShareSocket(std::string path, std::chrono::milliseconds life = std::chrono::seconds(10));
  ~ShareSocket();
  ShareSocket(const ShareSocket&) = delete;
  ShareSocket& operator=(const ShareSocket&) = delete;

  const std::string& path() const { return path_; }
  // A token for which a process of `user` gets the descriptor, and then the result of `check`:
  // false means that it must not use the memory.
  Result<Token> offer(uid_t user, UniqueFd memory, std::function<bool()> check);
  std::size_t tokens() const;

 private:
  using Clock = std::chrono::steady_clock;
  struct Offer {
    uid_t user;
    UniqueFd memory;
    std::function<bool()> check;
    Clock::time_point until;
  };
  struct Connection {
    UniqueFd socket;
    uid_t user;
    Clock::time_point until;
    Token token{};
    std::size_t got = 0;  // bytes of the token
  };
  using Connections = std::vector<Connection>;

  Result<void> listen() REQUIRES(mutex_);
  void serve(const std::stop_token& stop, int listener);
  // The time until the next token or connection is too old, in milliseconds; -1: there are none.
  int next_timeout(const Connections& connections);
  void accept_one(int listener, Connections& connections);
  // False: the connection is done.
  bool advance(Connection& connection);
  std::optional<Offer> take(const Token& token, uid_t user);
  static bool is_good(const Offer& offer) noexcept;

  const std::string path_;
  const std::chrono::milliseconds life_;
  UniqueFd wake_;  // an eventfd
  mutable Mutex mutex_;
  std::map<Token, Offer> offers_ GUARDED_BY(mutex_);
  UniqueFd listener_ GUARDED_BY(mutex_);
  std::jthread thread_ GUARDED_BY(mutex_);
};

// Where the daemon of a pool has its socket: where all users can reach it, if it runs as root;
// otherwise in its state directory.
std::string share_socket_path(const std::string& pool_id, const std::string& state);

}  // namespace sluice
