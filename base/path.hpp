// SPDX-License-Identifier: BSD-2-Clause
// Normalizes and compares paths from users. No other file includes Boost.Filesystem. For
// configuration and tools: the filesystem itself works with directory descriptors. Thread-safe;
// depends only on its arguments and the filesystem.
#pragma once

#include <string>

#include "base/result.hpp"

namespace sluice {

// `path` relative to `base` (empty: the current directory), without ".", ".." and trailing slashes.
// Symbolic links are not resolved, so that an error can show the path as the user wrote it.
std::string absolute_path(const std::string& path, const std::string& base = {});

// `path` with symbolic links resolved as far as it exists. If they cannot be resolved (a dead
// mount, no permission), the result of absolute_path().
std::string real_path(const std::string& path);

// The directory that contains `path`; "/" contains itself.
std::string parent_path(const std::string& path);

// Whether `child` is `parent` or below it, after resolving links. Compares whole components: /ab is
// not inside /a.
bool is_inside(const std::string& parent, const std::string& child);

// Creates `path` and its missing parents.
Result<void> make_directories(const std::string& path);

}  // namespace sluice
