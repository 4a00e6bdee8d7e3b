// SPDX-License-Identifier: BSD-2-Clause
// The files of Sluice mounts that the program has registered. A handle that is not in the table is
// NVIDIA's library's.
//
// Threads: thread-safe.
#pragma once

#include <sys/types.h>

#include <atomic>
#include <map>
#include <memory>
#include <utility>

#include "base/mutex.hpp"
#include "base/unique_fd.hpp"
#include "client/compat/cufile/libsluice.hpp"
#include "gpu/cufile_api.hpp"

namespace sluice::dropin {

// A file, open for libsluice by a descriptor of our own: the program may close its one while
// requests are in a stream or a batch.
class Handle {
 public:
  // `fd` is the program's.
  Handle(sluice_file* file, UniqueFd own, int fd, dev_t device, ino_t inode)
      : own_(std::move(own)), file_(file), fd_(fd), device_(device), inode_(inode) {}
  ~Handle() { Libsluice::get()->close(file_); }
  Handle(const Handle&) = delete;
  Handle& operator=(const Handle&) = delete;

  sluice_file* file() const { return file_; }
  // Whether it was made of this very descriptor, which may since be another file's.
  bool is_of(int fd, dev_t device, ino_t inode) const {
    return fd_ == fd && device_ == device && inode_ == inode;
  }

 private:
  const UniqueFd own_;  // what file_ reads
  sluice_file* const file_;
  const int fd_;
  const dev_t device_;
  const ino_t inode_;
};

class HandleTable {
 public:
  // `fd` is a file on a mount. The name of its Handle is its address.
  CUfileError_t add(int fd, CUfileHandle_t* name);
  // False if it is not ours. Requests that are under way keep the file until they end.
  bool remove(CUfileHandle_t name);
  // Null if it is not ours. Without files of ours it costs a load.
  std::shared_ptr<Handle> find(CUfileHandle_t name) {
    if (count_.load(std::memory_order_acquire) == 0) return nullptr;
    return find_it(name);
  }

  // Around fork().
  void lock() ACQUIRE(mutex_) { mutex_.lock(); }
  void unlock() RELEASE(mutex_) { mutex_.unlock(); }

 private:
  std::shared_ptr<Handle> find_it(CUfileHandle_t name);

  Mutex mutex_;
  std::map<CUfileHandle_t, std::shared_ptr<Handle>> handles_ GUARDED_BY(mutex_);
  std::atomic<std::size_t> count_{0};  // of handles_; read without the lock
};

}  // namespace sluice::dropin
