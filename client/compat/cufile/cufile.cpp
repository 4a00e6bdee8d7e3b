// SPDX-License-Identifier: BSD-2-Clause
// The functions of cufile.h for files, memory, batches and streams. The others are in forward.cpp.
#include <sys/types.h>
#include <unistd.h>

#include <climits>
#include <string>

#include "client/compat/cufile/api.hpp"
#include "client/compat/cufile/errors.hpp"
#include "client/compat/cufile/on_mount.hpp"
#include "client/compat/cufile/real.hpp"
#include "client/compat/cufile/requests.hpp"
#include "client/compat/cufile/state.hpp"

namespace sluice::dropin {
namespace {

RealFunction<CUfileError_t(CUfileHandle_t*, CUfileDescr_t*)> g_real_register(
    "cuFileHandleRegister");
RealFunction<void(CUfileHandle_t)> g_real_deregister("cuFileHandleDeregister");
RealFunction<ssize_t(CUfileHandle_t, void*, std::size_t, off_t, off_t)> g_real_read("cuFileRead");
RealFunction<ssize_t(CUfileHandle_t, const void*, std::size_t, off_t, off_t)> g_real_write(
    "cuFileWrite");
RealFunction<ssize_t(CUfileHandle_t, const IoVector*, std::size_t, off_t, unsigned)> g_real_readv(
    "cuFileReadv");
RealFunction<ssize_t(CUfileHandle_t, const IoVector*, std::size_t, off_t, unsigned)> g_real_writev(
    "cuFileWritev");
using StreamFunction = CUfileError_t(CUfileHandle_t, void*, std::size_t*, off_t*, off_t*, ssize_t*,
                                     CUstream);
RealFunction<StreamFunction> g_real_read_async("cuFileReadAsync");
RealFunction<StreamFunction> g_real_write_async("cuFileWriteAsync");
RealFunction<CUfileError_t(CUstream)> g_real_stream_deregister("cuFileStreamDeregister");

// The result for an unknown handle.
constexpr ssize_t kNoHandle = -CU_FILE_HANDLE_NOT_REGISTERED;

std::string path_of(int fd) {
  char path[PATH_MAX];
  const ssize_t length =
      ::readlink(("/proc/self/fd/" + std::to_string(fd)).c_str(), path, sizeof path);
  return length > 0 ? std::string(path, static_cast<std::size_t>(length)) : "the file";
}

template <typename RealTransfer>
ssize_t transfer_or_forward(CUfileOpcode_t operation, CUfileHandle_t name, const Range& range,
                            RealTransfer real) {
  State& all = state();
  if (const auto handle = all.handles.find(name)) {
    return answer(transfer(all.memory, *handle, operation, range));
  }
  all.memory.announce_to_real(range.base);
  return real();
}

template <typename Real>
ssize_t vectored(CUfileOpcode_t operation, CUfileHandle_t name, const IoVector* vectors,
                 std::size_t count, off_t file_offset, unsigned flags, Real& real) {
  State& all = state();
  if (const auto handle = all.handles.find(name)) {
    return answer(transfer(all.memory, *handle, operation, vectors, count, file_offset));
  }
  if (!real) return kNoHandle;
  for (std::size_t i = 0; vectors != nullptr && i < count; ++i)
    all.memory.announce_to_real(vectors[i].base);
  return real(name, vectors, count, file_offset, flags);
}

CUfileError_t in_stream(CUfileOpcode_t operation, CUfileHandle_t name, void* base,
                        std::size_t* size, off_t* file_offset, off_t* base_offset, ssize_t* done,
                        CUstream stream, RealFunction<StreamFunction>& real) {
  State& all = state();
  if (auto handle = all.handles.find(name)) {
    return put_into_stream(all.memory, std::move(handle), operation,
                           {base, size, file_offset, base_offset, done}, stream,
                           all.streams.flags(stream));
  }
  if (!real) return result_of(kNoHandle);
  all.memory.announce_to_real(base);
  all.streams.announce_to_real(stream);
  return real(name, base, size, file_offset, base_offset, done, stream);
}

}  // namespace

// The engine calls it (gpu/cufile_api.cpp) to tell this library from NVIDIA's.
CUFILE_API void* sluice_cufile_real() {
  return guarded<void*>(nullptr, [] { return Real::library(); });
}

CUFILE_API CUfileError_t cuFileHandleRegister(CUfileHandle_t* name, CUfileDescr_t* description) {
  return guarded(kFailed, [&] {
    if (name == nullptr || description == nullptr) return result(CU_FILE_INVALID_VALUE);
    const bool is_fd = description->type == CU_FILE_HANDLE_TYPE_OPAQUE_FD;
    if (is_fd && !Real::is_calling() && is_on_mount(description->handle.fd) &&
        Libsluice::get() != nullptr) {
      return state().handles.add(description->handle.fd, name);
    }
    if (g_real_register) return g_real_register(name, description);
    Real::report_missing(is_fd ? path_of(description->handle.fd).c_str() : "the file");
    return result(CU_FILE_IO_NOT_SUPPORTED);
  });
}

CUFILE_API void cuFileHandleDeregister(CUfileHandle_t name) {
  guarded(0, [&] {
    if (!state().handles.remove(name) && g_real_deregister) g_real_deregister(name);
    return 0;
  });
}

CUFILE_API CUfileError_t cuFileBufRegister(const void* base, std::size_t length, int flags) {
  return guarded(kFailed, [&] { return state().memory.add(base, length, flags); });
}

CUFILE_API CUfileError_t cuFileBufDeregister(const void* base) {
  return guarded(kFailed, [&] { return state().memory.remove(base); });
}

CUFILE_API ssize_t cuFileRead(CUfileHandle_t name, void* base, std::size_t size, off_t file_offset,
                              off_t base_offset) {
  return guarded<ssize_t>(-kFailed.err, [&] {
    return transfer_or_forward(CUFILE_READ, name, {base, size, file_offset, base_offset}, [&] {
      return g_real_read ? g_real_read(name, base, size, file_offset, base_offset) : kNoHandle;
    });
  });
}

CUFILE_API ssize_t cuFileWrite(CUfileHandle_t name, const void* base, std::size_t size,
                               off_t file_offset, off_t base_offset) {
  return guarded<ssize_t>(-kFailed.err, [&] {
    return transfer_or_forward(CUFILE_WRITE, name, {base, size, file_offset, base_offset}, [&] {
      return g_real_write ? g_real_write(name, base, size, file_offset, base_offset) : kNoHandle;
    });
  });
}

CUFILE_API ssize_t cuFileReadv(CUfileHandle_t name, const IoVector* vectors, std::size_t count,
                               off_t file_offset, unsigned flags) {
  return guarded<ssize_t>(-kFailed.err, [&] {
    return vectored(CUFILE_READ, name, vectors, count, file_offset, flags, g_real_readv);
  });
}

CUFILE_API ssize_t cuFileWritev(CUfileHandle_t name, const IoVector* vectors, std::size_t count,
                                off_t file_offset, unsigned flags) {
  return guarded<ssize_t>(-kFailed.err, [&] {
    return vectored(CUFILE_WRITE, name, vectors, count, file_offset, flags, g_real_writev);
  });
}

CUFILE_API CUfileError_t cuFileReadAsync(CUfileHandle_t name, void* base, std::size_t* size,
                                         off_t* file_offset, off_t* base_offset, ssize_t* done,
                                         CUstream stream) {
  return guarded(kFailed, [&] {
    return in_stream(CUFILE_READ, name, base, size, file_offset, base_offset, done, stream,
                     g_real_read_async);
  });
}

CUFILE_API CUfileError_t cuFileWriteAsync(CUfileHandle_t name, void* base, std::size_t* size,
                                          off_t* file_offset, off_t* base_offset, ssize_t* done,
                                          CUstream stream) {
  return guarded(kFailed, [&] {
    return in_stream(CUFILE_WRITE, name, base, size, file_offset, base_offset, done, stream,
                     g_real_write_async);
  });
}

CUFILE_API CUfileError_t cuFileStreamRegister(CUstream stream, unsigned flags) {
  return guarded(kFailed, [&] {
    state().streams.add(stream, flags);
    return result(CU_FILE_SUCCESS);
  });
}

CUFILE_API CUfileError_t cuFileStreamDeregister(CUstream stream) {
  return guarded(kFailed, [&] {
    const bool is_known_there = Real::is_calling() || state().streams.remove(stream);
    if (is_known_there && g_real_stream_deregister) return g_real_stream_deregister(stream);
    return result(CU_FILE_SUCCESS);
  });
}

CUFILE_API CUfileError_t cuFileBatchIOSetUp(CUfileBatchHandle_t* name, unsigned limit) {
  return guarded(kFailed, [&] {
    if (name == nullptr || limit == 0) return result(CU_FILE_INVALID_VALUE);
    State& all = state();
    *name = all.batches.add(std::make_shared<Batch>(all.memory, all.handles, limit));
    return result(CU_FILE_SUCCESS);
  });
}

CUFILE_API CUfileError_t cuFileBatchIOSubmit(CUfileBatchHandle_t name, unsigned count,
                                             CUfileIOParams_t* requests, unsigned flags) {
  return guarded(kFailed, [&] {
    const auto batch = state().batches.find(name);
    return batch ? batch->submit(requests, count, flags) : result(CU_FILE_INVALID_VALUE);
  });
}

CUFILE_API CUfileError_t cuFileBatchIOGetStatus(CUfileBatchHandle_t name, unsigned at_least,
                                                unsigned* count, CUfileIOEvents_t* events,
                                                timespec* timeout) {
  return guarded(kFailed, [&] {
    const auto batch = state().batches.find(name);
    return batch ? batch->status(at_least, count, events, timeout) : result(CU_FILE_INVALID_VALUE);
  });
}

CUFILE_API CUfileError_t cuFileBatchIOCancel(CUfileBatchHandle_t name) {
  return guarded(kFailed, [&] {
    const auto batch = state().batches.find(name);
    return batch ? batch->cancel() : result(CU_FILE_INVALID_VALUE);
  });
}

CUFILE_API void cuFileBatchIODestroy(CUfileBatchHandle_t name) {
  guarded(0, [&] {
    if (const auto batch = state().batches.remove(name)) batch->end();
    return 0;
  });
}

}  // namespace sluice::dropin
