// SPDX-License-Identifier: BSD-2-Clause
#include "tools/cli/subprocess.hpp"

#include <fcntl.h>
#include <poll.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <csignal>
#include <cstdlib>
#include <thread>

#include "base/unique_fd.hpp"

namespace sluice::tools::cli {
namespace {

using std::chrono::milliseconds;
using std::chrono::steady_clock;

constexpr std::chrono::seconds kLastWait{2};

[[noreturn]] void become(const std::vector<std::string>& argv, int out, int err) {
  const UniqueFd null(::open("/dev/null", O_RDONLY | O_CLOEXEC));
  ::dup2(null.get(), STDIN_FILENO);
  ::dup2(out, STDOUT_FILENO);
  ::dup2(err, STDERR_FILENO);
  ::setenv("NO_COLOR", "1", 1);
  std::vector<char*> words;
  for (const auto& word : argv) words.push_back(const_cast<char*>(word.c_str()));
  words.push_back(nullptr);
  ::execvp(words[0], words.data());
  ::_exit(127);
}

}  // namespace

ProgramOutput run_program(const std::vector<std::string>& argv, std::chrono::seconds limit) {
  std::array<int, 2> out{}, err{};
  ProgramOutput result;
  if (::pipe2(out.data(), O_CLOEXEC) < 0) return result;
  UniqueFd out_reader(out[0]), out_writer(out[1]);
  if (::pipe2(err.data(), O_CLOEXEC) < 0) return result;
  UniqueFd err_reader(err[0]), err_writer(err[1]);
  const pid_t child = ::fork();
  if (child < 0) return result;
  if (child == 0) become(argv, out_writer.get(), err_writer.get());
  out_writer.reset();
  err_writer.reset();

  const auto end = steady_clock::now() + limit;
  std::array<pollfd, 2> ends{pollfd{out_reader.get(), POLLIN, 0}, {err_reader.get(), POLLIN, 0}};
  const std::array<std::string*, 2> into{&result.out, &result.err};
  while (ends[0].fd >= 0 || ends[1].fd >= 0) {
    const auto left = std::chrono::ceil<milliseconds>(end - steady_clock::now()).count();
    const int ready = left <= 0 ? 0 : ::poll(ends.data(), ends.size(), static_cast<int>(left));
    if (ready < 0 && errno == EINTR) continue;
    if (ready <= 0) {
      ::kill(child, SIGKILL);
      break;
    }
    for (std::size_t i = 0; i < ends.size(); ++i) {
      if (ends[i].revents == 0) continue;
      std::array<char, 16384> piece{};
      const ssize_t got = ::read(ends[i].fd, piece.data(), piece.size());
      if (got > 0) into[i]->append(piece.data(), static_cast<std::size_t>(got));
      if (got == 0 || (got < 0 && errno != EINTR)) ends[i].fd = -1;  // poll() ignores it
    }
  }
  // A child that waits for a daemon that hangs may not even react to SIGKILL; then it is left
  // behind.
  int status = 0;
  pid_t ended = 0;
  for (const auto last = end + kLastWait; ended <= 0 && steady_clock::now() < last;) {
    ended = ::waitpid(child, &status, WNOHANG);
    if (ended == 0) std::this_thread::sleep_for(milliseconds(5));
  }
  if (ended != child) return result;
  if (WIFEXITED(status)) result.code = WEXITSTATUS(status);
  return result;
}

}  // namespace sluice::tools::cli
