// SPDX-License-Identifier: BSD-2-Clause
// A Mount is a running sluice: mounted by the command line as a user would, unmounted whatever
// happens. Threads: caller locks; what is done on the mounted files is free.
#pragma once

#include <sys/types.h>

#include <csignal>
#include <map>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "tests/support/command.hpp"

namespace sluice::test {

// $SLUICE_BIN, else the one that was built with the tests.
std::string sluice_binary();

// Runs `sluice` with these arguments.
CommandResult sluice(std::vector<std::string> arguments);

struct Pool {
  std::vector<std::string> tiers;  // "nvme=/dir,reserve=1MiB", fastest first
  std::string state;
  std::string mountpoint;
  std::vector<std::string> flags = {};        // of `sluice mount` only
  std::vector<std::string> environment = {};  // the same; each "NAME=value"

  std::vector<std::string> mount_arguments() const;
  std::vector<std::string> fsck_arguments() const;
};

// `sluice fsck` of an unmounted pool.
CommandResult fsck(const Pool& pool);

class Mount {
 public:
  // Makes the mount point if it is missing, and mounts. Throws std::runtime_error with what sluice
  // said.
  explicit Mount(Pool pool);
  ~Mount();
  Mount(const Mount&) = delete;
  Mount& operator=(const Mount&) = delete;

  const std::string& path() const { return pool_.mountpoint; }
  std::string operator/(const std::string& name) const { return pool_.mountpoint + "/" + name; }
  const Pool& pool() const { return pool_; }

  // `sluice status --json`. Throws if that fails.
  nlohmann::json status() const;
  pid_t pid() const { return pid_; }
  // The daemon's, with what it said when it crashed.
  std::string log() const;

  // Requests answered since the mount, by opcode.
  std::map<std::string, long> requests() const;

  // `sluice umount`; throws if it fails. mount() brings it back.
  void umount();
  void mount();
  void remount();

  // kill -9, or with another signal, and waits until the daemon is gone. The mount point then
  // answers ENOTCONN until detach().
  void kill_daemon(int signal = SIGKILL);
  void detach();

 private:
  Pool pool_;
  pid_t pid_ = 0;
  bool mounted_ = false;
};

// True once process `pid` has ended (a zombie counts).
bool has_ended(pid_t pid);

}  // namespace sluice::test
