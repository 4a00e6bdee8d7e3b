// SPDX-License-Identifier: BSD-2-Clause
// The cuFile routes. NVIDIA's library reads the file: directly from the disk to the GPU if machine,
// filesystem and disk support it (gds), otherwise through its own host memory (cufile).
//
// cuFile is loaded for the first file that it is asked about; it allocates memory. Ownership:
// CuFiles keeps files open and registered for a while. Until then the blocks of a deleted file are
// not freed, and its filesystem can't be unmounted. Threads: thread-safe.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <list>
#include <memory>
#include <span>
#include <string>

#include "base/mutex.hpp"
#include "base/result.hpp"
#include "base/unique_fd.hpp"
#include "gpu/cufile_api.hpp"
#include "gpu/cutter.hpp"
#include "gpu/engine.hpp"
#include "gpu/file_version.hpp"
#include "gpu/sweeper.hpp"
#include "gpu/worker_pool.hpp"

namespace sluice {

class CuFiles {
 public:
  // Files are closed when unused for `idle`.
  CuFiles(bool enabled, std::chrono::nanoseconds idle) : enabled_(enabled), idle_(idle) {}
  ~CuFiles();
  CuFiles(const CuFiles&) = delete;
  CuFiles& operator=(const CuFiles&) = delete;

  // Whether cuFile can read the file, and whether directly.
  struct Verdict {
    bool usable = false, direct = false;
    std::string words = {};  // if not direct or not usable: the reason, and how to fix it
  };
  Verdict judge(int fd, const FileId& id, Device& device);
  // Loads cuFile now, so that no request has to.
  void prepare(Device& device);

  // EOPNOTSUPP: cuFile does not accept the file.
  Result<Cutter::Done> read(WorkerPool& workers, int fd, const FileId& id, Memory& memory,
                            Cutter& cutter, uid_t user);
  void forget(const std::function<bool(const FileId&)>& is_meant);

 private:
  // A file that cuFile was asked about.
  struct File {
    FileId id;
    UniqueFd fd;
    std::unique_ptr<CuFileHandle> handle;  // null: cuFile did not accept it
    Verdict verdict;
  };
  struct Kept {
    std::shared_ptr<const File> file;
    std::chrono::steady_clock::time_point used;
  };
  std::shared_ptr<const File> file(int fd, const FileId& id, Device& device);
  CuFile* cufile(Device& device) REQUIRES(mutex_);
  void drop(const std::function<bool(const Kept&)>& is_meant);

  const bool enabled_;
  const std::chrono::nanoseconds idle_;
  Mutex mutex_;  // also held while cuFile is loaded and files are registered
  bool tried_ GUARDED_BY(mutex_) = false;
  std::string why_not_ GUARDED_BY(mutex_);
  Device* device_ GUARDED_BY(mutex_) = nullptr;  // the GPU that cuFile was opened with
  std::unique_ptr<CuFile> cufile_ GUARDED_BY(mutex_);
  std::list<Kept> files_ GUARDED_BY(mutex_);  // most recently used first
  Sweeper sweeper_ GUARDED_BY(mutex_);        // started with the first file
};

}  // namespace sluice
