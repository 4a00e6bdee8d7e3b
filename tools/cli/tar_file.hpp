// SPDX-License-Identifier: BSD-2-Clause
// A tar archive of texts, in the format of POSIX (ustar) that every tar reads. Pure.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

namespace sluice::tools::cli {

// Each a name of at most 99 bytes and its text; all have the time `time` and the mode 0600.
std::string tar_archive(const std::vector<std::pair<std::string, std::string>>& files,
                        std::int64_t time);

}  // namespace sluice::tools::cli
