// SPDX-License-Identifier: BSD-2-Clause
// Copies one file to another, as a file and not as a stream: holes stay holes, and everything that
// can be set is set. Threads: pure functions; the caller keeps writers away from both files.
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
  std::vector<Range> ranges;  // that hold data
  std::int64_t size = 0;      // of the file
  std::uint64_t bytes = 0;    // of data, without holes
  // XXH3-64 of the data, and of the place of each hole: for a file without holes, what xxhsum -H3
  // says.
  std::uint64_t hash = 0;
};

// Called for every piece copied, with its size. It may sleep; an error from it ends the copy.
using Pace = std::function<Result<void>(std::uint64_t bytes)>;

// Copies the data of `from` into the empty file `to`. What was in the page cache before is there
// afterwards, of the copy, and nothing else is.
Result<Copied> copy_data(int from, int to, const Pace& pace = {});

// The hash of the file `copy` as it is on the disk rather than in the page cache: what copy_data()
// said of it, if all went well.
Result<std::uint64_t> hash_on_disk(int copy, const Copied& copied, const Pace& pace = {});

// Other names that XFS gives to a file's ACLs: trusted.SGI_ACL_FILE, trusted.SGI_ACL_DEFAULT. On
// any other filesystem they are ordinary attributes, which grant nothing there and everything once
// they are set on XFS.
std::span<const char* const> acl_aliases();
bool is_acl_alias(std::string_view name);

// Whether an attribute belongs to a file, and so is copied and compared. Not so are our identity,
// the aliases of ACLs, and what tells only how its filesystem stores the file (btrfs.compression).
bool is_copied_xattr(std::string_view name);

// Gives `to` the xattrs of `from`, without those that are not copied. Attributes that `to` has and
// `from` lacks are removed. Either descriptor may be O_PATH. EOPNOTSUPP where the filesystem of
// `to` can't keep one of them: none is left out silently, because an ACL may also refuse.
Result<void> copy_xattrs(int from, int to);

// Gives `to` (a file or directory, not O_PATH) the owner, mode, xattrs and times of `from`.
Result<void> copy_attributes(int from, int to);

// Gives `to` the time of the last access of `from`; where that can't be, it stays as it is.
void copy_atime(int from, int to);

// Gives the file `to` the flags that lsattr shows and the project id of `from`. EPERM if `from` is
// immutable or append-only: nobody could remove it afterwards.
Result<void> copy_inode_flags(int from, int to);

}  // namespace sluice
