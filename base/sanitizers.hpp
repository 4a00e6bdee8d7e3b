// SPDX-License-Identifier: BSD-2-Clause
// Whether this build has a sanitizer that checks memory accesses: stacks and allocations are larger
// then.
#pragma once

namespace sluice {

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
inline constexpr bool kSanitized = true;
#else
inline constexpr bool kSanitized = false;
#endif

}  // namespace sluice
