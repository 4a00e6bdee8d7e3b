// SPDX-License-Identifier: BSD-2-Clause
// The parts of an Engine; included only by the engine's own sources. A part is created when a
// request first needs it.
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
#include "gpu/hbm.hpp"
#include "gpu/lane.hpp"
#include "gpu/route_cufile.hpp"
#include "gpu/route_mapped.hpp"
#include "gpu/route_staged.hpp"
#include "gpu/warmer.hpp"
#include "gpu/worker_pool.hpp"

namespace sluice {

// Lets a limited number of requests in at once; the others wait.
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

// Restores the CUDA context of the calling thread. In the process of an application, it determines
// which GPU the application's next call uses.
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

// Segments of at most kSmall each and this much together are a batch. A batch in the page cache is
// too small for another thread.
inline constexpr std::uint64_t kBatch = 1 << 20;

// The kernel's limit: file offsets are signed.
inline constexpr std::uint64_t kLargestOffset = std::numeric_limits<std::int64_t>::max();

inline const std::function<bool()> kNeverCancelled;

// A read of existing bytes: no segment is empty or reaches beyond the end of the file.
struct EngineRead {
  int fd;
  FileVersion version;
  Memory& memory;
  std::span<const Segment> segments;
  std::uint64_t length;  // of all segments
  bool is_batch() const;
  Route wanted;
  Stats::Timer& timer;
  const std::function<bool()>& is_cancelled;  // EngineFile::is_cancelled
  uid_t user = EngineFile::kNoUser;
};

// Records to read or write. INVARIANT: index.count is not 0, and the memory is large enough.
struct RecordRequest {
  const EngineFile& file;
  FileVersion version;
  Memory& memory;
  std::uint64_t memory_offset;
  RecordFile records;
  RecordIndex index;
  std::optional<BadIndex>& bad;  // out
  Route wanted;
  Stats::Timer& timer;
};

struct Choice {
  Route route = Route::Auto;
  Why why = Why::Asked;
  MappedFiles::Shared mapping = {};
};

struct Engine::Parts {
  explicit Parts(const Settings& wanted);

  Result<Choice> choose(const EngineRead& request);
  // What choose() would return for GPU memory and Route::Auto, without registering anything.
  Choice foresee(int fd, const FileVersion& version, std::uint64_t length, Device& device,
                 uid_t user);
  Result<Transfer> read_device(const EngineRead& request);
  Result<Transfer> read_host(const EngineRead& request);
  Result<Transfer> gather(const RecordRequest& request);
  Result<Transfer> scatter(const RecordRequest& request);
  Result<Transfer> write(const EngineFile& file, Memory& memory, const Segment& segment,
                         Route wanted, Stats::Timer& timer);

  void forget(const std::function<bool(const FileId&)>& is_meant) {
    mapped.forget(is_meant);
    cufiles.forget(is_meant);
    warmer.forget(is_meant);
    hbm.forget(is_meant);
  }

  // Fills the segments of the copy that are not filled yet, and adds to `filled` what it filled
  // itself. False: they can't be filled now.
  bool fill(HbmTier::Shared& copy, int fd, std::span<const Segment> segments, Stats::Timer& timer,
            Transfer& filled);
  bool fill_for(const EngineRead& request, HbmTier::Shared& copy, Transfer& filled);
  // Whether nobody wrote to the segments of a shared copy, or to any of it if there are none. A
  // copy that was changed is dropped, and logged.
  Result<bool> is_intact(const HbmTier::Shared& copy, std::span<const Segment> segments);

  WorkerPool& workers();
  // Pins memory and starts threads at the first call. EOPNOTSUPP: nothing could be pinned. ENODEV:
  // the GPU is lost.
  Result<Staging*> staging(Device& device);

  const Settings settings;  // with all defaults filled in
  ReaderNotes notes;
  Gate gate;      // for large requests
  LanePool bare;  // lanes without pinned memory
  CuFiles cufiles;
  HbmTier hbm;
  std::atomic<Staging*> staging_ready{nullptr};  // staging_, for reading without the lock

 private:
  Result<Transfer> execute(const EngineRead& request, const Choice& choice);
  std::optional<Transfer> fill_ranges(HbmCopy& copy, int fd, std::span<const HbmCopy::Range> ranges,
                                      Stats::Timer& timer);
  // Nothing: the tier does not have the bytes, and does not take them.
  Result<std::optional<Transfer>> read_hbm(const EngineRead& request);
  // Whether the segments of the copy can be read: it is not shared, or unchanged and easy to check.
  bool may_read(const HbmTier::Shared& copy, std::span<const Segment> segments);
  Result<std::optional<Transfer>> gather_hbm(const RecordRequest& request);
  Result<Transfer> read_staged(const EngineRead& request, const Choice& choice);
  Result<Transfer> read_mapped(const EngineRead& request, const Choice& choice);
  Result<Transfer> read_cufile(const EngineRead& request, const Choice& choice);
  Result<Transfer> read_mmap(const EngineRead& request, const Choice& choice);
  Result<std::variant<Transfer, Why>> gather_mapped(const RecordRequest& request,
                                                    std::uint64_t bytes);
  Result<Transfer> gather_by_segments(const RecordRequest& request,
                                      std::span<const std::uint64_t> index);
  static Result<std::span<const std::uint64_t>> host_index(const RecordRequest& request,
                                                           std::vector<std::uint64_t>& own);
  bool is_busy();
  // True if the request may pin memory and start threads.
  bool pays_for_staging(const EngineRead& request);
  void fill_behind(const EngineRead& request, std::uint64_t bytes);
  // True if a file of this size may go into the page cache.
  bool has_room(std::uint64_t size) const;
  bool is_better_direct(int fd, const FileVersion& version, const Segment& first, Device& device);

  Mutex mutex_;
  std::unique_ptr<Staging> staging_ GUARDED_BY(mutex_);
  std::atomic<bool> pinning_{false};      // a hint: who needs staging_ now has to wait for it
  std::atomic<unsigned> small_reads_{0};  // before staging_ was ready
  // The next attempt after pinning has failed.
  std::chrono::steady_clock::time_point try_again_ GUARDED_BY(mutex_){};
  // Declared last of these: its threads must end before the memory that they use.
  std::unique_ptr<WorkerPool> workers_ GUARDED_BY(mutex_);

 public:
  // Declared last: their threads ask whether the other parts are busy.
  MappedFiles mapped;
  Warmer warmer;
};

}  // namespace sluice
