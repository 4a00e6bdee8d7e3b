// SPDX-License-Identifier: BSD-2-Clause
// The composition root: builds pool, store, filesystem and session, joins them, and takes them down
// in reverse.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "base/result.hpp"
#include "fs/control/options.hpp"
#include "tiering/tier.hpp"

namespace sluice {

// Serves the mount until it is unmounted. `ready` is called once: when the mount is there, or with
// the error that prevents it. Returns the exit code. REQUIRES: called after any fork; it starts
// threads.
int run_daemon(const MountOptions& options,
               const std::function<void(const Result<void>& mounted)>& ready);

// For whoever opens the pool without mounting it.
std::vector<TierSettings> tier_settings(const MountOptions& options);

// Where the database of pool `id` is; created if it does not exist.
Result<std::string> state_directory(const std::string& configured, const std::string& id);

}  // namespace sluice
