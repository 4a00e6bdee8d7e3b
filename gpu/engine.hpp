// SPDX-License-Identifier: BSD-2-Clause
// The Engine transfers bytes between files and memory. It chooses a route for each request,
// executes it, and returns the route and the reason. The daemon has one engine for the requests of
// all processes; libsluice has one for requests that the daemon can't do.
//
// Memory is pinned, threads are started and CUDA is loaded only when a request first needs them, or
// by prepare_in_background(). A small request does not need the pinned memory of large ones.
// Threads: thread-safe; a request occupies the calling thread until it is done.
#pragma once

#include <sys/types.h>

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "base/mutex.hpp"
#include "base/result.hpp"
#include "base/unique_fd.hpp"
#include "gpu/device.hpp"
#include "gpu/file_version.hpp"
#include "gpu/hbm_limits.hpp"
#include "gpu/machine_memory.hpp"
#include "gpu/memory.hpp"
#include "gpu/records.hpp"
#include "gpu/route.hpp"
#include "gpu/stats.hpp"

namespace sluice {

// The file of a request. It must stay open and unchanged while the request runs.
struct EngineFile {
  int fd = -1;  // O_RDONLY or O_RDWR, without O_DIRECT
  // Writes call this function, because the owner of the file may have to do more than write bytes.
  // It writes all of `size` or returns an error.
  std::function<Result<void>(const std::byte* data, std::size_t size, std::uint64_t offset)> write =
      {};
  // The user who asks. Copies in GPU memory that are shared with another user are not used.
  uid_t user = kNoUser;
  static constexpr uid_t kNoUser = static_cast<uid_t>(-1);
  // Reads ask this now and then; if it is true, they end early, but not before they have read
  // something. Empty: they are never cancelled.
  std::function<bool()> is_cancelled = {};
};

// The memory of a file's copy in a GPU, for other processes of one user.
struct SharedCopy {
  UniqueFd memory = {};  // empty: not all of it is filled yet
  // False: a program that it was shared with has written to it, or the copy has ended, and it must
  // not be used. Takes milliseconds, in which the memory can be mapped. REQUIRES: the engine
  // exists.
  std::function<bool()> check = {};
  std::uint64_t size = 0, filled = 0;
  std::uint64_t allocation = 0;  // bytes of the memory, which is larger than the file
  std::int64_t changed = 0;      // FileVersion::changed
};

struct Segment {
  std::uint64_t memory_offset = 0;
  std::uint64_t file_offset = 0;
  std::uint64_t length = 0;
};

class HbmTier;
class Warmer;

class Engine {
 public:
  struct Parts;  // gpu/engine_parts.hpp

  struct Settings {
    bool enabled = true;            // false: host memory only
    unsigned threads = 0;           // 0: enough to fill the bus, limited by the number of cores
    std::uint64_t chunk = 4 << 20;  // one piece of a large request; a power of two
    unsigned slots = 3;             // pinned pieces per thread; at least 3 keep disk and bus busy
    unsigned max_concurrent_ops = 32;  // requests in progress at once; others wait
    std::uint64_t mapped_bytes = 0;    // page cache that may be registered; 0: a quarter of memory
    bool cufile = true;                // false: libcufile is not loaded
    std::chrono::milliseconds cufile_idle{
        10'000};  // how long files are kept open for cuFile after use
    // Page cache is registered only for files that did not change for mapped_after, which must be
    // longer than the granularity of file times. What is kept is decided by value, in which reads
    // count half after mapped_half_life. It is released when unused for mapped_idle; 0: never for
    // that reason.
    std::chrono::milliseconds mapped_after{2000}, mapped_half_life{600'000}, mapped_idle{0};
    std::uint64_t mapped_background = 256 << 20;  // larger files are registered in the background
    std::function<MachineMemory()> memory = [] { return machine_memory(); };
    HbmLimits hbm = {};  // of size 0: no files are kept in GPU memory
  };

  explicit Engine(Settings settings);
  ~Engine();
  Engine(const Engine&) = delete;
  Engine& operator=(const Engine&) = delete;

  // False: GPUs are not used, and CUDA is not loaded.
  bool is_enabled() const { return settings_.enabled; }
  Devices& devices() { return devices_; }

  // For each segment, in any order, reads file[file_offset, +length) to memory[memory_offset,
  // +length). Returns fewer bytes only at the end of the file, or if it was cancelled: then the
  // last ones are not read (Transfer::left).
  // ERANGE: the memory has no such range. EOPNOTSUPP: `wanted` can't be taken for this file and
  // memory. Errors of the disk are returned as they are; EIO, ENODEV or ENOMEM come from the GPU.
  Result<Transfer> read(const EngineFile& file, Memory& memory, std::span<const Segment> segments,
                        Route wanted = Route::Auto);
  Result<Transfer> write(const EngineFile& file, Memory& memory, const Segment& segment,
                         Route wanted = Route::Auto);

  // Records of one size, which follow each other in the file from `offset` on.
  struct Records {
    std::uint64_t size = 0, offset = 0;
  };
  // Reads record index[i] to memory[memory_offset + i * size], for every i. Each record must be
  // completely in the file; otherwise the result is ERANGE and `bad` has the first wrong number.
  // Other records may have been read by then. EINVAL: the size is 0. Other errors are those of
  // read(). `wanted` is Auto or Hbm; with the latter, `bad` stays empty.
  Result<Transfer> gather(const EngineFile& file, Memory& memory, std::uint64_t memory_offset,
                          const Records& records, const RecordIndex& index,
                          std::optional<BadIndex>* bad = nullptr, Route wanted = Route::Auto);
  // Writes records by number. If a number occurs twice, the last record stays. The file does not
  // grow: a wrong number is ERANGE, before anything is written.
  Result<Transfer> scatter(const EngineFile& file, Memory& memory, std::uint64_t memory_offset,
                           const Records& records, const RecordIndex& index,
                           std::optional<BadIndex>* bad = nullptr);

  // Sets up now what the staged route needs for this GPU, so that no request has to: pinning memory
  // can wait for other streams of the GPU. EOPNOTSUPP: nothing can be pinned.
  Result<void> prepare(Device& device);
  // Does that for all GPUs of the machine, on a thread that ends after it. To be called at most
  // once.
  void prepare_in_background();

  // The route that a read of `length` bytes would take now, and in words why not a faster one.
  struct Preview {
    Route route = Route::Auto;
    Why why = Why::Asked;
    std::uint32_t alignment = 1;  // of the disk, for O_DIRECT
    std::string words;
  };
  // A null `device` stands for host memory.
  Preview preview(const EngineFile& file, std::uint64_t length, Device* device);

  // For each route: whether a file like this could take it on this machine, or what prevents that
  // and how to fix it. For `sluice doctor`.
  struct Possibility {
    Route route;
    bool possible;
    std::string words;
  };
  std::vector<Possibility> possibilities(const EngineFile& file, Device* device);

  // Reads the range into the page cache in the background. Length 0: to the end. Users take turns.
  // EAGAIN: too many such requests of this user, or of all users, are waiting (gpu/warmer.hpp).
  Result<void> warm(const EngineFile& file, std::uint64_t offset, std::uint64_t length,
                    uid_t user = 0);

  // Copies the whole file into the memory of the GPU (gpu/hbm.hpp); returns when it is there.
  // `keep`: the copy is dropped only if nothing else can be. Errors are those of HbmTier::request()
  // and read().
  Result<void> fill_hbm(const EngineFile& file, Device& device, bool keep,
                        const std::stop_token& stop = {});
  // Shares the file's copy in the memory of the GPU with processes of file.user; see
  // gpu/hbm_copy.hpp. A file that is not there is copied, a part with each call: call it again
  // until `memory` is set. They keep their memory whatever happens to the file, to the copy and to
  // this process. Errors are those of fill_hbm(). EOPNOTSUPP: the GPU has no virtual memory, or
  // can't run our kernels. EINVAL: the file is empty.
  Result<SharedCopy> share(const EngineFile& file, Device& device);

  // Releases everything that is kept for the file (registered page cache, cuFile handle, its copies
  // in GPU memory), because it is moved or deleted.
  void forget(const EngineFile& file);
  void forget_file(const FileId& file);
  // The same for all files of a filesystem, identified by st_dev.
  void forget_filesystem(dev_t device);

  // Statistics of all GPUs or of one, since the start or the last reset.
  Stats& stats() { return stats_; }
  std::uint64_t pinned_bytes() const;
  std::uint64_t mapped_bytes() const;
  const Warmer& warmer() const;
  HbmTier& hbm();

 private:
  using RecordWork = Result<Transfer> (Parts::*)(const struct RecordRequest& request);

  Result<Transfer> with_records(const EngineFile& file, Memory& memory, std::uint64_t memory_offset,
                                const Records& records, const RecordIndex& index,
                                std::optional<BadIndex>* bad, Route wanted, RecordWork work);

  const Settings settings_;
  Devices devices_;
  Stats stats_;
  std::unique_ptr<Parts> parts_;
  std::jthread preparing_;  // declared last: it uses everything above
};

}  // namespace sluice
