// SPDX-License-Identifier: BSD-2-Clause
// Small helpers for whole files. All throw std::system_error with the path. Thread-safe.
#pragma once

#include <sys/stat.h>

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace sluice::test {

// Throws std::system_error with errno.
[[noreturn]] void fail(const std::string& what);

void write_file(const std::string& path, std::string_view content, mode_t mode = 0644);
std::string read_file(const std::string& path);

// `size` bytes that depend on `seed` and on their offset, so that all blocks differ.
std::string pattern(std::size_t size, std::uint64_t seed);

struct stat lstat_of(const std::string& path);
bool exists(const std::string& path);  // by lstat; throws for errors other than ENOENT and ENOTDIR

// The value of an extended attribute; empty if there is none (ENODATA).
std::optional<std::string> xattr_of(const std::string& path, const std::string& name);

// Sorted names, without "." and "..".
std::vector<std::string> names_in(const std::string& directory);

// "ENOENT"; "ok" for 0.
std::string errno_name(int code);

}  // namespace sluice::test
