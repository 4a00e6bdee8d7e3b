// SPDX-License-Identifier: BSD-2-Clause
// Paths as people write them, made comparable: the only home of Boost.Filesystem. For configuration
// and tools; the filesystem itself never resolves a path twice, it works with directory
// descriptors. Thread-safe, pure but for the look at the filesystem.
#pragma once

#include <string>

#include "base/result.hpp"

namespace sluice {

// `path` from `base` (nothing: the current directory), without ".", ".." and trailing slashes.
// Symbolic links are not looked at, so that an error can name the path as it was written.
std::string absolute_path(const std::string& path, const std::string& base = {});

// `path` with symbolic links resolved as far as it exists. Where that can't be told (a dead mount,
// a forbidden folder), absolute_path's answer.
std::string real_path(const std::string& path);

// The folder that holds `path`; "/" holds itself.
std::string parent_path(const std::string& path);

// True if `child` is `parent` or beneath it, links resolved, component by component: /ab is not
// inside /a.
bool is_inside(const std::string& parent, const std::string& child);

// Makes `path` and the folders above it that are missing.
Result<void> make_directories(const std::string& path);

}  // namespace sluice
