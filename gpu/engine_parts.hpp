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

enum class Purpose { Read, Write, Fill, Preview };  // Fill: a copy in GPU memory

// What is asked of the routes, and what they said. Reads are of existing bytes: no segment is empty
// or reaches beyond the end of the file.
struct RouteQuery {
  const EngineFile& file;
  const FileVersion version;
  Device* const device;  // of the memory; null: host memory
  const std::span<const Segment> segments;
  const Route wanted;
  const Purpose purpose;

  const std::uint64_t length = length_of(segments);
  const Work::Kind work = work_of(segments, length, purpose);
  RouteFacts facts = {wanted, work, device != nullptr};
  std::shared_ptr<void> found = {};  // what the last offer has found, if its transfer needs it
  std::optional<Gate::Pass> pass = {};

 private:
  static std::uint64_t length_of(std::span<const Segment> segments);
  static Work::Kind work_of(std::span<const Segment> segments, std::uint64_t length,
                            Purpose purpose);
};

struct EngineRequest : RouteQuery {
  Memory& memory;
  Stats::Timer& timer;
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

// What a route did: a transfer, by this route if it names none; or no offer, because it can't do it
// after all.
using RouteWent = std::variant<Transfer, RouteOffer>;

// How the engine uses a route; defined in the file of the route.
struct RouteWay {
  using Act = Result<RouteWent> (*)(Engine::Parts& parts, EngineRequest& request);
  // Without any effect if it is for Purpose::Preview. Null: Yes.
  RouteOffer (*offer)(Engine::Parts& parts, RouteQuery& query);
  Act read, write;  // null: it does not write
  // For Engine::possibilities(). Null: always.
  Engine::Possibility (*describe)(Engine::Parts& parts, const RouteQuery& query);
};

struct Engine::Parts {
  explicit Parts(const Settings& wanted);

  // Asks the routes until one is chosen; the row is null if none can be taken.
  RouteChoice choose(RouteQuery& query);
  // EOPNOTSUPP: no route can be taken. ENODEV: because the GPU is lost.
  Result<Transfer> transfer(EngineRequest& request);
  Result<Transfer> gather(const RecordRequest& request);
  Result<Transfer> scatter(const RecordRequest& request);

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
  bool fill_for(EngineRequest& request, HbmTier::Shared& copy, Transfer& filled);
  // Whether nobody wrote to the segments of a shared copy, or to any of it if there are none. A
  // copy that was changed is dropped, and logged.
  Result<bool> is_intact(const HbmTier::Shared& copy, std::span<const Segment> segments);
  // Whether the segments of the copy can be read: it is not shared, or unchanged and easy to check.
  bool may_read(const HbmTier::Shared& copy, std::span<const Segment> segments);

  WorkerPool& workers();
  // Pins memory and starts threads at the first call. EOPNOTSUPP: nothing could be pinned. ENODEV:
  // the GPU is lost.
  Result<Staging*> staging(Device& device);
  // True if the request may pin memory and start threads.
  bool pays_for_staging(const RouteQuery& query);
  FileReader reader_for(const EngineRequest& request);
  // Puts the file into the page cache when there is nothing else to do, once for each version,
  // unless only a small part of it is read.
  void fill_behind(const EngineRequest& request, std::uint64_t bytes);

  const Settings settings;  // with all defaults filled in
  ReaderNotes notes;
  Gate gate;      // for large requests
  LanePool bare;  // lanes without pinned memory
  CuFiles cufiles;
  HbmTier hbm;
  std::atomic<Staging*> staging_ready{nullptr};  // staging_, for reading without the lock

 private:
  std::optional<Transfer> fill_ranges(HbmCopy& copy, int fd, std::span<const HbmCopy::Range> ranges,
                                      Stats::Timer& timer);
  Result<std::optional<Transfer>> gather_hbm(const RecordRequest& request);
  Result<std::variant<Transfer, Why>> gather_mapped(const RecordRequest& request,
                                                    std::uint64_t bytes);
  Result<Transfer> gather_by_segments(const RecordRequest& request,
                                      std::span<const std::uint64_t> index);
  static Result<std::span<const std::uint64_t>> host_index(const RecordRequest& request,
                                                           std::vector<std::uint64_t>& own);
  bool is_busy();
  // True if a file of this size may go into the page cache.
  bool has_room(std::uint64_t size) const;

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
