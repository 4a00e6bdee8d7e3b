// SPDX-License-Identifier: BSD-2-Clause
#include "tests/support/child.hpp"

#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <system_error>

#include "tests/support/wait.hpp"

namespace sluice::test {

Child::Child(const std::function<void()>& work) {
  std::fflush(nullptr);
  pid_ = ::fork();
  if (pid_ < 0) throw std::system_error(errno, std::generic_category(), "fork");
  if (pid_ > 0) return;
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  work();
  ::_exit(0);
}

Child::~Child() {
  if (pid_ <= 0) return;
  ::kill(pid_, SIGKILL);
  ::waitpid(pid_, nullptr, 0);
}

bool Child::join() {
  const bool ended = eventually([&] { return ::waitpid(pid_, nullptr, WNOHANG) == pid_; });
  if (ended) pid_ = -1;
  return ended;
}

}  // namespace sluice::test
