// SPDX-License-Identifier: BSD-2-Clause
// Whether others than root can reach the directory of a tier by its path, past the mount, and the
// command that ends it. Threads: pure but for the look at the machine as it is then.
#pragma once

#include <optional>
#include <string>
#include <vector>

namespace sluice {

// The command line, for root, after which only root can enter the tier at `path`; nothing if it is
// so already, or if nobody can tell. It works whether the pool is mounted or not, leaves `path`
// valid, and closes nothing that is no tier: `tiers` are the paths of all tiers of the pool.
std::optional<std::string> closing_command(const std::string& path,
                                           const std::vector<std::string>& tiers);

struct NamedTier {
  std::string name, path;
};
// Which of them users can enter, and what to do about it; empty if there is none.
std::string open_tiers_warning(const std::vector<NamedTier>& tiers);

}  // namespace sluice
