// SPDX-License-Identifier: BSD-2-Clause
// Copies a file's bytes and attributes from one tier to another, losing nothing: holes stay holes,
// times keep their nanoseconds, every xattr, ACL and capability comes along. Threads: pure
// functions over the caller's descriptors.
#pragma once

#include "base/result.hpp"

namespace sluice {

// Copies the data of `from` to the empty file `to`, holes as holes. Both must be real descriptors.
Result<void> copy_data(int from, int to);

// Gives `to` (a file or directory, not O_PATH) the owner, mode, xattrs and times of `from`.
// Identity xattrs of ours are not copied. Attributes that `to` has and `from` lacks are removed.
Result<void> copy_attributes(int from, int to);

}  // namespace sluice
