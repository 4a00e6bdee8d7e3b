// SPDX-License-Identifier: BSD-2-Clause
// The Engine brings bytes of files to memory and back: it chooses a route for each request, carries
// it out, and says which it was and why. The daemon has one for the requests of all processes;
// libsluice has one for those that the daemon can't serve.
//
// Nothing is pinned, no thread started and CUDA not touched before the first request that needs it.
// Threads: thread-safe; a request occupies the calling thread until it is done.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/mutex.hpp"
#include "base/result.hpp"
#include "gpu/device.hpp"
#include "gpu/file_version.hpp"
#include "gpu/memory.hpp"
#include "gpu/records.hpp"
#include "gpu/route.hpp"
#include "gpu/stats.hpp"

namespace sluice {

// The file of a request. What it refers to must stay in place, and open, while the request runs.
struct EngineFile {
  int fd = -1;  // O_RDONLY or O_RDWR, without O_DIRECT
  // Writes go through here: the owner of the file may have to do more than write bytes. Returns all
  // of `size` or an error.
  std::function<Result<void>(const std::byte* data, std::size_t size, std::uint64_t offset)> write =
      {};
};

struct Segment {
  std::uint64_t memory_offset = 0;
  std::uint64_t file_offset = 0;
  std::uint64_t length = 0;
};

class Warmer;

class Engine {
 public:
  struct Settings {
    bool enabled = true;               // false: host memory only
    unsigned threads = 0;              // 0: as many as fill the bus, given the cores there are
    std::uint64_t chunk = 4 << 20;     // one piece of a large request; a power of two
    unsigned slots = 3;                // pinned pieces a thread; at least 3 keep disk and bus busy
    unsigned max_concurrent_ops = 32;  // requests on their way at once; more wait their turn
    std::uint64_t mapped_bytes = 0;    // page cache that may be registered; 0: a quarter of memory
    bool cufile = true;                // false: libcufile is not loaded
    std::chrono::milliseconds cufile_idle{10'000};  // files that it reads are held open so long
    // Page cache is registered for files that nobody changed for so long, which must be more than
    // the granularity of the filesystem's times, and let go when unused for so long.
    std::chrono::milliseconds mapped_after{2000}, mapped_idle{60'000};
  };

  explicit Engine(Settings settings);
  ~Engine();
  Engine(const Engine&) = delete;
  Engine& operator=(const Engine&) = delete;

  // False: GPUs are not to be used, and CUDA is not loaded.
  bool is_enabled() const { return settings_.enabled; }
  Devices& devices() { return devices_; }

  // Reads file[file_offset, +length) to memory[memory_offset, +length). Fewer bytes only at the end
  // of the file. ERANGE if the memory has no such range, EOPNOTSUPP if `wanted` can't be taken for
  // this file and memory; errors of the disk as they are; EIO, ENODEV or ENOMEM from the GPU.
  Result<Transfer> read(const EngineFile& file, Memory& memory, const Segment& segment,
                        Route wanted = Route::Auto);
  // All segments, in any order. The route is that of the largest.
  Result<Transfer> read(const EngineFile& file, Memory& memory, std::span<const Segment> segments,
                        Route wanted = Route::Auto);
  Result<Transfer> write(const EngineFile& file, Memory& memory, const Segment& segment,
                         Route wanted = Route::Auto);

  // Records of one size, one after the other from `offset` of the file on.
  struct Records {
    std::uint64_t size = 0, offset = 0;
  };
  // Brings record index[i] to memory[memory_offset + i * size], for every i. Each must be whole in
  // the file: else ERANGE, and `bad` has the first that is not; some others may have been brought.
  // EINVAL for records of no size. Other errors as of read().
  Result<Transfer> gather(const EngineFile& file, Memory& memory, std::uint64_t memory_offset,
                          const Records& records, const RecordIndex& index,
                          std::optional<BadIndex>* bad = nullptr);
  // The other way. Of duplicates the last one stays. The file does not grow: ERANGE, before
  // anything is written.
  Result<Transfer> scatter(const EngineFile& file, Memory& memory, std::uint64_t memory_offset,
                           const Records& records, const RecordIndex& index,
                           std::optional<BadIndex>* bad = nullptr);

  // Makes now what the staged route needs to have for this GPU, so that no request has to: pinning
  // memory can wait for what other streams of the GPU are at. EOPNOTSUPP if nothing can be pinned.
  Result<void> prepare(Device& device);

  // What a read of `length` bytes would do now, without doing it, and in words why nothing faster.
  struct Preview {
    Route route = Route::Auto;
    Why why = Why::Asked;
    std::uint32_t alignment = 1;  // of the disk, for O_DIRECT
    std::string words;
  };
  // `device` null: host memory.
  Preview preview(const EngineFile& file, std::uint64_t length, Device* device);

  // For each route: whether a file as this one could take it on this machine, or the one thing that
  // is in the way and what to do about it. For `sluice doctor`.
  struct Possibility {
    Route route;
    bool possible;
    std::string words;
  };
  std::vector<Possibility> possibilities(const EngineFile& file, Device* device);

  // Reads the range into the page cache, in the background. Length 0: to the end. Users take turns;
  // EAGAIN if too much of this one, or of all, waits (gpu/warmer.hpp).
  Result<void> warm(const EngineFile& file, std::uint64_t offset, std::uint64_t length,
                    uid_t user = 0);

  // Lets go of what is kept of the file (registered page cache, cuFile handle): it moves, or goes.
  void forget(const EngineFile& file);
  void forget_file(const FileId& file);
  // The same for all files of a filesystem, as st_dev names it.
  void forget_filesystem(dev_t device);

  // Figures of all, or of one GPU; since the start or the last reset.
  Stats& stats() { return stats_; }
  std::uint64_t pinned_bytes() const;
  std::uint64_t mapped_bytes() const;
  const Warmer& warmer() const;

 private:
  struct Parts;  // made on first use
  using RecordWork = Result<Transfer> (Parts::*)(const struct RecordRequest& request);

  Result<Transfer> with_records(const EngineFile& file, Memory& memory, std::uint64_t memory_offset,
                                const Records& records, const RecordIndex& index,
                                std::optional<BadIndex>* bad, RecordWork work);

  const Settings settings_;
  Devices devices_;
  Stats stats_;
  std::unique_ptr<Parts> parts_;
};

}  // namespace sluice
