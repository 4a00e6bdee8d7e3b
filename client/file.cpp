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

Result<void> check_regular(int fd) {
  struct stat status {};
  if (::fstat(fd, &status) < 0) return Error::last("the descriptor is none");
  if (S_ISDIR(status.st_mode)) return Error{EISDIR, "only regular files have bytes to bring"};
  if (!S_ISREG(status.st_mode)) return Error{EINVAL, "only regular files have bytes to bring"};
  return {};
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

File::File(int fd, UniqueFd owned) : owned_(std::move(owned)), fd_(owned_ ? owned_.get() : fd) {
  engine_file_.fd = fd_;
  engine_file_.write = [this](const std::byte* data, std::size_t size, std::uint64_t offset) {
    return write_all(fd_, data, size, offset);
  };
}

File::~File() {
  // Also if the descriptor is ours: the daemon hears of close() some time later, and until then the
  // memory must not be freed.
  for (const auto& [buffer, names] : buffers_) make_unknown(fd_, *names);
}

Result<std::unique_ptr<File>> File::open(const char* path, int flags, mode_t mode) {
  UniqueFd fd;
  do {
    fd.reset(::open(path, (flags & ~kLeftOut) | O_CLOEXEC, mode));
  } while (!fd && errno == EINTR);
  if (!fd) return Error::last("open");
  SLUICE_TRY(check_regular(fd.get()));
  return std::unique_ptr<File>(new File(-1, std::move(fd)));
}

Result<std::unique_ptr<File>> File::borrow(int fd) {
  SLUICE_TRY(check_regular(fd));
  const int flags = ::fcntl(fd, F_GETFL);
  if (flags < 0) return Error::last("the descriptor is none");
  if ((flags & O_PATH) != 0) return Error{EBADF, "the descriptor is not open for reading"};
  // The caller's flags are not ours to change, so these need an opening of their own.
  UniqueFd owned;
  if ((flags & kLeftOut) != 0) {
    const std::string path = "/proc/self/fd/" + std::to_string(fd);
    owned.reset(::open(path.c_str(), (flags & O_ACCMODE) | O_CLOEXEC));
    if (!owned) return Error::last("open again without O_DIRECT and O_APPEND");
  }
  return std::unique_ptr<File>(new File(fd, std::move(owned)));
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
    // Any other filesystem has no such ioctl: ENOTTY, or what it says instead.
    if (::ioctl(fd_, SLUICE_IOC_QUERY, &query) == 0 && query.abi_version != 0) daemon_ = query;
  }
  return daemon_;
}

Result<std::shared_ptr<const File::Names>> File::names_of(const Buffer& buffer) {
  // The lock is held while the daemon imports the memory, so that it is asked once only.
  const MutexLock lock(mutex_);
  if (const auto known = buffers_.find(&buffer); known != buffers_.end()) return known->second;
  auto names = std::make_shared<Names>(SLUICE_TRY(buffer.make_known(fd_)));
  buffers_[&buffer] = names;
  return std::shared_ptr<const Names>(std::move(names));
}

void File::forget(const Buffer& buffer) {
  std::shared_ptr<const Names> names;
  {
    const MutexLock lock(mutex_);
    const auto known = buffers_.find(&buffer);
    if (known == buffers_.end()) return;
    names = known->second;
    buffers_.erase(known);
  }
  make_unknown(fd_, *names);
}

}  // namespace sluice
