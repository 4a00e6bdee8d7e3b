// SPDX-License-Identifier: BSD-2-Clause
// The file that `sluice init` writes. Threads: caller locks.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "fs/options.hpp"

namespace sluice {

struct InitConfig {
  std::string file;                // absolute
  std::string mountpoint;          // absolute
  std::vector<std::string> tiers;  // as --tier takes them
  // The directories above some of them that were promised to be new, and that only root will enter.
  // What is there already is not taken.
  std::vector<std::string> new_parents = {};

  // Made by prepare_config().
  std::string text;
  MountOptions options;
};

// The lines of a configuration for a tier. `given` is what append_tier() made it of, for its keys:
// "NAME=PATH,KEY=VALUE"; empty: it has none.
std::string tier_text(const TierOptions& tier, const std::string& given);

// "/etc/sluice", "pool" is "/etc/sluice/pool.toml".
std::string config_path(const std::string& folder, const std::string& name);
// Whether it can name a unit and a file: letters, digits, '_', '-' and '.', not first a dot or
// dash.
bool is_pool_name(const std::string& name);

// Makes the text, reads it back and checks it as `sluice mount` does. Says what is wrong, if
// something is. Touches nothing.
std::optional<std::string> prepare_config(InitConfig& config);

// Whether the machine is as it has to be, before anything is made: what write_config() would say,
// as far as that can be told for directories that are missing yet, and for another user.
std::optional<std::string> check_places(const InitConfig& config);

// Makes the directories of tiers and mount point that are missing (a tier's only if the one above
// it is there or was promised: else its disk is not mounted), checks the whole against the machine,
// and writes the file in one step, readable by all. After a problem nothing of it is left.
// REQUIRES: prepare_config() found nothing wrong.
struct WrittenConfig {
  std::string problem;
  std::vector<std::string> directories;  // that were made
};
WrittenConfig write_config(const InitConfig& config, bool replaces);

// How to mount it: as a service if `unit` is not empty, by fstab, by hand.
std::string next_steps(const InitConfig& config, const std::string& unit);

}  // namespace sluice
