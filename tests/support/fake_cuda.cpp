// SPDX-License-Identifier: BSD-2-Clause
// A libcuda.so.1 for machines without a GPU: devices and contexts. fake_cuda_memory.cpp has the
// memory, fake_cuda_stream.cpp streams and copies, fake_cuda_order.cpp their order,
// fake_cuda_kernels.cpp our kernels.
//
// Environment: SLUICE_FAKE_CUDA_GPUS is the number of GPUs (2). SLUICE_FAKE_CUDA_DELAY_US is a
// delay before each operation of a stream. SLUICE_FAKE_CUDA_FAIL lists the faults
// (fake_control.hpp; names without _v2), for example "cuMemcpyHtoDAsync:3:700". The name "async"
// means the operations of streams: they fail when they run, not when they are queued. Errors that
// are sticky in CUDA are sticky here: the process loses the GPU.
#include "tests/support/fake_cuda.hpp"

#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <vector>

namespace sluice {
namespace {

using test::FakeCount;

thread_local CUcontext current_context = nullptr;

unsigned long number_from(const char* variable, unsigned long otherwise) {
  const char* text = std::getenv(variable);
  return text != nullptr ? std::strtoul(text, nullptr, 10) : otherwise;
}

bool is_sticky(int code) {
  switch (code) {
    case 701:
    case 704:
    case 705:
    case 708:
    case 711:
    case 712:
    case 713:
      return false;
    case 46:
    case 214:
    case 220:
    case 226:
      return true;
    default:
      return code >= 700 && code < 720;
  }
}

}  // namespace

FakeCuda::FakeCuda() : faults("cuda", "SLUICE_FAKE_CUDA_FAIL") {
  gpus = static_cast<int>(number_from("SLUICE_FAKE_CUDA_GPUS", 2));
  if (gpus > kMaxGpus) gpus = kMaxGpus;
  delay_us = static_cast<unsigned>(number_from("SLUICE_FAKE_CUDA_DELAY_US", 0));
}

FakeCuda& FakeCuda::get() {
  static FakeCuda& instance = *new FakeCuda;
  return instance;
}

void FakeCuda::lose(int device, CUresult code) {
  const MutexLock lock(mutex);
  if (state[device].lost == CUDA_SUCCESS) state[device].lost = code;
}

CUresult FakeCuda::begin(const char* call, int* device) {
  const int gpu = current_context == nullptr
                      ? -1
                      : static_cast<int>(reinterpret_cast<FakeGpuState*>(current_context) - state);
  if (const int code = faults.next(call); code != 0) {
    if (is_sticky(code) && gpu >= 0) lose(gpu, static_cast<CUresult>(code));
    return static_cast<CUresult>(code);
  }
  const MutexLock lock(mutex);
  if (!initialized) return CUDA_ERROR_NOT_INITIALIZED;
  if (const CUresult code = check_captures(call); code != CUDA_SUCCESS) return code;
  if (device == nullptr) return CUDA_SUCCESS;
  if (gpu < 0) return CUDA_ERROR_INVALID_CONTEXT;
  if (state[gpu].contexts == 0) return CUDA_ERROR_CONTEXT_IS_DESTROYED;
  *device = gpu;
  return state[gpu].lost;
}

extern "C" {

CUresult cuInit(unsigned) {
  if (const int code = fake().faults.next("cuInit"); code != 0) return static_cast<CUresult>(code);
  if (fake().gpus == 0) return CUDA_ERROR_NO_DEVICE;
  const MutexLock lock(fake().mutex);
  fake().initialized = true;
  return CUDA_SUCCESS;
}

CUresult cuDriverGetVersion(int* version) {
  *version = 12040;
  return CUDA_SUCCESS;
}

CUresult cuGetErrorName(CUresult code, const char** name) {
  static const std::map<int, const char*> kNames = {
      {0, "CUDA_SUCCESS"},
      {1, "CUDA_ERROR_INVALID_VALUE"},
      {2, "CUDA_ERROR_OUT_OF_MEMORY"},
      {3, "CUDA_ERROR_NOT_INITIALIZED"},
      {46, "CUDA_ERROR_DEVICE_UNAVAILABLE"},
      {100, "CUDA_ERROR_NO_DEVICE"},
      {201, "CUDA_ERROR_INVALID_CONTEXT"},
      {700, "CUDA_ERROR_ILLEGAL_ADDRESS"},
      {712, "CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED"},
      {719, "CUDA_ERROR_LAUNCH_FAILED"},
      {801, "CUDA_ERROR_NOT_SUPPORTED"},
      {900, "CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED"}};
  const auto found = kNames.find(code);
  *name = found == kNames.end() ? nullptr : found->second;
  return found == kNames.end() ? CUDA_ERROR_INVALID_VALUE : CUDA_SUCCESS;
}

CUresult cuGetErrorString(CUresult code, const char** text) {
  const CUresult known = cuGetErrorName(code, text);
  if (known == CUDA_SUCCESS) *text = "the fake driver says so";
  if (code == CUDA_ERROR_NO_DEVICE) *text = "no CUDA-capable device is detected";
  return known;
}

CUresult cuDeviceGetCount(int* count_out) {
  FAKE_CUDA_BEGIN("cuDeviceGetCount", nullptr);
  *count_out = fake().gpus;
  return CUDA_SUCCESS;
}

CUresult cuDeviceGet(CUdevice* device, int ordinal) {
  FAKE_CUDA_BEGIN("cuDeviceGet", nullptr);
  *device = ordinal;
  return is_device(ordinal) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_DEVICE;
}

CUresult cuDeviceGetName(char* name, int size, CUdevice device) {
  FAKE_CUDA_BEGIN("cuDeviceGetName", nullptr);
  std::snprintf(name, static_cast<std::size_t>(size), "Fake GPU %d", device);
  return CUDA_SUCCESS;
}

CUresult cuDeviceGetUuid_v2(CUuuid* uuid, CUdevice device) {
  FAKE_CUDA_BEGIN("cuDeviceGetUuid", nullptr);
  std::memcpy(uuid->bytes, "SLUICE FAKE GPU", 15);
  uuid->bytes[15] = static_cast<char>('0' + device);
  return CUDA_SUCCESS;
}

CUresult cuDeviceGetPCIBusId(char* id, int size, CUdevice device) {
  FAKE_CUDA_BEGIN("cuDeviceGetPCIBusId", nullptr);
  std::snprintf(id, static_cast<std::size_t>(size), "0000:F%X:00.0", device);
  return CUDA_SUCCESS;
}

CUresult cuDeviceGetAttribute(int* value, CUdevice_attribute attribute, CUdevice device) {
  FAKE_CUDA_BEGIN("cuDeviceGetAttribute", nullptr);
  if (!is_device(device)) return CUDA_ERROR_INVALID_DEVICE;
  switch (attribute) {
    case CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR:
      *value = 9;
      break;
    case CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR:
    case CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_SUPPORTED:
      *value = 0;
      break;
    default:
      *value = 1;
  }
  return CUDA_SUCCESS;
}

CUresult cuDeviceTotalMem_v2(std::size_t* bytes, CUdevice) {
  FAKE_CUDA_BEGIN("cuDeviceTotalMem", nullptr);
  *bytes = FakeCuda::kMemory;
  return CUDA_SUCCESS;
}

CUresult cuDevicePrimaryCtxRetain(CUcontext* context, CUdevice device) {
  FAKE_CUDA_BEGIN("cuDevicePrimaryCtxRetain", nullptr);
  if (!is_device(device)) return CUDA_ERROR_INVALID_DEVICE;
  const MutexLock lock(fake().mutex);
  FakeGpuState& state = fake().state[device];
  if (state.contexts++ == 0) {
    count(FakeCount::Contexts, 1);
    if (!state.stream)
      state.stream = std::make_unique<FakeStream>(device, FakeStream::Kind::Default);
  }
  *context = reinterpret_cast<CUcontext>(&state);
  return CUDA_SUCCESS;
}

CUresult cuDevicePrimaryCtxRelease_v2(CUdevice device) {
  FAKE_CUDA_BEGIN("cuDevicePrimaryCtxRelease", nullptr);
  if (!is_device(device)) return CUDA_ERROR_INVALID_DEVICE;
  std::vector<std::unique_ptr<FakeStream>> ended;
  const MutexLock lock(fake().mutex);
  FakeGpuState& state = fake().state[device];
  if (state.contexts == 0) return CUDA_ERROR_INVALID_CONTEXT;
  if (--state.contexts > 0) return CUDA_SUCCESS;
  ended = fake().clear_context(device);
  state.lost = CUDA_SUCCESS;  // so that one process can run many tests
  count(FakeCount::Contexts, -1);
  return CUDA_SUCCESS;
}

CUresult cuCtxSetCurrent(CUcontext context) {
  FAKE_CUDA_BEGIN("cuCtxSetCurrent", nullptr);
  current_context = context;
  return CUDA_SUCCESS;
}

CUresult cuCtxGetCurrent(CUcontext* context) {
  FAKE_CUDA_BEGIN("cuCtxGetCurrent", nullptr);
  *context = current_context;
  return CUDA_SUCCESS;
}

CUresult cuCtxGetDevice(CUdevice* device) {
  FAKE_CUDA_BEGIN("cuCtxGetDevice", device);
  return CUDA_SUCCESS;
}

}  // extern "C"

// Removes the file of counters at exit. A killed process leaves it.
__attribute__((destructor)) static void remove_control_file() {
  const std::string path = test::FakeControl::path("cuda", ::getpid());
  if (!path.empty()) ::unlink(path.c_str());
}

}  // namespace sluice
