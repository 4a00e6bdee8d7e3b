// SPDX-License-Identifier: BSD-2-Clause
// A Mount is a running sluice, mounted through the command line as by a user, and always unmounted
// at the end. Threads: caller locks; the mounted files may be used from any thread.
#pragma once

#include <sys/types.h>

#include <csignal>
#include <map>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "tests/support/command.hpp"

namespace sluice::test {

// $SLUICE_BIN, or the binary that was built with the tests.
std::string sluice_binary();

// Runs `sluice` with these arguments.
CommandResult sluice(std::vector<std::string> arguments);

struct Pool {
  std::vector<std::string> tiers;  // "nvme=/dir,reserve=1MiB", fastest first
  std::string state;
  std::string mountpoint;
  std::vector<std::string> flags = {};        // options of `sluice mount` only
  std::vector<std::string> environment = {};  // for `sluice mount` only; each "NAME=value"

  std::vector<std::string> mount_arguments() const;
  std::vector<std::string> fsck_arguments() const;
};

// Runs `sluice fsck` on an unmounted pool.
CommandResult fsck(const Pool& pool);

class Mount {
 public:
  // Creates the mount point if it is missing, and mounts. Throws std::runtime_error with the output
  // of sluice.
  explicit Mount(Pool pool);
  ~Mount();
  Mount(const Mount&) = delete;
  Mount& operator=(const Mount&) = delete;

  const std::string& path() const { return pool_.mountpoint; }
  std::string operator/(const std::string& name) const { return pool_.mountpoint + "/" + name; }
  const Pool& pool() const { return pool_; }

  // The output of `sluice status --json`. Throws if that fails.
  nlohmann::json status() const;
  pid_t pid() const { return pid_; }
  pid_t keeper() const { return keeper_; }  // 0: none
  // The daemon's log, including the report of a crash.
  std::string log() const;

  // Requests answered since the mount, by opcode.
  std::map<std::string, long> requests() const;

  // Runs `sluice umount`; throws if it fails. mount() mounts again.
  void umount();
  void mount();
  void remount();

  // Kills the keeper, then the daemon with SIGKILL or another signal, and waits for their end. The
  // mount point then fails with ENOTCONN until detach().
  void kill_daemon(int signal = SIGKILL);
  // Kills the daemon alone and waits until the mount answers again, from a successor.
  void crash_daemon(int signal = SIGKILL);
  void detach();

 private:
  Pool pool_;
  pid_t pid_ = 0;
  pid_t keeper_ = 0;
  bool mounted_ = false;
};

// Whether process `pid` has ended (a zombie has).
bool has_ended(pid_t pid);

}  // namespace sluice::test
