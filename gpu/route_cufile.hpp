// SPDX-License-Identifier: BSD-2-Clause
// The cuFile routes: NVIDIA's library reads the file, from the disk straight to the GPU where
// machine, filesystem and disk allow it (gds), else through host memory of its own (cufile).
//
// cuFile is loaded when it is first asked about a file; it takes memory of its own.
// Ownership: CuFiles keeps some files open and registered, for a while: that keeps the blocks of
// one that is deleted, and its filesystem from being unmounted. Threads: thread-safe.
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
#include "gpu/engine.hpp"
#include "gpu/file_version.hpp"
#include "gpu/sweeper.hpp"
#include "gpu/worker_pool.hpp"

namespace sluice {

class CuFiles {
 public:
  // Files are let go when unused for `idle`.
  CuFiles(bool enabled, std::chrono::nanoseconds idle) : enabled_(enabled), idle_(idle) {}
  ~CuFiles();
  CuFiles(const CuFiles&) = delete;
  CuFiles& operator=(const CuFiles&) = delete;

  // Whether cuFile reads the file, and if so directly.
  struct Verdict {
    bool usable = false, direct = false;
    std::string words = {};  // not direct, or not usable: what is in the way, and what helps
  };
  Verdict judge(int fd, const FileId& id, Device& device);

  // Returns how many bytes there were. EOPNOTSUPP if cuFile does not take the file.
  Result<std::uint64_t> read(WorkerPool& workers, std::uint64_t chunk, int fd, const FileId& id,
                             Memory& memory, std::span<const Segment> segments);
  void forget(const std::function<bool(const FileId&)>& is_meant);

 private:
  // A file that was shown to cuFile.
  struct File {
    FileId id;
    UniqueFd fd;
    std::unique_ptr<CuFileHandle> handle;  // null: cuFile did not take it
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
  Device* device_ GUARDED_BY(mutex_) = nullptr;  // the one that cuFile was opened with
  std::unique_ptr<CuFile> cufile_ GUARDED_BY(mutex_);
  std::list<Kept> files_ GUARDED_BY(mutex_);  // the last used first
  Sweeper sweeper_ GUARDED_BY(mutex_);        // started with the first file
};

}  // namespace sluice
