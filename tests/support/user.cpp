// SPDX-License-Identifier: BSD-2-Clause
#include "tests/support/user.hpp"

#include <fcntl.h>
#include <grp.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstdio>
#include <exception>
#include <system_error>

#include "base/unique_fd.hpp"

namespace sluice::test {
namespace {

void send_all(int fd, const std::string& text) {
  for (std::size_t sent = 0; sent < text.size();) {
    const ssize_t count = ::write(fd, text.data() + sent, text.size() - sent);
    if (count < 0) return;
    sent += static_cast<std::size_t>(count);
  }
}

bool become(const User& user) {
  // A thread that has worked as a user (base/user_room.hpp) keeps capabilities when it becomes one.
  return (::prctl(PR_GET_SECUREBITS) == 0 || ::prctl(PR_SET_SECUREBITS, 0) == 0) &&
         ::setgroups(user.groups.size(), user.groups.data()) == 0 &&
         ::setresgid(user.gid, user.gid, user.gid) == 0 &&
         ::setresuid(user.uid, user.uid, user.uid) == 0;
}

std::string run_child(const User* user, const std::function<std::string()>& work) {
  std::array<int, 2> ends{};
  if (::pipe2(ends.data(), O_CLOEXEC) < 0) {
    throw std::system_error(errno, std::generic_category(), "pipe");
  }
  const UniqueFd read_end(ends[0]);
  UniqueFd write_end(ends[1]);
  std::fflush(nullptr);
  const pid_t child = ::fork();
  if (child < 0) throw std::system_error(errno, std::generic_category(), "fork");
  if (child == 0) {
    std::string answer;
    try {
      answer = user && !become(*user) ? "could not become the user" : work();
    } catch (const std::exception& error) {
      answer = std::string("threw: ") + error.what();
    }
    send_all(write_end.get(), answer);
    ::_exit(0);
  }
  write_end.reset();
  std::string answer;
  std::array<char, 4096> chunk;
  for (ssize_t got; (got = ::read(read_end.get(), chunk.data(), chunk.size())) != 0;) {
    if (got < 0 && errno != EINTR) break;
    if (got > 0) answer.append(chunk.data(), static_cast<std::size_t>(got));
  }
  int status = 0;
  ::waitpid(child, &status, 0);
  if (!WIFEXITED(status)) return "died: signal " + std::to_string(WTERMSIG(status));
  return answer;
}

}  // namespace

std::string as_user(const User& user, const std::function<std::string()>& work) {
  return run_child(&user, work);
}

std::string in_child(const std::function<std::string()>& work) { return run_child(nullptr, work); }

}  // namespace sluice::test
