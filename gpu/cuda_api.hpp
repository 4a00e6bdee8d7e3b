// SPDX-License-Identifier: BSD-2-Clause
// CudaApi is libcuda.so.1, loaded at run time: one binary serves machines with and without GPUs.
//
// The declarations are the part of the driver API that Sluice needs, with its names but in our
// namespace, so that they do not conflict with cuda.h. tests/unit/gpu/vendor_headers.cpp compares
// them with it. Threads: immutable once loaded. libcuda is never unloaded, because it has threads
// and exit handlers.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "base/result.hpp"

namespace sluice {

// The driver may return other values; those that Sluice tests for have names.
enum CUresult : int {
  CUDA_SUCCESS = 0,
  CUDA_ERROR_INVALID_VALUE = 1,
  CUDA_ERROR_OUT_OF_MEMORY = 2,
  CUDA_ERROR_NOT_INITIALIZED = 3,
  CUDA_ERROR_DEINITIALIZED = 4,
  CUDA_ERROR_DEVICE_UNAVAILABLE = 46,
  CUDA_ERROR_NO_DEVICE = 100,
  CUDA_ERROR_INVALID_DEVICE = 101,
  CUDA_ERROR_INVALID_CONTEXT = 201,
  CUDA_ERROR_MAP_FAILED = 205,
  CUDA_ERROR_ALREADY_MAPPED = 208,
  CUDA_ERROR_ECC_UNCORRECTABLE = 214,
  CUDA_ERROR_PEER_ACCESS_UNSUPPORTED = 217,
  CUDA_ERROR_NVLINK_UNCORRECTABLE = 220,
  CUDA_ERROR_CONTAINED = 226,
  CUDA_ERROR_OPERATING_SYSTEM = 304,
  CUDA_ERROR_INVALID_HANDLE = 400,
  CUDA_ERROR_NOT_FOUND = 500,
  CUDA_ERROR_NOT_READY = 600,
  CUDA_ERROR_ILLEGAL_ADDRESS = 700,
  CUDA_ERROR_LAUNCH_TIMEOUT = 702,
  CUDA_ERROR_CONTEXT_IS_DESTROYED = 709,
  CUDA_ERROR_ASSERT = 710,
  CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED = 712,
  CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED = 713,
  CUDA_ERROR_HARDWARE_STACK_ERROR = 714,
  CUDA_ERROR_ILLEGAL_INSTRUCTION = 715,
  CUDA_ERROR_MISALIGNED_ADDRESS = 716,
  CUDA_ERROR_INVALID_ADDRESS_SPACE = 717,
  CUDA_ERROR_INVALID_PC = 718,
  CUDA_ERROR_LAUNCH_FAILED = 719,
  CUDA_ERROR_NOT_PERMITTED = 800,
  CUDA_ERROR_NOT_SUPPORTED = 801,
  CUDA_ERROR_SYSTEM_NOT_READY = 802,
  CUDA_ERROR_SYSTEM_DRIVER_MISMATCH = 803,
  CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED = 900,
  CUDA_ERROR_STREAM_CAPTURE_INVALIDATED = 901,
  CUDA_ERROR_STREAM_CAPTURE_IMPLICIT = 906,
  CUDA_ERROR_UNKNOWN = 999,
};

using CUdevice = int;
using CUdeviceptr = unsigned long long;
using CUmemGenericAllocationHandle = unsigned long long;
using CUcontext = struct CUctx_st*;
using CUstream = struct CUstream_st*;
using CUevent = struct CUevent_st*;
using CUmodule = struct CUmod_st*;
using CUfunction = struct CUfunc_st*;
using CUhostFn = void (*)(void* user);

struct CUuuid {
  char bytes[16];
};
struct CUipcMemHandle {
  char reserved[64];
};

enum CUdevice_attribute : int {
  CU_DEVICE_ATTRIBUTE_COMPUTE_MODE = 20,
  CU_DEVICE_ATTRIBUTE_ASYNC_ENGINE_COUNT = 40,
  CU_DEVICE_ATTRIBUTE_UNIFIED_ADDRESSING = 41,
  CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR = 75,
  CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR = 76,
  CU_DEVICE_ATTRIBUTE_CAN_USE_HOST_POINTER_FOR_REGISTERED_MEM = 91,
  CU_DEVICE_ATTRIBUTE_HOST_REGISTER_SUPPORTED = 99,
  CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED = 102,
  CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED = 103,
  CU_DEVICE_ATTRIBUTE_READ_ONLY_HOST_REGISTER_SUPPORTED = 113,
  CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_SUPPORTED = 116,
};

enum CUpointer_attribute : int {
  CU_POINTER_ATTRIBUTE_CONTEXT = 1,                      // CUcontext
  CU_POINTER_ATTRIBUTE_MEMORY_TYPE = 2,                  // unsigned: CUmemorytype
  CU_POINTER_ATTRIBUTE_DEVICE_POINTER = 3,               // CUdeviceptr
  CU_POINTER_ATTRIBUTE_HOST_POINTER = 4,                 // void*
  CU_POINTER_ATTRIBUTE_BUFFER_ID = 7,                    // unsigned long long
  CU_POINTER_ATTRIBUTE_IS_MANAGED = 8,                   // unsigned
  CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL = 9,               // int
  CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE = 10,  // unsigned
  CU_POINTER_ATTRIBUTE_RANGE_START_ADDR = 11,            // CUdeviceptr
  CU_POINTER_ATTRIBUTE_RANGE_SIZE = 12,                  // size_t
  CU_POINTER_ATTRIBUTE_MAPPED = 13,                      // unsigned
  CU_POINTER_ATTRIBUTE_ALLOWED_HANDLE_TYPES = 14,        // unsigned long long
};
enum CUmemorytype : int { CU_MEMORYTYPE_HOST = 1, CU_MEMORYTYPE_DEVICE = 2 };

enum CUmemLocationType : int { CU_MEM_LOCATION_TYPE_DEVICE = 1 };
enum CUmemAllocationType : int { CU_MEM_ALLOCATION_TYPE_PINNED = 1 };
enum CUmemAllocationHandleType : int {
  CU_MEM_HANDLE_TYPE_NONE = 0,
  CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR = 1,
};
enum CUmemAccess_flags : int {
  CU_MEM_ACCESS_FLAGS_PROT_READ = 1,
  CU_MEM_ACCESS_FLAGS_PROT_READWRITE = 3,
};
enum CUmemAllocationGranularity_flags : int {
  CU_MEM_ALLOC_GRANULARITY_MINIMUM = 0,
  CU_MEM_ALLOC_GRANULARITY_RECOMMENDED = 1,
};

struct CUmemLocation {
  CUmemLocationType type;
  int id;
};
struct CUmemAllocationProp {
  CUmemAllocationType type;
  CUmemAllocationHandleType requestedHandleTypes;
  CUmemLocation location;
  void* win32HandleMetaData;
  struct {
    unsigned char compressionType;
    unsigned char gpuDirectRDMACapable;
    unsigned short usage;
    unsigned char reserved[4];
  } allocFlags;
};
struct CUmemAccessDesc {
  CUmemLocation location;
  CUmemAccess_flags flags;
};

// Flags. cuda.h has macros for them, which have no namespace, so the names are ours.
inline constexpr unsigned kHostRegisterPortable = 1;
inline constexpr unsigned kHostRegisterDeviceMap = 2;
inline constexpr unsigned kHostRegisterReadOnly = 8;
inline constexpr unsigned kIpcLazyEnablePeerAccess = 1;
inline constexpr unsigned kStreamNonBlocking = 1;
inline constexpr unsigned kEventBlockingSync = 1;
inline constexpr unsigned kEventDisableTiming = 2;
inline constexpr unsigned kWaitValueGeq = 0;
inline constexpr unsigned kWaitValueEq = 1;

enum CUstreamCaptureMode : int {
  CU_STREAM_CAPTURE_MODE_GLOBAL = 0,
  CU_STREAM_CAPTURE_MODE_RELAXED = 2,
};

struct CudaApi {
  // Loads libcuda and calls cuInit(). The error says why CUDA can't be used: no library,
  // too old a one, no GPU. REQUIRES: no fork() in this process afterwards.
  static Result<std::unique_ptr<CudaApi>> load();
  // True if the process has loaded libcuda, through us or otherwise.
  static bool is_in_process();

  // "CUDA_ERROR_OUT_OF_MEMORY: out of memory", or the bare number if the driver knows no name.
  std::string text_of(CUresult code) const;

  CUresult (*cuInit)(unsigned flags);
  CUresult (*cuDriverGetVersion)(int* version);  // 12040 is 12.4
  CUresult (*cuGetErrorName)(CUresult code, const char** name);
  CUresult (*cuGetErrorString)(CUresult code, const char** text);

  CUresult (*cuDeviceGetCount)(int* count);
  CUresult (*cuDeviceGet)(CUdevice* device, int ordinal);
  CUresult (*cuDeviceGetName)(char* name, int size, CUdevice device);
  CUresult (*cuDeviceGetUuid)(CUuuid* uuid, CUdevice device);
  CUresult (*cuDeviceGetPCIBusId)(char* id, int size, CUdevice device);
  CUresult (*cuDeviceGetAttribute)(int* value, CUdevice_attribute attribute, CUdevice device);
  CUresult (*cuDeviceTotalMem)(std::size_t* bytes, CUdevice device);
  CUresult (*cuDevicePrimaryCtxRetain)(CUcontext* context, CUdevice device);
  CUresult (*cuDevicePrimaryCtxRelease)(CUdevice device);

  CUresult (*cuCtxSetCurrent)(CUcontext context);
  CUresult (*cuCtxGetCurrent)(CUcontext* context);
  CUresult (*cuCtxGetDevice)(CUdevice* device);
  CUresult (*cuCtxSynchronize)();

  CUresult (*cuMemGetInfo)(std::size_t* free, std::size_t* total);
  CUresult (*cuMemAlloc)(CUdeviceptr* address, std::size_t size);
  CUresult (*cuMemFree)(CUdeviceptr address);
  CUresult (*cuMemGetAddressRange)(CUdeviceptr* base, std::size_t* size, CUdeviceptr address);
  CUresult (*cuPointerGetAttribute)(void* value, CUpointer_attribute attribute,
                                    CUdeviceptr address);
  CUresult (*cuMemHostRegister)(void* address, std::size_t size, unsigned flags);
  CUresult (*cuMemHostUnregister)(void* address);
  CUresult (*cuMemHostGetDevicePointer)(CUdeviceptr* device, void* host, unsigned flags);
  CUresult (*cuMemcpyHtoD)(CUdeviceptr to, const void* from, std::size_t size);
  CUresult (*cuMemcpyDtoH)(void* to, CUdeviceptr from, std::size_t size);
  CUresult (*cuMemcpyHtoDAsync)(CUdeviceptr to, const void* from, std::size_t size,
                                CUstream stream);
  CUresult (*cuMemcpyDtoHAsync)(void* to, CUdeviceptr from, std::size_t size, CUstream stream);
  CUresult (*cuMemcpyDtoDAsync)(CUdeviceptr to, CUdeviceptr from, std::size_t size,
                                CUstream stream);
  CUresult (*cuMemsetD8Async)(CUdeviceptr to, unsigned char value, std::size_t size,
                              CUstream stream);

  CUresult (*cuStreamCreate)(CUstream* stream, unsigned flags);
  CUresult (*cuStreamDestroy)(CUstream stream);
  CUresult (*cuStreamSynchronize)(CUstream stream);
  CUresult (*cuStreamQuery)(CUstream stream);
  CUresult (*cuEventCreate)(CUevent* event, unsigned flags);
  CUresult (*cuEventDestroy)(CUevent event);
  CUresult (*cuEventRecord)(CUevent event, CUstream stream);
  CUresult (*cuEventSynchronize)(CUevent event);
  CUresult (*cuEventQuery)(CUevent event);
  CUresult (*cuLaunchHostFunc)(CUstream stream, CUhostFn function, void* user);

  CUresult (*cuIpcGetMemHandle)(CUipcMemHandle* handle, CUdeviceptr address);
  CUresult (*cuIpcOpenMemHandle)(CUdeviceptr* address, CUipcMemHandle handle, unsigned flags);
  CUresult (*cuIpcCloseMemHandle)(CUdeviceptr address);

  CUresult (*cuModuleLoadData)(CUmodule* module, const void* image);
  CUresult (*cuModuleUnload)(CUmodule module);
  CUresult (*cuModuleGetFunction)(CUfunction* function, CUmodule module, const char* name);
  CUresult (*cuLaunchKernel)(CUfunction function, unsigned grid_x, unsigned grid_y, unsigned grid_z,
                             unsigned block_x, unsigned block_y, unsigned block_z,
                             unsigned shared_bytes, CUstream stream, void** parameters,
                             void** extra);

  // Null if the driver is too old for them. Stream memory operations:
  CUresult (*cuStreamWaitValue32)(CUstream stream, CUdeviceptr address, std::uint32_t value,
                                  unsigned flags);
  // Tells whether work put into the stream becomes part of a graph, which may run later and several
  // times. STREAM_CAPTURE_IMPLICIT for the default stream: it must not be used now, because a
  // stream that waits for it is being captured.
  CUresult (*cuStreamIsCapturing)(CUstream stream, int* status);  // status 0: it does not
  // Exchanges the mode of the calling thread. A thread whose mode is not RELAXED can't call most of
  // CUDA while another one captures a graph, and spoils the graph if it tries.
  CUresult (*cuThreadExchangeStreamCaptureMode)(CUstreamCaptureMode* mode);
  // The virtual memory API: all of these or none, as has_virtual_memory() says.
  bool has_virtual_memory() const { return cuMemRetainAllocationHandle != nullptr; }
  CUresult (*cuMemCreate)(CUmemGenericAllocationHandle* handle, std::size_t size,
                          const CUmemAllocationProp* properties, unsigned long long flags);
  CUresult (*cuMemRelease)(CUmemGenericAllocationHandle handle);
  CUresult (*cuMemAddressReserve)(CUdeviceptr* address, std::size_t size, std::size_t alignment,
                                  CUdeviceptr wanted, unsigned long long flags);
  CUresult (*cuMemAddressFree)(CUdeviceptr address, std::size_t size);
  CUresult (*cuMemMap)(CUdeviceptr address, std::size_t size, std::size_t offset,
                       CUmemGenericAllocationHandle handle, unsigned long long flags);
  CUresult (*cuMemUnmap)(CUdeviceptr address, std::size_t size);
  CUresult (*cuMemSetAccess)(CUdeviceptr address, std::size_t size, const CUmemAccessDesc* access,
                             std::size_t count);
  CUresult (*cuMemExportToShareableHandle)(void* out, CUmemGenericAllocationHandle handle,
                                           CUmemAllocationHandleType type,
                                           unsigned long long flags);
  CUresult (*cuMemImportFromShareableHandle)(CUmemGenericAllocationHandle* handle, void* from,
                                             CUmemAllocationHandleType type);
  CUresult (*cuMemRetainAllocationHandle)(CUmemGenericAllocationHandle* handle, void* address);
  CUresult (*cuMemGetAllocationPropertiesFromHandle)(CUmemAllocationProp* properties,
                                                     CUmemGenericAllocationHandle handle);
  CUresult (*cuMemGetAllocationGranularity)(std::size_t* granularity,
                                            const CUmemAllocationProp* properties,
                                            CUmemAllocationGranularity_flags option);
};

}  // namespace sluice
