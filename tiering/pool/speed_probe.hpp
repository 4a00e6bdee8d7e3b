// SPDX-License-Identifier: BSD-2-Clause
// Measures how fast a disk reads, in well below a second. It writes a nameless file of some
// megabytes, reads it past the page cache at random places and from beginning to end, and closes
// it. A nameless file (O_TMPFILE) ends with its process, so a crash leaves nothing behind; on a
// filesystem without them, the name is removed before the first byte is written.
// Threads: pure functions.
#pragma once

#include <cstdint>
#include <stop_token>

#include "base/result.hpp"
#include "tiering/choose/tier_speed.hpp"

namespace sluice {

inline constexpr std::uint64_t kProbeBytes = std::uint64_t{8} << 20;

// Measures the filesystem of the directory `directory`. Fails with EINVAL or EOPNOTSUPP if the
// filesystem cannot bypass the page cache, with ECANCELED after a request to stop, and with the
// error of the disk (EROFS, ENOSPC, ...).
Result<TierSpeed> probe_speed(int directory, const std::stop_token& stop);

}  // namespace sluice
