// SPDX-License-Identifier: BSD-2-Clause
#include "tiering/origin/check_side.hpp"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <thread>
#include <vector>

#include "base/file_at.hpp"
#include "base/small_file.hpp"

namespace sluice {
namespace {

constexpr std::chrono::seconds kNameLag{5};

Result<UniqueFd> open_in(int dirfd, const std::string& name, int flags) {
  UniqueFd fd(::openat(dirfd, name.c_str(), flags | O_NOFOLLOW | O_CLOEXEC));
  if (!fd) return Error::last("open a file of the check");
  return fd;
}

}  // namespace

Result<bool> take_lock(int fd, LockKind kind) {
  struct flock range {};
  range.l_type = F_WRLCK;
  const int done =
      kind == LockKind::Flock ? ::flock(fd, LOCK_EX | LOCK_NB) : ::fcntl(fd, F_OFD_SETLK, &range);
  if (done == 0) return true;
  if (errno == EWOULDBLOCK || errno == EACCES) return false;
  return Error::last("lock a file");
}

Result<LocalSide> LocalSide::open(const std::string& directory) {
  UniqueFd fd(::open(directory.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (!fd) return Error::last("open the directory");
  return LocalSide(std::move(fd));
}

Result<void> LocalSide::enter(const std::string& name, AttributeSpace space) {
  space_ = space;
  const auto end = std::chrono::steady_clock::now() + kNameLag;
  for (;;) {
    auto fd = open_in(directory_.get(), name, O_RDONLY | O_DIRECTORY);
    if (fd) {
      scratch_ = *std::move(fd);
      reader_.emplace(scratch_.get(), space_);
      return {};
    }
    if (fd.error().code != ENOENT || std::chrono::steady_clock::now() > end) return fd.error();
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
  }
}

Result<FileStat> LocalSide::stat(const std::string& name) {
  const UniqueFd fd = SLUICE_TRY(open_in(scratch_.get(), name, O_PATH));
  return OriginFd(fd.get(), space_).stat();
}

Result<std::string> LocalSide::content(const std::string& name) {
  const UniqueFd fd = SLUICE_TRY(open_in(scratch_.get(), name, O_RDONLY));
  return read_to_end(fd.get());
}

Result<bool> LocalSide::lock(const std::string& name, LockKind kind) {
  const UniqueFd fd = SLUICE_TRY(open_in(scratch_.get(), name, O_RDWR));
  return take_lock(fd.get(), kind);
}

Result<std::string> LocalSide::handle(const std::string& name) {
  std::vector<char> room(sizeof(file_handle) + MAX_HANDLE_SZ);
  auto* found = reinterpret_cast<file_handle*>(room.data());
  found->handle_bytes = MAX_HANDLE_SZ;
  int mount = 0;
  if (::name_to_handle_at(scratch_.get(), name.c_str(), found, &mount, 0) < 0)
    return Error::last("get a file handle");
  return std::to_string(found->handle_type) + ":" +
         std::string(reinterpret_cast<const char*>(found->f_handle), found->handle_bytes);
}

Result<RaceSight> LocalSide::read_race(std::uint64_t round) {
  if (!reader_) return Error(EINVAL, "read a file of the race");
  return reader_->read(round);
}

}  // namespace sluice
