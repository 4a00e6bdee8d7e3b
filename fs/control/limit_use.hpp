// SPDX-License-Identifier: BSD-2-Clause
// LimitUse is a limit and how much of it is in use, for `sluice status`. docs/operations.md lists
// all limits.
//
// Threads: a plain value.
#pragma once

#include <cstdint>

namespace sluice {

struct LimitUse {
  const char* what;
  const char* per;  // "all", or "user": then `used` is that of the user who uses most
  std::uint64_t used = 0, most = 0;
  const char* error;  // the name of the errno if the limit is exceeded
  bool is_in_bytes = false;
};

}  // namespace sluice
