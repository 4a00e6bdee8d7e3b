// SPDX-License-Identifier: BSD-2-Clause
// Whether users other than root can bypass the mount and reach a tier's directory by its path, and
// the command that closes it. Threads: immutable; each call reads the current state of the machine.
#pragma once

#include <optional>
#include <string>
#include <vector>

namespace sluice::tools::cli {

// The command line, for root, after which only root can enter the tier at `path`; nothing if that
// is so already, or if it is unknown. It works whether the pool is mounted or not, leaves `path`
// valid, and closes tiers only: `tiers` are the paths of all tiers of the pool.
std::optional<std::string> closing_command(const std::string& path,
                                           const std::vector<std::string>& tiers);

struct NamedTier {
  std::string name, path;
};
// The tiers that users can enter, and what to do about it; empty if there are none.
std::string open_tiers_warning(const std::vector<NamedTier>& tiers);

}  // namespace sluice::tools::cli
