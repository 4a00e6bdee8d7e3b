// SPDX-License-Identifier: BSD-2-Clause
// cuFile (libcufile.so.0), loaded at run time: NVIDIA's library for transfers between files and GPU
// memory. Transfers are direct if nvidia-fs or PCIe P2PDMA supports the disk; otherwise cuFile
// copies (compatibility mode).
//
// The declarations are the part of cufile.h that Sluice needs; tests/unit/gpu/vendor_headers.cpp
// compares them with it. Threads: CuFile and CuFileHandle are thread-safe. libcufile is never
// unloaded.
#pragma once

#include <sys/types.h>

#include <cstddef>
#include <cstdint>
#include <ctime>
#include <memory>
#include <set>
#include <string>

#include "base/mutex.hpp"
#include "base/result.hpp"
#include "gpu/cuda_api.hpp"

namespace sluice {

// 0, or 5001 and up. Values that Sluice tests for have names.
enum CUfileOpError : int {
  CU_FILE_SUCCESS = 0,
  CU_FILE_DRIVER_NOT_INITIALIZED = 5001,
  CU_FILE_DRIVER_INVALID_PROPS = 5002,
  CU_FILE_DRIVER_UNSUPPORTED_LIMIT = 5003,
  CU_FILE_DRIVER_VERSION_MISMATCH = 5004,
  CU_FILE_DRIVER_VERSION_READ_ERROR = 5005,
  CU_FILE_DRIVER_CLOSING = 5006,
  CU_FILE_PLATFORM_NOT_SUPPORTED = 5007,
  CU_FILE_IO_NOT_SUPPORTED = 5008,
  CU_FILE_DEVICE_NOT_SUPPORTED = 5009,
  CU_FILE_NVFS_DRIVER_ERROR = 5010,
  CU_FILE_CUDA_DRIVER_ERROR = 5011,
  CU_FILE_CUDA_POINTER_INVALID = 5012,
  CU_FILE_CUDA_MEMORY_TYPE_INVALID = 5013,
  CU_FILE_CUDA_POINTER_RANGE_ERROR = 5014,
  CU_FILE_CUDA_CONTEXT_MISMATCH = 5015,
  CU_FILE_INVALID_MAPPING_SIZE = 5016,
  CU_FILE_INVALID_MAPPING_RANGE = 5017,
  CU_FILE_INVALID_FILE_TYPE = 5018,
  CU_FILE_INVALID_FILE_OPEN_FLAG = 5019,
  CU_FILE_DIO_NOT_SET = 5020,
  CU_FILE_INVALID_VALUE = 5022,
  CU_FILE_MEMORY_ALREADY_REGISTERED = 5023,
  CU_FILE_MEMORY_NOT_REGISTERED = 5024,
  CU_FILE_PERMISSION_DENIED = 5025,
  CU_FILE_DRIVER_ALREADY_OPEN = 5026,
  CU_FILE_HANDLE_NOT_REGISTERED = 5027,
  CU_FILE_HANDLE_ALREADY_REGISTERED = 5028,
  CU_FILE_DEVICE_NOT_FOUND = 5029,
  CU_FILE_INTERNAL_ERROR = 5030,
  CU_FILE_GETNEWFD_FAILED = 5031,
  CU_FILE_NVFS_SETUP_ERROR = 5033,
  CU_FILE_IO_DISABLED = 5034,
  CU_FILE_BATCH_SUBMIT_FAILED = 5035,
  CU_FILE_GPU_MEMORY_PINNING_FAILED = 5036,
  CU_FILE_BATCH_FULL = 5037,
  CU_FILE_ASYNC_NOT_SUPPORTED = 5038,
};

struct CUfileError_t {
  CUfileOpError err;
  CUresult cu_err;
};

// Bits of CUfileDrvProps_t::nvfs.dstatusflags: the devices with a direct path.
enum CUfileDriverStatusFlags : int {
  CU_FILE_LUSTRE_SUPPORTED = 0,
  CU_FILE_WEKAFS_SUPPORTED = 1,
  CU_FILE_NFS_SUPPORTED = 2,
  CU_FILE_GPFS_SUPPORTED = 3,
  CU_FILE_NVME_SUPPORTED = 4,
  CU_FILE_NVMEOF_SUPPORTED = 5,
  CU_FILE_SCSI_SUPPORTED = 6,
  CU_FILE_BEEGFS_SUPPORTED = 9,
  CU_FILE_NVME_P2P_SUPPORTED = 11,
};

struct CUfileDrvProps_t {
  struct {
    unsigned major_version;  // of nvidia-fs; 0.0: it is not loaded
    unsigned minor_version;
    std::size_t poll_thresh_size;
    std::size_t max_direct_io_size;
    unsigned dstatusflags;
    unsigned dcontrolflags;
  } nvfs;
  unsigned fflags;
  unsigned max_device_cache_size;
  unsigned per_buffer_cache_size;
  unsigned max_device_pinned_mem_size;
  unsigned max_batch_io_size;
  unsigned max_batch_io_timeout_msecs;
};

enum CUfileFileHandleType : int { CU_FILE_HANDLE_TYPE_OPAQUE_FD = 1 };
using CUfileHandle_t = void*;
using CUfileBatchHandle_t = void*;

struct CUfileDescr_t {
  CUfileFileHandleType type;
  union {
    int fd;
    void* handle;
  } handle;
  const void* fs_ops;
};

enum CUfileOpcode_t : int { CUFILE_READ = 0, CUFILE_WRITE = 1 };
enum CUfileStatus_t : int {
  CUFILE_WAITING = 0x01,
  CUFILE_PENDING = 0x02,
  CUFILE_INVALID = 0x04,
  CUFILE_CANCELED = 0x08,
  CUFILE_COMPLETE = 0x10,
  CUFILE_TIMEOUT = 0x20,
  CUFILE_FAILED = 0x40,
};
enum CUfileBatchMode_t : int { CUFILE_BATCH = 1 };

struct CUfileIOParams_t {
  CUfileBatchMode_t mode;
  union {
    struct {
      void* devPtr_base;
      off_t file_offset;
      off_t devPtr_offset;
      std::size_t size;
    } batch;
  } u;
  CUfileHandle_t fh;
  CUfileOpcode_t opcode;
  void* cookie;
};
struct CUfileIOEvents_t {
  void* cookie;
  CUfileStatus_t status;
  std::size_t ret;  // of a request that failed: negative
};

enum CUFileSizeTConfigParameter_t : int {
  CUFILE_PARAM_EXECUTION_MAX_IO_THREADS = 2,
  CUFILE_PARAM_PROPERTIES_IO_BATCHSIZE = 9,
};
enum CUFileBoolConfigParameter_t : int {
  CUFILE_PARAM_PROPERTIES_ALLOW_COMPAT_MODE = 1,
  CUFILE_PARAM_FORCE_COMPAT_MODE = 2,
  CUFILE_PARAM_USE_PCIP2PDMA = 7,
};
enum CUFileStringConfigParameter_t : int { CUFILE_PARAM_LOGGING_LEVEL = 0 };

struct CuFileApi {
  CUfileError_t (*cuFileDriverOpen)();
  CUfileError_t (*cuFileDriverClose)();
  CUfileError_t (*cuFileDriverGetProperties)(CUfileDrvProps_t* properties);
  CUfileError_t (*cuFileHandleRegister)(CUfileHandle_t* handle, CUfileDescr_t* description);
  void (*cuFileHandleDeregister)(CUfileHandle_t handle);
  CUfileError_t (*cuFileBufRegister)(const void* base, std::size_t length, int flags);
  CUfileError_t (*cuFileBufDeregister)(const void* base);
  // Returns a number of bytes; -1 and errno; or a negative CUfileOpError.
  ssize_t (*cuFileRead)(CUfileHandle_t handle, void* base, std::size_t size, off_t file_offset,
                        off_t base_offset);
  ssize_t (*cuFileWrite)(CUfileHandle_t handle, const void* base, std::size_t size,
                         off_t file_offset, off_t base_offset);

  // Null if the library is too old for them. Batches (in compatibility mode, batches of more than
  // 64 requests can hang):
  CUfileError_t (*cuFileBatchIOSetUp)(CUfileBatchHandle_t* batch, unsigned count);
  CUfileError_t (*cuFileBatchIOSubmit)(CUfileBatchHandle_t batch, unsigned count,
                                       CUfileIOParams_t* requests, unsigned flags);
  CUfileError_t (*cuFileBatchIOGetStatus)(CUfileBatchHandle_t batch, unsigned at_least,
                                          unsigned* count, CUfileIOEvents_t* events,
                                          timespec* timeout);
  CUfileError_t (*cuFileBatchIOCancel)(CUfileBatchHandle_t batch);
  void (*cuFileBatchIODestroy)(CUfileBatchHandle_t batch);
  // In the order of a stream:
  CUfileError_t (*cuFileReadAsync)(CUfileHandle_t handle, void* base, std::size_t* size,
                                   off_t* file_offset, off_t* base_offset, ssize_t* done,
                                   CUstream stream);
  CUfileError_t (*cuFileWriteAsync)(CUfileHandle_t handle, void* base, std::size_t* size,
                                    off_t* file_offset, off_t* base_offset, ssize_t* done,
                                    CUstream stream);
  CUfileError_t (*cuFileStreamRegister)(CUstream stream, unsigned flags);
  CUfileError_t (*cuFileStreamDeregister)(CUstream stream);
  // Version and parameters (cuFile 1.14 and newer):
  CUfileError_t (*cuFileGetVersion)(int* version);  // 1140 is 1.14
  CUfileError_t (*cuFileGetParameterSizeT)(CUFileSizeTConfigParameter_t which, std::size_t* value);
  CUfileError_t (*cuFileSetParameterSizeT)(CUFileSizeTConfigParameter_t which, std::size_t value);
  CUfileError_t (*cuFileGetParameterBool)(CUFileBoolConfigParameter_t which, bool* value);
  CUfileError_t (*cuFileSetParameterBool)(CUFileBoolConfigParameter_t which, bool value);
  CUfileError_t (*cuFileGetParameterString)(CUFileStringConfigParameter_t which, char* value,
                                            int size);
  CUfileError_t (*cuFileSetParameterString)(CUFileStringConfigParameter_t which, const char* value);
};

// Our own libcufile (client/compat/cufile) exports a function with this name: `void* ()`, which
// returns the handle of NVIDIA's library, or null. NVIDIA's library has no such function.
inline constexpr const char* kDropInFunction = "sluice_cufile_real";

// "CU_FILE_IO_NOT_SUPPORTED (5008)"
std::string text_of(CUfileError_t error);
// EOPNOTSUPP: cuFile does not accept this file or memory, but another route does.
int errno_of(CUfileError_t error);

// cuFile writes a log to cufile.log in the working directory, unless an environment variable says
// otherwise when the library is loaded. Sets that variable if it is not set. REQUIRES: there is no
// other thread.
void keep_cufile_log_away();

// The driver of cuFile, open while the object lives.
class CuFile {
 public:
  // The error says why cuFile can't be used. The GPU's context must be the calling thread's
  // (Device::enter): cuFile would make one on the first GPU.
  static Result<std::unique_ptr<CuFile>> open();
  ~CuFile();  // REQUIRES: all handles are gone
  CuFile(const CuFile&) = delete;
  CuFile& operator=(const CuFile&) = delete;

  const CuFileApi& api() const { return api_; }
  // "1.14"; empty if the library is too old to tell.
  std::string version() const;
  // True if reads of this file go from the disk to the GPU without a copy in host memory, as far as
  // cuFile reports it; false if unknown. `reason` is set to the explanation.
  bool is_direct(int fd, std::string& reason) const;

  // Translates, and logs once a cause.
  Error failed(CUfileError_t error, Operation what);

 private:
  CuFile(const CuFileApi& api, bool opened);
  bool parameter(CUFileBoolConfigParameter_t which) const;

  const CuFileApi api_;
  const bool opened_;  // false: other code in the process has it open, and closes it
  CUfileDrvProps_t properties_{};
  bool forced_compat_ = false;
  Mutex mutex_;
  std::set<int> logged_ GUARDED_BY(mutex_);
};

// A file that is registered with cuFile. The caller owns the descriptor and keeps it open.
class CuFileHandle {
 public:
  static Result<std::unique_ptr<CuFileHandle>> create(CuFile& cufile, int fd);
  ~CuFileHandle();
  CuFileHandle(const CuFileHandle&) = delete;
  CuFileHandle& operator=(const CuFileHandle&) = delete;

  // Returns the number of bytes. It may be less than `size` at the end of the file and for internal
  // reasons of cuFile. `base` was registered with cuFileBufRegister(), or is any device address.
  Result<std::size_t> read(CUdeviceptr base, std::uint64_t base_offset, std::size_t size,
                           std::uint64_t file_offset);
  Result<std::size_t> write(CUdeviceptr base, std::uint64_t base_offset, std::size_t size,
                            std::uint64_t file_offset);

 private:
  CuFileHandle(CuFile& cufile, CUfileHandle_t handle) : cufile_(cufile), handle_(handle) {}
  Result<std::size_t> done(ssize_t result, Operation what);

  CuFile& cufile_;
  const CUfileHandle_t handle_;
};

}  // namespace sluice
