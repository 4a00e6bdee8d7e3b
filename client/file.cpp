// SPDX-License-Identifier: BSD-2-Clause
#include "client/file.hpp"

#include <fcntl.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <climits>

namespace sluice {
namespace {

constexpr int kLeftOut = O_APPEND | O_DIRECT;

Result<struct stat> check_regular(int fd) {
  struct stat status {};
  if (::fstat(fd, &status) < 0) return Error::last("the descriptor is not open");
  if (S_ISDIR(status.st_mode)) return Error{EISDIR, "not a regular file"};
  if (!S_ISREG(status.st_mode)) return Error{EINVAL, "not a regular file"};
  return status;
}

Result<void> write_all(int fd, const std::byte* data, std::size_t size, std::uint64_t offset) {
  while (size > 0) {
    const ssize_t done = ::pwrite(fd, data, size, static_cast<off_t>(offset));
    if (done < 0 && errno == EINTR) continue;
    if (done < 0) return Error::last("write");
    data += done;
    offset += static_cast<std::uint64_t>(done);
    size -= static_cast<std::size_t>(done);
  }
  return {};
}

}  // namespace

File::File(int fd, UniqueFd owned, const struct stat& opened)
    : owned_(std::move(owned)), fd_(owned_ ? owned_.get() : fd), opened_(FileVersion::of(opened)) {
  engine_file_.fd = fd_;
  engine_file_.write = [this](const std::byte* data, std::size_t size, std::uint64_t offset) {
    return write_all(fd_, data, size, offset);
  };
}

File::~File() {
  // Needed even if we own the descriptor: the daemon is told of close() with a delay, and the
  // caller may free the memory right after this.
  for (const auto& [buffer, ids] : buffers_) unregister_from_daemon(fd_, *ids);
}

Result<std::unique_ptr<File>> File::open(const char* path, int flags, mode_t mode) {
  UniqueFd fd;
  do {
    fd.reset(::open(path, (flags & ~kLeftOut) | O_CLOEXEC, mode));
  } while (!fd && errno == EINTR);
  if (!fd) return Error::last("open");
  const struct stat status = SLUICE_TRY(check_regular(fd.get()));
  return std::unique_ptr<File>(new File(-1, std::move(fd), status));
}

Result<std::unique_ptr<File>> File::borrow(int fd) {
  const struct stat status = SLUICE_TRY(check_regular(fd));
  const int flags = ::fcntl(fd, F_GETFL);
  if (flags < 0) return Error::last("the descriptor is not open");
  if ((flags & O_PATH) != 0) return Error{EBADF, "the descriptor is not open for reading"};
  // Changing these flags would change the caller's open file, so open it again.
  UniqueFd owned;
  if ((flags & kLeftOut) != 0) {
    const std::string path = "/proc/self/fd/" + std::to_string(fd);
    owned.reset(::open(path.c_str(), (flags & O_ACCMODE) | O_CLOEXEC));
    if (!owned) return Error::last("open again without O_DIRECT and O_APPEND");
  }
  return std::unique_ptr<File>(new File(fd, std::move(owned), status));
}

Result<std::uint64_t> File::size() const {
  struct stat status {};
  if (::fstat(fd_, &status) < 0) return Error::last("stat");
  return static_cast<std::uint64_t>(status.st_size);
}

bool File::is_deleted() const {
  struct stat status {};
  return ::fstat(fd_, &status) == 0 && status.st_nlink == 0;
}

bool File::has_changed() const { return !opened_.is_of(fd_); }

std::string File::path() const {
  std::array<char, PATH_MAX> name{};
  const ssize_t length =
      ::readlink(("/proc/self/fd/" + std::to_string(fd_)).c_str(), name.data(), name.size());
  if (length <= 0) return "descriptor " + std::to_string(fd_);
  return {name.data(), static_cast<std::size_t>(length)};
}

const std::optional<struct sluice_query>& File::daemon() {
  const MutexLock lock(asking_);
  if (!asked_) {
    asked_ = true;
    struct sluice_query query {};
    // Other filesystems fail with ENOTTY or another error.
    if (::ioctl(fd_, SLUICE_IOC_QUERY, &query) == 0 && query.abi_version != 0) daemon_ = query;
  }
  return daemon_;
}

Result<std::shared_ptr<const File::BufferIds>> File::daemon_ids(const Buffer& buffer) {
  // The lock is held while the daemon imports the memory, so that the buffer is registered only
  // once.
  const MutexLock lock(mutex_);
  if (const auto known = buffers_.find(&buffer); known != buffers_.end()) return known->second;
  auto ids = std::make_shared<BufferIds>(SLUICE_TRY(buffer.register_with_daemon(fd_)));
  buffers_[&buffer] = ids;
  return std::shared_ptr<const BufferIds>(std::move(ids));
}

Result<std::shared_ptr<const File::BufferIds>> File::renewed_ids(const Buffer& buffer,
                                                                 const BufferIds& stale) {
  const MutexLock lock(mutex_);
  const auto is_newer = [&](const BufferIds& ids) {
    return epoch_of(ids.front()) > epoch_of(stale.front());
  };
  // Another thread may have met the same error before.
  const auto known = buffers_.find(&buffer);
  if (known != buffers_.end() && is_newer(*known->second)) return known->second;
  auto ids = std::make_shared<BufferIds>(SLUICE_TRY(buffer.register_with_daemon(fd_)));
  if (!is_newer(*ids)) {
    unregister_from_daemon(fd_, *ids);
    return Error{ESTALE, "the file is gone from its tier"};
  }
  buffers_[&buffer] = ids;
  return std::shared_ptr<const BufferIds>(std::move(ids));
}

void File::forget(const Buffer& buffer) {
  std::shared_ptr<const BufferIds> ids;
  {
    const MutexLock lock(mutex_);
    const auto known = buffers_.find(&buffer);
    if (known == buffers_.end()) return;
    ids = known->second;
    buffers_.erase(known);
  }
  unregister_from_daemon(fd_, *ids);
}

}  // namespace sluice
