// SPDX-License-Identifier: BSD-2-Clause
// What the functions that we export have in common.
#pragma once

#include "gpu/cufile_api.hpp"

#define CUFILE_API extern "C" __attribute__((visibility("default")))

namespace sluice::dropin {

inline constexpr CUfileError_t kFailed{CU_FILE_INTERNAL_ERROR, CUDA_SUCCESS};

// Runs `work`. No exception, which could only be for want of memory, passes to a caller in C.
template <typename Answer, typename Work>
Answer guarded(Answer failed, Work work) noexcept {
  try {
    return work();
  } catch (...) {
    return failed;
  }
}

}  // namespace sluice::dropin
