// SPDX-License-Identifier: BSD-2-Clause
#include "client/compat/cufile/libsluice.hpp"

#include <dlfcn.h>

#include <cstdio>

#include "gpu/symbols.hpp"

namespace sluice::dropin {
namespace {

const Libsluice* load() {
  constexpr const char* kName = "libsluice.so.1";
  void* library = ::dlopen(kName, RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) {
    std::fprintf(
        stderr,
        "sluice: cannot load libsluice; NVIDIA's libcufile serves files of Sluice mounts: %s\n",
        ::dlerror());
    return nullptr;
  }
  static Libsluice s_functions{};
  Symbols symbols(library);
  symbols.need(s_functions.open_fd, "sluice_open_fd");
  symbols.need(s_functions.close, "sluice_close");
  symbols.need(s_functions.buffer_register, "sluice_buffer_register");
  symbols.need(s_functions.buffer_unregister, "sluice_buffer_unregister");
  symbols.need(s_functions.buffer_unordered, "sluice_buffer_unordered");
  symbols.need(s_functions.read, "sluice_read");
  symbols.need(s_functions.write, "sluice_write");
  symbols.need(s_functions.readv, "sluice_readv");
  symbols.need(s_functions.read_async, "sluice_read_async");
  symbols.need(s_functions.write_async, "sluice_write_async");
  symbols.need(s_functions.read_stream, "sluice_read_stream_late");
  symbols.need(s_functions.write_stream, "sluice_write_stream_late");
  if (symbols.missing() == nullptr) return &s_functions;
  std::fprintf(stderr, "sluice: %s has no %s: it is older than this libcufile\n", kName,
               symbols.missing());
  return nullptr;
}

}  // namespace

const Libsluice* Libsluice::get() {
  static const Libsluice* const s_functions = load();
  return s_functions;
}

}  // namespace sluice::dropin
