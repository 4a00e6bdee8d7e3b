// SPDX-License-Identifier: BSD-2-Clause
#include "base/crash.hpp"

#include <execinfo.h>
#include <sys/mman.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <csignal>

#include "base/sanitizers.hpp"

namespace sluice {
namespace {

constexpr std::array kFaults{SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGABRT};

std::atomic<void (*)()> crash_hook{nullptr};  // read by a signal handler

// Calls only functions that are allowed in a signal handler. SA_RESETHAND has restored the default
// action, so returning to the fault, or raising it again, ends the process as usual.
void report_and_die(int signal) {
  if (const auto hook = crash_hook.load(); hook != nullptr) hook();
  std::array<char, 96> line{};
  std::size_t size = 0;
  const auto put = [&](const char* text) {
    while (*text != '\0') line[size++] = *text++;
  };
  put("sluice: the daemon crashed: signal ");
  if (signal >= 10) line[size++] = static_cast<char>('0' + signal / 10);
  line[size++] = static_cast<char>('0' + signal % 10);
  put("; the call stack, innermost call first:\n");
  [[maybe_unused]] const ssize_t written = ::write(STDERR_FILENO, line.data(), size);
  std::array<void*, 64> calls{};
  ::backtrace_symbols_fd(calls.data(), ::backtrace(calls.data(), calls.size()), STDERR_FILENO);
  ::raise(signal);
}

// Pages that are not used before a fault cost nothing.
class SignalStack {
 public:
  SignalStack()
      : memory_(::mmap(nullptr, kSize, PROT_READ | PROT_WRITE,
                       MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0)) {
    if (memory_ == MAP_FAILED) return;
    stack_t stack{};
    stack.ss_sp = memory_;
    stack.ss_size = kSize;
    ::sigaltstack(&stack, nullptr);
  }
  ~SignalStack() {
    if (memory_ == MAP_FAILED) return;
    stack_t none{};
    none.ss_flags = SS_DISABLE;
    ::sigaltstack(&none, nullptr);
    ::munmap(memory_, kSize);
  }
  SignalStack(const SignalStack&) = delete;
  SignalStack& operator=(const SignalStack&) = delete;

 private:
  static constexpr std::size_t kSize = 64 << 10;  // backtrace() needs several KiB
  void* const memory_;
};

}  // namespace

void ensure_signal_stack() {
// Sanitizers have their own signal stacks, and the leak checker of g++ 12 fails on thread-local
// objects in shared libraries.
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
  [[maybe_unused]] static thread_local const SignalStack stack;
#endif
}

void set_crash_hook(void (*hook)()) { crash_hook = hook; }

void report_crashes() {
  if (kSanitized) return;
  std::array<void*, 1> first{};
  ::backtrace(first.data(), first.size());  // loads libgcc now: later it might need the heap
  ensure_signal_stack();
  struct sigaction action {};
  action.sa_handler = report_and_die;
  action.sa_flags = static_cast<int>(SA_RESETHAND) | SA_ONSTACK;
  for (const int fault : kFaults) ::sigaction(fault, &action, nullptr);
}

}  // namespace sluice
