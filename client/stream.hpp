// SPDX-License-Identifier: BSD-2-Clause
// Requests in the order of a CUDA stream. The stream calls us when it reaches the request, a thread
// of the library executes it, and the stream waits for that.
#pragma once

#include "client/include/sluice/sluice.h"
#include "client/request.hpp"

namespace sluice {

// Functions that a thread of the library calls when the stream has reached the request.
struct StreamCalls {
  sluice_numbers numbers = nullptr;    // null: offsets and length are known
  sluice_callback callback = nullptr;  // called before the stream continues
  void* user = nullptr;
};

// EOPNOTSUPP: the stream is being captured into a graph, which could run the request many times.
// REQUIRES: the calling thread has a CUDA context.
Result<void> check_stream(const CudaApi& api, CUstream stream);

// Puts the request, of one segment, into `stream`. The functions in `calls` are called only if this
// succeeds. ENODEV: the process does not use CUDA. EOPNOTSUPP: see check_stream().
Result<void> enqueue(Library& library, File& file, Buffer& buffer, Direction direction,
                     const Segment& segment, void* stream, const StreamCalls& calls);

}  // namespace sluice
