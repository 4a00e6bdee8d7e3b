// SPDX-License-Identifier: BSD-2-Clause
#include "tests/unit/gpu/peer.hpp"

#include <signal.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <stdexcept>
#include <utility>

namespace sluice::test {

Peer::Peer(const std::vector<std::string>& arguments) {
  std::vector<char*> argv{const_cast<char*>(SLUICE_GPU_PEER)};
  for (const std::string& argument : arguments) argv.push_back(const_cast<char*>(argument.c_str()));
  argv.push_back(nullptr);
  int ends[2];
  if (::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) < 0) {
    throw std::runtime_error("socketpair");
  }
  pid_ = ::fork();
  if (pid_ == 0) {
    ::dup2(ends[1], 0);
    ::dup2(ends[1], 1);
    ::execv(argv[0], argv.data());
    ::_exit(127);
  }
  ::close(ends[1]);
  stream_ = ::fdopen(ends[0], "r+");
}

std::string Peer::line() {
  std::string text;
  for (int c = std::getc(stream_); c != EOF && c != '\n'; c = std::getc(stream_)) {
    text += static_cast<char>(c);
  }
  return text;
}

void Peer::go_on() { ::write(::fileno(stream_), "\n", 1); }

void Peer::kill() {
  if (pid_ < 0) return;
  ::kill(pid_, SIGKILL);
  ::waitpid(std::exchange(pid_, -1), nullptr, 0);
  std::fclose(stream_);
}

IpcHandle Peer::handle() {
  const std::string text = line();
  IpcHandle handle{};
  for (std::size_t i = 0; i < handle.size() && 2 * i + 1 < text.size(); ++i) {
    handle[i] = static_cast<std::uint8_t>(std::strtoul(text.substr(2 * i, 2).c_str(), nullptr, 16));
  }
  return handle;
}

UniqueFd Peer::descriptor() {
  const int theirs = std::atoi(line().c_str());
  const UniqueFd process(static_cast<int>(::syscall(SYS_pidfd_open, pid_, 0)));
  return UniqueFd(static_cast<int>(::syscall(SYS_pidfd_getfd, process.get(), theirs, 0)));
}

}  // namespace sluice::test
