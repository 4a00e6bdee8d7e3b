// SPDX-License-Identifier: BSD-2-Clause
// Requests in the order of a CUDA stream: the stream calls us when it comes to the request, a
// thread of ours carries it out, and the stream waits for that.
#pragma once

#include <sys/types.h>

#include "client/request.hpp"

namespace sluice {

// Puts the request, of one segment, into `stream`. `*done` gets the number of bytes or a negative
// errno before the stream goes on. ENODEV if the process uses no CUDA; EOPNOTSUPP while the stream
// is being captured into a graph, which could run the request again and again.
Result<void> enqueue(Library& library, File& file, Buffer& buffer, Direction direction,
                     const Segment& segment, void* stream, ssize_t* done);

}  // namespace sluice
