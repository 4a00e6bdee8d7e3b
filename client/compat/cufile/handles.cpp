// SPDX-License-Identifier: BSD-2-Clause
#include "client/compat/cufile/handles.hpp"

#include <fcntl.h>
#include <sys/stat.h>

#include <cerrno>

#include "client/compat/cufile/errors.hpp"

namespace sluice::dropin {

CUfileError_t HandleTable::add(int fd, CUfileHandle_t* name) {
  const Libsluice* api = Libsluice::get();
  if (api == nullptr) return result(CU_FILE_INTERNAL_ERROR);
  struct stat status {};
  if (::fstat(fd, &status) < 0) return result(CU_FILE_INVALID_FILE_TYPE);
  UniqueFd own(::fcntl(fd, F_DUPFD_CLOEXEC, 0));
  if (!own) return result_of(-errno);
  sluice_file* file = nullptr;
  if (const int code = api->open_fd(own.get(), &file); code < 0) return result_of(code);
  auto handle = std::make_shared<Handle>(file, std::move(own), fd, status.st_dev, status.st_ino);
  const MutexLock lock(mutex_);
  for (const auto& [other_name, other] : handles_) {
    if (other->is_of(fd, status.st_dev, status.st_ino)) {
      return result(CU_FILE_HANDLE_ALREADY_REGISTERED);
    }
  }
  *name = handle.get();
  handles_[handle.get()] = std::move(handle);
  count_ = handles_.size();
  return result(CU_FILE_SUCCESS);
}

bool HandleTable::remove(CUfileHandle_t name) {
  std::shared_ptr<Handle> handle;  // closed without the lock
  const MutexLock lock(mutex_);
  const auto found = handles_.find(name);
  if (found == handles_.end()) return false;
  handle = std::move(found->second);
  handles_.erase(found);
  count_ = handles_.size();
  return true;
}

std::shared_ptr<Handle> HandleTable::find_it(CUfileHandle_t name) {
  const MutexLock lock(mutex_);
  const auto found = handles_.find(name);
  return found != handles_.end() ? found->second : nullptr;
}

}  // namespace sluice::dropin
