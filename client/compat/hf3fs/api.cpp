// SPDX-License-Identifier: BSD-2-Clause
// The functions of hf3fs_usrbio.h.
#include <fcntl.h>
#include <sys/ioctl.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <climits>
#include <cstdlib>
#include <cstring>
#include <new>

#include "base/mount_lines.hpp"
#include "client/compat/hf3fs/handles.hpp"
#include "client/include/sluice/ioctl.h"

#define SLUICE_API extern "C" __attribute__((visibility("default")))

namespace sluice::hf3fs {
namespace {

thread_local std::string t_said;  // hf3fs_error()

// The boundary to C. Runs `work`, which returns a Result; an Error becomes a negative errno.
template <typename Work>
int call(const char* what, Work work) noexcept {
  try {
    const Result<std::int64_t> result = work();
    if (result) return static_cast<int>(*result);
    const Error& error = result.error();
    t_said = error.detail ? *error.detail : std::string(what) + ": " + error.text();
    return -error.code;
  } catch (const std::bad_alloc&) {
    return -ENOMEM;
  } catch (...) {  // by mistake; the host program must not end
    return -EIO;
  }
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
  iov->base = static_cast<std::uint8_t*>(sluice_buffer_memory(made->buffer));
  iov->size = made->size;
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
  struct sluice_shared_buffer shared {};
  if (sluice_buffer_export(iov.buffer, &shared) < 0) return;
  const std::string name = name_of(id);
  const UniqueFd file(
      ::open(name.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600));
  // Without this file, the memory can be used only in this process.
  if (!file) return;
  iov.name = name;
  if (::write(file.get(), &shared, sizeof shared) != sizeof shared) ::unlink(name.c_str());
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

// The number of the GPU that has the memory; -1: the CPU can use it.
int gpu_of(const void* memory) {
  const CudaApi* const cuda = Registry::get().cuda(false);
  if (cuda == nullptr) return -1;
  const auto address = reinterpret_cast<CUdeviceptr>(memory);
  const auto attribute = [&](CUpointer_attribute which) {
    unsigned value = 0;
    return cuda->cuPointerGetAttribute(&value, which, address) == CUDA_SUCCESS ? value : 0;
  };
  if (attribute(CU_POINTER_ATTRIBUTE_MEMORY_TYPE) != CU_MEMORYTYPE_DEVICE ||
      attribute(CU_POINTER_ATTRIBUTE_IS_MANAGED) != 0)
    return -1;
  return static_cast<int>(attribute(CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL));
}

Result<std::unique_ptr<Iov>> wrap(int code, sluice_buffer* buffer, std::size_t size) {
  if (code < 0) return error_of(code);
  auto iov = std::make_unique<Iov>();
  iov->buffer = buffer;
  iov->size = size;
  iov->gpu = gpu_of(sluice_buffer_memory(buffer));
  return iov;
}

Result<std::unique_ptr<Iov>> import(const struct sluice_shared_buffer& shared) {
  sluice_buffer* buffer = nullptr;
  const int code = sluice_buffer_import(&shared, &buffer);
  return wrap(code, buffer, shared.length);
}

Result<std::array<std::uint8_t, 16>> new_id() {
  std::array<std::uint8_t, 16> id{};
  if (::getrandom(id.data(), id.size(), 0) != static_cast<ssize_t>(id.size()))
    return Error::last("create an id for the memory");
  return id;
}

Result<const CudaApi*> cuda_of(int gpu) {
  const CudaApi* const cuda = Registry::get().cuda(true);
  int count = 0;
  if (cuda == nullptr || cuda->cuDeviceGetCount(&count) != CUDA_SUCCESS || gpu < 0 || gpu >= count)
    return Error{ENODEV, "unknown GPU"};
  return cuda;
}

// The mount point of the Sluice mount that contains `path`; empty if there is none, or if a mount
// of another kind below it contains `path`.
std::string mount_point_of(const std::string& path) {
  const auto mount = mount_holding(mount_lines(), path);
  return mount && mount->type == "fuse.sluice" ? mount->point : std::string();
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
    sluice_buffer* buffer = nullptr;
    const int code = sluice_buffer_create(size, &buffer);
    auto made = SLUICE_TRY(wrap(code, buffer, size));
    const auto id = SLUICE_TRY(new_id());
    publish(*made, id.data());
    return std::int64_t{SLUICE_TRY(
        hand_over(std::move(made), iov, id.data(), hf3fs_mount_point, block_size, numa))};
  });
}

SLUICE_API int hf3fs_iovopen(struct hf3fs_iov* iov, const uint8_t id[16],
                             const char* hf3fs_mount_point, size_t size, size_t block_size,
                             int numa) {
  return call("open memory", [&]() -> Result<std::int64_t> {
    if (iov == nullptr || id == nullptr) return Error{EINVAL, "iov and id must not be NULL"};
    const auto shared = SLUICE_TRY(look_up(id));
    if (size > shared.length) return Error{EINVAL, "the memory is smaller than the requested size"};
    auto made = SLUICE_TRY(import(shared));
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
    sluice_buffer* buffer = nullptr;
    const int code = sluice_buffer_register(base, size, &buffer);
    auto made = SLUICE_TRY(wrap(code, buffer, size));
    return std::int64_t{
        SLUICE_TRY(hand_over(std::move(made), iov, id, hf3fs_mount_point, block_size, numa))};
  });
}

SLUICE_API size_t hf3fs_ior_size(int entries) {
  std::uint32_t places = 1;
  while (places < SLUICE_RING_MAX_ENTRIES && static_cast<int>(places) < entries) places *= 2;
  return SLUICE_RING_HEADER_SIZE +
         places * (sizeof(struct sluice_ring_entry) + sizeof(struct sluice_ring_completion));
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
    sluice_file* file = nullptr;
    if (const int failed = sluice_open_fd(copy.get(), &file); failed < 0) return error_of(failed);
    name = -copy.get();
    auto made = std::make_shared<Registered>(std::move(copy), file);
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
    const auto at = static_cast<std::uint64_t>(to - iov->base);
    return std::int64_t{SLUICE_TRY(ring->put(read, file, *iov_of(iov), at, off, len, userdata))};
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
  return std::max(call("count GPUs",
                       []() -> Result<std::int64_t> {
                         int count = 0;
                         SLUICE_TRY(cuda_of(0))->cuDeviceGetCount(&count);
                         return count;
                       }),
                  0);
}

SLUICE_API bool hf3fs_gdr_available(void) { return hf3fs_gdr_device_count() > 0; }

SLUICE_API int hf3fs_iovcreate_gpu(struct hf3fs_iov* iov, const char* hf3fs_mount_point,
                                   size_t size, size_t block_size, int gpu_device_id) {
  return call("create GPU memory", [&]() -> Result<std::int64_t> {
    if (iov == nullptr || size == 0)
      return Error{EINVAL, "iov must not be NULL, and size must not be 0"};
    const CudaApi& cuda = *SLUICE_TRY(cuda_of(gpu_device_id));
    const Entered entered(cuda, gpu_device_id);
    CUdeviceptr address = 0;
    CUresult said = entered.code();
    if (said == CUDA_SUCCESS) said = cuda.cuMemAlloc(&address, size);
    if (said != CUDA_SUCCESS) {
      return Error{said == CUDA_ERROR_OUT_OF_MEMORY ? ENOMEM : EIO, "allocate GPU memory",
                   "allocate GPU memory: " + cuda.text_of(said)};
    }
    sluice_buffer* buffer = nullptr;
    // NOLINTNEXTLINE(performance-no-int-to-ptr): CUDA programs use pointers.
    const int code = sluice_buffer_register(reinterpret_cast<void*>(address), size, &buffer);
    if (code < 0) {
      cuda.cuMemFree(address);
      return error_of(code);
    }
    auto made = SLUICE_TRY(wrap(code, buffer, size));
    made->owned = address;
    const auto id = SLUICE_TRY(new_id());
    return std::int64_t{
        SLUICE_TRY(hand_over(std::move(made), iov, id.data(), hf3fs_mount_point, block_size, -1))};
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
    struct sluice_shared_buffer shared {};
    if (const int code = sluice_buffer_export(iov_of(iov)->buffer, &shared); code < 0)
      return error_of(code);
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
    auto made = SLUICE_TRY(import(shared));
    const std::uint8_t id[16] = {};
    return std::int64_t{SLUICE_TRY(hand_over(std::move(made), iov, id, hf3fs_mount_point, 0, -1))};
  });
}

SLUICE_API void hf3fs_iovdestroy_gpu(struct hf3fs_iov* iov) { hf3fs_iovdestroy(iov); }

SLUICE_API bool hf3fs_iov_is_gpu(const struct hf3fs_iov* iov) {
  return hf3fs_iov_gpu_device(iov) >= 0;
}

SLUICE_API int hf3fs_iov_gpu_device(const struct hf3fs_iov* iov) {
  return iov_of(iov) != nullptr ? iov_of(iov)->gpu : -1;
}

SLUICE_API int hf3fs_iovsync_gpu(const struct hf3fs_iov* iov, int) {
  return call("wait for a GPU", [&]() -> Result<std::int64_t> {
    const int gpu = hf3fs_iov_gpu_device(iov);
    if (gpu < 0) return 0;
    const CudaApi& cuda = *SLUICE_TRY(cuda_of(gpu));
    const Entered entered(cuda, gpu);
    CUresult said = entered.code();
    if (said == CUDA_SUCCESS) said = cuda.cuCtxSynchronize();
    if (said != CUDA_SUCCESS)
      return Error{EIO, "wait for a GPU", "wait for a GPU: " + cuda.text_of(said)};
    return 0;
  });
}

SLUICE_API const char* hf3fs_error(void) { return t_said.c_str(); }
