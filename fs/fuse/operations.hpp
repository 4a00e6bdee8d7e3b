// SPDX-License-Identifier: BSD-2-Clause
// libfuse's callbacks. Each translates a request into one call of a part of Filesystem and sends
// one reply. Only session.cpp uses this header.
//
// Threads: thread-safe.
#pragma once

#define FUSE_USE_VERSION FUSE_MAKE_VERSION(3, 18)
#include <fuse_lowlevel.h>

#include <cstddef>
#include <string>

namespace sluice {

const fuse_lowlevel_ops& fuse_operations();

// The kernel's name for the request with this opcode.
std::string request_name(std::size_t index);

}  // namespace sluice
