// SPDX-License-Identifier: BSD-2-Clause
#include "fs/keeper/keeper.hpp"

#include <fcntl.h>
#include <linux/close_range.h>
#include <poll.h>
#include <sys/prctl.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <climits>
#include <csignal>
#include <cstring>
#include <fstream>
#include <iterator>
#include <optional>

#include "base/clock.hpp"
#include "base/process.hpp"
#include "base/service_notice.hpp"
#include "base/small_file.hpp"
#include "fs/keeper/protocol.hpp"

namespace sluice {
namespace {

using std::chrono::milliseconds;
using std::chrono::steady_clock;
constexpr std::chrono::seconds kPrepareLimit{60};
constexpr milliseconds kBlockedLongEnough{150};
constexpr milliseconds kLookOften{100};
constexpr const char* kOomAdjustment = "/proc/self/oom_score_adj";

class Keeper {
 public:
  explicit Keeper(KeeperSettings settings)
      : settings_(std::move(settings)), had_daemon_(!settings_.held.empty()) {}

  int run() {
    ::prctl(PR_SET_NAME, "sluice-keeper");
    // If the keeper were killed for its memory, which is little, the next crash would be fatal.
    std::ofstream(kOomAdjustment) << -1000;
    std::signal(SIGCHLD, SIG_DFL);  // whoever started us may have ignored it: no end would be seen
    sigset_t handled;
    ::sigemptyset(&handled);
    for (const int each : {SIGCHLD, SIGTERM, SIGINT, SIGHUP}) ::sigaddset(&handled, each);
    ::sigprocmask(SIG_BLOCK, &handled, &usual_mask_);
    signals_.reset(::signalfd(-1, &handled, SFD_CLOEXEC | SFD_NONBLOCK));
    executable_.reset(::open(settings_.executable.c_str(), O_PATH | O_CLOEXEC));
    [[maybe_unused]] const int changed = ::chdir("/");
    if (!signals_ || !executable_ || !start(daemon_, executable_, had_daemon_ ? "take" : "start")) {
      settings_.started(Error::last("start the daemon"));
      return 1;
    }
    while (!exit_code_) step();
    for (const auto& [name, fd] : settings_.held) forget(name);
    if (!settings_.held.empty()) wait_for_service_manager();
    return *exit_code_;
  }

 private:
  struct Process {
    pid_t pid = 0;
    UniqueFd socket;
    UniqueFd program;  // if it is not executable_
    bool is_ready = false;
    bool is_prepared = false;
    steady_clock::time_point ready_since{};
    std::string failure;  // its own words
  };

  void step() {
    const bool is_preparing = successor_.pid != 0 && !successor_.is_prepared;
    const bool is_waiting = daemon_.pid == 0;  // to start one at start_at_
    // Without a daemon, nobody else would notice that the mount is gone. poll() skips negative
    // ones.
    pollfd fds[] = {{signals_.get(), POLLIN, 0},
                    {daemon_.socket.get(), POLLIN, 0},
                    {successor_.socket.get(), POLLIN, 0},
                    {is_waiting ? settings_.held["fuse"].get() : -1, 0, 0}};
    ::poll(fds, std::size(fds), poll_timeout(is_preparing, is_waiting));
    read_packets(daemon_);
    read_packets(successor_);
    const auto now = steady_clock::now();
    if (successor_.pid != 0 && !successor_.is_prepared && now >= deadline_)
      fail_upgrade("the new daemon was not prepared within a minute");
    handle_signals();
    if (exit_code_) return;
    stop_waiting_for_blocked_threads();
    is_unmounted_ = is_unmounted_ || (fds[3].revents & POLLERR) != 0;
    if (is_waiting && (is_unmounted_ || now >= start_at_)) start_another();
  }

  // In milliseconds; -1: no limit.
  int poll_timeout(bool is_preparing, bool is_waiting) const {
    // Without a socket, its descriptors are closed: it is ending.
    if (!is_waiting && !daemon_.socket) return static_cast<int>(kLookOften.count());
    if (!is_waiting && !is_preparing) return -1;
    const auto until = is_waiting ? start_at_ : deadline_;
    const auto left = std::chrono::ceil<milliseconds>(until - steady_clock::now());
    return static_cast<int>(std::max<std::int64_t>(left.count(), 0));
  }

  // A daemon that is ending looks for a moment as if such a thread were all that is left of it. Its
  // exit code, which comes then, may say that it has handed over.
  void stop_waiting_for_blocked_threads() {
    const auto now = steady_clock::now();
    if (daemon_.socket || !has_only_blocked_threads(daemon_.pid)) {
      blocked_since_.reset();
    } else if (now - blocked_since_.value_or(now) < kBlockedLongEnough) {
      blocked_since_ = blocked_since_.value_or(now);
    } else {
      blocked_since_.reset();
      daemon_ended(SIGKILL);
    }
  }

  void handle_signals() {
    signalfd_siginfo info{};
    while (::read(signals_.get(), &info, sizeof info) == sizeof info) {
      if (info.ssi_signo == SIGCHLD) continue;
      start_at_ = {};  // whatever it asks for needs a daemon
      is_asked_ = true;
      if (info.ssi_signo == SIGHUP) {
        // A daemon that is about to read the configuration, or has just read it, gets the signal
        // later.
        reload_is_due_ = !daemon_.is_ready;
        if (daemon_.is_ready) ::kill(daemon_.pid, SIGHUP);
        continue;
      }
      signal_ = static_cast<int>(info.ssi_signo);
      // A successor that has not taken over yet gets it when it is ready: it would end without
      // unmounting.
      if (daemon_.is_ready || !had_daemon_) ::kill(daemon_.pid, signal_);
    }
    int status = 0;
    const int what = WNOHANG | WUNTRACED | WCONTINUED;
    for (pid_t pid = 0; !exit_code_ && (pid = ::waitpid(-1, &status, what)) > 0;) {
      if (WIFSTOPPED(status) || WIFCONTINUED(status)) {
        if (pid == daemon_.pid) say_stopped(WIFSTOPPED(status));
      } else if (pid == daemon_.pid) {
        daemon_ended(status);
      } else if (pid == successor_.pid) {
        read_packets(successor_);
        fail_upgrade(why(successor_, status));
      }
    }
  }

  // This may be intended, for example by a debugger, so it is not continued here.
  void say_stopped(bool is_stopped) const {
    const std::string pid = std::to_string(daemon_.pid);
    if (is_stopped) {
      say(spdlog::level::err,
          "the daemon was stopped, and everybody who uses the mount waits; "
          "'kill -CONT " +
              pid + "' continues it: pid=" + pid);
    } else {
      say(spdlog::level::warn, "the daemon continues: pid=" + pid);
    }
  }

  void read_packets(Process& from) {
    while (from.socket) {
      auto packet = receive_packet(from.socket.get(), Wait::No);
      if (packet) {
        take(from, *packet);
      } else {
        if (packet.error().code != EAGAIN) from.socket.reset();
        return;
      }
    }
  }

  void take(Process& from, Packet& packet) {
    if (packet.says("failed")) {
      from.failure = packet.rest("failed");
    } else if (&from == &successor_) {
      if (!packet.says("prepared")) return;
      from.is_prepared = true;
      tell(daemon_, "hand over");
    } else if (packet.says("hold") && packet.fds.size() == 1) {
      hold(packet.rest("hold"), std::move(packet.fds[0]));
    } else if (packet.says("ready")) {
      daemon_is_ready();
    } else if (packet.says("restart")) {
      start_upgrade();
    } else if (packet.says("stay")) {
      fail_upgrade(packet.rest("stay"));
    }
  }

  void hold(const std::string& name, UniqueFd fd) {
    forget(name);
    tell_manager("FDSTORE=1\nFDNAME=" + name, fd.get());
    settings_.held[name] = std::move(fd);
  }
  static void forget(const std::string& name) {
    tell_manager("FDSTOREREMOVE=1\nFDNAME=" + name, -1);
  }
  // Best effort: without the service manager, the mount does not survive the keeper's end.
  static void tell_manager(const std::string& lines, int fd) {
    [[maybe_unused]] const auto told = tell_service_manager(lines, fd);
  }

  void daemon_is_ready() {
    daemon_.is_ready = true;
    daemon_.ready_since = steady_clock::now();
    if (daemon_.program) executable_ = std::move(daemon_.program);
    had_daemon_ = true;
    report({});
    if (std::exchange(reload_is_due_, false)) ::kill(daemon_.pid, SIGHUP);
    if (signal_ != 0) ::kill(daemon_.pid, signal_);
  }

  void report(const Result<void>& mounted) {
    if (is_reported_) return;
    is_reported_ = true;
    settings_.started(mounted);
    if (!settings_.detached) return;
    const UniqueFd null(::open("/dev/null", O_RDWR | O_CLOEXEC));
    ::dup2(null.get(), STDERR_FILENO);
  }

  void daemon_ended(int status) {
    read_packets(daemon_);
    const int code = WIFEXITED(status) ? WEXITSTATUS(status) : -1;
    if (code == 0) {
      end(0);
    } else if (code == kHandedOver && successor_.is_prepared) {
      daemon_ = std::exchange(successor_, {});
      crashes_ = 0;  // the old daemon served until now
      tell(daemon_, "go");
    } else if (!had_daemon_) {
      report(Error{ECHILD, "start the daemon",
                   daemon_.failure.empty()
                       ? "the daemon ended (" + describe_end(status) +
                             ") before the mount answered; see " + settings_.log_name
                       : daemon_.failure});
      end(code > 0 ? code : 1);
    } else {
      if (daemon_.is_prepared && !daemon_.is_ready) upgrade_failure_ = why(daemon_, status);
      take_over(why(daemon_, status));
    }
  }

  static std::string why(const Process& process, int status) {
    return process.failure.empty() ? "the daemon ended: " + describe_end(status) : process.failure;
  }
  // Starts a successor of a daemon that has ended without unmounting, now or later.
  void take_over(const std::string& reason, milliseconds least_wait = {}) {
    discard(successor_);
    last_end_ = reason;
    const bool served = daemon_.is_ready;
    const auto now = steady_clock::now();
    if (served && now - daemon_.ready_since >= settings_.longest_wait) crashes_ = 0;
    if (served || crashes_ == 0) last_served_ = now;
    daemon_ = {};
    ++crashes_;
    if (!settings_.held.contains("fuse")) return give_up(reason);
    if (is_unmounted_ || (signal_ != 0 && !served)) {
      return give_up("the mount was to end, and the last daemon did not take it over: " + reason);
    }
    if (now - last_served_ >= settings_.patience) {
      return give_up("no daemon could be started for " + seconds_of(settings_.patience) +
                     "; the last one: " + reason);
    }
    // The daemon may have ended before it received the signal.
    const bool is_asked = std::exchange(is_asked_, false);
    const milliseconds wait = is_asked ? least_wait : std::max(least_wait, wait_before_start());
    start_at_ = now + wait;
    say(spdlog::level::warn, "starting another daemon" +
                                 (wait.count() == 0 ? std::string() : ", in " + seconds_of(wait)) +
                                 ": crashes=" + std::to_string(crashes_) + " why=" + reason);
    if (wait.count() == 0) start_another();
  }

  milliseconds wait_before_start() const {
    if (settings_.crash_limit == 0 || crashes_ < settings_.crash_limit) return {};
    milliseconds wait = settings_.first_wait;
    for (unsigned i = settings_.crash_limit; i < crashes_ && wait < settings_.longest_wait; ++i)
      wait *= 2;
    return std::min(wait, settings_.longest_wait);
  }

  static std::string seconds_of(milliseconds time) {
    return std::to_string(std::chrono::ceil<std::chrono::seconds>(time).count()) + " s";
  }

  void start_another() {
    if (start(daemon_, executable_, "take")) return;
    take_over(std::string("another daemon can't be started: ") + std::strerror(errno),
              settings_.first_wait);
  }

  void give_up(const std::string& reason) {
    const std::string text = "the daemon is gone and the mount fails from now on: " + reason +
                             "; run 'sluice umount', then mount again";
    say(spdlog::level::critical, text);
    report(Error{ECHILD, "start the daemon", text});
    end(kGaveUp);
  }

  void end(int code) {
    discard(successor_);
    exit_code_ = code;
  }

  void start_upgrade() {
    if (successor_.pid != 0) {
      return tell(daemon_, "restart failed another restart is in progress");
    }
    upgrade_failure_.clear();
    // By its path: there is a newer program now, if this is an upgrade.
    UniqueFd program(::open(settings_.executable.c_str(), O_PATH | O_CLOEXEC));
    if (!program || !start(successor_, program, "prepare")) {
      return fail_upgrade("can't start " + settings_.executable + ": " + std::strerror(errno));
    }
    successor_.program = std::move(program);
    deadline_ = steady_clock::now() + kPrepareLimit;
  }

  void fail_upgrade(const std::string& text) {
    discard(successor_);
    upgrade_failure_ = text;
    say(spdlog::level::err, "no restart: why=" + text);
    tell(daemon_, "restart failed " + text);
  }

  static void discard(Process& process) {
    if (process.pid != 0) ::kill(process.pid, SIGKILL);
    process = {};
  }

  // A daemon that cannot be told anything has ended or is ending, which is noticed elsewhere.
  static void tell(const Process& process, const std::string& text) {
    [[maybe_unused]] const auto sent = send_packet(process.socket.get(), text);
  }

  // Fails with an errno. The first packets are in the socket before the process exists.
  bool start(Process& process, const UniqueFd& program, std::string role) {
    int ends[2];
    if (::socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends) < 0) return false;
    process = {};
    process.socket.reset(ends[0]);
    const UniqueFd theirs(ends[1]);
    std::vector<int> fds;
    for (const auto& [name, fd] : settings_.held) {
      role += " " + name;
      fds.push_back(fd.get());
    }
    if (!send_packet(ends[0], role, fds)) return false;
    if (role.starts_with("take") && !upgrade_failure_.empty())
      tell(process, "restart failed " + upgrade_failure_);
    if (role.starts_with("take") && !last_end_.empty()) tell(process, "because " + last_end_);
    std::string link = std::string(kKeeperVariable) + "=" + std::to_string(ends[1]) + "," +
                       std::to_string(starts_);
    ++starts_;
    const pid_t pid = ::fork();
    if (pid == 0) become_daemon(program.get(), ends[1], link);
    if (pid < 0) return false;  // kill() would take -1 for every process
    process.pid = pid;
    return true;
  }

  [[noreturn]] void become_daemon(int program, int socket, std::string& link) {
    std::ofstream(kOomAdjustment) << oom_adjustment_;
    // A ^C of the terminal goes to the keeper alone, which passes it on: two of them would end the
    // daemon in the middle of its unmount.
    ::setpgid(0, 0);
    // Relative paths on the command line. If the directory is gone, they fail.
    [[maybe_unused]] const int changed = ::chdir(directory_.c_str());
    if (is_reported_ && settings_.detached) ::dup2(log_fd(), STDERR_FILENO);
    ::close_range(3, UINT_MAX, CLOSE_RANGE_CLOEXEC);
    ::fcntl(socket, F_SETFD, 0);
    std::vector<char*> words, variables;
    for (std::string& word : settings_.arguments) words.push_back(word.data());
    for (char** each = environ; *each != nullptr; ++each) variables.push_back(*each);
    variables.push_back(link.data());
    words.push_back(nullptr);
    variables.push_back(nullptr);
    ::sigprocmask(SIG_SETMASK, &usual_mask_, nullptr);
    const auto run = [&] {
      ::syscall(SYS_execveat, program, "", words.data(), variables.data(), AT_EMPTY_PATH);
      return errno;
    };
    int code = run();
    if (code == ENOENT) {
      // Perhaps a script: its interpreter opens it by this descriptor.
      ::fcntl(program, F_SETFD, 0);
      code = run();
    }
    const std::string reason = code == ENOENT ? "the interpreter that it names is missing"
                                              : std::string(std::strerror(code));
    [[maybe_unused]] const auto sent =
        send_packet(socket, "failed can't run " + settings_.executable + ": " + reason);
    ::_exit(1);
  }

  int log_fd() const {
    const auto log = settings_.held.find("log");
    return log == settings_.held.end() ? STDERR_FILENO : log->second.get();
  }

  void say(spdlog::level::level_enum level, const std::string& text) const {
    if (log_fd() == STDERR_FILENO) return log::get().log(level, text);
    const std::string line =
        log::formatted(settings_.log_format, false, level, real_clock().seconds(), text);
    [[maybe_unused]] const ssize_t written = ::write(log_fd(), line.data(), line.size());
  }

  KeeperSettings settings_;
  bool had_daemon_;  // some daemon was ready, of this keeper or of one before it
  bool is_reported_ = false;
  UniqueFd signals_;
  sigset_t usual_mask_{};
  const std::string directory_ = [] {
    char path[PATH_MAX];
    return std::string(::getcwd(path, sizeof path) != nullptr ? path : "/");
  }();
  const std::string oom_adjustment_ = text_of_file(kOomAdjustment);
  UniqueFd executable_;  // of the daemon that was ready last, whatever is at its path now
  Process daemon_;
  Process successor_;  // while an upgrade is prepared
  steady_clock::time_point deadline_{};
  std::optional<steady_clock::time_point> blocked_since_;
  unsigned crashes_ = 0;  // in a row
  steady_clock::time_point last_served_{};
  steady_clock::time_point start_at_{};  // of the next daemon, if there is none
  bool is_unmounted_ = false;            // noticed while there was none
  std::string upgrade_failure_;          // why the last upgrade failed
  std::string last_end_;                 // why the last daemon that crashed has ended
  int signal_ = 0;                       // that asks for the end of the mount
  bool is_asked_ = false;                // by any signal, since the last crash
  bool reload_is_due_ = false;           // SIGHUP came before the daemon was ready
  unsigned starts_ = 0;
  std::optional<int> exit_code_;
};

}  // namespace

int run_keeper(KeeperSettings settings) { return Keeper(std::move(settings)).run(); }

std::string describe_end(int wait_status) {
  if (!WIFSIGNALED(wait_status)) return "exit code " + std::to_string(WEXITSTATUS(wait_status));
  const int signal = WTERMSIG(wait_status);
  return "signal " + std::to_string(signal) + ", " + ::strsignal(signal);
}

}  // namespace sluice
