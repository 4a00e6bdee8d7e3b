// SPDX-License-Identifier: BSD-2-Clause
#include "tests/support/parallel.hpp"

#include <fcntl.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <cstdio>
#include <exception>
#include <system_error>
#include <vector>

#include "base/unique_fd.hpp"
#include "tests/support/shared.hpp"

namespace sluice::test {
namespace {

struct Progress {
  std::atomic<std::uint64_t> next{0};
  std::atomic<std::uint64_t> answers{0};
};

struct Header {
  std::uint64_t index;
  std::uint64_t size;
};

// Answers are short, so that each is one write and they never mix.
constexpr std::size_t kLongest = 3000;

[[noreturn]] void serve(int out, Progress& progress, std::uint64_t count, std::size_t enough,
                        const std::function<std::string(std::uint64_t)>& work) {
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  for (std::uint64_t i; progress.answers < enough && (i = progress.next++) < count;) {
    std::string answer;
    try {
      answer = work(i);
    } catch (const std::exception& error) {
      answer = error.what();
    }
    if (answer.empty()) continue;
    ++progress.answers;
    answer.resize(std::min(answer.size(), kLongest));
    const Header header{i, answer.size()};
    const std::string message =
        std::string(reinterpret_cast<const char*>(&header), sizeof header) + answer;
    if (::write(out, message.data(), message.size()) < 0) ::_exit(1);
  }
  ::_exit(0);
}

std::string read_all(int fd) {
  std::string text;
  std::array<char, 4096> chunk;
  for (ssize_t got; (got = ::read(fd, chunk.data(), chunk.size())) != 0;) {
    if (got < 0 && errno != EINTR) break;
    if (got > 0) text.append(chunk.data(), static_cast<std::size_t>(got));
  }
  return text;
}

}  // namespace

std::map<std::uint64_t, std::string> in_parallel(
    int processes, std::uint64_t count, std::size_t enough,
    const std::function<std::string(std::uint64_t)>& work) {
  std::array<int, 2> ends{};
  if (::pipe2(ends.data(), O_CLOEXEC) < 0) {
    throw std::system_error(errno, std::generic_category(), "pipe");
  }
  const UniqueFd read_end(ends[0]);
  UniqueFd write_end(ends[1]);
  const Shared<Progress> progress;
  std::vector<pid_t> children;
  std::fflush(nullptr);
  for (int i = 0; i < processes; ++i) {
    const pid_t child = ::fork();
    if (child < 0) throw std::system_error(errno, std::generic_category(), "fork");
    if (child == 0) serve(write_end.get(), *progress, count, enough, work);
    children.push_back(child);
  }
  write_end.reset();
  const std::string text = read_all(read_end.get());

  std::map<std::uint64_t, std::string> answers;
  for (std::size_t at = 0; at + sizeof(Header) <= text.size();) {
    Header header{};
    text.copy(reinterpret_cast<char*>(&header), sizeof header, at);
    at += sizeof header;
    answers[header.index] = text.substr(at, header.size);
    at += header.size;
  }
  for (const pid_t child : children) {
    int status = 0;
    ::waitpid(child, &status, 0);
    if (!WIFEXITED(status) || WEXITSTATUS(status) != 0) {
      answers[count] += "a child died, status " + std::to_string(status) + "\n";
    }
  }
  return answers;
}

}  // namespace sluice::test
