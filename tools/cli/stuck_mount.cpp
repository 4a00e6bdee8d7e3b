// SPDX-License-Identifier: BSD-2-Clause
#include "tools/cli/stuck_mount.hpp"

#include <dirent.h>
#include <fcntl.h>
#include <poll.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <csignal>
#include <map>
#include <memory>
#include <sstream>
#include <vector>

#include "base/process.hpp"
#include "base/small_file.hpp"
#include "base/unique_fd.hpp"
#include "tools/common/mount_status.hpp"
#include "tools/common/mounts.hpp"

namespace sluice::tools::cli {
namespace {

using Json = nlohmann::ordered_json;
using std::chrono::milliseconds;
using std::chrono::steady_clock;

std::vector<std::string> numbers_in(const std::string& directory) {
  std::vector<std::string> names;
  const std::unique_ptr<DIR, int (*)(DIR*)> stream(::opendir(directory.c_str()), ::closedir);
  while (const dirent* entry = stream ? ::readdir(stream.get()) : nullptr) {
    if (entry->d_name[0] >= '0' && entry->d_name[0] <= '9') names.emplace_back(entry->d_name);
  }
  return names;
}

// The line of a file of /proc that begins with `key`, without the key.
std::string line_of(const std::string& text, const std::string& key) {
  const auto begin = ("\n" + text).find("\n" + key);
  if (begin == std::string::npos) return {};
  const auto value = text.find_first_not_of(" \t", begin + key.size());
  if (value == std::string::npos) return {};
  return text.substr(value, text.find('\n', value) - value);
}

bool serves(const std::string& process, const std::string& connection) {
  for (const std::string& fd : numbers_in(process + "/fd")) {
    char target[16];
    const ssize_t length = ::readlink((process + "/fd/" + fd).c_str(), target, sizeof target);
    if (std::string_view(target, static_cast<std::size_t>(std::max<ssize_t>(length, 0))) !=
        "/dev/fuse")
      continue;
    if (line_of(text_of_file(process + "/fdinfo/" + fd), "fuse_connection:") == connection)
      return true;
  }
  return false;
}

[[noreturn]] void ask(const std::string& path, int answer) {
  // The caller's stdout among them: its reader would wait until this process ends.
  close_all_but(answer);
  const auto status = mount_status(path);
  const std::string text = status ? status->dump() : std::to_string(status.error().code);
  for (std::size_t done = 0; done < text.size();) {
    const ssize_t written = ::write(answer, text.data() + done, text.size() - done);
    if (written <= 0) break;
    done += static_cast<std::size_t>(written);
  }
  ::_exit(0);
}

}  // namespace

Result<Json> mount_status_within(const std::string& path, milliseconds patience) {
  int ends[2];
  if (::pipe2(ends, O_CLOEXEC) < 0) return Error::last("make a pipe");
  const UniqueFd reader(ends[0]);
  UniqueFd writer(ends[1]);
  // A process, not a thread: a request that the daemon has taken can't be interrupted, not even by
  // the end of the process.
  const pid_t child = ::fork();
  if (child < 0) return Error::last("fork");
  if (child == 0) ask(path, writer.get());
  writer.reset();
  std::string text;
  const auto deadline = steady_clock::now() + patience;
  for (;;) {
    const auto left = std::chrono::ceil<milliseconds>(deadline - steady_clock::now());
    pollfd readable{.fd = reader.get(), .events = POLLIN, .revents = 0};
    if (::poll(&readable, 1, static_cast<int>(std::max<std::int64_t>(left.count(), 0))) == 0) {
      ::kill(child, SIGKILL);
      ::waitpid(child, nullptr, WNOHANG);  // it may never end
      return Error(ETIMEDOUT, "read mount status");
    }
    char part[4096];
    const ssize_t got = ::read(reader.get(), part, sizeof part);
    if (got <= 0) break;
    text.append(part, static_cast<std::size_t>(got));
  }
  ::waitpid(child, nullptr, 0);
  int code = EIO;
  if (std::from_chars(text.data(), text.data() + text.size(), code).ec == std::errc() ||
      text.empty())
    return Error(code, "read mount status");
  return Json::parse(text);
}

MountServer server_of(unsigned minor) {
  MountServer server;
  const std::string connection = std::to_string(minor);
  for (const std::string& number : numbers_in("/proc")) {
    const std::string process = "/proc/" + number;
    const std::string name = text_of_file(process + "/comm");
    if (!name.starts_with("sluice") || !serves(process, connection)) continue;
    const auto pid = static_cast<pid_t>(std::stol(number));
    (name == "sluice-keeper\n" ? server.keeper : server.daemon) = pid;
  }
  // A daemon that was stopped may have outlived its mount, whose number another one has now.
  if (const pid_t child = daemon_of(server.keeper); child != 0) server.daemon = child;
  return server;
}

bool has_open_on(pid_t pid, unsigned major, unsigned minor) {
  const std::string directory = "/proc/" + std::to_string(pid) + "/fd";
  const std::vector<std::string> open = numbers_in(directory);
  return std::any_of(open.begin(), open.end(), [&](const std::string& fd) {
    struct statx st {};
    return ::statx(AT_FDCWD, (directory + "/" + fd).c_str(), AT_STATX_DONT_SYNC, STATX_INO, &st) ==
               0 &&
           st.stx_dev_major == major && st.stx_dev_minor == minor;
  });
}

pid_t daemon_of(pid_t keeper) {
  const std::string number = std::to_string(keeper);
  std::istringstream children(text_of_file("/proc/" + number + "/task/" + number + "/children"));
  pid_t last = 0;
  for (pid_t each = 0; children >> each;) last = each;
  return last;
}

bool is_stopped(pid_t pid) {
  const std::string status = text_of_file("/proc/" + std::to_string(pid) + "/status");
  return line_of(status, "State:").starts_with("T (stopped)");
}

bool continue_if_stopped(pid_t pid) {
  return pid > 0 && is_stopped(pid) && ::kill(pid, SIGCONT) == 0;
}

Result<Json> mount_status_or_reason(const std::string& path) {
  constexpr std::chrono::seconds kPatience{3};
  auto status = mount_status_within(path, kPatience);
  if (!failed_with(status, ETIMEDOUT)) return status;
  MountServer server;
  for (const auto& mount : mount_table()) {
    if (mount.point == path && mount.is_sluice) server = server_of(mount.minor);
  }
  const std::string daemon = std::to_string(server.daemon);
  if (server.daemon != 0 && is_stopped(server.daemon)) {
    return Error{ETIMEDOUT, "read mount status",
                 "the daemon (process " + daemon +
                     ") was stopped, and everybody who uses the mount waits; 'kill -CONT " +
                     daemon + "' continues it"};
  }
  if (server.daemon == 0 && server.keeper != 0) {
    return Error{ETIMEDOUT, "read mount status",
                 "no daemon runs: it has crashed several times, and the keeper (process " +
                     std::to_string(server.keeper) +
                     ") waits up to a minute before it starts another; the log says why"};
  }
  return mount_status(path);
}

std::optional<std::string> DiskWait::look() {
  constexpr std::chrono::seconds kTooLong{5};
  const auto now = Clock::now();
  const std::string tasks = "/proc/" + std::to_string(pid_) + "/task/";
  std::map<std::string, Wait> waits;
  std::optional<std::string> found;
  for (const std::string& task : numbers_in(tasks)) {
    const std::string status = text_of_file(tasks + task + "/status");
    if (!line_of(status, "State:").starts_with("D")) continue;
    Wait wait{line_of(status, "Name:"), line_of(status, "voluntary_ctxt_switches:"), now};
    const auto before = waits_.find(task);
    if (before != waits_.end() && before->second.switches == wait.switches)
      wait.since = before->second.since;
    if (now - wait.since >= kTooLong) found = wait.thread;
    waits.emplace(task, std::move(wait));
  }
  waits_ = std::move(waits);
  return found;
}

}  // namespace sluice::tools::cli
