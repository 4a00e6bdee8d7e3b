// SPDX-License-Identifier: BSD-2-Clause
// The composition root: builds pool, store, filesystem and session, joins them, and takes them down
// in reverse.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "fs/control/options.hpp"
#include "tiering/tier.hpp"

namespace sluice {

// Serves the mount until it is unmounted. `ready` is called once: with an empty string when the
// mount is there, or with the reason why it can't be. Returns the exit code. REQUIRES: called after
// any fork; it starts threads.
int run_daemon(const MountOptions& options,
               const std::function<void(const std::string& failure)>& ready);

// For whoever opens the pool without mounting it.
std::vector<TierSettings> tier_settings(const MountOptions& options);

// Where the database of pool `id` is, made if need be. Empty if it can't be made; `why` says why.
std::string state_directory(const std::string& configured, const std::string& id, std::string& why);

}  // namespace sluice
