// SPDX-License-Identifier: BSD-2-Clause
#include "tools/cli/partner.hpp"

#include <fcntl.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <chrono>
#include <cstdlib>
#include <thread>
#include <utility>

#include "base/path.hpp"
#include "tools/common/output.hpp"

namespace sluice::tools::cli {
namespace {

constexpr std::chrono::seconds kEndWait{2};

[[noreturn]] void become(const std::vector<std::string>& argv, int in, int out) {
  ::dup2(in, STDIN_FILENO);
  ::dup2(out, STDOUT_FILENO);
  std::vector<char*> words;
  for (const auto& word : argv) words.push_back(const_cast<char*>(word.c_str()));
  words.push_back(nullptr);
  ::execvp(words[0], words.data());
  ::_exit(127);
}

bool ends_within(pid_t pid, std::chrono::milliseconds limit) {
  const auto end = std::chrono::steady_clock::now() + limit;
  for (;;) {
    const pid_t ended = ::waitpid(pid, nullptr, WNOHANG);
    if (ended == pid || (ended < 0 && errno == ECHILD)) return true;
    if (std::chrono::steady_clock::now() > end) return false;
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
}

}  // namespace

PartnerPlace parse_partner_place(const std::string& text) {
  const auto colon = text.find(':');
  const auto slash = text.find('/');
  if (colon == std::string::npos || colon == 0 || slash < colon) return {"", text};
  return {text.substr(0, colon), text.substr(colon + 1)};
}

std::vector<std::string> partner_command(const PartnerPlace& place, const std::string& self) {
  if (place.host.empty())
    return {self, "origin", "check", "--partner", absolute_path(place.directory)};
  return {"ssh", "-T", place.host, "sluice origin check --partner " + shell_word(place.directory)};
}

Result<Partner> Partner::start(const std::vector<std::string>& argv) {
  std::array<int, 2> questions{}, answers{};
  if (::pipe2(questions.data(), O_CLOEXEC) < 0) return Error::last("make a pipe");
  UniqueFd questions_in(questions[0]), questions_out(questions[1]);
  if (::pipe2(answers.data(), O_CLOEXEC) < 0) return Error::last("make a pipe");
  UniqueFd answers_in(answers[0]), answers_out(answers[1]);
  const pid_t child = ::fork();
  if (child < 0) return Error::last("start a process");
  if (child == 0) become(argv, questions_in.get(), answers_out.get());
  return Partner(child, std::move(answers_in), std::move(questions_out));
}

Partner::Partner(Partner&& other) noexcept
    : pid_(std::exchange(other.pid_, -1)), in_(std::move(other.in_)), out_(std::move(other.out_)) {}

Partner::~Partner() {
  if (pid_ <= 0) return;
  out_.reset();  // it ends when there are no more questions
  if (ends_within(pid_, kEndWait)) return;
  ::kill(pid_, SIGKILL);
  // One that hangs in a filesystem may not even react to that; then it is left behind.
  ends_within(pid_, kEndWait);
}

}  // namespace sluice::tools::cli
