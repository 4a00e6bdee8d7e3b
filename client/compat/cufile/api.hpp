// SPDX-License-Identifier: BSD-2-Clause
// Shared by all exported functions.
#pragma once

#include "gpu/cufile_api.hpp"

#define CUFILE_API extern "C" __attribute__((visibility("default")))

namespace sluice::dropin {

inline constexpr CUfileError_t kFailed{CU_FILE_INTERNAL_ERROR, CUDA_SUCCESS};

// Runs `work`. No exception (only lack of memory can cause one) reaches a caller in C.
template <typename Answer, typename Work>
Answer guarded(Answer failed, Work work) noexcept {
  try {
    return work();
  } catch (...) {
    return failed;
  }
}

}  // namespace sluice::dropin
