// SPDX-License-Identifier: BSD-2-Clause
// The order of requests and CUDA streams. Most calls wait for the default stream before they begin.
// For requests in the order of a stream, the stream calls us when it reaches the request, a thread
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

// Waits for the work in the legacy default stream of the buffer's GPU, and so for all streams but
// those that were created as non-blocking. Only in threads of the host program, and never for a
// request in a stream: the default stream may be waiting for that one. Does nothing for host memory
// and for buffers that are not ordered. EBUSY: CUDA forbids it while one of these streams is
// captured into a graph.
Result<void> wait_for_default_stream(Library& library, const Buffer& buffer);

// EOPNOTSUPP: the stream is being captured into a graph, which could run the request many times; or
// it is the default stream, and a stream that waits for it is being captured.
// REQUIRES: the calling thread has a CUDA context.
Result<void> check_stream(const CudaApi& api, CUstream stream);

// Puts the request, of one segment, into `stream`. The functions in `calls` are called only if this
// succeeds. ENODEV: the process does not use CUDA. EOPNOTSUPP: see check_stream().
Result<void> enqueue(Library& library, File& file, Buffer& buffer, Direction direction,
                     const Segment& segment, void* stream, const StreamCalls& calls);

}  // namespace sluice
