// SPDX-License-Identifier: BSD-2-Clause
// A running gpu_peer, killed and reaped by the destructor. Threads: caller locks.
#pragma once

#include <sys/types.h>

#include <cstdio>
#include <string>
#include <vector>

#include "base/unique_fd.hpp"
#include "gpu/device.hpp"

namespace sluice::test {

class Peer {
 public:
  explicit Peer(const std::vector<std::string>& arguments);
  ~Peer() { kill(); }
  Peer(const Peer&) = delete;
  Peer& operator=(const Peer&) = delete;

  std::string line();  // the next that it says
  void go_on();        // a line for it
  void kill();
  pid_t pid() const { return pid_; }

  // What it says first, as a handle, or as a descriptor of its own that becomes one of ours.
  IpcHandle handle();
  UniqueFd descriptor();

 private:
  pid_t pid_ = -1;
  std::FILE* stream_ = nullptr;
};

}  // namespace sluice::test
