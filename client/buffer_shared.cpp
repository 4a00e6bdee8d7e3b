// SPDX-License-Identifier: BSD-2-Clause
// Buffers that several processes use.
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstring>
#include <string>

#include "client/buffer.hpp"
#include "client/include/sluice/ring.h"

namespace sluice {
namespace {

// ABI: grows at the end only.
static_assert(sizeof(struct sluice_shared_buffer) == 128);

// Opens a descriptor of another process, or of this one.
Result<UniqueFd> open_descriptor(int pid, int fd) {
  const std::string path = "/proc/" + std::to_string(pid) + "/fd/" + std::to_string(fd);
  UniqueFd own(::open(path.c_str(), O_RDWR | O_CLOEXEC));
  if (!own && errno == EACCES) own.reset(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  if (!own) return Error::last("open the memory of the other process");
  return own;
}

}  // namespace

Result<std::unique_ptr<Buffer>> Buffer::create_shared(std::size_t length) {
  if (length == 0 || length > static_cast<std::size_t>(INT64_MAX)) {
    return Error{EINVAL, "the length must be between 1 and 2^63 - 1"};
  }
  UniqueFd fd(::memfd_create("sluice-buffer", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  if (!fd || ::ftruncate(fd.get(), static_cast<off_t>(length)) < 0 ||
      ::fcntl(fd.get(), F_ADD_SEALS, F_SEAL_SHRINK) < 0) {
    return Error::last("create memory that can be shared");
  }
  auto memory = SLUICE_TRY(map_host(fd, 0, length));
  struct sluice_buffer_register handle {};
  handle.kind = SLUICE_BUFFER_MEMFD;
  handle.length = length;
  return std::unique_ptr<Buffer>(new Buffer(std::move(memory), handle, std::move(fd)));
}

Result<struct sluice_shared_buffer> Buffer::share() const {
  if (pieces_.size() != 1) return Error{EOPNOTSUPP, "this memory can't be shared"};
  const auto exported = SLUICE_TRY(export_piece(pieces_[0]));
  const auto& from = exported.request;
  // CUDA's descriptor can't be imported: opening it through /proc gives a different file.
  if (from.kind == SLUICE_BUFFER_CUDA_FD) {
    return Error{EOPNOTSUPP, "memory of CUDA's virtual memory API can't be shared"};
  }
  struct sluice_shared_buffer shared {};
  shared.version = 1;
  shared.kind = from.kind;
  shared.offset = from.offset;
  shared.length = from.length;
  shared.pid = ::getpid();
  shared.fd = fd_.get();
  if (from.kind == SLUICE_BUFFER_MEMFD) {
    struct stat status {};
    if (::fstat(fd_.get(), &status) < 0) return Error::last("stat the memory");
    shared.inode = status.st_ino;
  }
  std::memcpy(shared.gpu_uuid, from.gpu_uuid, sizeof shared.gpu_uuid);
  std::memcpy(shared.ipc_handle, from.ipc_handle, sizeof shared.ipc_handle);
  return shared;
}

Result<std::unique_ptr<Buffer>> Buffer::import(Library& library,
                                               const struct sluice_shared_buffer& shared) {
  if (shared.version != 1) return Error{EINVAL, "the export has an unknown version"};
  struct sluice_buffer_register handle {};
  handle.kind = shared.kind;
  handle.offset = shared.offset;
  handle.length = shared.length;
  std::memcpy(handle.gpu_uuid, shared.gpu_uuid, sizeof handle.gpu_uuid);
  std::memcpy(handle.ipc_handle, shared.ipc_handle, sizeof handle.ipc_handle);

  if (shared.kind == SLUICE_BUFFER_MEMFD) {
    UniqueFd fd = SLUICE_TRY(open_descriptor(shared.pid, shared.fd));
    struct stat status {};
    // The other process may have closed the memfd and reused the descriptor's number.
    if (::fstat(fd.get(), &status) < 0 || status.st_ino != shared.inode) {
      return Error{ESTALE, "the other process has closed the buffer"};
    }
    auto memory = SLUICE_TRY(map_host(fd, shared.offset, shared.length));
    return std::unique_ptr<Buffer>(new Buffer(std::move(memory), handle, std::move(fd)));
  }
  if (shared.kind != SLUICE_BUFFER_CUDA_IPC)
    return Error{EOPNOTSUPP, "this kind of memory can't be imported"};
  GpuUuid uuid;
  std::memcpy(uuid.data(), shared.gpu_uuid, uuid.size());
  Devices* devices = SLUICE_TRY(library.devices());
  Device* device = SLUICE_TRY(devices->by_uuid(uuid));
  library.note(*device);
  const ContextKeeper keeper(library.cuda());
  IpcHandle ipc;
  std::memcpy(ipc.data(), shared.ipc_handle, ipc.size());
  auto memory = SLUICE_TRY(import_ipc(*device, ipc, shared.offset, shared.length));
  return std::unique_ptr<Buffer>(new Buffer(std::move(memory), handle, UniqueFd()));
}

}  // namespace sluice
