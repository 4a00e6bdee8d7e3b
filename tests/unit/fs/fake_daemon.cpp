// SPDX-License-Identifier: BSD-2-Clause
// fake_daemon SOCKET: a daemon without a mount. It connects to the test that listens at SOCKET,
// says how it was started, does what the test tells it, and reports what the keeper tells it. It
// ends when the test does.
#include "tests/unit/fs/fake_daemon.hpp"

#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <array>
#include <chrono>
#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>
#include <thread>

#include "base/process.hpp"
#include "fs/keeper/keeper_link.hpp"

namespace sluice {
namespace {

int test_socket = -1;

// Not _exit(): if a thread has ended unjoined, ThreadSanitizer replaces the exit code there.
[[noreturn]] void end(int code) {
  ::syscall(SYS_exit_group, code);
  std::abort();
}

void say(const std::string& text) {
  if (!send_packet(test_socket, text)) end(0);
}

// From a thread that waits for them: ThreadSanitizer puts a handler off for as long as the call
// lasts that its signal comes just before.
void say_signals(const sigset_t& signals) {
  int signal = 0;
  while (::sigwait(&signals, &signal) == 0) say("signal " + std::to_string(signal));
}

std::string content_of(int fd) {
  std::array<char, 100> text{};
  const ssize_t got = ::pread(fd, text.data(), text.size(), 0);
  return {text.data(), got > 0 ? static_cast<std::size_t>(got) : 0};
}

std::string first_line(const char* path) {
  std::string line;
  std::ifstream file(path);
  std::getline(file, line);
  return line;
}

std::string hello(const KeeperLink& link) {
  constexpr std::array kRoles{"start", "take", "prepare"};
  std::string held;
  for (const auto& [name, fd] : link.start().held)
    held += (held.empty() ? "" : ",") + name + ":" + content_of(fd.get());
  struct stat program {};
  ::stat("/proc/self/exe", &program);
  std::array<char, 4096> directory{};
  return "pid=" + std::to_string(::getpid()) + " keeper=" + std::to_string(link.keeper()) +
         " role=" + kRoles[static_cast<std::size_t>(link.start().role)] + " held=" + held +
         " restarts=" + std::to_string(link.restarts()) +
         " program=" + std::to_string(program.st_ino) + " name=" + first_line("/proc/self/comm") +
         " directory=" + ::getcwd(directory.data(), directory.size()) +
         " oom=" + first_line("/proc/self/oom_score_adj") +
         " variable=" + (std::getenv(kKeeperVariable) != nullptr ? "kept" : "gone") +
         " failure=" + link.restart_failure();
}

void obey(KeeperLink& link, const Packet& command) {
  if (command.says("hold")) {  // NAME CONTENT
    const auto words = words_of(command.text);
    const UniqueFd file(::memfd_create("held", MFD_CLOEXEC));
    [[maybe_unused]] const ssize_t put = ::write(file.get(), words[2].data(), words[2].size());
    link.hold(words[1], file.get());
  } else if (command.says("ready")) {
    link.listen([] { say("hand over"); });
    link.ready();
  } else if (command.says("failed")) {
    link.failed(command.rest("failed"));
  } else if (command.says("prepared")) {
    say(link.prepared() ? "go" : "not wanted");
  } else if (command.says("stay")) {
    link.stay(command.rest("stay"));
  } else if (command.says("restart")) {
    std::thread([&link] {
      const auto restarted = link.request_restart();
      say(restarted ? "restarted" : "refused " + restarted.error().text());
    }).detach();
  } else if (command.says("keeper")) {
    say(std::to_string(link.keeper()));
  } else if (command.says("exit slowly")) {
    // Everything is closed, and what is left are threads with the name of one that may be blocked.
    for (const auto& task : std::filesystem::directory_iterator("/proc/self/task"))
      std::ofstream(task.path() / "comm") << kNoticeThread;
    for (int fd = 3; fd < 100; ++fd) ::shutdown(fd, SHUT_RDWR);
    std::this_thread::sleep_for(std::chrono::milliseconds(500));
    end(std::stoi(command.rest("exit slowly")));
  } else if (command.says("exit")) {
    end(std::stoi(command.rest("exit")));
  } else if (command.says("crash")) {
    ::raise(SIGKILL);
  }
}

}  // namespace
}  // namespace sluice

int main(int argc, char** argv) {
  using namespace sluice;
  const UniqueFd socket = test::connect_test(argc > 1 ? argv[1] : "");
  test_socket = socket.get();
  const auto link = KeeperLink::from_environment();
  if (!socket || !link) return 99;
  sigset_t signals;
  ::sigemptyset(&signals);
  for (const int signal : {SIGTERM, SIGINT, SIGHUP}) ::sigaddset(&signals, signal);
  ::pthread_sigmask(SIG_BLOCK, &signals, nullptr);
  const std::jthread waiter([&signals] { say_signals(signals); });
  say(hello(*link));
  while (const auto command = receive_packet(socket.get(), Wait::Yes)) obey(*link, *command);
  end(0);
}
