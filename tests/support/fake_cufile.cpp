// SPDX-License-Identifier: BSD-2-Clause
// A libcufile.so.0 for machines without a GPU, in compatibility mode: it reads and copies with
// whichever libcuda.so.1 is loaded, which may be the fake one.
//
// Environment: SLUICE_FAKE_CUFILE_DIRECT, "nvfs" or "p2p", makes it claim a direct path.
// CUFILE_FORCE_COMPAT_MODE works as in the real library. SLUICE_FAKE_CUFILE_FAIL lists the faults
// (fake_control.hpp): "cuFileDriverOpen:1:5001". The code of cuFileRead and cuFileWrite is one of
// cuFile's or, below 5000, an errno. "short:1:100" ends the first transfer after 100 bytes,
// "half:1:5" fails it (EIO) after half of its bytes.
#include <dlfcn.h>
#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "base/mutex.hpp"
#include "gpu/cufile_api.hpp"
#include "tests/support/fake_control.hpp"

namespace sluice {
namespace {

using test::FakeCount;

struct Batch {
  unsigned limit = 0;
  std::vector<CUfileIOEvents_t> done;
};

struct State {
  test::FakeFaults faults{"cufile", "SLUICE_FAKE_CUFILE_FAIL"};
  std::unique_ptr<CudaApi> cuda;
  Mutex mutex;
  unsigned opened GUARDED_BY(mutex) = 0;
  std::set<int*> handles GUARDED_BY(mutex);  // each points to its descriptor
  std::map<const void*, std::size_t> buffers GUARDED_BY(mutex);
};

// Never destroyed: streams may still run when the process ends.
State& state() {
  static State& instance = *new State;
  return instance;
}

void count(FakeCount which, std::int64_t amount) { state().faults.control().add(which, amount); }

CUfileError_t result(int code) { return {static_cast<CUfileOpError>(code), CUDA_SUCCESS}; }

// Returns the requested fault, or an error if the driver is not open.
CUfileError_t begin(const char* call) {
  const int code = state().faults.next(call);
  if (code != 0) return result(code);
  const MutexLock lock(state().mutex);
  return result(state().opened == 0 ? CU_FILE_DRIVER_NOT_INITIALIZED : CU_FILE_SUCCESS);
}

// Makes the context of the memory current while it exists, as cuFile does.
class ContextOf {
 public:
  explicit ContextOf(CUdeviceptr address) {
    const CudaApi& cuda = *state().cuda;
    CUcontext context = nullptr;
    cuda.cuCtxGetCurrent(&before_);
    known_ =
        cuda.cuPointerGetAttribute(&context, CU_POINTER_ATTRIBUTE_CONTEXT, address) == CUDA_SUCCESS;
    if (known_) cuda.cuCtxSetCurrent(context);
  }
  ~ContextOf() { state().cuda->cuCtxSetCurrent(before_); }
  bool is_known() const { return known_; }

 private:
  CUcontext before_ = nullptr;
  bool known_ = false;
};

ssize_t fail(int code) {
  if (code > 5000) return -code;
  errno = code;
  return -1;
}

// Transfers one piece through host memory. Returns the number of bytes, or an error like
// cuFileRead().
ssize_t move_piece(int fd, CUdeviceptr address, std::size_t size, off_t offset, bool writing) {
  std::vector<char> buffer(size);
  if (writing && state().cuda->cuMemcpyDtoH(buffer.data(), address, size) != CUDA_SUCCESS) {
    return -CU_FILE_CUDA_DRIVER_ERROR;
  }
  const ssize_t done = writing ? ::pwrite(fd, buffer.data(), size, offset)
                               : ::pread(fd, buffer.data(), size, offset);
  if (done <= 0 || writing) return done;
  const auto bytes = static_cast<std::size_t>(done);
  CUresult code = state().cuda->cuMemcpyHtoD(address, buffer.data(), bytes);
  if (code == CUDA_SUCCESS) code = state().cuda->cuStreamSynchronize(nullptr);
  return code == CUDA_SUCCESS ? done : -CU_FILE_CUDA_DRIVER_ERROR;
}

ssize_t transfer(const char* call, CUfileHandle_t handle, const void* base, std::size_t size,
                 off_t file_offset, off_t base_offset, bool writing) {
  const CUfileError_t error = begin(call);
  if (error.err != CU_FILE_SUCCESS) return fail(error.err);
  {
    const MutexLock lock(state().mutex);
    if (!state().handles.contains(static_cast<int*>(handle))) {
      return -CU_FILE_HANDLE_NOT_REGISTERED;
    }
  }
  if (file_offset < 0 || base_offset < 0) return -CU_FILE_INVALID_VALUE;
  const CUdeviceptr address =
      reinterpret_cast<CUdeviceptr>(base) + static_cast<CUdeviceptr>(base_offset);
  const ContextOf context(address);
  if (!context.is_known()) return -CU_FILE_CUDA_POINTER_INVALID;
  if (const int limit = state().faults.next("short"); limit != 0) {
    size = std::min(size, static_cast<std::size_t>(limit));
  }
  const int failing = state().faults.next("half");
  if (failing != 0) size /= 2;
  std::size_t done = 0;
  while (done < size) {
    const ssize_t now = move_piece(*static_cast<int*>(handle), address + done,
                                   std::min<std::size_t>(size - done, 1 << 20),
                                   file_offset + static_cast<off_t>(done), writing);
    if (now < 0) return now;
    if (now == 0) break;
    done += static_cast<std::size_t>(now);
  }
  if (failing != 0) return fail(failing);
  count(FakeCount::Transfers, 1);
  count(FakeCount::TransferBytes, static_cast<std::int64_t>(done));
  return static_cast<ssize_t>(done);
}

// The arguments are read when the stream reaches the operation.
struct Later {
  CUfileHandle_t handle;
  void* base;
  std::size_t* size;
  off_t *file_offset, *base_offset;
  ssize_t* done;
  bool writing;
};

void do_later(void* user) {
  const std::unique_ptr<Later> later(static_cast<Later*>(user));
  *later->done = transfer(later->writing ? "cuFileWrite" : "cuFileRead", later->handle, later->base,
                          *later->size, *later->file_offset, *later->base_offset, later->writing);
}

CUfileError_t put_later(const char* call, const Later& later, CUstream stream) {
  if (const CUfileError_t error = begin(call); error.err != CU_FILE_SUCCESS) return error;
  auto* copy = new Later(later);
  // The copies themselves use the default stream.
  if (stream == nullptr) {
    state().cuda->cuStreamSynchronize(nullptr);
    do_later(copy);
    return result(CU_FILE_SUCCESS);
  }
  if (state().cuda->cuLaunchHostFunc(stream, do_later, copy) == CUDA_SUCCESS) {
    return result(CU_FILE_SUCCESS);
  }
  delete copy;
  return result(CU_FILE_CUDA_DRIVER_ERROR);
}

}  // namespace

extern "C" {

CUfileError_t cuFileDriverOpen() {
  if (const int code = state().faults.next("cuFileDriverOpen"); code != 0) return result(code);
  const MutexLock lock(state().mutex);
  if (!state().cuda) {
    auto cuda = CudaApi::load();
    if (!cuda) return result(CU_FILE_NVFS_SETUP_ERROR);
    state().cuda = *std::move(cuda);
  }
  ++state().opened;
  count(FakeCount::Drivers, 1);
  return result(CU_FILE_SUCCESS);
}

CUfileError_t cuFileDriverClose_v2() {
  if (const CUfileError_t error = begin("cuFileDriverClose"); error.err != CU_FILE_SUCCESS) {
    return error;
  }
  const MutexLock lock(state().mutex);
  --state().opened;
  count(FakeCount::Drivers, -1);
  return result(CU_FILE_SUCCESS);
}

CUfileError_t cuFileDriverGetProperties(CUfileDrvProps_t* properties) {
  if (const CUfileError_t error = begin("cuFileDriverGetProperties");
      error.err != CU_FILE_SUCCESS) {
    return error;
  }
  *properties = {};
  properties->max_batch_io_size = 128;
  const char* direct = std::getenv("SLUICE_FAKE_CUFILE_DIRECT");
  if (direct == nullptr) return result(CU_FILE_SUCCESS);
  if (std::strcmp(direct, "nvfs") == 0) {
    properties->nvfs.major_version = 2;
    properties->nvfs.dstatusflags = 1u << CU_FILE_NVME_SUPPORTED;
  } else {
    properties->nvfs.dstatusflags = 1u << CU_FILE_NVME_P2P_SUPPORTED;
  }
  return result(CU_FILE_SUCCESS);
}

CUfileError_t cuFileHandleRegister(CUfileHandle_t* handle, CUfileDescr_t* description) {
  if (const CUfileError_t error = begin("cuFileHandleRegister"); error.err != CU_FILE_SUCCESS) {
    return error;
  }
  const int fd = description->handle.fd;
  const int flags = ::fcntl(fd, F_GETFL);
  if (description->type != CU_FILE_HANDLE_TYPE_OPAQUE_FD || flags < 0) {
    return result(CU_FILE_INVALID_FILE_TYPE);
  }
  if ((flags & O_APPEND) != 0) return result(CU_FILE_INVALID_FILE_OPEN_FLAG);
  const MutexLock lock(state().mutex);
  for (const int* other : state().handles) {
    if (*other == fd) return result(CU_FILE_HANDLE_ALREADY_REGISTERED);
  }
  *handle = *state().handles.insert(new int(fd)).first;
  count(FakeCount::Handles, 1);
  return result(CU_FILE_SUCCESS);
}

void cuFileHandleDeregister(CUfileHandle_t handle) {
  const MutexLock lock(state().mutex);
  if (state().handles.erase(static_cast<int*>(handle)) == 0) return;
  delete static_cast<int*>(handle);
  count(FakeCount::Handles, -1);
}

CUfileError_t cuFileBufRegister(const void* base, std::size_t length, int) {
  if (const CUfileError_t error = begin("cuFileBufRegister"); error.err != CU_FILE_SUCCESS) {
    return error;
  }
  const ContextOf context(reinterpret_cast<CUdeviceptr>(base));
  if (!context.is_known()) return result(CU_FILE_CUDA_POINTER_INVALID);
  const MutexLock lock(state().mutex);
  if (!state().buffers.emplace(base, length).second) {
    return result(CU_FILE_MEMORY_ALREADY_REGISTERED);
  }
  count(FakeCount::Buffers, 1);
  return result(CU_FILE_SUCCESS);
}

CUfileError_t cuFileBufDeregister(const void* base) {
  if (const CUfileError_t error = begin("cuFileBufDeregister"); error.err != CU_FILE_SUCCESS) {
    return error;
  }
  const MutexLock lock(state().mutex);
  if (state().buffers.erase(base) == 0) return result(CU_FILE_MEMORY_NOT_REGISTERED);
  count(FakeCount::Buffers, -1);
  return result(CU_FILE_SUCCESS);
}

ssize_t cuFileRead(CUfileHandle_t handle, void* base, std::size_t size, off_t file_offset,
                   off_t base_offset) {
  return transfer("cuFileRead", handle, base, size, file_offset, base_offset, false);
}

ssize_t cuFileWrite(CUfileHandle_t handle, const void* base, std::size_t size, off_t file_offset,
                    off_t base_offset) {
  return transfer("cuFileWrite", handle, base, size, file_offset, base_offset, true);
}

CUfileError_t cuFileBatchIOSetUp(CUfileBatchHandle_t* batch, unsigned limit) {
  if (const CUfileError_t error = begin("cuFileBatchIOSetUp"); error.err != CU_FILE_SUCCESS) {
    return error;
  }
  *batch = new Batch{limit, {}};
  return result(CU_FILE_SUCCESS);
}

CUfileError_t cuFileBatchIOSubmit(CUfileBatchHandle_t handle, unsigned size,
                                  CUfileIOParams_t* requests, unsigned) {
  if (const CUfileError_t error = begin("cuFileBatchIOSubmit"); error.err != CU_FILE_SUCCESS) {
    return error;
  }
  auto& batch = *static_cast<Batch*>(handle);
  if (batch.done.size() + size > batch.limit) return result(CU_FILE_BATCH_FULL);
  for (unsigned i = 0; i < size; ++i) {
    const auto& io = requests[i].u.batch;
    const bool writing = requests[i].opcode == CUFILE_WRITE;
    const ssize_t done =
        transfer(writing ? "cuFileWrite" : "cuFileRead", requests[i].fh, io.devPtr_base, io.size,
                 io.file_offset, io.devPtr_offset, writing);
    batch.done.push_back({requests[i].cookie, done < 0 ? CUFILE_FAILED : CUFILE_COMPLETE,
                          static_cast<std::size_t>(done)});
  }
  return result(CU_FILE_SUCCESS);
}

CUfileError_t cuFileBatchIOGetStatus(CUfileBatchHandle_t handle, unsigned, unsigned* size,
                                     CUfileIOEvents_t* events, timespec*) {
  if (const CUfileError_t error = begin("cuFileBatchIOGetStatus"); error.err != CU_FILE_SUCCESS) {
    return error;
  }
  auto& done = static_cast<Batch*>(handle)->done;
  *size = std::min(*size, static_cast<unsigned>(done.size()));
  std::copy_n(done.begin(), *size, events);
  done.erase(done.begin(), done.begin() + *size);
  return result(CU_FILE_SUCCESS);
}

CUfileError_t cuFileBatchIOCancel(CUfileBatchHandle_t) { return begin("cuFileBatchIOCancel"); }

void cuFileBatchIODestroy(CUfileBatchHandle_t handle) { delete static_cast<Batch*>(handle); }

CUfileError_t cuFileReadAsync(CUfileHandle_t handle, void* base, std::size_t* size,
                              off_t* file_offset, off_t* base_offset, ssize_t* done,
                              CUstream stream) {
  return put_later("cuFileReadAsync", {handle, base, size, file_offset, base_offset, done, false},
                   stream);
}

CUfileError_t cuFileWriteAsync(CUfileHandle_t handle, void* base, std::size_t* size,
                               off_t* file_offset, off_t* base_offset, ssize_t* done,
                               CUstream stream) {
  return put_later("cuFileWriteAsync", {handle, base, size, file_offset, base_offset, done, true},
                   stream);
}

CUfileError_t cuFileStreamRegister(CUstream, unsigned) { return begin("cuFileStreamRegister"); }
CUfileError_t cuFileStreamDeregister(CUstream) { return begin("cuFileStreamDeregister"); }

CUfileError_t cuFileGetVersion(int* version) {
  *version = 1140;
  return result(CU_FILE_SUCCESS);
}

CUfileError_t cuFileGetParameterBool(CUFileBoolConfigParameter_t which, bool* value) {
  const char* forced = std::getenv("CUFILE_FORCE_COMPAT_MODE");
  *value = which == CUFILE_PARAM_PROPERTIES_ALLOW_COMPAT_MODE ||
           (which == CUFILE_PARAM_FORCE_COMPAT_MODE && forced != nullptr &&
            std::strcmp(forced, "true") == 0);
  return result(CU_FILE_SUCCESS);
}

}  // extern "C"

// Removes the file of counters at exit. A killed process leaves it.
__attribute__((destructor)) static void remove_control_file() {
  const std::string path = test::FakeControl::path("cufile", ::getpid());
  if (!path.empty()) ::unlink(path.c_str());
}

}  // namespace sluice
