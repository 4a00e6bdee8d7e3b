// SPDX-License-Identifier: BSD-2-Clause
// HbmTier keeps copies of files in the memory of the GPUs, so that a read is a copy within the GPU.
//
// A copy belongs to one version of a file and to one GPU. It has addresses for the whole file, and
// memory for all of it or for the pieces that were read repeatedly. It is filled in blocks, by the
// requests that read them. Bytes come only from the file, never from the buffer of a reader: a
// reader could change its buffer at any time, and others would read that.
//
// A copy is used only while the file's times and size are unchanged. Two rules make that enough. A
// file is copied only if it has not changed for longer than the granularity of file times. And when
// its copy is made, nobody has it open or mapped for writing: a store to a page that is mapped and
// dirty already does not change the times. Every later change does, before its bytes can be read.
//
// What stays is decided by value per byte, which is how often the bytes were read recently. Copies
// are dropped when the limit is lowered, and when less than `reserve` of the GPU's memory is free.
//
// Ownership: HbmTier shares each copy with the requests that use it; the last one frees the memory.
// Threads: thread-safe. Its own thread watches the free memory while there are copies.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <list>
#include <memory>
#include <optional>
#include <span>
#include <thread>
#include <vector>

#include "base/mutex.hpp"
#include "base/result.hpp"
#include "gpu/engine.hpp"
#include "gpu/file_version.hpp"
#include "gpu/hbm_copy.hpp"
#include "gpu/lane.hpp"

namespace sluice {

class HbmTier {
 public:
  using Shared = std::shared_ptr<HbmCopy>;

  // `min_unchanged`: files must be unchanged for this long before they are copied.
  HbmTier(const HbmLimits& limits, std::chrono::nanoseconds min_unchanged);
  ~HbmTier();

  // Copies that exceed the new limit are dropped now.
  void set_limits(const HbmLimits& limits);
  bool is_on() const { return on_; }
  // Whether a search can find anything.
  bool has_copies() const { return copies_ > 0; }

  enum class May { Look, Copy };
  // The copy of this version on this GPU. Look: null if it does not have all segments. Copy: the
  // copy has memory for them, but need not be filled. It is made if that range, or about the whole
  // file, was read before and there is room; otherwise null. Counts as a read of the segments.
  // A copy that is shared with another user than `user` is not found.
  Shared find(int fd, const FileVersion& version, Device& device, std::span<const Segment> segments,
              May may, uid_t user = EngineFile::kNoUser);
  // Whether find() would find all of the segment, for reports.
  bool has(const FileVersion& version, const Device& device, const Segment& segment, uid_t user);
  // The copy with memory for the whole file, which need not have been read before; it replaces
  // copies of files that are not kept. `keep`: it is dropped only if nothing else is left to drop.
  // EAGAIN: the file changed recently or is open for writing, so that it must be tried later.
  // ENOSPC: no room. EOPNOTSUPP: the tier is off, or the GPU cannot do it.
  Result<Shared> request(int fd, const FileVersion& version, Device& device, bool keep);
  // The same for a copy that can be shared with this user, or is already.
  Result<Shared> request_for(int fd, const FileVersion& version, Device& device, uid_t user);
  // The file is no longer kept by request().
  void unkeep(const FileId& file);

  // Copies the segments, all filled, to the memory of a reader. The caller checks the version
  // afterwards. Small ones are copied by a kernel if the lane has slots.
  static Result<void> read(const HbmCopy& copy, Lane& lane, Memory& memory,
                           std::span<const Segment> segments);

  // Ends this copy for new readers; it could not be filled or read, or the file has changed.
  void drop(const Shared& copy);
  void forget(const std::function<bool(const FileId&)>& is_meant);
  // Ends all copies, and copies nothing during the next seconds. Returns their bytes.
  std::uint64_t release();

  // How many bytes of this version are in the memory of each GPU.
  struct Held {
    const Device* device;
    std::uint64_t bytes;
    bool kept;
  };
  std::vector<Held> held(const FileVersion& version);
  // For each GPU that was used.
  std::vector<HbmFigures> figures();

 private:
  using Clock = std::chrono::steady_clock;
  struct OnDevice;
  // What is known about a file on one GPU.
  struct Known {
    FileVersion version;
    OnDevice* on;
    double heat = 0;  // bytes read, halved every half-life
    Clock::time_point heat_at = Clock::now();
    // Bytes read since the file is known, by piece; only for files without a copy of the whole.
    std::vector<std::uint64_t> read = {};
    bool kept = false;
    Shared copy = {};

    void count(std::uint64_t bytes);
    // Reads per byte of memory that it has, or would have with `more`.
    double value(std::uint64_t more = 0) const;
  };
  using Files = std::list<Known>;
  // Copies to destroy without the lock, because freeing takes time.
  using Dropped = std::vector<Shared>;

  OnDevice& on(Device& device) REQUIRES(mutex_);
  // How well an entry serves a request; 0: not at all.
  using Rank = std::function<int(const HbmCopy* copy)>;
  // The best entry, moved to the front; null if there is none. Those of other versions are removed.
  Known* look_up(const FileVersion& version, Device& device, const Rank& rank, Dropped& dropped)
      REQUIRES(mutex_);
  Known& known(const FileVersion& version, Device& device, const Rank& rank, Dropped& dropped)
      REQUIRES(mutex_);
  // Gives the file a copy with memory for all of it. `quiet`: nobody can write to the file.
  Result<void> make_whole(Known& file, bool quiet, Dropped& dropped) REQUIRES(mutex_);
  void take_out(Known& file, Dropped& dropped) REQUIRES(mutex_);
  // The files with a copy on this GPU, least valuable first, those to be kept last.
  std::vector<Known*> by_value(const OnDevice& gpu) REQUIRES(mutex_);
  bool make_room(const Known& wanting, std::uint64_t bytes, bool asked, Dropped& dropped)
      REQUIRES(mutex_);
  bool may_copy(const Known& file) const REQUIRES(mutex_);
  enum class Due { No, Segments, Whole };
  // Counts a read, and tells what was read before and should be copied now.
  Due what_is_due(Known& file, std::span<const Segment> segments) REQUIRES(mutex_);
  // Adds memory for the segments, or for all if there are none, to the file's copy, which is made
  // if there is none. REQUIRES: nobody could write to this version of the file.
  Result<void> grow(Known& file, std::span<const Segment> segments, bool asked, Dropped& dropped)
      REQUIRES(mutex_);
  void shrink(OnDevice& gpu, std::uint64_t bytes, Dropped& dropped) REQUIRES(mutex_);
  void watch(const std::stop_token& stop);
  void check_reserve(OnDevice& gpu, Dropped& dropped) REQUIRES(mutex_);

  const std::chrono::nanoseconds min_unchanged_;
  std::atomic<bool> on_;                  // limits_, for reading without the lock
  std::atomic<std::uint64_t> copies_{0};  // the same for the number of copies
  Mutex mutex_;
  HbmLimits limits_ GUARDED_BY(mutex_);
  std::list<OnDevice> gpus_ GUARDED_BY(mutex_);
  Files files_ GUARDED_BY(mutex_);                      // most recently used first
  Clock::time_point quiet_until_ GUARDED_BY(mutex_){};  // after release()
  StopCondVar changed_;                                 // signalled when the first copy is made
  std::jthread watcher_;                                // started with the first copy
};

}  // namespace sluice
