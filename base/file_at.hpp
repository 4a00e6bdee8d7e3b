// SPDX-License-Identifier: BSD-2-Clause
// System calls relative to a directory descriptor that the C library lacks. Pure functions.
#pragma once

#include <sys/types.h>

#include <cstddef>
#include <limits>
#include <string>
#include <vector>

#include "base/result.hpp"
#include "base/unique_fd.hpp"

namespace sluice {

// Opens the directory `path` below `root` ("/a/b", "a/b", or empty for the root itself), leaving
// the tree through no symlink and no "..".
Result<UniqueFd> open_beneath(int root, const std::string& path);

// getxattr(2) of `name` in `dirfd`, a symlink not followed, or of `dirfd` itself if `name` is
// empty.
ssize_t getxattr_at(int dirfd, const char* name, const char* attribute, char* value,
                    std::size_t size);

// The names in the directory, without "." and "..".
Result<std::vector<std::string>> names_in(
    int dirfd, std::size_t most = std::numeric_limits<std::size_t>::max());

// A path that leads to the file of a descriptor, whatever its name is: "/proc/self/fd/7".
std::string proc_path(int fd);

// Where the kernel says that file is now.
Result<std::string> current_path(int fd);

}  // namespace sluice
