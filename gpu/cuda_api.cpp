// SPDX-License-Identifier: BSD-2-Clause
#include "gpu/cuda_api.hpp"

#include <dlfcn.h>

#include "gpu/symbols.hpp"

namespace sluice {
namespace {

constexpr const char* kLibrary = "libcuda.so.1";

// The suffixes are those that cuda.h gives these names since 64-bit sizes came; a plain name is the
// old 32-bit call. With these names, a null stream is the legacy default stream; the variants with
// _ptsz would mean the thread's own.
void find_basics(Symbols& symbols, CudaApi& api) {
  symbols.need(api.cuInit, "cuInit");
  symbols.need(api.cuDriverGetVersion, "cuDriverGetVersion");
  symbols.need(api.cuGetErrorName, "cuGetErrorName");
  symbols.need(api.cuGetErrorString, "cuGetErrorString");
  symbols.need(api.cuDeviceGetCount, "cuDeviceGetCount");
  symbols.need(api.cuDeviceGet, "cuDeviceGet");
  symbols.need(api.cuDeviceGetName, "cuDeviceGetName");
  // The second version tells the slices of a GPU (MIG) apart.
  if (!symbols.find(api.cuDeviceGetUuid, "cuDeviceGetUuid_v2")) {
    symbols.need(api.cuDeviceGetUuid, "cuDeviceGetUuid");
  }
  symbols.need(api.cuDeviceGetPCIBusId, "cuDeviceGetPCIBusId");
  symbols.need(api.cuDeviceGetAttribute, "cuDeviceGetAttribute");
  symbols.need(api.cuDeviceTotalMem, "cuDeviceTotalMem_v2");
  symbols.need(api.cuDevicePrimaryCtxRetain, "cuDevicePrimaryCtxRetain");
  symbols.need(api.cuDevicePrimaryCtxRelease, "cuDevicePrimaryCtxRelease_v2");
  symbols.need(api.cuCtxSetCurrent, "cuCtxSetCurrent");
  symbols.need(api.cuCtxGetCurrent, "cuCtxGetCurrent");
  symbols.need(api.cuCtxGetDevice, "cuCtxGetDevice");
  symbols.need(api.cuCtxSynchronize, "cuCtxSynchronize");
  symbols.need(api.cuModuleLoadData, "cuModuleLoadData");
  symbols.need(api.cuModuleUnload, "cuModuleUnload");
  symbols.need(api.cuModuleGetFunction, "cuModuleGetFunction");
  symbols.need(api.cuLaunchKernel, "cuLaunchKernel");
}

void find_memory(Symbols& symbols, CudaApi& api) {
  symbols.need(api.cuMemGetInfo, "cuMemGetInfo_v2");
  symbols.need(api.cuMemAlloc, "cuMemAlloc_v2");
  symbols.need(api.cuMemFree, "cuMemFree_v2");
  symbols.need(api.cuMemGetAddressRange, "cuMemGetAddressRange_v2");
  symbols.need(api.cuPointerGetAttribute, "cuPointerGetAttribute");
  symbols.need(api.cuMemHostRegister, "cuMemHostRegister_v2");
  symbols.need(api.cuMemHostUnregister, "cuMemHostUnregister");
  symbols.need(api.cuMemHostGetDevicePointer, "cuMemHostGetDevicePointer_v2");
  symbols.need(api.cuMemcpyHtoD, "cuMemcpyHtoD_v2");
  symbols.need(api.cuMemcpyDtoH, "cuMemcpyDtoH_v2");
  symbols.need(api.cuMemcpyHtoDAsync, "cuMemcpyHtoDAsync_v2");
  symbols.need(api.cuMemcpyDtoHAsync, "cuMemcpyDtoHAsync_v2");
  symbols.need(api.cuMemcpyDtoDAsync, "cuMemcpyDtoDAsync_v2");
  symbols.need(api.cuMemsetD8Async, "cuMemsetD8Async");
  symbols.need(api.cuIpcGetMemHandle, "cuIpcGetMemHandle");
  // Versioned since CUDA 11; the older one has the same signature.
  if (!symbols.find(api.cuIpcOpenMemHandle, "cuIpcOpenMemHandle_v2")) {
    symbols.need(api.cuIpcOpenMemHandle, "cuIpcOpenMemHandle");
  }
  symbols.need(api.cuIpcCloseMemHandle, "cuIpcCloseMemHandle");
}

void find_streams(Symbols& symbols, CudaApi& api) {
  symbols.need(api.cuStreamCreate, "cuStreamCreate");
  symbols.need(api.cuStreamDestroy, "cuStreamDestroy_v2");
  symbols.need(api.cuStreamSynchronize, "cuStreamSynchronize");
  symbols.need(api.cuStreamQuery, "cuStreamQuery");
  symbols.need(api.cuEventCreate, "cuEventCreate");
  symbols.need(api.cuEventDestroy, "cuEventDestroy_v2");
  symbols.need(api.cuEventRecord, "cuEventRecord");
  symbols.need(api.cuEventSynchronize, "cuEventSynchronize");
  symbols.need(api.cuEventQuery, "cuEventQuery");
  symbols.need(api.cuLaunchHostFunc, "cuLaunchHostFunc");
  // The first version works only where the driver was told to allow it when it was loaded.
  symbols.find(api.cuStreamWaitValue32, "cuStreamWaitValue32_v2");
  symbols.find(api.cuStreamIsCapturing, "cuStreamIsCapturing");
  symbols.find(api.cuThreadExchangeStreamCaptureMode, "cuThreadExchangeStreamCaptureMode");
}

void find_virtual_memory(void* library, CudaApi& api) {
  Symbols symbols(library);
  symbols.need(api.cuMemCreate, "cuMemCreate");
  symbols.need(api.cuMemRelease, "cuMemRelease");
  symbols.need(api.cuMemAddressReserve, "cuMemAddressReserve");
  symbols.need(api.cuMemAddressFree, "cuMemAddressFree");
  symbols.need(api.cuMemMap, "cuMemMap");
  symbols.need(api.cuMemUnmap, "cuMemUnmap");
  symbols.need(api.cuMemSetAccess, "cuMemSetAccess");
  symbols.need(api.cuMemExportToShareableHandle, "cuMemExportToShareableHandle");
  symbols.need(api.cuMemImportFromShareableHandle, "cuMemImportFromShareableHandle");
  symbols.need(api.cuMemGetAllocationPropertiesFromHandle,
               "cuMemGetAllocationPropertiesFromHandle");
  symbols.need(api.cuMemGetAllocationGranularity, "cuMemGetAllocationGranularity");
  symbols.need(api.cuMemRetainAllocationHandle, "cuMemRetainAllocationHandle");
  if (symbols.missing() != nullptr) api.cuMemRetainAllocationHandle = nullptr;
}

}  // namespace

Result<std::unique_ptr<CudaApi>> CudaApi::load() {
  void* library = ::dlopen(kLibrary, RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) return Error{ENODEV, "load CUDA", load_error(kLibrary)};
  auto api = std::make_unique<CudaApi>();
  Symbols symbols(library);
  find_basics(symbols, *api);
  find_memory(symbols, *api);
  find_streams(symbols, *api);
  find_virtual_memory(library, *api);
  if (symbols.missing() != nullptr) {
    return Error{ENODEV, "load CUDA",
                 std::string(kLibrary) + " lacks " + symbols.missing() + ": the driver is too old"};
  }
  if (const CUresult code = api->cuInit(0); code != CUDA_SUCCESS) {
    return Error{ENODEV, "load CUDA", "the NVIDIA driver says: " + api->text_of(code)};
  }
  return api;
}

bool CudaApi::is_in_process() {
  void* const library = ::dlopen(kLibrary, RTLD_LAZY | RTLD_NOLOAD);
  if (library != nullptr) ::dlclose(library);
  return library != nullptr;
}

std::string CudaApi::text_of(CUresult code) const {
  const char* name = nullptr;
  const char* text = nullptr;
  if (cuGetErrorName(code, &name) != CUDA_SUCCESS || name == nullptr) {
    return "CUDA error " + std::to_string(static_cast<int>(code));
  }
  if (cuGetErrorString(code, &text) != CUDA_SUCCESS || text == nullptr) return name;
  return std::string(name) + ": " + text;
}

}  // namespace sluice
