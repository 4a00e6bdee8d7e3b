// SPDX-License-Identifier: BSD-2-Clause
// Reads small files as a whole, without exceptions. Files of /proc can fail while they are read,
// because their process ends: a std::istreambuf_iterator throws then. Pure functions.
#pragma once

#include <string>

#include "base/result.hpp"

namespace sluice {

// All bytes from the descriptor's position to the end.
Result<std::string> read_to_end(int fd);

// All bytes of the file, or why they can't be read. Never a part of them.
Result<std::string> read_small_file(const std::string& path);

// The same for files that may be missing: empty if the file can't be read.
std::string text_of_file(const std::string& path);

}  // namespace sluice
