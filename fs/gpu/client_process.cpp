// SPDX-License-Identifier: BSD-2-Clause
#include "fs/gpu/client_process.hpp"

#include <poll.h>
#include <sys/syscall.h>

#include <algorithm>
#include <csignal>
#include <sstream>
#include <string>

#include "base/small_file.hpp"

namespace sluice {
namespace {

// How long the process of a thread is remembered. Its id may be reused by another process.
constexpr std::chrono::seconds kThreadMemory{1};
// How often a request looks whether its caller was killed.
constexpr std::chrono::milliseconds kLookForCaller{50};
constexpr std::chrono::seconds kUnseen{1};

}  // namespace

// pidfd_open, which glibc 2.36 does not have; the number is the same on every architecture.
UniqueFd open_process(pid_t process) {
  return UniqueFd(static_cast<int>(::syscall(434, process, 0)));
}

bool has_ended(const UniqueFd& process) {
  pollfd poll_it{process.get(), POLLIN, 0};
  return ::poll(&poll_it, 1, 0) > 0;
}

Result<pid_t> process_of(pid_t thread) {
  std::istringstream status(text_of_file("/proc/" + std::to_string(thread) + "/status"));
  for (std::string line; std::getline(status, line);) {
    if (line.starts_with("Tgid:")) return static_cast<pid_t>(std::stol(line.substr(5)));
  }
  return Error(ESRCH, "find the process of the caller");
}

bool CallerWatch::is_killed() {
  const auto now = std::chrono::steady_clock::now();
  if (killed_ || now < look_) return killed_;
  if (thread_ == 0) {
    killed_ = now >= look_ + kUnseen;
    return killed_;
  }
  look_ = now + kLookForCaller;
  // A signal that ends the process is SIGKILL for each of its threads by now.
  std::istringstream status(text_of_file("/proc/" + std::to_string(thread_) + "/status"));
  for (std::string line; std::getline(status, line);) {
    if (!line.starts_with("SigPnd:")) continue;
    killed_ = (std::stoull(line.substr(7), nullptr, 16) >> (SIGKILL - 1) & 1) != 0;
  }
  return killed_;
}

bool ClientProcess::has(pid_t thread) {
  if (thread == process_) return true;  // the id of a running process is not reused
  const auto now = std::chrono::steady_clock::now();
  {
    MutexLock lock(mutex_);
    if (now - looked_ > kThreadMemory) {
      threads_.clear();
      looked_ = now;
    }
    if (std::find(threads_.begin(), threads_.end(), thread) != threads_.end()) return true;
  }
  const auto found = process_of(thread);
  if (!found || *found != process_) return false;
  MutexLock lock(mutex_);
  threads_.push_back(thread);
  return true;
}

}  // namespace sluice
