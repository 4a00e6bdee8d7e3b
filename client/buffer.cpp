// SPDX-License-Identifier: BSD-2-Clause
#include "client/buffer.hpp"

#include <sys/ioctl.h>

#include <algorithm>
#include <cstring>

namespace sluice {
namespace {

template <typename T>
T attribute_of(const CudaApi& api, CUpointer_attribute attribute, CUdeviceptr address) {
  T value{};
  // CUDA returns INVALID_VALUE for memory that it does not know.
  return api.cuPointerGetAttribute(&value, attribute, address) == CUDA_SUCCESS ? value : T{};
}

// The GPU that has the memory; null for host memory. Managed memory counts as host memory: it can't
// be exported, and the CPU can write to it wherever its pages are.
Device* device_of(Devices& devices, CUdeviceptr address) {
  const auto& all = devices.all();
  if (all.empty()) return nullptr;
  const CudaApi& api = all.front()->api();
  const auto type = attribute_of<unsigned>(api, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, address);
  if (type != CU_MEMORYTYPE_DEVICE) return nullptr;
  if (attribute_of<unsigned>(api, CU_POINTER_ATTRIBUTE_IS_MANAGED, address) != 0) return nullptr;
  const auto ordinal = attribute_of<int>(api, CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL, address);
  for (const auto& device : all) {
    if (device->ordinal() == ordinal) return device.get();
  }
  return nullptr;
}

// The allocations that [address, +length) spans: one of cudaMalloc, or several that the virtual
// memory API has mapped next to each other (PyTorch's expandable segments).
Result<std::vector<Buffer::Piece>> pieces_of(Device& device, CUdeviceptr address,
                                             std::uint64_t length) {
  std::vector<Buffer::Piece> pieces;
  std::uint64_t done = 0;
  while (done < length) {
    CUdeviceptr base = 0;
    std::size_t size = 0;
    const auto code = device.api().cuMemGetAddressRange(&base, &size, address + done);
    if (code != CUDA_SUCCESS || base + size <= address + done) {
      return Error{EINVAL, "the memory is not completely allocated"};
    }
    const std::uint64_t here = std::min<std::uint64_t>(length - done, base + size - address - done);
    pieces.push_back({done, here, base, size});
    done += here;
  }
  return pieces;
}

Result<UniqueFd> export_fd(Device& device, CUdeviceptr allocation) {
  const CudaApi& api = device.api();
  const Error refused{EOPNOTSUPP, "the memory can't be exported to the daemon"};
  if (!api.has_virtual_memory()) return refused;
  CUmemGenericAllocationHandle handle = 0;
  // NOLINTNEXTLINE(performance-no-int-to-ptr): CUDA takes this one address as a pointer.
  if (api.cuMemRetainAllocationHandle(&handle, reinterpret_cast<void*>(allocation)) !=
      CUDA_SUCCESS) {
    return refused;
  }
  int fd = -1;
  const auto code =
      api.cuMemExportToShareableHandle(&fd, handle, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0);
  api.cuMemRelease(handle);
  if (code != CUDA_SUCCESS) return refused;
  return UniqueFd(fd);
}

}  // namespace

Result<std::unique_ptr<Buffer>> Buffer::create(Library& library, void* memory, std::size_t length) {
  const auto address = reinterpret_cast<CUdeviceptr>(memory);
  if (memory == nullptr || length == 0 || address + length < address) {
    return Error{EINVAL, "the memory must not be NULL or empty"};
  }
  Devices* devices = library.devices_in_use();
  Device* device = devices != nullptr ? device_of(*devices, address) : nullptr;
  if (device == nullptr) {
    return std::unique_ptr<Buffer>(new Buffer(borrow_host(memory, length), {}));
  }
  library.note(*device);
  const ContextKeeper keeper(library.cuda());
  SLUICE_TRY(device->enter());
  auto pieces = SLUICE_TRY(pieces_of(*device, address, length));
  const auto context =
      attribute_of<CUcontext>(device->api(), CU_POINTER_ATTRIBUTE_CONTEXT, address);
  return std::unique_ptr<Buffer>(
      new Buffer(borrow_device(*device, address, length), std::move(pieces), context));
}

Result<void> Buffer::enter_context() const {
  if (context_ == nullptr || device()->is_lost()) return device()->enter();
  const CUresult code = device()->api().cuCtxSetCurrent(context_);
  if (code != CUDA_SUCCESS) return device()->failed(code, "enter the context of the memory");
  return {};
}

Result<Buffer::Export> Buffer::export_piece(const Piece& piece) const {
  if (handle_) {
    Export known;
    known.request = *handle_;
    known.request.fd = fd_.get();
    return known;
  }
  Export out;
  {
    const MutexLock lock(mutex_);
    if (const auto known = exported_.find(piece.offset); known != exported_.end()) {
      out.request = known->second;
      return out;
    }
  }
  SLUICE_TRY(device()->enter());
  auto& request = out.request;
  request.offset = memory_->address() + piece.offset - piece.allocation;
  request.length = piece.length;
  std::memcpy(request.gpu_uuid, device()->uuid().data(), sizeof request.gpu_uuid);
  CUipcMemHandle handle{};
  // The handle is for the whole allocation, whatever address it is made from.
  if (device()->api().cuIpcGetMemHandle(&handle, piece.allocation) == CUDA_SUCCESS) {
    request.kind = SLUICE_BUFFER_CUDA_IPC;
    std::memcpy(request.ipc_handle, handle.reserved, sizeof request.ipc_handle);
    const MutexLock lock(mutex_);
    exported_[piece.offset] = request;
    return out;
  }
  // Memory of the virtual memory API has no such handle. Memory of cudaMallocAsync has no
  // descriptor either.
  out.fd = SLUICE_TRY(export_fd(*device(), piece.allocation));
  request.kind = SLUICE_BUFFER_CUDA_FD;
  request.allocation_length = piece.allocation_length;
  request.fd = out.fd.get();
  return out;
}

Result<std::vector<std::uint64_t>> Buffer::register_with_daemon(int file) const {
  std::vector<std::uint64_t> ids;
  int takeovers = 0;
  while (ids.size() < pieces_.size()) {
    auto exported = export_piece(pieces_[ids.size()]);
    if (exported && ::ioctl(file, SLUICE_IOC_BUFFER_REGISTER, &exported->request) < 0) {
      exported = Error::last("register the memory with the daemon");
    }
    if (!exported) {
      unregister_from_daemon(file, ids);
      return exported.error();
    }
    const std::uint64_t id = exported->request.buffer;
    if (!ids.empty() && epoch_of(ids[0]) != epoch_of(id)) {
      // Another daemon has taken over, and does not know the pieces before.
      unregister_from_daemon(file, {&id, 1});
      ids.clear();
      if (++takeovers > kMostTakeovers) return too_many_takeovers();
      continue;
    }
    ids.push_back(id);
  }
  return ids;
}

Error too_many_takeovers() {
  return {ECONNABORTED, "the mount's daemon ended several times during this request"};
}

void unregister_from_daemon(int file, std::span<const std::uint64_t> ids) {
  for (const auto id : ids) {
    struct sluice_buffer_unregister request {
      id
    };
    // An error is ignored: a daemon that has died has released the buffer.
    ::ioctl(file, SLUICE_IOC_BUFFER_UNREGISTER, &request);
  }
}

}  // namespace sluice
