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
#include "base/result.hpp"
#include "base/unique_fd.hpp"
#include "client/include/sluice/hf3fs_usrbio.h"
#include "client/include/sluice/ring.h"
#include "gpu/cuda_api.hpp"

namespace sluice::hf3fs {

class Ior;
struct Registered;

// The error of a function of libsluice that returned `code`.
Error error_of(std::int64_t code);

// All objects of the process. After fork(), the child has its own: the parent's locks may be held,
// and its requests never end there.
struct Registry {
  Mutex mutex;
  // By the caller's descriptor, and by the negative number that hf3fs_reg_fd() returned. The caller
  // may close the descriptor, and its number may then be reused for one of ours.
  std::map<int, std::shared_ptr<Registered>> files GUARDED_BY(mutex);
  std::set<Ior*> iors GUARDED_BY(mutex);
  // Null: the process does not use CUDA yet, or it can't. With `wanted`, it is loaded.
  const CudaApi* cuda(bool wanted);

  static Registry& get();

 private:
  Mutex cuda_mutex_;
  std::unique_ptr<CudaApi> cuda_ GUARDED_BY(cuda_mutex_);
};

// Makes a GPU's primary context current in this thread, and restores the previous one at the end.
// Until then, the thread may call CUDA while a graph is captured.
class Entered {
 public:
  Entered(const CudaApi& cuda, int gpu);
  ~Entered();
  Entered(const Entered&) = delete;
  Entered& operator=(const Entered&) = delete;

  CUresult code() const { return code_; }

 private:
  void exchange_mode();

  const CudaApi& cuda_;
  const int gpu_;
  CUcontext before_ = nullptr;
  CUstreamCaptureMode mode_ = CU_STREAM_CAPTURE_MODE_RELAXED;  // the thread's, once exchanged
  CUresult code_;
};

// Memory and its owners.
struct Iov {
  Registry& registry = Registry::get();  // of the process that made it
  sluice_buffer* buffer = nullptr;
  std::size_t size = 0;
  int gpu = -1;           // -1: host memory
  std::string name = {};  // path of the file that describes it to other processes; empty: none
  CUdeviceptr owned = 0;  // GPU memory that we must free
  ~Iov();
};

// A registered descriptor. We keep the file open even if the caller closes the descriptor.
struct Registered {
  Registered(UniqueFd opened, sluice_file* made) : fd(std::move(opened)), file(made) {}
  ~Registered() { sluice_close(file); }
  Registered(const Registered&) = delete;
  Registered& operator=(const Registered&) = delete;

  const UniqueFd fd;
  sluice_file* const file;
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
  Result<int> put(bool read, const std::shared_ptr<Registered>& file, Iov& iov,
                  std::uint64_t memory_offset, std::uint64_t file_offset, std::uint64_t length,
                  const void* userdata);
  Result<void> submit();
  Result<int> wait(hf3fs_cqe* cqes, int most, int least, const timespec* abs_timeout);
  // Called when the file or the memory goes away.
  void forget(const Registered& file);
  void forget(const Iov& iov);

 private:
  Ior(sluice_ring* ring, int entries);

  Registry& registry_ = Registry::get();
  sluice_ring* const ring_;
  const int entries_;
  Mutex mutex_;
  std::vector<const void*> userdata_ GUARDED_BY(mutex_);  // by index of the request
  std::vector<int> free_ GUARDED_BY(mutex_);              // free indexes
  struct FileUse {
    std::shared_ptr<Registered> file;
    int number;
  };
  std::unordered_map<const Registered*, FileUse> files_ GUARDED_BY(mutex_);
  std::unordered_map<const Iov*, int> iovs_ GUARDED_BY(mutex_);
};

}  // namespace sluice::hf3fs
