// SPDX-License-Identifier: BSD-2-Clause
#include "fs/keeper/keeper_link.hpp"

#include <fcntl.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/prctl.h>
#include <unistd.h>

#include <array>
#include <cstdlib>
#include <utility>

#include "base/check.hpp"
#include "base/log.hpp"
#include "base/thread.hpp"

namespace sluice {

std::unique_ptr<KeeperLink> KeeperLink::from_environment() {
  const char* variable = std::getenv(kKeeperVariable);
  if (variable == nullptr) return nullptr;
  char* rest = nullptr;
  const long fd = std::strtol(variable, &rest, 10);
  const unsigned long restarts = *rest == ',' ? std::strtoul(rest + 1, nullptr, 10) : 0;
  ::unsetenv(kKeeperVariable);
  if (fd < 3 || ::fcntl(static_cast<int>(fd), F_SETFD, FD_CLOEXEC) < 0) return nullptr;
  // A program that is started by a descriptor gets the descriptor's number as its name.
  ::prctl(PR_SET_NAME, "sluice");
  auto link = std::unique_ptr<KeeperLink>(
      new KeeperLink(UniqueFd(static_cast<int>(fd)), static_cast<unsigned>(restarts)));
  if (!link->receive_start()) return nullptr;
  return link;
}

KeeperLink::KeeperLink(UniqueFd socket, unsigned restarts)
    : socket_(std::move(socket)), restarts_(restarts), keeper_(::getppid()) {}

KeeperLink::~KeeperLink() { stop_listening(); }

Result<void> KeeperLink::receive_start() {
  Packet first = SLUICE_TRY(receive_packet(socket_.get(), Wait::Yes));
  std::vector<std::string> words = words_of(first.text);
  if (words.empty()) return Error{EPROTO, "start of a daemon"};
  if (words[0] == "take") start_.role = Role::Successor;
  if (words[0] == "prepare") start_.role = Role::Prepared;
  for (std::size_t i = 0; i < first.fds.size() && i + 1 < words.size(); ++i) {
    start_.held[words[i + 1]] = std::move(first.fds[i]);
  }
  if (start_.role == Role::Prepared) {
    const MutexLock lock(mutex_);
    start_reason_ = "a restart was asked for";
  }
  // The keeper sent them before it started this process.
  if (start_.role != Role::Successor) return {};
  while (const auto next = receive_packet(socket_.get(), Wait::No)) take(*next);
  return {};
}

void KeeperLink::tell(const std::string& text, std::span<const int> fds) {
  if (const auto sent = send_packet(socket_.get(), text, fds); !sent) keeper_died();
}

void KeeperLink::hold(const std::string& name, int fd) { tell("hold " + name, {{fd}}); }
void KeeperLink::ready() { tell("ready"); }
void KeeperLink::failed(const std::string& text) { tell("failed " + text); }
void KeeperLink::stay(const std::string& why) { tell("stay " + why); }

Result<void> KeeperLink::prepared() {
  SLUICE_CHECK(!thread_.joinable(), "a prepared successor does not listen yet");
  tell("prepared");
  for (;;) {
    const Packet packet = SLUICE_TRY(receive_packet(socket_.get(), Wait::Yes));
    if (packet.says("go")) return {};
  }
}

void KeeperLink::listen(std::function<void()> on_hand_over) {
  on_hand_over_ = std::move(on_hand_over);
  wake_.reset(::eventfd(0, EFD_CLOEXEC));
  {
    MutexLock lock(mutex_);
    is_listening_ = true;
  }
  thread_ = std::jthread([this] { run(); });
}

void KeeperLink::stop_listening() {
  if (!thread_.joinable()) return;
  ::eventfd_write(wake_.get(), 1);
  thread_.join();
  MutexLock lock(mutex_);
  is_listening_ = false;
  if (std::exchange(is_restarting_, false)) restart_failure_ = "the mount is ending";
  changed_.notify_all();
}

void KeeperLink::run() {
  begin_thread("sluice-keeper");
  for (;;) {
    std::array<pollfd, 2> fds{{{socket_.get(), POLLIN, 0}, {wake_.get(), POLLIN, 0}}};
    if (::poll(fds.data(), fds.size(), -1) < 0) continue;
    if (fds[1].revents != 0) return;
    const auto packet = receive_packet(socket_.get(), Wait::No);
    if (!packet && packet.error().code == EAGAIN) continue;
    if (!packet) return keeper_died();
    take(*packet);
    if (packet->says("hand over")) on_hand_over_();
  }
}

void KeeperLink::take(const Packet& packet) {
  MutexLock lock(mutex_);
  if (packet.says("because")) {
    start_reason_ = packet.rest("because");
    return;
  }
  if (packet.says("restart failed")) {
    restart_failure_ = packet.rest("restart failed");
  } else if (!packet.says("hand over")) {
    return;
  }
  is_restarting_ = false;
  changed_.notify_all();
}

void KeeperLink::keeper_died() {
  MutexLock lock(mutex_);
  if (std::exchange(is_alone_, true)) return;
  changed_.notify_all();
  log::get().warn(
      "the keeper has died; the mount works, but would not survive a crash of the daemon: pid={}",
      keeper_);
}

Result<void> KeeperLink::request_restart() {
  {
    MutexLock lock(mutex_);
    if (is_restarting_) {
      return Error{EBUSY, "restart", "another restart is in progress"};
    }
    if (!is_listening_) return Error{ECANCELED, "restart", "the mount is ending"};
    restart_failure_.clear();
    is_restarting_ = true;
  }
  tell("restart");
  MutexLock lock(mutex_);
  while (is_restarting_ && !is_alone_) changed_.wait(mutex_);
  if (std::exchange(is_restarting_, false)) {
    return Error{EPIPE, "restart",
                 "the mount has no keeper any more; unmount it and mount it again"};
  }
  if (!restart_failure_.empty()) return Error{EREMOTEIO, "restart", restart_failure_};
  return {};
}

int KeeperLink::keeper() const {
  MutexLock lock(mutex_);
  return is_alone_ ? 0 : keeper_;
}

std::string KeeperLink::start_reason() const {
  MutexLock lock(mutex_);
  return start_reason_;
}

std::string KeeperLink::restart_failure() const {
  MutexLock lock(mutex_);
  return restart_failure_;
}

}  // namespace sluice
