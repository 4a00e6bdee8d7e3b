// SPDX-License-Identifier: BSD-2-Clause
// Copies one file to another: data, holes, and every attribute that can be set.
// Threads: pure functions. The caller makes sure that nothing writes to either file.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <string_view>
#include <vector>

#include "base/result.hpp"

namespace sluice {

struct Copied {
  struct Range {
    std::int64_t begin = 0, end = 0;
  };
  std::vector<Range> ranges;  // ranges that contain data
  std::int64_t size = 0;      // size of the file
  std::uint64_t bytes = 0;    // bytes of data, without holes
  // XXH3-64 of the data and of the position of each hole. For a file without holes, this is what
  // xxhsum -H3 prints.
  std::uint64_t hash = 0;
};

// Called after every chunk with its size. It may sleep; an error from it ends the copy.
using Pace = std::function<Result<void>(std::uint64_t bytes)>;

// Copies the data of `from` into the empty file `to`. Ranges of the source that were in the page
// cache are cached for the copy afterwards; other ranges are not.
Result<Copied> copy_data(int from, int to, const Pace& pace = {});

// Reads the data of `fd` without copying it: `bytes` of the result is 0. For the same bytes and
// holes the hash is that of copy_data().
Result<Copied> hash_data(int fd, const Pace& pace = {});
// The ranges of `fd` that contain data.
Result<std::vector<Copied::Range>> ranges_of(int fd);

// The hash of `copy` as stored on the disk, not as cached. It equals `copied.hash` if the copy is
// intact.
Result<std::uint64_t> hash_on_disk(int copy, const Copied& copied, const Pace& pace = {});

// Aliases of ACLs on XFS: trusted.SGI_ACL_FILE and trusted.SGI_ACL_DEFAULT. On other filesystems
// they are ordinary attributes, but setting them on XFS sets the ACL.
std::span<const char* const> acl_aliases();
bool is_acl_alias(std::string_view name);

// Whether an attribute is copied and compared. Attributes that are not: our identity, the aliases
// of ACLs, and attributes that describe how a filesystem stores the file (btrfs.compression).
bool is_copied_xattr(std::string_view name);

// Makes the copied xattrs of `to` equal to those of `from`; attributes that only `to` has are
// removed. Either descriptor may be O_PATH. Fails with EOPNOTSUPP if the filesystem of `to` cannot
// store one of them. No attribute is skipped silently, because an ACL may also deny access.
Result<void> copy_xattrs(int from, int to);

// Gives `to` (a file or directory, not O_PATH) the owner, mode, xattrs and times of `from`.
Result<void> copy_attributes(int from, int to);

// Copies the access time of `from` to `to`. Failures are ignored.
void copy_atime(int from, int to);

// Gives the file `to` the project id and the flags (as lsattr shows them) of `from`. Fails with
// EPERM if `from` is immutable or append-only, because it could not be removed after the move.
Result<void> copy_inode_flags(int from, int to);

}  // namespace sluice
