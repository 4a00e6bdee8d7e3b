// SPDX-License-Identifier: BSD-2-Clause
// Access to the user.sluice.* attributes of files, and a walk over the files below a directory.
// Failures are described in words. Threads: thread-safe; no state but the filesystem.
#pragma once

#include <cstdint>
#include <functional>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "base/result.hpp"
#include "tools/common/mounts.hpp"

namespace sluice::tools {

// Links are followed.
Result<std::string> read_attribute(const std::string& path, const char* name);
// user.sluice.explain. EUCLEAN if it is not a JSON object.
Result<nlohmann::ordered_json> read_explanation(const std::string& path);
Result<void> set_attribute(const std::string& path, const char* name, const std::string& value);
Result<void> remove_attribute(const std::string& path, const char* name);

// A path that a verb was given.
struct Target {
  std::string path;   // as it was given
  std::string mount;  // the mount point of its Sluice
  bool is_directory = false;
};
// Nothing if `path` does not exist or is not on a mount of Sluice; `problem` says so then.
std::optional<Target> find_target(const std::vector<MountEntry>& mounts, const std::string& path,
                                  std::string& problem);

// Says that `tier` is not a tier of the mount and lists those that are; empty if it is one, or if
// the tiers are unknown.
std::string unknown_tier(const std::string& mountpoint, const std::string& tier);

// The bytes that are free on the tier, if that is known.
std::optional<std::uint64_t> free_on(const std::string& mountpoint, const std::string& tier);
// The size of the tier in bytes, if that is known.
std::optional<std::uint64_t> total_of(const std::string& mountpoint, const std::string& tier);

// What a failure to set `name` to `tier` means. `bytes` is the file's size.
std::string describe_attribute_error(const Error& error, const Target& target,
                                     const std::string& tier, std::uint64_t bytes);

struct FoundFile {
  std::string path;
  std::uint64_t bytes = 0;  // of data: a sparse file has fewer than its size
  std::uint64_t device = 0, inode = 0, links = 1;
};
// Calls `found` for `path` if it is a regular file, or for all those below it if it is a directory,
// without following links or leaving the mount. `problem` is called for what can't be read,
// and once if a tier is offline, whose files are not listed.
void each_file(const std::string& path, const std::function<void(const FoundFile&)>& found,
               const std::function<void(const std::string&)>& problem);

}  // namespace sluice::tools
