// SPDX-License-Identifier: BSD-2-Clause
// The objects behind the handles of hf3fs_usrbio.h.
//
// Threads: thread-safe.
#pragma once

#include <map>
#include <memory>
#include <set>
#include <string>
#include <unordered_map>
#include <vector>

#include "base/mutex.hpp"
#include "client/buffer.hpp"
#include "client/file.hpp"
#include "client/include/sluice/hf3fs_usrbio.h"
#include "client/ring.hpp"

namespace sluice::hf3fs {

class Ior;
struct Registered;

// All objects of the process. After fork(), the child has its own: the parent's locks may be held,
// and its requests never end there.
struct Registry {
  Mutex mutex;
  // By the caller's descriptor, and by the negative number that hf3fs_reg_fd() returned. The caller
  // may close the descriptor, and its number may then be reused for one of ours.
  std::map<int, std::shared_ptr<Registered>> files GUARDED_BY(mutex);
  std::set<Ior*> iors GUARDED_BY(mutex);

  static Registry& get();
};

// Memory and its owners.
struct Iov {
  Registry& registry = Registry::get();  // of the process that made it
  std::unique_ptr<Buffer> buffer;
  std::string name;       // path of the file that describes it to other processes; empty: none
  CUdeviceptr owned = 0;  // GPU memory that we must free
  ~Iov();
};

// A registered descriptor. We keep the file open even if the caller closes the descriptor. The
// library knows the file, so that Library::forget() reaches it as long as anyone holds it.
struct Registered {
  Registered(UniqueFd opened, std::unique_ptr<File> made);
  ~Registered();
  Registered(const Registered&) = delete;
  Registered& operator=(const Registered&) = delete;

  const UniqueFd fd;
  const std::unique_ptr<File> file;
};

class Ior {
 public:
  static Result<std::unique_ptr<Ior>> create(int entries);
  ~Ior();
  Ior(const Ior&) = delete;
  Ior& operator=(const Ior&) = delete;

  // False in a child of the process that made it, where nothing else may be called.
  bool is_of_this_process() const { return &registry_ == &Registry::get(); }
  int entries() const { return entries_; }
  // Returns the index of the request.
  Result<int> put(std::uint32_t operation, const std::shared_ptr<Registered>& file, Iov& iov,
                  const Segment& segment, const void* userdata);
  Result<unsigned> submit() { return ring_->submit(); }
  Result<int> wait(hf3fs_cqe* cqes, int most, int least, const timespec* abs_timeout);
  // Called when the file or the memory goes away.
  void forget(const Registered& file);
  void forget(const Iov& iov);

 private:
  Ior(std::unique_ptr<Ring> ring, int entries);

  Registry& registry_ = Registry::get();
  std::unique_ptr<Ring> ring_;  // never null before the destructor
  const int entries_;
  Mutex mutex_;
  std::vector<const void*> userdata_ GUARDED_BY(mutex_);  // by index of the request
  std::vector<int> free_ GUARDED_BY(mutex_);              // free indexes
  struct FileUse {
    std::shared_ptr<Registered> file;
    unsigned number;
  };
  std::unordered_map<const Registered*, FileUse> files_ GUARDED_BY(mutex_);
  std::unordered_map<const Iov*, unsigned> iovs_ GUARDED_BY(mutex_);
};

}  // namespace sluice::hf3fs
