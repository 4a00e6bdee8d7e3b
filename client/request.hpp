// SPDX-License-Identifier: BSD-2-Clause
// A Request transfers bytes between a file and a buffer. The daemon executes it if it can,
// otherwise the engine of this process. These functions are thread-safe.
#pragma once

#include <sys/ioctl.h>

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

// The outcome as C programs see it.
struct sluice_result result_of(const Outcome& outcome);

// ENODEV: it is GPU memory of the process that forked this one.
Result<void> check(Library& library, const Buffer& buffer);

// EBADF: the file is not open for this direction.
Result<void> check(const File& file, Direction direction);

// Executes the request. ERANGE: the buffer has no such range. EBADF: the file is not open for this.
// Other errors come from the daemon or the engine.
Result<Outcome> execute(Library& library, const Request& request);

// Checks the request and sets up what execute() needs. The setup may wait for streams of the GPU,
// so it must happen before a stream waits for the request. Returns the route to request in
// execute().
Result<Route> prepare(Library& library, const Request& request);

// The daemon's ids for the buffer; null if the daemon can't be used.
std::shared_ptr<const File::BufferIds> ids_at_daemon(File& file, Buffer& buffer);

// Sends an ioctl of client/include/sluice/ioctl.h that transfers bytes.
template <typename Argument>
Result<Transfer> ask(const File& file, unsigned long number, Argument& argument) {
  int code = 0;
  do {
    code = ::ioctl(file.fd(), number, &argument);
  } while (code < 0 && errno == EINTR);
  if (code < 0) return Error::last("request to the daemon");
  return Transfer{argument.done, static_cast<Route>(argument.route),
                  static_cast<Why>(argument.why)};
}

}  // namespace sluice
