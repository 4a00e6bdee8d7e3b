// SPDX-License-Identifier: BSD-2-Clause
// What an Engine is made of; included by the engine's own sources only. Parts are made when a
// request first needs them.
//
// Threads: thread-safe.
#pragma once

#include <atomic>
#include <chrono>
#include <limits>
#include <memory>
#include <optional>
#include <span>
#include <variant>
#include <vector>

#include "base/mutex.hpp"
#include "gpu/engine.hpp"
#include "gpu/file_reader.hpp"
#include "gpu/file_version.hpp"
#include "gpu/lane.hpp"
#include "gpu/route_cufile.hpp"
#include "gpu/route_mapped.hpp"
#include "gpu/route_staged.hpp"
#include "gpu/warmer.hpp"
#include "gpu/worker_pool.hpp"

namespace sluice {

// Lets so many in at once; the others wait.
class Gate {
 public:
  explicit Gate(unsigned places) : free_(places) {}
  class Pass {
   public:
    explicit Pass(Gate& gate);
    ~Pass();
    Pass(const Pass&) = delete;
    Pass& operator=(const Pass&) = delete;

   private:
    Gate& gate_;
  };

 private:
  Mutex mutex_;
  CondVar left_;
  unsigned free_ GUARDED_BY(mutex_);
};

// Puts back what CUDA context the calling thread had: in an application's process it decides which
// GPU the application's next call means.
class CallersContext {
 public:
  explicit CallersContext(const Memory& memory)
      : api_(memory.device() ? &memory.device()->api() : nullptr),
        known_(api_ && api_->cuCtxGetCurrent(&before_) == CUDA_SUCCESS) {}
  ~CallersContext() {
    CUcontext now = nullptr;
    if (known_ && api_->cuCtxGetCurrent(&now) == CUDA_SUCCESS && now != before_) {
      api_->cuCtxSetCurrent(before_);
    }
  }
  CallersContext(const CallersContext&) = delete;
  CallersContext& operator=(const CallersContext&) = delete;

 private:
  const CudaApi* const api_;
  CUcontext before_ = nullptr;
  const bool known_;
};

// Segments up to kSmall each and this together are a batch: not worth another thread, if the page
// cache has them.
inline constexpr std::uint64_t kBatch = 1 << 20;

// The kernel's: offsets in files are signed.
inline constexpr std::uint64_t kLargestOffset = std::numeric_limits<std::int64_t>::max();

// A read of bytes that exist: no segment is empty or reaches beyond the end of the file.
struct ReadRequest {
  int fd;
  FileVersion version;
  Memory& memory;
  std::span<const Segment> segments;
  std::uint64_t length;  // of all segments
  bool is_batch() const;
  Route wanted;
  Stats::Timer& timer;
};

// Records to bring or to write: index.count is not 0, and the memory has the room.
struct RecordRequest {
  const EngineFile& file;
  FileVersion version;
  Memory& memory;
  std::uint64_t memory_offset;
  RecordFile records;
  RecordIndex index;
  std::optional<BadIndex>& bad;  // out
  Stats::Timer& timer;
};

struct Choice {
  Route route = Route::Auto;
  Why why = Why::Asked;
  MappedFiles::Shared mapping = {};
};

struct Engine::Parts {
  explicit Parts(const Settings& wanted);

  Result<Choice> choose(const ReadRequest& request);
  // What choose() would, for a GPU's memory and Route::Auto, with nothing registered by it.
  Choice foresee(int fd, const FileVersion& version, std::uint64_t length, Device& device);
  Result<Transfer> read_device(const ReadRequest& request);
  Result<Transfer> read_host(const ReadRequest& request);
  Result<Transfer> gather(const RecordRequest& request);
  Result<Transfer> scatter(const RecordRequest& request);
  Result<Transfer> write(const EngineFile& file, Memory& memory, const Segment& segment,
                         Route wanted, Stats::Timer& timer);

  void forget(const std::function<bool(const FileId&)>& is_meant) {
    mapped.forget(is_meant);
    cufiles.forget(is_meant);
    warmer.forget(is_meant);
  }

  WorkerPool& workers();
  // EOPNOTSUPP if nothing could be pinned, ENODEV if the GPU is lost.
  Result<Staging*> staging(Device& device);

  const Settings settings;  // with every default filled in
  DirectRefusals refusals;
  Gate gate;      // large requests
  LanePool bare;  // with no memory of their own
  MappedFiles mapped;
  CuFiles cufiles;
  std::atomic<Staging*> staging_ready{nullptr};  // staging_, once made: read without the lock

 private:
  Result<Transfer> carry_out(const ReadRequest& request, const Choice& choice);
  Result<Transfer> read_staged(const ReadRequest& request, const Choice& choice);
  Result<Transfer> read_mapped(const ReadRequest& request, const Choice& choice);
  Result<Transfer> read_cufile(const ReadRequest& request, const Choice& choice);
  Result<Transfer> read_mmap(const ReadRequest& request, const Choice& choice);
  Result<std::variant<Transfer, Why>> gather_mapped(const RecordRequest& request,
                                                    std::uint64_t bytes);
  Result<Transfer> gather_by_segments(const RecordRequest& request,
                                      std::span<const std::uint64_t> index);
  static Result<std::span<const std::uint64_t>> host_index(const RecordRequest& request,
                                                           std::vector<std::uint64_t>& own);
  bool is_busy();
  bool is_better_direct(int fd, const FileVersion& version, const Segment& first, Device& device);

  Mutex mutex_;
  std::unique_ptr<Staging> staging_ GUARDED_BY(mutex_);
  // When nothing could be pinned.
  std::chrono::steady_clock::time_point try_again_ GUARDED_BY(mutex_){};
  // Its threads end before the memory that they use.
  std::unique_ptr<WorkerPool> workers_ GUARDED_BY(mutex_);

 public:
  Warmer warmer;  // the last: its thread asks whether the others are busy
};

}  // namespace sluice
