// SPDX-License-Identifier: BSD-2-Clause
// A running gpu_peer; the destructor kills and reaps it. Threads: caller locks.
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

  std::string line();  // the next line that it prints
  void go_on();        // sends it a line
  void kill();
  pid_t pid() const { return pid_; }

  // Its first line as a handle, or as a descriptor, which is taken into this process.
  IpcHandle handle();
  UniqueFd descriptor();

 private:
  pid_t pid_ = -1;
  std::FILE* stream_ = nullptr;
};

}  // namespace sluice::test
