// SPDX-License-Identifier: BSD-2-Clause
// The wire: libfuse's callbacks, each translated to one call of Filesystem and one reply. For
// session.cpp only.
#pragma once

#define FUSE_USE_VERSION FUSE_MAKE_VERSION(3, 18)
#include <fuse_lowlevel.h>

#include <cstddef>
#include <string>

namespace sluice {

const fuse_lowlevel_ops& fuse_operations();

// The kernel's name for the request counted under `index`.
std::string request_name(std::size_t index);

}  // namespace sluice
