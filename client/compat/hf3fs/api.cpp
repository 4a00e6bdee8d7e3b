// SPDX-License-Identifier: BSD-2-Clause
// The functions of hf3fs_usrbio.h.
#include <fcntl.h>
#include <sys/ioctl.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

#include <climits>
#include <cstdlib>
#include <cstring>
#include <sstream>

#include "base/small_file.hpp"
#include "client/barrier.hpp"
#include "client/compat/hf3fs/handles.hpp"
#include "client/include/sluice/ring.h"

namespace sluice::hf3fs {
namespace {

template <typename Work>
int call(const char* what, Work work) noexcept {
  return static_cast<int>(barrier(what, kNowhere, work));
}

Result<void> copy_mount_point(char (&to)[256], const char* from) {
  if (from == nullptr || std::strlen(from) >= sizeof to) {
    return Error{EINVAL, "the mount point is NULL or too long"};
  }
  std::strcpy(to, from);
  return {};
}

// Fills in the caller's structure.
Result<int> hand_over(std::unique_ptr<Iov> made, struct hf3fs_iov* iov, const void* id,
                      const char* mount_point, std::size_t block_size, int numa) {
  *iov = {};
  SLUICE_TRY(copy_mount_point(iov->mount_point, mount_point));
  Memory& memory = made->buffer->memory();
  iov->base = memory.device() == nullptr
                  ? reinterpret_cast<std::uint8_t*>(memory.host())
                  // NOLINTNEXTLINE(performance-no-int-to-ptr): CUDA programs use pointers.
                  : reinterpret_cast<std::uint8_t*>(memory.address());
  iov->size = memory.length();
  iov->block_size = block_size;
  iov->numa = numa;
  std::memcpy(iov->id, id, sizeof iov->id);
  iov->iovh = made.release();
  return 0;
}

Iov* iov_of(const struct hf3fs_iov* iov) {
  return iov != nullptr ? static_cast<Iov*>(iov->iovh) : nullptr;
}

Result<Ior*> ior_of(const struct hf3fs_ior* ior) {
  auto* const known = ior != nullptr ? static_cast<Ior*>(ior->iorh) : nullptr;
  if (known == nullptr) return Error{EINVAL, "ior must not be NULL"};
  if (!known->is_of_this_process()) return Error{EINVAL, "the ring was created before fork()"};
  return known;
}

// The path of the file that describes the memory to other processes of this user.
std::string name_of(const std::uint8_t* id) {
  static constexpr char kDigits[] = "0123456789abcdef";
  std::string name = "/dev/shm/sluice-iov.";
  for (int i = 0; i < 16; ++i) {
    name += kDigits[id[i] >> 4];
    name += kDigits[id[i] & 15];
  }
  return name;
}

void publish(Iov& iov, const std::uint8_t* id) {
  const auto shared = iov.buffer->share();
  if (!shared) return;
  const std::string name = name_of(id);
  const UniqueFd file(
      ::open(name.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600));
  // Without this file, the memory can be used only in this process.
  if (!file) return;
  iov.name = name;
  if (::write(file.get(), &*shared, sizeof *shared) != sizeof *shared) ::unlink(name.c_str());
}

Result<struct sluice_shared_buffer> look_up(const std::uint8_t* id) {
  const UniqueFd file(::open(name_of(id).c_str(), O_RDONLY | O_NOFOLLOW | O_CLOEXEC));
  if (!file) return Error::last("open memory by its id");
  struct stat status {};
  // Any user can create a file there.
  if (::fstat(file.get(), &status) < 0 || status.st_uid != ::geteuid()) {
    return Error{EACCES, "the memory belongs to another user"};
  }
  struct sluice_shared_buffer shared {};
  if (::read(file.get(), &shared, sizeof shared) != sizeof shared) {
    return Error{EINVAL, "the file does not describe a buffer"};
  }
  return shared;
}

std::unique_ptr<Iov> wrap(std::unique_ptr<Buffer> buffer) {
  auto iov = std::make_unique<Iov>();
  iov->buffer = std::move(buffer);
  return iov;
}

Result<Device*> device_of(int number) {
  Devices* devices = SLUICE_TRY(Library::get().devices());
  for (const auto& device : devices->all()) {
    if (device->ordinal() == number) {
      Library::get().note(*device);
      return device.get();
    }
  }
  return Error{ENODEV, "unknown GPU"};
}

std::string unescaped(const std::string& field) {
  std::string out;
  for (std::size_t i = 0; i < field.size(); ++i) {
    if (field[i] == '\\' && i + 3 < field.size()) {
      out += static_cast<char>(std::strtol(field.substr(i + 1, 3).c_str(), nullptr, 8));
      i += 3;
    } else {
      out += field[i];
    }
  }
  return out;
}

// The mount point of the Sluice mount that contains `path`; empty if there is none, or if a mount
// of another kind below it contains `path`.
std::string mount_point_of(const std::string& path) {
  std::istringstream mounts(text_of_file("/proc/self/mountinfo"));
  std::string longest;
  bool is_ours = false;
  for (std::string line; std::getline(mounts, line);) {
    std::istringstream fields(line);
    std::string field, point, type;
    for (int i = 0; i < 5; ++i) fields >> point;
    while (fields >> field && field != "-") {
    }
    fields >> type;
    point = unescaped(point);
    const bool covers = path.starts_with(point) &&
                        (point == "/" || path.size() == point.size() || path[point.size()] == '/');
    if (!covers || point.size() < longest.size()) continue;
    longest = point;
    is_ours = type == "fuse.sluice";
  }
  return is_ours ? longest : std::string();
}

int create_ior(struct hf3fs_ior* ior, const char* mount_point, int entries, bool for_read,
               int io_depth, int priority, int timeout, std::uint64_t flags) noexcept {
  return call("create a ring", [&]() -> Result<std::int64_t> {
    if (ior == nullptr) return Error{EINVAL, "ior must not be NULL"};
    // Holes are read as zeros, and all written bytes can be read.
    if ((flags & ~std::uint64_t{HF3FS_IOR_ALLOW_READ_UNCOMMITTED}) != 0) {
      return Error{EOPNOTSUPP, "unknown or unsupported flags"};
    }
    *ior = {};
    SLUICE_TRY(copy_mount_point(ior->mount_point, mount_point));
    auto made = SLUICE_TRY(Ior::create(entries));
    ior->for_read = for_read;
    ior->io_depth = io_depth;
    ior->priority = priority;
    ior->timeout = timeout;
    ior->flags = flags;
    ior->iorh = made.release();
    return 0;
  });
}

}  // namespace
}  // namespace sluice::hf3fs

using namespace sluice;  // NOLINT(google-build-using-namespace): C functions have no namespace.
using namespace sluice::hf3fs;  // NOLINT(google-build-using-namespace)

SLUICE_API bool hf3fs_is_hf3fs(int fd) {
  return call("check for a mount", [&]() -> Result<std::int64_t> {
           const std::string link = "/proc/self/fd/" + std::to_string(fd);
           char path[PATH_MAX];
           const ssize_t length = ::readlink(link.c_str(), path, sizeof path);
           if (length <= 0 || path[0] != '/') return 0;
           return mount_point_of({path, static_cast<std::size_t>(length)}).empty() ? 0 : 1;
         }) == 1;
}

SLUICE_API int hf3fs_extract_mount_point(char* hf3fs_mount_point, int size, const char* path) {
  const int length = call("find a mount", [&]() -> Result<std::int64_t> {
    if (path == nullptr) return Error{EINVAL, "path must not be NULL"};
    const std::unique_ptr<char, void (*)(void*)> real(::realpath(path, nullptr), std::free);
    if (!real) return Error::last("resolve the path");
    const std::string found = mount_point_of(real.get());
    if (found.empty()) return Error{ENOENT, "the path is not on a Sluice mount"};
    const auto needed = static_cast<std::int64_t>(found.size() + 1);
    if (hf3fs_mount_point != nullptr && needed <= size) {
      std::memcpy(hf3fs_mount_point, found.c_str(), found.size() + 1);
    }
    return needed;
  });
  return length < 0 ? -1 : length;
}

SLUICE_API int hf3fs_iovcreate(struct hf3fs_iov* iov, const char* hf3fs_mount_point, size_t size,
                               size_t block_size, int numa) {
  return call("create memory", [&]() -> Result<std::int64_t> {
    if (iov == nullptr) return Error{EINVAL, "iov must not be NULL"};
    auto made = wrap(SLUICE_TRY(Buffer::create_shared(size)));
    std::uint8_t id[16];
    if (::getrandom(id, sizeof id, 0) != sizeof id)
      return Error::last("create an id for the memory");
    publish(*made, id);
    return std::int64_t{
        SLUICE_TRY(hand_over(std::move(made), iov, id, hf3fs_mount_point, block_size, numa))};
  });
}

SLUICE_API int hf3fs_iovopen(struct hf3fs_iov* iov, const uint8_t id[16],
                             const char* hf3fs_mount_point, size_t size, size_t block_size,
                             int numa) {
  return call("open memory", [&]() -> Result<std::int64_t> {
    if (iov == nullptr || id == nullptr) return Error{EINVAL, "iov and id must not be NULL"};
    const auto shared = SLUICE_TRY(look_up(id));
    if (size > shared.length) return Error{EINVAL, "the memory is smaller than the requested size"};
    auto buffer = SLUICE_TRY(Buffer::import(Library::get(), shared));
    auto made = wrap(std::move(buffer));
    return std::int64_t{
        SLUICE_TRY(hand_over(std::move(made), iov, id, hf3fs_mount_point, block_size, numa))};
  });
}

SLUICE_API void hf3fs_iovunlink(struct hf3fs_iov* iov) {
  if (iov == nullptr) return;
  std::uint8_t id[16];
  std::memcpy(id, iov->id, sizeof id);
  ::unlink(name_of(id).c_str());
}

SLUICE_API void hf3fs_iovdestroy(struct hf3fs_iov* iov) {
  if (iov_of(iov) == nullptr) return;
  call("destroy memory", [&]() -> Result<std::int64_t> {
    const std::unique_ptr<Iov> owned(iov_of(iov));
    iov->iovh = nullptr;
    iov->base = nullptr;
    return 0;
  });
}

SLUICE_API int hf3fs_iovwrap(struct hf3fs_iov* iov, void* base, const uint8_t id[16],
                             const char* hf3fs_mount_point, size_t size, size_t block_size,
                             int numa) {
  return call("wrap memory", [&]() -> Result<std::int64_t> {
    if (iov == nullptr || id == nullptr) return Error{EINVAL, "iov and id must not be NULL"};
    auto buffer = SLUICE_TRY(Buffer::create(Library::get(), base, size));
    auto made = wrap(std::move(buffer));
    return std::int64_t{
        SLUICE_TRY(hand_over(std::move(made), iov, id, hf3fs_mount_point, block_size, numa))};
  });
}

SLUICE_API size_t hf3fs_ior_size(int entries) {
  std::uint32_t places = 1;
  while (places < SLUICE_RING_MAX_ENTRIES && static_cast<int>(places) < entries) places *= 2;
  return ring_size(places, places);
}

SLUICE_API int hf3fs_iorcreate(struct hf3fs_ior* ior, const char* hf3fs_mount_point, int entries,
                               bool for_read, int io_depth, int) {
  return create_ior(ior, hf3fs_mount_point, entries, for_read, io_depth, 0, 0, 0);
}

SLUICE_API int hf3fs_iorcreate2(struct hf3fs_ior* ior, const char* hf3fs_mount_point, int entries,
                                bool for_read, int io_depth, int priority, int) {
  return create_ior(ior, hf3fs_mount_point, entries, for_read, io_depth, priority, 0, 0);
}

SLUICE_API int hf3fs_iorcreate3(struct hf3fs_ior* ior, const char* hf3fs_mount_point, int entries,
                                bool for_read, int io_depth, int priority, int timeout, int) {
  return create_ior(ior, hf3fs_mount_point, entries, for_read, io_depth, priority, timeout, 0);
}

SLUICE_API int hf3fs_iorcreate4(struct hf3fs_ior* ior, const char* hf3fs_mount_point, int entries,
                                bool for_read, int io_depth, int timeout, int, uint64_t flags) {
  return create_ior(ior, hf3fs_mount_point, entries, for_read, io_depth, 0, timeout, flags);
}

SLUICE_API void hf3fs_iordestroy(struct hf3fs_ior* ior) {
  if (ior == nullptr || ior->iorh == nullptr) return;
  call("destroy a ring", [&]() -> Result<std::int64_t> {
    const auto known = ior_of(ior);
    const std::unique_ptr<Ior> owned(known ? *known : nullptr);  // the parent's ring is not freed
    ior->iorh = nullptr;
    return 0;
  });
}

SLUICE_API int hf3fs_io_entries(const struct hf3fs_ior* ior) {
  return call("look at a ring", [&]() -> Result<std::int64_t> {
    return std::int64_t{SLUICE_TRY(ior_of(ior))->entries()};
  });
}

SLUICE_API int hf3fs_reg_fd(int fd, uint64_t) {
  int name = 0;
  const int code = call("register a file", [&]() -> Result<std::int64_t> {
    Registry& registry = Registry::get();
    const MutexLock lock(registry.mutex);
    if (registry.files.contains(fd)) return Error{EINVAL, "the descriptor is already registered"};
    // 1 or more, so that the negative number is not 0.
    UniqueFd copy(::fcntl(fd, F_DUPFD_CLOEXEC, 1));
    if (!copy) return Error::last("duplicate the descriptor");
    auto file = SLUICE_TRY(File::borrow(copy.get()));
    name = -copy.get();
    auto made = std::make_shared<Registered>(std::move(copy), std::move(file));
    registry.files[fd] = made;
    registry.files[name] = std::move(made);
    return 0;
  });
  return code < 0 ? -code : name;
}

SLUICE_API void hf3fs_dereg_fd(int fd) {
  call("deregister a file", [&]() -> Result<std::int64_t> {
    std::shared_ptr<Registered> gone;
    Registry& registry = Registry::get();
    const MutexLock lock(registry.mutex);
    const auto found = registry.files.find(fd);
    if (found == registry.files.end()) return 0;
    gone = found->second;
    std::erase_if(registry.files, [&](const auto& each) { return each.second == gone; });
    for (Ior* ior : registry.iors) ior->forget(*gone);
    return 0;
  });
}

SLUICE_API int hf3fs_prep_io(const struct hf3fs_ior* ior, const struct hf3fs_iov* iov, bool read,
                             void* ptr, int fd, size_t off, uint64_t len, const void* userdata) {
  return call("prepare a request", [&]() -> Result<std::int64_t> {
    Ior* const ring = SLUICE_TRY(ior_of(ior));
    const auto* const to = static_cast<const std::uint8_t*>(ptr);
    if (iov_of(iov) == nullptr || len == 0 || read != ior->for_read || to < iov->base ||
        len > iov->size || static_cast<std::size_t>(to - iov->base) > iov->size - len) {
      return Error{EINVAL, "the request does not fit the ring or the memory"};
    }
    std::shared_ptr<Registered> file;
    {
      Registry& registry = Registry::get();
      const MutexLock lock(registry.mutex);
      const auto found = registry.files.find(fd);
      if (found == registry.files.end()) return Error{EBADF, "the descriptor is not registered"};
      file = found->second;
    }
    const int mode = ::fcntl(file->fd.get(), F_GETFL) & O_ACCMODE;
    if (mode == (read ? O_WRONLY : O_RDONLY))
      return Error{EACCES, "the file is not open for this operation"};
    const Segment segment{static_cast<std::uint64_t>(to - iov->base), off, len};
    return std::int64_t{SLUICE_TRY(ring->put(read ? SLUICE_RING_READ : SLUICE_RING_WRITE, file,
                                             *iov_of(iov), segment, userdata))};
  });
}

SLUICE_API int hf3fs_submit_ios(const struct hf3fs_ior* ior) {
  return call("submit", [&]() -> Result<std::int64_t> {
    Ior* const ring = SLUICE_TRY(ior_of(ior));
    SLUICE_TRY(ring->submit());
    return 0;
  });
}

SLUICE_API int hf3fs_wait_for_ios(const struct hf3fs_ior* ior, struct hf3fs_cqe* cqes, int cqec,
                                  int min_results, const struct timespec* abs_timeout) {
  return call("wait for a ring", [&]() -> Result<std::int64_t> {
    Ior* const ring = SLUICE_TRY(ior_of(ior));
    if (cqes == nullptr || cqec <= 0) return Error{EINVAL, "cqes must not be NULL or empty"};
    return std::int64_t{SLUICE_TRY(ring->wait(cqes, cqec, min_results, abs_timeout))};
  });
}

SLUICE_API int hf3fs_hardlink(const char* target, const char* link_name) {
  return ::link(target, link_name) == 0 ? 0 : errno;
}

SLUICE_API int hf3fs_punchhole(int fd, int n, const size_t* start, const size_t* end, size_t) {
  for (int i = 0; i < n; ++i) {
    if (end[i] <= start[i]) return EINVAL;
    if (::fallocate(fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, static_cast<off_t>(start[i]),
                    static_cast<off_t>(end[i] - start[i])) < 0) {
      return errno;
    }
  }
  return 0;
}

SLUICE_API int hf3fs_gdr_device_count(void) {
  const int count = call("count GPUs", []() -> Result<std::int64_t> {
    return static_cast<std::int64_t>(SLUICE_TRY(Library::get().devices())->all().size());
  });
  return std::max(count, 0);
}

SLUICE_API bool hf3fs_gdr_available(void) { return hf3fs_gdr_device_count() > 0; }

SLUICE_API int hf3fs_iovcreate_gpu(struct hf3fs_iov* iov, const char* hf3fs_mount_point,
                                   size_t size, size_t block_size, int gpu_device_id) {
  return call("create GPU memory", [&]() -> Result<std::int64_t> {
    if (iov == nullptr || size == 0)
      return Error{EINVAL, "iov must not be NULL, and size must not be 0"};
    Device* device = SLUICE_TRY(device_of(gpu_device_id));
    const ContextKeeper keeper(Library::get().cuda());
    SLUICE_TRY(device->enter());
    CUdeviceptr address = 0;
    const CUresult code = device->api().cuMemAlloc(&address, size);
    if (code != CUDA_SUCCESS) return device->failed(code, "allocate GPU memory");
    // NOLINTNEXTLINE(performance-no-int-to-ptr): CUDA programs use pointers.
    auto buffer = Buffer::create(Library::get(), reinterpret_cast<void*>(address), size);
    if (!buffer) {
      device->api().cuMemFree(address);
      return buffer.error();
    }
    auto made = wrap(*std::move(buffer));
    made->owned = address;
    std::uint8_t id[16];
    if (::getrandom(id, sizeof id, 0) != sizeof id)
      return Error::last("create an id for the memory");
    return std::int64_t{
        SLUICE_TRY(hand_over(std::move(made), iov, id, hf3fs_mount_point, block_size, -1))};
  });
}

SLUICE_API int hf3fs_iovwrap_gpu(struct hf3fs_iov* iov, void* gpu_ptr, const uint8_t id[16],
                                 const char* hf3fs_mount_point, size_t size, size_t block_size,
                                 int) {
  return hf3fs_iovwrap(iov, gpu_ptr, id, hf3fs_mount_point, size, block_size, -1);
}

SLUICE_API int hf3fs_iov_export_gpu(const struct hf3fs_iov* iov, hf3fs_gpu_ipc_handle_t* handle) {
  return call("export GPU memory", [&]() -> Result<std::int64_t> {
    static_assert(sizeof(struct sluice_shared_buffer) <= sizeof(hf3fs_gpu_ipc_handle_t));
    if (iov_of(iov) == nullptr || handle == nullptr)
      return Error{EINVAL, "iov and handle must not be NULL"};
    const ContextKeeper keeper(Library::get().cuda());
    const auto shared = SLUICE_TRY(iov_of(iov)->buffer->share());
    *handle = {};
    std::memcpy(handle->bytes, &shared, sizeof shared);
    return 0;
  });
}

SLUICE_API int hf3fs_iov_import_gpu(struct hf3fs_iov* iov, const hf3fs_gpu_ipc_handle_t* handle,
                                    const char* hf3fs_mount_point) {
  return call("import GPU memory", [&]() -> Result<std::int64_t> {
    if (iov == nullptr || handle == nullptr)
      return Error{EINVAL, "iov and handle must not be NULL"};
    struct sluice_shared_buffer shared {};
    std::memcpy(&shared, handle->bytes, sizeof shared);
    auto buffer = SLUICE_TRY(Buffer::import(Library::get(), shared));
    auto made = wrap(std::move(buffer));
    std::uint8_t id[16] = {};
    return std::int64_t{SLUICE_TRY(hand_over(std::move(made), iov, id, hf3fs_mount_point, 0, -1))};
  });
}

SLUICE_API void hf3fs_iovdestroy_gpu(struct hf3fs_iov* iov) { hf3fs_iovdestroy(iov); }

SLUICE_API bool hf3fs_iov_is_gpu(const struct hf3fs_iov* iov) {
  return iov_of(iov) != nullptr && iov_of(iov)->buffer->device() != nullptr;
}

SLUICE_API int hf3fs_iov_gpu_device(const struct hf3fs_iov* iov) {
  return hf3fs_iov_is_gpu(iov) ? iov_of(iov)->buffer->device()->ordinal() : -1;
}

SLUICE_API int hf3fs_iovsync_gpu(const struct hf3fs_iov* iov, int) {
  return call("wait for a GPU", [&]() -> Result<std::int64_t> {
    if (!hf3fs_iov_is_gpu(iov)) return 0;
    Device& device = *iov_of(iov)->buffer->device();
    const ContextKeeper keeper(Library::get().cuda());
    SLUICE_TRY(device.enter());
    const CUresult code = device.api().cuCtxSynchronize();
    if (code != CUDA_SUCCESS) return device.failed(code, "wait for a GPU");
    return 0;
  });
}
