// SPDX-License-Identifier: BSD-2-Clause
// What the kernel says about a file's bytes: whether they are in the page cache, and what reading
// past it would need. Pure functions.
#pragma once

#include <cstdint>
#include <optional>

namespace sluice {

// The share, 0 to 1, of [offset, offset + length) that is in the page cache. Nothing where the
// kernel can't say (before 6.5; files of FUSE and overlayfs) or won't (somebody else's file that we
// may not write).
std::optional<double> cached_share(int fd, std::uint64_t offset, std::uint64_t length);

// What O_DIRECT wants file offsets, lengths and addresses to be multiples of; 0 if the filesystem
// says that it knows no O_DIRECT; 4096 if it says nothing.
std::uint32_t direct_alignment(int fd);

}  // namespace sluice
