// SPDX-License-Identifier: BSD-2-Clause
// The daemon: builds pool, store, filesystem and session, connects them, and destroys them in
// reverse order.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "base/result.hpp"
#include "fs/control/live_options.hpp"
#include "fs/control/options.hpp"
#include "tiering/pool/tier.hpp"

namespace sluice {

class KeeperLink;

// Serves the mount until it is unmounted. Calls `ready` once: when the mount answers, or with the
// error that prevents it. `read_again` reads the options for a reload; null if there is no
// configuration file. `keeper` is null if there is none. Returns the exit code. REQUIRES: the
// process does not fork afterwards, because this starts threads.
int run_daemon(const MountOptions& options, const LiveOptions::Read& read_again,
               const std::function<void(const Result<void>& mounted)>& ready,
               KeeperLink* keeper = nullptr);

// For commands that open the pool without mounting it.
std::vector<TierSettings> tier_settings(const MountOptions& options);

// Where the database of pool `id` is; created if it does not exist.
Result<std::string> state_directory(const std::string& configured, const std::string& id);

}  // namespace sluice
