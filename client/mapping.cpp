// SPDX-License-Identifier: BSD-2-Clause
// sluice_map(): the daemon shares its copy of the file in GPU memory.
#include "client/mapping.hpp"

#include <sys/ioctl.h>
#include <sys/socket.h>

#include <cstring>
#include <string>
#include <vector>

#include "base/unix_socket.hpp"
#include "client/barrier.hpp"

namespace sluice {
namespace {

// How often the daemon may copy nothing when it is asked to go on. It starts again if somebody
// wrote to the memory, or if the copy was dropped.
constexpr int kMostSetbacks = 4;
constexpr unsigned kPatience = 10;  // seconds

Result<Device*> find_device(Devices& devices, const char* gpu) {
  if (gpu != nullptr) {
    for (const auto& each : devices.all()) {
      if (to_string(each->uuid()) == gpu) return each.get();
    }
    return Error{ENODEV, "find the GPU"};
  }
  Device* const first = SLUICE_TRY(devices.by_uuid({}));
  CUdevice current = 0;
  if (first->api().cuCtxGetDevice(&current) != CUDA_SUCCESS) return first;
  for (const auto& each : devices.all()) {
    if (each->ordinal() == current) return each.get();
  }
  return first;
}

const char* reason(int code) {
  switch (code) {
    case ENOTTY:
      return "the file is not on a Sluice mount, or its daemon is older than this library";
    case EOPNOTSUPP:
      return "the mount keeps no files in GPU memory; set hbm in its configuration, and see "
             "'sluice doctor'";
    case EAGAIN:
      return "the file changed in the last seconds, or a program has it open for writing; try "
             "later";
    case ESTALE:
      return "the file changed since it was opened; open it again";
    case ENOSPC:
      return "there is no room for it in the GPU memory that the mount may use; raise hbm";
    case ENOMEM:
      return "the memory of the GPU is used up";
    case ENODEV:
      return "the daemon, or this process, can't use that GPU; see 'sluice doctor'";
    case EBUSY:
      return "too many programs are about to map files; try again";
    case EBADF:
      return "the file is not open for reading";
    case ENOENT:
    case ECONNREFUSED:
    case EACCES:
      return "the daemon's socket can't be reached; in a container, make /run/sluice visible and "
             "use "
             "the same user";
    default:
      return nullptr;
  }
}

Error not_shared(const File& file, const Error& error) {
  const char* const known = reason(error.code);
  const std::string why = known != nullptr
                              ? known
                              : std::string(error.operation) + ": " + ::strerrordesc_np(error.code);
  return Error{error.code, "share GPU memory",
               "map " + file.path() + ": not shared because " + why};
}

// Asks until the daemon has copied the file and gives out a token.
Result<struct sluice_share> ask(const File& file, const Device& device) {
  std::uint64_t before = 0;
  for (int setbacks = 0; setbacks < kMostSetbacks;) {
    struct sluice_share share {};
    std::memcpy(share.gpu_uuid, device.uuid().data(), sizeof share.gpu_uuid);
    if (::ioctl(file.fd(), SLUICE_IOC_SHARE, &share) < 0) {
      if (errno == EINTR) continue;
      return Error::last("ask the daemon");
    }
    if (share.size != 0 && share.filled == share.size) {
      share.socket[sizeof share.socket - 1] = '\0';
      return share;
    }
    if (share.filled <= before) ++setbacks;
    before = share.filled;
  }
  return Error{EAGAIN, "ask the daemon"};
}

// A descriptor of the memory, and the connection on which the daemon will say if it is good.
struct Received {
  UniqueFd memory, daemon;
};

Result<void> receive_reply(const UniqueFd& daemon, std::vector<UniqueFd>& fds) {
  struct sluice_share_reply reply {};
  const auto got = receive_with_fds(daemon.get(), std::as_writable_bytes(std::span(&reply, 1)), fds,
                                    MSG_WAITALL);
  if (!got || *got != sizeof reply) return Error{ECONNREFUSED, "read the answer of the daemon"};
  if (reply.error != 0) return Error{static_cast<int>(reply.error), "share GPU memory"};
  return {};
}

// Exchanges the token for the descriptor.
Result<Received> receive(const struct sluice_share& share) {
  Received out;
  out.daemon = SLUICE_TRY(connect_unix(share.socket, kPatience));
  if (::send(out.daemon.get(), share.token, sizeof share.token, MSG_NOSIGNAL) !=
      static_cast<ssize_t>(sizeof share.token)) {
    return Error{ECONNREFUSED, "send a token to the daemon"};
  }
  std::vector<UniqueFd> fds;
  SLUICE_TRY(receive_reply(out.daemon, fds));
  if (fds.size() != 1) return Error{EPROTO, "receive a descriptor from the daemon"};
  out.memory = std::move(fds.front());
  return out;
}

struct Mapped {
  std::unique_ptr<Memory> memory;
  UniqueFd daemon;
};

Result<Mapped> map(Library& library, const File& file, const char* gpu) {
  Devices* const devices = SLUICE_TRY(library.devices());
  Device* const device = SLUICE_TRY(find_device(*devices, gpu));
  struct sluice_share share = SLUICE_TRY(ask(file, *device));
  auto received = receive(share);
  if (!received) {
    // Another daemon serves the mount now, and does not know the token.
    share = SLUICE_TRY(ask(file, *device));
    received = receive(share);
  }
  Received there = SLUICE_TRY(std::move(received));
  if (file.has_changed()) return Error{ESTALE, "share GPU memory"};
  library.note(*device);
  auto memory = SLUICE_TRY(
      import_fd(*device, there.memory, share.allocation_length, 0, share.size, MemoryAccess::Read));
  return Mapped{std::move(memory), std::move(there.daemon)};
}

}  // namespace

Result<std::unique_ptr<Mapping>> Mapping::begin(Library& library, File& file, const char* gpu) {
  // Before this, the program may not have used CUDA.
  const auto devices = library.devices();
  const ContextKeeper keeper(devices ? &(*devices)->all().front()->api() : nullptr);
  auto mapped = map(library, file, gpu);
  if (!mapped) return not_shared(file, mapped.error());
  return std::unique_ptr<Mapping>(
      new Mapping(std::move(mapped->memory), std::move(mapped->daemon)));
}

Result<std::unique_ptr<Mapping>> Mapping::create(Library& library, File& file, const char* gpu) {
  for (int tries = 1;; ++tries) {
    auto mapping = SLUICE_TRY(begin(library, file, gpu));
    const auto good = mapping->wait();
    if (good) return mapping;
    if (tries == kMostSetbacks) return not_shared(file, good.error());
  }
}

Result<void> Mapping::wait() {
  if (daemon_) {
    std::vector<UniqueFd> none;
    const auto good = receive_reply(daemon_, none);
    daemon_.reset();
    if (!good) refused_ = Error{EAGAIN, "map memory that somebody wrote to"};
  }
  if (refused_) return *refused_;
  return {};
}

Mapping::~Mapping() {
  Device& device = *memory_->device();
  const ContextKeeper keeper(&device.api());
  if (device.enter()) device.api().cuCtxSynchronize();
  memory_.reset();
}

}  // namespace sluice

using namespace sluice;  // NOLINT(google-build-using-namespace): C functions have no namespace.

namespace {

template <auto make>
int map_with(sluice_file* file, const char* gpu, sluice_mapping** mapping) {
  const File* const where = file != nullptr ? file->file.get() : nullptr;
  return static_cast<int>(barrier("map", where, [&]() -> Result<std::int64_t> {
    SLUICE_TRY(need(file != nullptr, "file must not be NULL"));
    SLUICE_TRY(need(mapping != nullptr, "mapping must not be NULL"));
    auto made = std::make_unique<sluice_mapping>();
    made->mapping = SLUICE_TRY(make(Library::get(), *file->file, gpu));
    *mapping = made.release();
    return 0;
  }));
}

}  // namespace

SLUICE_API int sluice_map(sluice_file* file, const char* gpu, sluice_mapping** mapping) {
  return map_with<Mapping::create>(file, gpu, mapping);
}

SLUICE_API int sluice_map_begin(sluice_file* file, const char* gpu, sluice_mapping** mapping) {
  return map_with<Mapping::begin>(file, gpu, mapping);
}

SLUICE_API int sluice_map_wait(sluice_mapping* mapping) {
  return static_cast<int>(barrier("map", kNowhere, [&]() -> Result<std::int64_t> {
    SLUICE_TRY(need(mapping != nullptr, "mapping must not be NULL"));
    SLUICE_TRY(mapping->mapping->wait());
    return 0;
  }));
}

SLUICE_API const void* sluice_mapping_address(const sluice_mapping* mapping) {
  // NOLINTNEXTLINE(performance-no-int-to-ptr): CUDA's addresses are numbers.
  return reinterpret_cast<const void*>(mapping->mapping->memory().address());
}

SLUICE_API uint64_t sluice_mapping_size(const sluice_mapping* mapping) {
  return mapping->mapping->memory().length();
}

SLUICE_API void sluice_unmap(sluice_mapping* mapping) {
  if (mapping == nullptr) return;
  barrier("unmap", kNowhere, [&]() -> Result<std::int64_t> {
    const std::unique_ptr<sluice_mapping> owned(mapping);
    return 0;
  });
}
