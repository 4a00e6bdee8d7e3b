// SPDX-License-Identifier: BSD-2-Clause
// Reporter makes the reports of a running mount: for `sluice status`, for `sluice top` (the control
// socket's "activity"), and for monitoring. It changes nothing.
//
// Threads: thread-safe.
#pragma once

#include <chrono>
#include <nlohmann/json_fwd.hpp>
#include <string>

#include "fs/control/live_options.hpp"
#include "fs/fuse/session.hpp"
#include "fs/keeper/keeper_link.hpp"
#include "tiering/move/migration.hpp"

namespace sluice {

class Reporter {
 public:
  struct Parts {
    const LiveOptions& options;
    const std::string& state;  // the directory
    Pool& pool;
    Session& session;
    Filesystem& filesystem;
    Engine& engine;
    GpuService& gpu;
    Migration& migration;
    const KeeperLink* keeper;  // may be null
  };
  explicit Reporter(const Parts& parts) : parts_(parts) {}

  // The output of `sluice status --json`, except for what requires a walk over the tiers.
  nlohmann::json status() const;
  // The current activity; docs/control.md. It may be called every second: its cost does not depend
  // on the size of the pool.
  nlohmann::json activity() const;
  // The numbers of activity(), without file names, as text for Prometheus; docs/metrics.md.
  std::string metrics() const;

 private:
  nlohmann::json common() const;
  nlohmann::json figures() const;
  nlohmann::json migration() const;
  nlohmann::json budgets() const;
  nlohmann::json gpu() const;
  nlohmann::json limits() const;
  nlohmann::json requests() const;
  double uptime() const;  // seconds

  const Parts parts_;
  const std::chrono::steady_clock::time_point started_ = std::chrono::steady_clock::now();
};

}  // namespace sluice
