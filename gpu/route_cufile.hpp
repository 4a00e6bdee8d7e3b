// SPDX-License-Identifier: BSD-2-Clause
// The cuFile routes: NVIDIA's library reads the file, from the disk straight to the GPU where
// machine, filesystem and disk allow it (gds), else through host memory of its own (cufile).
//
// cuFile is loaded when it is first asked about a file; it takes memory of its own.
// Ownership: CuFiles keeps some files open and registered. Threads: thread-safe.
#pragma once

#include <cstdint>
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
#include "gpu/worker_pool.hpp"

namespace sluice {

class CuFiles {
 public:
  explicit CuFiles(bool enabled) : enabled_(enabled) {}
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
  void forget(const FileId& id);

 private:
  // A file that was shown to cuFile.
  struct File {
    FileId id;
    UniqueFd fd;
    std::unique_ptr<CuFileHandle> handle;  // null: cuFile did not take it
    Verdict verdict;
  };
  std::shared_ptr<const File> file(int fd, const FileId& id, Device& device);
  CuFile* cufile(Device& device) REQUIRES(mutex_);

  const bool enabled_;
  Mutex mutex_;  // also held while cuFile is loaded and files are registered
  bool tried_ GUARDED_BY(mutex_) = false;
  std::string why_not_ GUARDED_BY(mutex_);
  Device* device_ GUARDED_BY(mutex_) = nullptr;  // the one that cuFile was opened with
  std::unique_ptr<CuFile> cufile_ GUARDED_BY(mutex_);
  std::list<std::shared_ptr<const File>> files_ GUARDED_BY(mutex_);  // the last used first
};

}  // namespace sluice
