// SPDX-License-Identifier: BSD-2-Clause
// The mapped route: files whose page cache is registered with the GPUs, which then read it
// themselves, with no copy by the CPU.
//
// Registering takes 25 ms a GiB and pins the pages, so it is for files that are read again and
// again, within bounds, and ends when nobody has read the file for a while. Pinned pages are the
// file's no more once it is truncated or a hole punched, so a registration is used only while the
// file's times and size are what they were; and because times have a granularity, a file is
// registered only when it has been left alone for longer than that.
//
// The CPU never touches these mappings: on a file that has been truncated that would be SIGBUS.
//
// Ownership: MappedFiles owns the registrations, and shares each with the requests that use it.
// Threads: thread-safe.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <list>
#include <memory>
#include <span>
#include <variant>

#include "base/mutex.hpp"
#include "base/result.hpp"
#include "gpu/engine.hpp"
#include "gpu/file_version.hpp"
#include "gpu/lane.hpp"
#include "gpu/records.hpp"
#include "gpu/sweeper.hpp"

namespace sluice {

class MappedFiles {
 public:
  struct Limits {
    std::uint64_t bytes;                   // registered at once
    std::chrono::nanoseconds idle;         // dropped when unused for so long
    std::chrono::nanoseconds settle_time;  // registered when not changed for so long
  };
  explicit MappedFiles(Limits limits);
  ~MappedFiles();

  class Registration;
  using Shared = std::shared_ptr<const Registration>;

  enum class Wish {
    Look,      // registers nothing; Why::Registered: with IfItPays it would
    IfItPays,  // registers a file that has been read once and is in the page cache
    ToGather,  // the same, also if the file is small: records cost more than bytes in a row
    Insist,    // registers whatever can be
  };
  // The registration of the file that `fd` is and `version` describes, or the reason why there is
  // none.
  std::variant<Shared, Why> find(int fd, const FileVersion& version, Device& device, Wish wish);
  // Copies the segments, which must lie within the file: small ones with a kernel, if the lane has
  // slots. False if the file changed meanwhile: the bytes may be neither the old nor the new ones.
  static Result<bool> read(const Registration& registration, Lane& lane, int fd, Memory& memory,
                           std::span<const Segment> segments);

  // Copies records, as Engine::gather() does. The lane has slots, and the GPU kernels.
  enum class Gathered { All, BadIndex, Changed };  // the latter two: something, or nothing
  static Result<Gathered> gather(const Registration& registration, Lane& lane, Device& device,
                                 int fd, CUdeviceptr to, const RecordFile& records,
                                 const RecordIndex& index);

  // So much of the file has been read on another route.
  void count(const FileVersion& version, std::uint64_t bytes);
  void forget(const std::function<bool(const FileId&)>& is_meant);
  std::uint64_t bytes() const { return *bytes_; }

 private:
  using Clock = std::chrono::steady_clock;
  // What is known of a file that was read.
  struct Known {
    FileVersion version;
    std::uint64_t read = 0;  // bytes, on other routes
    bool being_registered = false, refused = false;
    Clock::time_point look_again = {};  // it was not in the page cache, and a look takes a while
    Shared registration = {};
    Clock::time_point used = Clock::now();
  };

  // What must be destroyed without the lock: unregistering takes its time.
  using Dropped = std::list<Shared>;
  Known& known(const FileVersion& version, Dropped& dropped) REQUIRES(mutex_);
  Why may_register(const Known& file, Wish wish) const REQUIRES(mutex_);
  bool make_room(std::uint64_t size, Dropped& dropped) REQUIRES(mutex_);
  std::variant<Shared, Why> try_to_register(int fd, const FileVersion& version, Device& device,
                                            Wish wish);
  void sweep();

  const Limits limits_;
  // Of registrations, also of those that are in no list any more but in use.
  const std::shared_ptr<std::atomic<std::uint64_t>> bytes_;
  Mutex mutex_;                                // not held while registering or unregistering
  std::list<Known> files_ GUARDED_BY(mutex_);  // the last used first
  CondVar registered_;                         // or failed to be
  Sweeper sweeper_;                            // started with the first registration
};

}  // namespace sluice
