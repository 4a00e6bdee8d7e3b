// SPDX-License-Identifier: BSD-2-Clause
// The Reporter puts together what a running mount says of itself: to `sluice status`, to those who
// watch it (`sluice top`, the control socket's "activity"), and to monitoring. It looks and changes
// nothing. Threads: every member may be called from any thread at once.
#pragma once

#include <chrono>
#include <nlohmann/json_fwd.hpp>
#include <string>

#include "fs/control/options.hpp"
#include "fs/fuse/session.hpp"
#include "tiering/migration.hpp"

namespace sluice {

class Reporter {
 public:
  struct Parts {
    const MountOptions& options;
    const std::string& state;  // the directory
    Pool& pool;
    Session& session;
    Filesystem& filesystem;
    Engine& engine;
    GpuService& gpu;
    Migration& migration;
  };
  explicit Reporter(const Parts& parts) : parts_(parts) {}

  // Of `sluice status --json`, but for what only a walk over the tiers can tell.
  nlohmann::json status() const;
  // What goes on now; docs/control.md. Made to be asked for every second: its cost does not grow
  // with the pool.
  nlohmann::json activity() const;
  // Its numbers, without names of files, for monitoring; docs/metrics.md.
  std::string metrics() const;

 private:
  nlohmann::json common() const;
  nlohmann::json figures() const;
  nlohmann::json migration() const;
  nlohmann::json gpu() const;
  nlohmann::json limits() const;
  nlohmann::json requests() const;
  double uptime() const;  // seconds

  const Parts parts_;
  const std::chrono::steady_clock::time_point started_ = std::chrono::steady_clock::now();
};

}  // namespace sluice
