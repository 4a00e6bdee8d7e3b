// SPDX-License-Identifier: BSD-2-Clause
// A Request is bytes to bring from a file to a buffer or back: by the daemon where it can, else by
// the engine of this process. Pure functions of their arguments; thread-safe.
#pragma once

#include <span>

#include "client/buffer.hpp"
#include "client/file.hpp"
#include "client/include/sluice/sluice.h"
#include "client/library.hpp"
#include "gpu/engine.hpp"

namespace sluice {

enum class Direction { Read, Write };

struct Request {
  File& file;
  Buffer& buffer;
  Direction direction = Direction::Read;
  std::span<const Segment> segments;
  Route route = Route::Auto;
};

struct Outcome {
  Transfer transfer;
  bool in_process = false;
};

// What C is told of it.
struct sluice_result result_of(const Outcome& outcome);

// ENODEV if the buffer is a GPU's and of the process that forked this one.
Result<void> check(Library& library, const Buffer& buffer);

// EBADF if the file is not open for this.
Result<void> check(const File& file, Direction direction);

// ERANGE if the buffer has no such range; EBADF if the file is not open for this; else what the
// daemon or the engine said.
Result<Outcome> carry_out(Library& library, const Request& request);

// Checks the request, and sets up what carrying it out needs: that may wait for the GPU's streams,
// so a request that a stream waits for must not have to. Returns the route to ask for then.
Result<Route> prepare(Library& library, const Request& request);

}  // namespace sluice
