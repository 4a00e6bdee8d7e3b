// SPDX-License-Identifier: BSD-2-Clause
// The registered files of Sluice mounts. A handle that is not in the table belongs to NVIDIA's
// library.
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

// A file, opened for libsluice by our own descriptor: the program may close its descriptor while
// requests are in a stream or a batch.
class Handle {
 public:
  // `fd` is the program's descriptor.
  Handle(sluice_file* file, UniqueFd own, int fd, dev_t device, ino_t inode)
      : own_(std::move(own)), file_(file), fd_(fd), device_(device), inode_(inode) {}
  ~Handle() { Libsluice::get()->close(file_); }
  Handle(const Handle&) = delete;
  Handle& operator=(const Handle&) = delete;

  sluice_file* file() const { return file_; }
  // True if it was made from this descriptor and the descriptor still refers to the same file.
  bool is_of(int fd, dev_t device, ino_t inode) const {
    return fd_ == fd && device_ == device && inode_ == inode;
  }

 private:
  const UniqueFd own_;  // the descriptor of file_
  sluice_file* const file_;
  const int fd_;
  const dev_t device_;
  const ino_t inode_;
};

class HandleTable {
 public:
  // Adds the file of `fd`, which is on a mount. The address of the Handle is its CUfileHandle_t.
  CUfileError_t add(int fd, CUfileHandle_t* name);
  // False if the handle is not ours. Requests in progress keep the file until they end.
  bool remove(CUfileHandle_t name);
  // Null if the handle is not ours. While there are no files of ours, this costs one load.
  std::shared_ptr<Handle> find(CUfileHandle_t name) {
    if (count_.load(std::memory_order_acquire) == 0) return nullptr;
    return find_it(name);
  }

  // For fork().
  void lock() ACQUIRE(mutex_) { mutex_.lock(); }
  void unlock() RELEASE(mutex_) { mutex_.unlock(); }

 private:
  std::shared_ptr<Handle> find_it(CUfileHandle_t name);

  Mutex mutex_;
  std::map<CUfileHandle_t, std::shared_ptr<Handle>> handles_ GUARDED_BY(mutex_);
  std::atomic<std::size_t> count_{0};  // size of handles_; read without the lock
};

}  // namespace sluice::dropin
