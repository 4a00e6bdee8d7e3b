// SPDX-License-Identifier: BSD-2-Clause
// libsluice, loaded when the program first registers a file of a Sluice mount. Other programs must
// not pay for it, or find its libraries loaded before their own.
#pragma once

#include "client/include/sluice/sluice.h"

namespace sluice::dropin {

struct Libsluice {
  // Null if it can't be loaded; the reason is printed to stderr once.
  static const Libsluice* get();

  decltype(&::sluice_open_fd) open_fd;
  decltype(&::sluice_close) close;
  decltype(&::sluice_buffer_register) buffer_register;
  decltype(&::sluice_buffer_unregister) buffer_unregister;
  decltype(&::sluice_buffer_unordered) buffer_unordered;
  decltype(&::sluice_read) read;
  decltype(&::sluice_write) write;
  decltype(&::sluice_readv) readv;
  decltype(&::sluice_read_async) read_async;
  decltype(&::sluice_write_async) write_async;
  decltype(&::sluice_read_stream_late) read_stream;
  decltype(&::sluice_write_stream_late) write_stream;
};

}  // namespace sluice::dropin
