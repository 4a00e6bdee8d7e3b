// SPDX-License-Identifier: BSD-2-Clause
#include "tests/support/mount.hpp"

#include <fcntl.h>
#include <signal.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <nlohmann/json.hpp>
#include <sstream>
#include <stdexcept>

#include "base/unique_fd.hpp"
#include "tests/support/files.hpp"
#include "tests/support/janitor.hpp"
#include "tests/support/wait.hpp"

namespace sluice::test {
namespace {

using std::chrono::seconds;

// The minor device number of the mount at `path`, read from the mount table because a hung mount
// does not answer.
std::string connection_of(const std::string& path) {
  std::ifstream table("/proc/self/mountinfo");
  std::string connection;
  for (std::string line; std::getline(table, line);) {
    std::istringstream words(line);
    std::string id, parent, device, root, target;
    words >> id >> parent >> device >> root >> target;
    if (target == path) connection = device.substr(device.find(':') + 1);
  }
  return connection;
}

// Aborts a mount that does not end by itself: every blocked system call fails.
void abort_mount(const std::string& path) {
  const std::string control = "/sys/fs/fuse/connections";
  const std::string abort_file = control + "/" + connection_of(path) + "/abort";
  if (::access(abort_file.c_str(), W_OK) == 0) std::ofstream(abort_file) << 1;
  ::umount2(path.c_str(), MNT_FORCE);
}

}  // namespace

std::string sluice_binary() {
  if (const char* binary = std::getenv("SLUICE_BIN")) return binary;
  return SLUICE_TEST_BINARY;
}

CommandResult sluice(std::vector<std::string> arguments) {
  arguments.insert(arguments.begin(), sluice_binary());
  return run_command(arguments);
}

std::vector<std::string> Pool::fsck_arguments() const {
  std::vector<std::string> out;
  for (const std::string& tier : tiers) out.insert(out.end(), {"--tier", tier});
  if (!state.empty()) out.insert(out.end(), {"--state", state});
  return out;
}

std::vector<std::string> Pool::mount_arguments() const {
  std::vector<std::string> out = fsck_arguments();
  out.insert(out.end(), flags.begin(), flags.end());
  out.push_back(mountpoint);
  return out;
}

CommandResult fsck(const Pool& pool) {
  std::vector<std::string> arguments = pool.fsck_arguments();
  arguments.insert(arguments.begin(), "fsck");
  return sluice(arguments);
}

Mount::Mount(Pool pool) : pool_(std::move(pool)) {
  std::filesystem::create_directories(pool_.mountpoint);
  janitor::watch_mount(pool_.mountpoint);
  mount();
}

Mount::~Mount() {
  if (mounted_ && !sluice({"umount", path()}).ok()) {
    std::fprintf(stderr, "%s cannot be unmounted: aborting it\n", path().c_str());
    if (keeper_ > 0) ::kill(keeper_, SIGKILL);
    abort_mount(path());
    if (pid_ > 0 && !eventually([&] { return has_ended(pid_); }, seconds(5))) {
      ::kill(pid_, SIGKILL);
    }
  }
  detach();
  janitor::forget(path());
}

void Mount::mount() {
  std::vector<std::string> arguments{"env"};
  arguments.insert(arguments.end(), pool_.environment.begin(), pool_.environment.end());
  arguments.insert(arguments.end(), {sluice_binary(), "mount"});
  const std::vector<std::string> own = pool_.mount_arguments();
  arguments.insert(arguments.end(), own.begin(), own.end());
  const CommandResult result = run_command(arguments);
  if (!result.ok()) {
    throw std::runtime_error("sluice mount: exit " + std::to_string(result.exit_code) + ": " +
                             result.err);
  }
  mounted_ = true;
  const nlohmann::json now = status();
  pid_ = now.at("pid").get<pid_t>();
  keeper_ = now.value("keeper", 0);
}

void Mount::umount() {
  const CommandResult result = sluice({"umount", path()});
  if (!result.ok()) {
    throw std::runtime_error("sluice umount: exit " + std::to_string(result.exit_code) + ": " +
                             result.err);
  }
  mounted_ = false;
}

void Mount::remount() {
  umount();
  mount();
}

nlohmann::json Mount::status() const {
  const CommandResult result = sluice({"status", "--json", path()});
  if (!result.ok()) throw std::runtime_error("sluice status: " + result.err);
  return nlohmann::json::parse(result.out);
}

std::map<std::string, long> Mount::requests() const {
  return status().at("requests").get<std::map<std::string, long>>();
}

std::string Mount::log() const { return read_file(pool_.state + "/sluice.log"); }

void Mount::kill_daemon(int signal) {
  // Otherwise it would start another daemon.
  if (keeper_ > 0) ::kill(keeper_, SIGKILL);
  if (keeper_ > 0 && !eventually([&] { return has_ended(keeper_); })) {
    throw std::runtime_error("the keeper survives SIGKILL");
  }
  ::kill(pid_, signal);
  if (!eventually([&] { return has_ended(pid_); })) {
    abort_mount(path());  // it may be blocked in the kernel on its own mount
    if (!eventually([&] { return has_ended(pid_); })) {
      throw std::runtime_error("the daemon survives SIGKILL");
    }
  }
  mounted_ = false;
}

void Mount::crash_daemon(int signal) {
  const pid_t before = pid_;
  ::kill(before, signal);
  // The status waits for the successor; a daemon that is still ending may answer once more.
  if (!eventually([&] { return (pid_ = status().at("pid").get<pid_t>()) != before; })) {
    throw std::runtime_error("no other daemon serves the mount");
  }
}

void Mount::detach() {
  while (::umount2(path().c_str(), MNT_DETACH) == 0) {
  }
  mounted_ = false;
}

bool has_ended(pid_t pid) {
  std::ifstream file("/proc/" + std::to_string(pid) + "/stat");
  // Not with an istreambuf_iterator: it throws if the process ends between open and read.
  std::string text;
  std::getline(file, text, '\0');
  const std::size_t state = text.rfind(") ");
  return state == std::string::npos || text[state + 2] == 'Z' || text[state + 2] == 'X';
}

}  // namespace sluice::test
