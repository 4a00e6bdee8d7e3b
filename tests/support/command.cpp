// SPDX-License-Identifier: BSD-2-Clause
#include "tests/support/command.hpp"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstdio>
#include <system_error>

#include "base/unique_fd.hpp"
#include "tests/support/wait.hpp"

namespace sluice::test {
namespace {

struct Pipe {
  UniqueFd read, write;
};

Pipe make_pipe() {
  std::array<int, 2> ends{};
  if (::pipe2(ends.data(), O_CLOEXEC) < 0) {
    throw std::system_error(errno, std::generic_category(), "pipe");
  }
  return {UniqueFd(ends[0]), UniqueFd(ends[1])};
}

// Reads once if there is data; closes the descriptor at the end of the stream.
void drain(UniqueFd& fd, short events, std::string& into) {
  if (events == 0) return;
  std::array<char, 4096> chunk;
  const ssize_t got = ::read(fd.get(), chunk.data(), chunk.size());
  if (got <= 0) {
    fd.reset();
  } else {
    into.append(chunk.data(), static_cast<std::size_t>(got));
  }
}

}  // namespace

CommandResult run_command(const std::vector<std::string>& argv, std::chrono::seconds limit) {
  Pipe out = make_pipe();
  Pipe err = make_pipe();
  std::vector<char*> arguments;
  for (const std::string& argument : argv) arguments.push_back(const_cast<char*>(argument.c_str()));
  arguments.push_back(nullptr);
  std::fflush(nullptr);
  const pid_t child = ::fork();
  if (child < 0) throw std::system_error(errno, std::generic_category(), "fork");
  if (child == 0) {
    ::dup2(::open("/dev/null", O_RDONLY), 0);
    ::dup2(out.write.get(), 1);
    ::dup2(err.write.get(), 2);
    ::execvp(arguments[0], arguments.data());
    ::_exit(127);
  }
  out.write.reset();
  err.write.reset();

  CommandResult result{};
  int status = 0;
  bool exited = false;
  // Waits for the end of the child, not of its pipes: a daemon that it started may keep them open.
  const bool in_time = eventually(
      [&] {
        while (out.read || err.read) {
          std::array<pollfd, 2> fds{{{out.read.get(), POLLIN, 0}, {err.read.get(), POLLIN, 0}}};
          if (::poll(fds.data(), fds.size(), 0) <= 0) break;
          drain(out.read, fds[0].revents, result.out);
          drain(err.read, fds[1].revents, result.err);
        }
        if (exited) return true;
        exited = ::waitpid(child, &status, WNOHANG) == child;
        return false;  // read once more what it wrote last
      },
      limit);
  if (!in_time && !exited) {
    ::kill(child, SIGKILL);
    ::waitpid(child, &status, 0);
    result.err += "\n[killed after " + std::to_string(limit.count()) + " s]";
  }
  result.exit_code = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
  return result;
}

}  // namespace sluice::test
