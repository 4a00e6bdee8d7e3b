// SPDX-License-Identifier: BSD-2-Clause
#include "gpu/device.hpp"

#include <algorithm>
#include <cctype>
#include <cstring>
#include <filesystem>
#include <sstream>
#include <utility>

#include "base/log.hpp"
#include "base/small_file.hpp"

namespace sluice {
namespace {

constexpr auto kKernelsAgain = std::chrono::seconds(10);
constexpr int kComputeProhibited = 2, kComputeExclusive = 3;  // CUcomputemode
constexpr const char* kDriversGpus = "/proc/driver/nvidia/gpus";

// After these errors every further call in the context fails, often with the same code. The driver
// documents that "the process must be terminated and relaunched".
bool is_sticky(CUresult code) {
  switch (code) {
    case CUDA_ERROR_DEINITIALIZED:
    case CUDA_ERROR_DEVICE_UNAVAILABLE:
    case CUDA_ERROR_ECC_UNCORRECTABLE:
    case CUDA_ERROR_NVLINK_UNCORRECTABLE:
    case CUDA_ERROR_CONTAINED:
    case CUDA_ERROR_ILLEGAL_ADDRESS:
    case CUDA_ERROR_LAUNCH_TIMEOUT:
    case CUDA_ERROR_CONTEXT_IS_DESTROYED:
    case CUDA_ERROR_ASSERT:
    case CUDA_ERROR_HARDWARE_STACK_ERROR:
    case CUDA_ERROR_ILLEGAL_INSTRUCTION:
    case CUDA_ERROR_MISALIGNED_ADDRESS:
    case CUDA_ERROR_INVALID_ADDRESS_SPACE:
    case CUDA_ERROR_INVALID_PC:
    case CUDA_ERROR_LAUNCH_FAILED:
    case CUDA_ERROR_SYSTEM_NOT_READY:
    case CUDA_ERROR_SYSTEM_DRIVER_MISMATCH:
      return true;
    default:
      return false;
  }
}

int numa_node_of(const std::string& pci) {
  std::istringstream file(text_of_file("/sys/bus/pci/devices/" + pci + "/numa_node"));
  int node = -1;
  return file >> node ? node : -1;
}

}  // namespace

int errno_of(CUresult code) {
  switch (code) {
    case CUDA_ERROR_OUT_OF_MEMORY:
      return ENOMEM;
    case CUDA_ERROR_INVALID_VALUE:
    case CUDA_ERROR_INVALID_DEVICE:
    case CUDA_ERROR_INVALID_CONTEXT:
    case CUDA_ERROR_INVALID_HANDLE:
    case CUDA_ERROR_NOT_FOUND:
    case CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED:
      return EINVAL;
    case CUDA_ERROR_ALREADY_MAPPED:
    case CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED:
      return EEXIST;
    case CUDA_ERROR_NOT_READY:
      return EAGAIN;
    case CUDA_ERROR_NOT_PERMITTED:
      return EPERM;
    case CUDA_ERROR_NOT_SUPPORTED:
    case CUDA_ERROR_PEER_ACCESS_UNSUPPORTED:
      return EOPNOTSUPP;
    case CUDA_ERROR_NO_DEVICE:
    case CUDA_ERROR_DEVICE_UNAVAILABLE:
    case CUDA_ERROR_NOT_INITIALIZED:
    case CUDA_ERROR_DEINITIALIZED:
    case CUDA_ERROR_SYSTEM_NOT_READY:
    case CUDA_ERROR_SYSTEM_DRIVER_MISMATCH:
      return ENODEV;
    default:
      return EIO;
  }
}

std::string to_string(const GpuUuid& uuid) {
  static constexpr char kDigits[] = "0123456789abcdef";
  std::string text = "GPU-";
  for (std::size_t i = 0; i < uuid.size(); ++i) {
    if (i == 4 || i == 6 || i == 8 || i == 10) text += '-';
    text += kDigits[uuid[i] >> 4];
    text += kDigits[uuid[i] & 15];
  }
  return text;
}

// Values that the driver does not report stay unknown. Nothing here creates a context.
Device::Device(const CudaApi& api, CUdevice ordinal) : api_(api), ordinal_(ordinal) {
  CUuuid uuid{};
  if (api_.cuDeviceGetUuid(&uuid, ordinal) == CUDA_SUCCESS) {
    std::memcpy(uuid_.data(), uuid.bytes, uuid_.size());
  }
  char text[256] = "";
  if (api_.cuDeviceGetName(text, sizeof text, ordinal) == CUDA_SUCCESS) name_ = text;
  if (api_.cuDeviceGetPCIBusId(text, sizeof text, ordinal) == CUDA_SUCCESS) pci_ = text;
  // The driver writes capital letters, sysfs does not.
  std::transform(pci_.begin(), pci_.end(), pci_.begin(),
                 [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  numa_node_ = numa_node_of(pci_);
  std::size_t bytes = 0;
  if (api_.cuDeviceTotalMem(&bytes, ordinal) == CUDA_SUCCESS) memory_ = bytes;
  int mode = 0;
  if (api_.cuDeviceGetAttribute(&mode, CU_DEVICE_ATTRIBUTE_COMPUTE_MODE, ordinal) == CUDA_SUCCESS)
    shared_ = mode != kComputeProhibited && mode != kComputeExclusive;
}

Device::~Device() {
  {
    MutexLock lock(kernels_mutex_);
    // In a lost context the kernels are gone.
    if (kernels_ && !enter()) static_cast<void>(kernels_.release());
    kernels_.reset();
  }
  MutexLock lock(mutex_);
  if (context_ != nullptr) api_.cuDevicePrimaryCtxRelease(ordinal_);
}

Result<void> Device::enter() {
  if (lost_) return Error(ENODEV, "use a GPU that is lost");
  CUcontext context = nullptr;
  CUresult code = CUDA_SUCCESS;
  {
    MutexLock lock(mutex_);
    if (context_ == nullptr) code = api_.cuDevicePrimaryCtxRetain(&context_, ordinal_);
    if (code != CUDA_SUCCESS) context_ = nullptr;
    context = context_;
  }
  if (code != CUDA_SUCCESS) return failed(code, "create a GPU context");
  CUcontext current = nullptr;
  code = api_.cuCtxGetCurrent(&current);
  if (code == CUDA_SUCCESS && current == context) return {};
  code = api_.cuCtxSetCurrent(context);
  if (code != CUDA_SUCCESS) return failed(code, "enter a GPU context");
  // Another thread of the host program may be capturing a graph.
  if (auto mode = CU_STREAM_CAPTURE_MODE_RELAXED; api_.cuThreadExchangeStreamCaptureMode) {
    api_.cuThreadExchangeStreamCaptureMode(&mode);
  }
  return {};
}

Error Device::failed(CUresult code, Operation what) {
  const bool sticky = is_sticky(code);
  if (sticky) lose();
  bool first = false;
  {
    MutexLock lock(mutex_);
    first = logged_.insert(code).second;
  }
  if (first && sticky) {
    log::get().error("GPU is lost for this process: gpu={} during=\"{}\" cause=\"{}\"",
                     to_string(uuid_), what.text, api_.text_of(code));
  } else if (first) {
    log::get().warn("GPU call failed: gpu={} during=\"{}\" cause=\"{}\"", to_string(uuid_),
                    what.text, api_.text_of(code));
  }
  return {errno_of(code), what};
}

const Kernels* Device::kernels() {
  if (const Kernels* ready = kernels_ready_.load(std::memory_order_acquire)) return ready;
  const auto now = std::chrono::steady_clock::now();
  if (now < kernels_again_.load(std::memory_order_relaxed)) return nullptr;
  MutexLock lock(kernels_mutex_);
  if (kernels_) return kernels_.get();
  if (now < kernels_again_.load(std::memory_order_relaxed)) return nullptr;
  if (const CUresult code = Kernels::load(api_, ordinal_, kernels_); code != CUDA_SUCCESS) {
    kernels_again_.store(now + kKernelsAgain, std::memory_order_relaxed);
    const Error error = failed(code, "load the kernels");
    if (!std::exchange(kernels_refused_, true)) {
      log::get().warn(
          "cannot load the GPU kernels, small pieces are copied one by one: gpu={} errno={}",
          to_string(uuid_), error.code);
    }
    return nullptr;
  }
  kernels_ready_.store(kernels_.get(), std::memory_order_release);
  return kernels_.get();
}

Result<CUdeviceptr> Device::open_ipc(const IpcHandle& handle) {
  SLUICE_TRY(enter());
  MutexLock lock(ipc_mutex_);
  if (const auto found = ipc_.find(handle); found != ipc_.end()) {
    ++found->second.users;
    return found->second.address;
  }
  CUipcMemHandle raw{};
  std::memcpy(raw.reserved, handle.data(), handle.size());
  CUdeviceptr address = 0;
  const CUresult code = api_.cuIpcOpenMemHandle(&address, raw, kIpcLazyEnablePeerAccess);
  if (code != CUDA_SUCCESS) return failed(code, "open a CUDA IPC handle");
  ipc_[handle] = {address, 1};
  return address;
}

void Device::close_ipc(const IpcHandle& handle) {
  MutexLock lock(ipc_mutex_);
  const auto found = ipc_.find(handle);
  if (found == ipc_.end() || --found->second.users > 0) return;
  const CUdeviceptr address = found->second.address;
  ipc_.erase(found);
  if (!enter()) return;  // lost: the mapping ends with the process
  const CUresult code = api_.cuIpcCloseMemHandle(address);
  if (code != CUDA_SUCCESS) (void)failed(code, "close a CUDA IPC handle");
}

struct Devices::Loaded {
  std::unique_ptr<CudaApi> api;
  std::string why_none;
  std::vector<std::unique_ptr<Device>>
      devices;  // declared after the api, so that it is destroyed first

  void load() {
    auto cuda = CudaApi::load();
    if (!cuda) {
      why_none = cuda.error().text();
      return;
    }
    api = *std::move(cuda);
    int count = 0;
    const CUresult code = api->cuDeviceGetCount(&count);
    if (code != CUDA_SUCCESS) {
      why_none = "the NVIDIA driver says: " + api->text_of(code);
      return;
    }
    for (int i = 0; i < count; ++i) {
      CUdevice ordinal = 0;
      if (api->cuDeviceGet(&ordinal, i) != CUDA_SUCCESS) continue;
      devices.push_back(std::make_unique<Device>(*api, ordinal));
    }
    if (devices.empty()) why_none = "the NVIDIA driver is there but shows no GPU";
  }
};

Devices::Devices() = default;
Devices::~Devices() = default;

const Devices::Loaded& Devices::loaded() {
  MutexLock lock(mutex_);
  if (!loaded_) {
    loaded_ = std::make_unique<Loaded>();
    loaded_->load();
    is_loaded_ = true;
  }
  return *loaded_;
}

bool Devices::are_there() {
  std::error_code none;
  if (std::filesystem::directory_iterator(kDriversGpus, none) !=
      std::filesystem::directory_iterator())
    return true;
  // A driver without that directory, that was loaded with the process.
  return CudaApi::is_in_process();
}

const std::vector<std::unique_ptr<Device>>& Devices::all() { return loaded().devices; }

std::string Devices::why_none() { return loaded().why_none; }

std::string Devices::driver_version() {
  int version = 0;
  const CudaApi* api = loaded().api.get();
  if (api == nullptr || api->cuDriverGetVersion(&version) != CUDA_SUCCESS) return {};
  return std::to_string(version / 1000) + "." + std::to_string(version % 1000 / 10);
}

Result<Device*> Devices::by_uuid(const GpuUuid& uuid) {
  const auto& devices = all();
  const auto found = uuid == GpuUuid{}
                         ? devices.begin()
                         : std::find_if(devices.begin(), devices.end(),
                                        [&](const auto& device) { return device->uuid() == uuid; });
  if (found == devices.end()) return Error(ENODEV, "find a GPU by its UUID");
  return found->get();
}

}  // namespace sluice
