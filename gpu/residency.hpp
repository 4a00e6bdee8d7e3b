// SPDX-License-Identifier: BSD-2-Clause
// A file and the page cache: whether its bytes are there, how to get them there, and which
// alignment O_DIRECT needs, which goes past it. Functions without state.
#pragma once

#include <cstdint>
#include <optional>

namespace sluice {

// The share, 0 to 1, of [offset, offset + length) that is in the page cache. Empty if the kernel
// can't tell (before 6.5; files of FUSE and overlayfs) or refuses to (a file of another user that
// we may not write).
std::optional<double> cached_share(int fd, std::uint64_t offset, std::uint64_t length);

// True for files of FUSE and overlayfs, whose bytes are cached as those of another file.
bool is_stacked(int fd);

// Reads [offset, offset + length) into the page cache and returns when it is there, in folios of
// 2 MiB if the filesystem has large ones. False: the kernel can't (before 5.14). Errors of the disk
// are not reported here: whoever reads the bytes gets them.
bool fill_page_cache(int fd, std::uint64_t offset, std::uint64_t length);

// The alignment that O_DIRECT needs for file offsets, lengths and addresses; 0 if the filesystem
// reports that it does not support O_DIRECT; 4096 if it reports nothing.
std::uint32_t direct_alignment(int fd);

}  // namespace sluice
