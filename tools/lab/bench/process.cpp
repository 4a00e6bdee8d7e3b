// SPDX-License-Identifier: BSD-2-Clause
#include "tools/lab/bench/process.hpp"

#include <fcntl.h>
#include <poll.h>
#include <sys/prctl.h>
#include <sys/signalfd.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "tools/lab/bench/syscalls.hpp"

namespace sluice::tools::lab::bench {
namespace {

constexpr int kNotExecuted = 127;

// True if `fd` is ready to read within `limit` (negative: for ever).
bool wait_readable(const UniqueFd& fd, std::chrono::milliseconds limit) {
  pollfd entry{fd.get(), POLLIN, 0};
  return ::poll(&entry, 1, static_cast<int>(limit.count())) > 0;
}

// Called first in a child: it ends when its parent ends, and signals end it.
void become_child() {
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  sigset_t none;
  sigemptyset(&none);
  ::sigprocmask(SIG_SETMASK, &none, nullptr);
}

pid_t start(const Command& command, int stdout_fd) {
  std::vector<char*> arguments;
  for (const std::string& word : command) arguments.push_back(const_cast<char*>(word.c_str()));
  arguments.push_back(nullptr);
  const pid_t pid = ::fork();
  if (pid < 0) throw_failure("fork", command.front());
  if (pid == 0) {
    become_child();
    ::dup2(stdout_fd, STDOUT_FILENO);
    ::setenv("LC_ALL", "C", 1);
    ::execvp(arguments[0], arguments.data());
    ::dprintf(STDERR_FILENO, "fsbench: run %s: %s\n", arguments[0], std::strerror(errno));
    ::_exit(kNotExecuted);
  }
  return pid;
}

int wait_status(pid_t pid) {
  int status = 0;
  while (::waitpid(pid, &status, 0) < 0) {
    if (errno != EINTR) throw_failure("waitpid", std::to_string(pid));
  }
  return status;
}

void require_success(const Command& command, int status) {
  if (WIFSIGNALED(status)) {
    throw Failure(to_string(command) + ": ended by " + ::strsignal(WTERMSIG(status)));
  }
  if (WEXITSTATUS(status) != 0) {
    throw Failure(to_string(command) + ": exit status " + std::to_string(WEXITSTATUS(status)));
  }
}

// By number: the <sys/pidfd.h> of glibc 2.36 lacks its extern "C".
UniqueFd open_pidfd(pid_t pid) {
  UniqueFd fd(static_cast<int>(::syscall(SYS_pidfd_open, pid, 0)));
  if (!fd && errno != ESRCH) throw_failure("pidfd_open", std::to_string(pid));
  return fd;
}

}  // namespace

std::string to_string(const Command& command) {
  std::string text;
  for (const std::string& word : command) text += (text.empty() ? "" : " ") + word;
  return text;
}

void run(const Command& command) {
  const UniqueFd null = open_file("/dev/null", O_WRONLY);
  require_success(command, wait_status(start(command, null.get())));
}

std::string run_within(const Command& command, std::chrono::seconds limit) {
  // A file, not a pipe: a daemon that inherits stdout would keep the pipe open.
  UniqueFd output(::open("/tmp", O_TMPFILE | O_RDWR | O_CLOEXEC, 0600));
  if (!output) throw_failure("make a temporary file in", "/tmp");
  const pid_t pid = start(command, output.get());
  const bool ended = wait_readable(open_pidfd(pid), limit);
  if (!ended) ::kill(pid, SIGKILL);
  const int status = wait_status(pid);
  if (!ended) {
    throw Failure(to_string(command) + ": not finished after " + std::to_string(limit.count()) +
                  " s");
  }
  require_success(command, status);
  std::string text(static_cast<std::size_t>(::lseek(output.get(), 0, SEEK_END)), '\0');
  read_at(output, std::as_writable_bytes(std::span(text)), 0, "/tmp");
  return text;
}

ProcessHandle::ProcessHandle(pid_t pid) : pidfd_(open_pidfd(pid)) {}

bool ProcessHandle::wait_ended(std::chrono::milliseconds limit) const {
  return !pidfd_ || wait_readable(pidfd_, limit);
}

void ProcessHandle::kill() const {
  if (pidfd_) ::syscall(SYS_pidfd_send_signal, pidfd_.get(), SIGKILL, nullptr, 0);
}

BlockedSignals::BlockedSignals() {
  sigset_t blocked;
  sigemptyset(&blocked);
  for (const int signal : {SIGINT, SIGTERM, SIGHUP}) sigaddset(&blocked, signal);
  ::sigprocmask(SIG_BLOCK, &blocked, nullptr);
  signals_ = UniqueFd(::signalfd(-1, &blocked, SFD_CLOEXEC | SFD_NONBLOCK));
  if (!signals_) throw_failure("signalfd", "");
}

int BlockedSignals::arrived() {
  signalfd_siginfo info{};
  while (::read(signals_.get(), &info, sizeof info) == sizeof info) {
    if (arrived_ == 0) arrived_ = static_cast<int>(info.ssi_signo);
  }
  return arrived_;
}

int BlockedSignals::supervise(const std::function<int()>& work) {
  std::fflush(nullptr);
  const pid_t pid = ::fork();
  if (pid < 0) throw_failure("fork", "the measuring process");
  if (pid == 0) {
    become_child();
    const int status = work();
    std::fflush(nullptr);
    ::_exit(status);  // without destructors: the parent removes the mounts and directories
  }
  const UniqueFd child = open_pidfd(pid);
  while (arrived() == 0) {
    pollfd entries[] = {{child.get(), POLLIN, 0}, {signals_.get(), POLLIN, 0}};
    ::poll(entries, 2, -1);
    if (entries[0].revents != 0) break;
  }
  if (arrived() != 0) {
    ::kill(pid, SIGTERM);
    if (!wait_readable(child, std::chrono::seconds(5))) ::kill(pid, SIGKILL);
  }
  const int status = wait_status(pid);
  if (arrived() != 0) return 128 + arrived_;
  if (WIFSIGNALED(status)) {
    throw Failure(std::string("the measuring process was ended by ") +
                  ::strsignal(WTERMSIG(status)));
  }
  return WEXITSTATUS(status);
}

}  // namespace sluice::tools::lab::bench
