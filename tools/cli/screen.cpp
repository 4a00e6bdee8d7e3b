// SPDX-License-Identifier: BSD-2-Clause
#include "tools/cli/screen.hpp"

#include <poll.h>
#include <termios.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <initializer_list>
#include <string_view>

namespace sluice::tools::cli {
namespace {

using std::chrono::milliseconds;
using std::chrono::steady_clock;

// The alternate screen, without cursor and line wrapping: the terminal may use more columns for a
// character than we count.
constexpr std::string_view kEnter = "\033[?1049h\033[?25l\033[?7l\033[H\033[2J";
constexpr std::string_view kLeave = "\033[?7h\033[?25h\033[?1049l";

// Used by the signal handlers; written before they are installed.
termios g_before{};
bool g_has_keys = false;
volatile std::sig_atomic_t g_over = 0, g_resized = 0;

void put(std::string_view text) {
  while (!text.empty()) {
    const ssize_t written = ::write(STDOUT_FILENO, text.data(), text.size());
    if (written <= 0) return;
    text.remove_prefix(static_cast<std::size_t>(written));
  }
}

// enter() and leave() are async-signal-safe.
void enter() {
  if (g_has_keys) {
    termios raw = g_before;
    raw.c_lflag &= ~static_cast<tcflag_t>(ICANON | ECHO);
    raw.c_cc[VMIN] = 1;
    raw.c_cc[VTIME] = 0;
    ::tcsetattr(STDIN_FILENO, TCSANOW, &raw);
  }
  put(kEnter);
}

void leave() {
  put(kLeave);
  if (g_has_keys) ::tcsetattr(STDIN_FILENO, TCSANOW, &g_before);
}

// Ctrl-Z: restores the terminal for the shell, and takes it again when the process continues.
void stop(int) {
  const int code = errno;
  leave();
  ::raise(SIGSTOP);
  enter();
  g_resized = 1;
  errno = code;
}

// For signals that end the process at once, such as a crash.
void end_at_once(int signal) {
  leave();
  ::signal(signal, SIG_DFL);
  ::raise(signal);
}

void handle(std::initializer_list<int> signals, void (*handler)(int)) {
  struct sigaction action {};
  action.sa_handler = handler;  // without SA_RESTART, so that poll() returns
  for (const int signal : signals) ::sigaction(signal, &action, nullptr);
}

}  // namespace

Screen::Screen() : reads_keys_(::tcgetattr(STDIN_FILENO, &g_before) == 0) {
  g_has_keys = reads_keys_;
  handle({SIGINT, SIGTERM, SIGHUP, SIGQUIT}, [](int) { g_over = 1; });
  handle({SIGWINCH}, [](int) { g_resized = 1; });
  handle({SIGTSTP}, stop);
  handle({SIGSEGV, SIGBUS, SIGABRT, SIGFPE, SIGILL}, end_at_once);
  enter();
}

Screen::~Screen() {
  leave();
  handle({SIGINT, SIGTERM, SIGHUP, SIGQUIT, SIGWINCH, SIGTSTP, SIGSEGV, SIGBUS, SIGABRT, SIGFPE,
          SIGILL},
         SIG_DFL);
}

FrameSize Screen::size() const { return terminal_size(STDOUT_FILENO).value_or(FrameSize{}); }

void Screen::draw(const std::vector<std::string>& lines) {
  // Overwrites the screen from the top in one write, to avoid flicker. Each line is erased before
  // it is written: erasing after a line of full width would remove its last character.
  std::string out = "\033[H";
  for (std::size_t i = 0; i < lines.size(); ++i)
    out.append(i > 0 ? "\r\n" : "").append("\033[K").append(lines[i]);
  if (lines.size() < size().rows) out += "\r\n\033[J";
  put(out);
}

bool Screen::is_over() const { return g_over != 0; }

Screen::Wait Screen::wait(steady_clock::time_point deadline) {
  for (;;) {
    if (g_over != 0) return {Event::End};
    if (g_resized != 0) {
      g_resized = 0;
      return {Event::Resize};
    }
    const auto left = std::chrono::ceil<milliseconds>(deadline - steady_clock::now()).count();
    if (left <= 0) return {Event::Time};
    pollfd keys{.fd = reads_keys_ ? STDIN_FILENO : -1, .events = POLLIN, .revents = 0};
    // Limited, because a signal that arrives just before poll() does not interrupt it.
    if (::poll(&keys, 1, static_cast<int>(std::min<long>(left, 200))) <= 0) continue;
    char key = 0;
    if (::read(STDIN_FILENO, &key, 1) == 1) return {Event::Key, key};
    if (errno != EINTR) return {Event::End};  // the terminal is gone
  }
}

}  // namespace sluice::tools::cli
