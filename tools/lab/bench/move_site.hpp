// SPDX-License-Identifier: BSD-2-Clause
// The environment of movebench: two disks in files, pools with a tier on each, and passes requested
// through a pool's control socket. Failures are thrown. Threads: caller locks.
#pragma once

#include <chrono>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "tools/lab/bench/mounts.hpp"
#include "tools/lab/bench/syscalls.hpp"

namespace sluice::tools::lab::bench {

// A pool with a tier, "fast" and "slow", on each disk. Files move only when asked to.
struct PoolPlace {
  std::string mount_point;
  std::string state;
  std::string fast, slow;  // the tiers' directories
};

// Everything that is removed at the end, in reverse order of the members.
class MoveSite {
 public:
  // `direct_io`: I/O of the disks should bypass the page cache of the files that hold them.
  // Otherwise recently used data is in memory, and the disks do not behave like disks.
  MoveSite(const std::string& workdir, std::uint64_t disk_bytes, bool direct_io);

  const std::string& area() const { return area_.path(); }
  std::string fast() const { return area() + "/fast"; }
  std::string slow() const { return area() + "/slow"; }
  PoolPlace add_pool(const std::string& sluice_binary, const std::string& name,
                     const std::vector<std::string>& flags);

  // Whether they do: not every filesystem can.
  bool has_direct_io() const;
  // Reads that the fast disk has received since it was created.
  std::uint64_t fast_disk_reads() const;

  // Writes back and drops all cached names and data of the disks, and of the whole
  // machine.
  void start_cold() const;

 private:
  ScratchDirectory area_;
  std::unique_ptr<Mount> fast_disk_, slow_disk_;
  std::vector<std::unique_ptr<Mount>> pools_;
};

// One pass over a pool (docs/control.md), asked for by the constructor.
class Pass {
 public:
  explicit Pass(const PoolPlace& pool);

  // Whether it is over within `limit`. Throws if it failed, or if some file did not move.
  bool is_over(std::chrono::milliseconds limit);
  void wait();
  double bytes() const { return last_.value("bytes", 0.0); }  // REQUIRES: it is over

 private:
  void take_lines();

  std::string path_;
  UniqueFd socket_;
  std::string text_;
  nlohmann::json last_;
};

// The next pass moves everything below `path` to `tier`.
void pin(const std::string& path, const std::string& tier);

}  // namespace sluice::tools::lab::bench
