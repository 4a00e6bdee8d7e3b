// SPDX-License-Identifier: BSD-2-Clause
// The file that `sluice init` writes. Threads: caller locks.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "fs/control/options.hpp"

namespace sluice::tools::cli {

struct InitConfig {
  std::string file;                // absolute
  std::string mountpoint;          // absolute
  std::vector<std::string> tiers;  // as --tier takes them
  // Parent directories of tiers that are to be created, accessible to root only. It is an error if
  // one exists already.
  std::vector<std::string> new_parents = {};

  // Made by prepare_config().
  std::string text;
  MountOptions options;

  bool is_for_models = false;  // also writes what init_models.hpp has
};

// The lines of a configuration for a tier. `given` is the text that append_tier() parsed,
// "NAME=PATH,KEY=VALUE"; its keys are copied. Empty: there are none.
std::string tier_text(const TierOptions& tier, const std::string& given);

// "/etc/sluice", "pool" is "/etc/sluice/pool.toml".
std::string config_path(const std::string& folder, const std::string& name);
// Whether `name` can name a unit and a file: letters, digits, '_', '-' and '.'; the first is
// neither a dot nor a dash.
bool is_pool_name(const std::string& name);

// Creates the text, parses it again and checks it as `sluice mount` does. Writes nothing.
Result<void> prepare_config(InitConfig& config);

// Checks the tiers alone, as far as they can be without the mount point.
Result<void> check_tiers_of(InitConfig config);

// Checks the machine before anything is created: reports what write_config() would report, as far
// as that is known while directories are missing, or for another user.
Result<void> check_places(const InitConfig& config);

// Creates missing directories of tiers and mount point (a tier's only if its parent exists or is to
// be created: otherwise its disk is not mounted), checks the result against the machine, and writes
// the file atomically, readable by all. Returns the directories it created; after an error it has
// removed them again. REQUIRES: prepare_config() succeeded.
Result<std::vector<std::string>> write_config(const InitConfig& config, bool replaces);

// Instructions to mount it: as a service if `unit` is not empty, by fstab, by hand. For models,
// also what programs need.
std::string next_steps(const InitConfig& config, const std::string& unit);

}  // namespace sluice::tools::cli
