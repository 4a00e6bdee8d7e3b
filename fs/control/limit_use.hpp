// SPDX-License-Identifier: BSD-2-Clause
// A limit and how much of it is in use, for `sluice status`. docs/operations.md lists them all.
// Threads: immutable.
#pragma once

#include <cstdint>

namespace sluice {

struct LimitUse {
  const char* what;
  const char* per;  // "user": `used` is of the user who has most; "all"
  std::uint64_t used = 0, most = 0;
  const char* error;  // the errno beyond, by its name
  bool is_in_bytes = false;
};

}  // namespace sluice
