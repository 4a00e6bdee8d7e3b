// SPDX-License-Identifier: BSD-2-Clause
// KeeperLink is the daemon's end of the socket to its keeper (keeper.hpp). A daemon that was
// started without a keeper has none, and one whose keeper has died goes on serving.
//
// Threads: thread-safe after start(), except that listen() and stop_listening() are called by one
// thread, and stop_listening() not by the callback.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <thread>

#include "base/mutex.hpp"
#include "base/result.hpp"
#include "base/service_notice.hpp"
#include "base/unique_fd.hpp"
#include "fs/keeper/protocol.hpp"

namespace sluice {

class KeeperLink {
 public:
  enum class Role {
    First,      // mount
    Successor,  // the daemon before this one is gone: take over
    Prepared,   // it still serves: check everything, then call prepared()
  };
  struct Start {
    Role role = Role::First;
    NamedDescriptors held;  // by successors only
  };

  // The link that the environment names; null if there is none. Removes it from the environment.
  // REQUIRES: no other thread uses the environment.
  static std::unique_ptr<KeeperLink> from_environment();
  ~KeeperLink();

  const Start& start() const { return start_; }
  // Transfers the held descriptors to the caller. May be called once.
  Start take_start() { return std::move(start_); }

  // Gives the keeper a copy of the descriptor. It keeps it for successors.
  void hold(const std::string& name, int fd);
  void ready();
  // REQUIRES: the process will exit.
  void failed(const std::string& text);
  // Blocks until the daemon before this one has ended. Fails if this one is no longer wanted.
  // CHECKED: not listening yet.
  Result<void> prepared();

  // Calls `on_hand_over` from its own thread when a successor is prepared. This daemon must then
  // stop serving and exit with kHandedOver, or call stay().
  void listen(std::function<void()> on_hand_over);
  void stop_listening();
  void stay(const std::string& why);

  // Asks for a successor. Returns when this daemon is told to hand over, or with the reason why no
  // successor can be started. Fails if not listening.
  Result<void> request_restart();

  int keeper() const;  // its process id; 0 if it has died
  unsigned restarts() const { return restarts_; }
  // Why this daemon took over from another; empty if it did not, or if nobody knows: an older
  // keeper does not say it, nor one that was started after the daemon before it had ended.
  std::string start_reason() const;
  // Why the last restart failed; empty if it did not.
  std::string restart_failure() const;

 private:
  KeeperLink(UniqueFd socket, unsigned restarts);
  Result<void> receive_start();
  void tell(const std::string& text, std::span<const int> fds = {});
  void run();
  void take(const Packet& packet);
  void keeper_died();

  const UniqueFd socket_;
  const unsigned restarts_;
  const int keeper_;
  Start start_;
  UniqueFd wake_;  // an eventfd; readable once the thread must stop
  std::function<void()> on_hand_over_;
  mutable Mutex mutex_;
  CondVar changed_;
  bool is_alone_ GUARDED_BY(mutex_) = false;  // the keeper has died
  bool is_listening_ GUARDED_BY(mutex_) = false;
  bool is_restarting_ GUARDED_BY(mutex_) = false;
  std::string restart_failure_ GUARDED_BY(mutex_);
  std::string start_reason_ GUARDED_BY(mutex_);
  std::jthread thread_;
};

}  // namespace sluice
