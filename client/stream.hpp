// SPDX-License-Identifier: BSD-2-Clause
// Requests in the order of a CUDA stream: the stream calls us when it comes to the request, a
// thread of ours carries it out, and the stream waits for that.
#pragma once

#include "client/include/sluice/sluice.h"
#include "client/request.hpp"

namespace sluice {

// What a stream asks and tells when it comes to a request. Both are called by a thread of ours.
struct StreamCalls {
  sluice_numbers numbers = nullptr;    // null: they are known
  sluice_callback callback = nullptr;  // before the stream goes on
  void* user = nullptr;
};

// EOPNOTSUPP while the stream is being captured into a graph, which could run what is put into it
// again and again. REQUIRES: the calling thread has a context.
Result<void> check_stream(const CudaApi& api, CUstream stream);

// Puts the request, of one segment, into `stream`. The calls are made only if this succeeds. ENODEV
// if the process uses no CUDA; EOPNOTSUPP as check_stream() says.
Result<void> enqueue(Library& library, File& file, Buffer& buffer, Direction direction,
                     const Segment& segment, void* stream, const StreamCalls& calls);

}  // namespace sluice
