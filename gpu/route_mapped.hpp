// SPDX-License-Identifier: BSD-2-Clause
// The mapped route: the page cache of a file is registered with the GPUs, which then read it
// directly. The CPU copies nothing.
//
// Registering takes 25 ms per GiB and pins the pages. So it is done only for files that are read
// repeatedly, within limits, and a registration is kept until its memory is needed: by a file that
// is read more per byte, or by the machine. When a file is truncated or a hole is punched, pinned
// pages no longer belong to it. A registration is therefore used only while the file's times and
// size are unchanged, and a thread releases those of files that have changed or were deleted.
// Because times have a granularity, a file is registered only if it has not changed for longer than
// that.
//
// The CPU never accesses these mappings: for a truncated file that would raise SIGBUS.
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
#include <optional>
#include <span>
#include <thread>
#include <variant>
#include <vector>

#include "base/mutex.hpp"
#include "base/result.hpp"
#include "gpu/decaying_count.hpp"
#include "gpu/engine.hpp"
#include "gpu/file_version.hpp"
#include "gpu/lane.hpp"
#include "gpu/machine_memory.hpp"
#include "gpu/records.hpp"
#include "gpu/sweeper.hpp"

namespace sluice {

class MappedFiles {
 public:
  struct Limits {
    std::uint64_t bytes;                     // limit for all registrations together
    std::chrono::nanoseconds idle;           // unused registrations end after this; 0: they do not
    std::chrono::nanoseconds half_life;      // reads count half after this
    std::chrono::nanoseconds min_unchanged;  // files must be unchanged for this to be registered
    std::uint64_t background;                // IfItPays: a file from this size on is large
    std::function<MachineMemory()> memory;   // of the machine, now
    std::function<bool()> is_busy;           // whether requests read files now
  };
  explicit MappedFiles(Limits limits);
  ~MappedFiles();

  class Registration;
  using Shared = std::shared_ptr<const Registration>;

  enum class Wish {
    Existing,  // registers nothing, and does not look at the page cache
    Look,      // registers nothing; Why::Registered: IfItPays would register it
    IfItPays,  // registers a file that was read once and is in the page cache; if it is large, this
               // happens in the background, and Why::ReadOnce is the answer
    ToGather,  // like IfItPays, but also small files: records cost more than sequential bytes
    Insist,    // registers every file that can be registered
  };
  // The registration of the file `fd` with this `version`, or the reason why there is none.
  // `length` bytes will be read; unless the wish is Look, they count for the value of the file.
  std::variant<Shared, Why> find(int fd, const FileVersion& version, Device& device, Wish wish,
                                 std::uint64_t length);
  // The number of slots of a lane for read() of one segment; they need no memory.
  static constexpr unsigned kUnderWay = 4;
  // Copies the segments, which must lie within the file; small ones by a kernel if the slots of the
  // lane have memory. Returns the number of bytes, which is smaller only if a read of one segment
  // was cancelled. Nothing if the file changed meanwhile: the bytes may then be neither the old nor
  // the new ones.
  static Result<std::optional<std::uint64_t>> read(const Registration& registration, Lane& lane,
                                                   int fd, Memory& memory,
                                                   std::span<const Segment> segments,
                                                   const std::function<bool()>& is_cancelled);

  // Copies records for Engine::gather(). REQUIRES: the lane has slots, and the GPU has kernels.
  enum class Gathered {
    All,
    BadIndex,
    Changed
  };  // BadIndex, Changed: some records may have been copied
  static Result<Gathered> gather(const Registration& registration, Lane& lane, Device& device,
                                 int fd, CUdeviceptr to, const RecordFile& records,
                                 const RecordIndex& index);

  // Counts bytes that were read on another route.
  void count(const FileVersion& version, std::uint64_t bytes);
  // Counts bytes that were read past the page cache. True once for each version of a file, when
  // they are half of it: then it is worth reading the file into the page cache.
  bool claim_fill(const FileVersion& version, std::uint64_t bytes);
  void forget(const std::function<bool(const FileId&)>& is_meant);
  std::uint64_t bytes() const { return *bytes_; }

 private:
  using Clock = std::chrono::steady_clock;
  // What is known about a file.
  struct Known {
    FileVersion version;
    std::uint64_t read = 0;  // bytes, on other routes
    bool being_registered = false, refused = false;
    std::uint64_t read_past_cache = 0;  // bytes
    bool fill_claimed = false;
    Clock::time_point look_again = {};  // it was not in the page cache, and checking takes time
    Shared registration = {};
    Clock::time_point used = Clock::now();
    DecayingCount wanted = {};  // bytes, on all routes
  };

  // Registrations to destroy without the lock, because unregistering takes time.
  using Dropped = std::list<Shared>;
  Known& known(const FileVersion& version, Dropped& dropped) REQUIRES(mutex_);
  Why may_register(const Known& file, Wish wish, std::uint64_t length) const REQUIRES(mutex_);
  // How often each byte was read, where old reads count less.
  double value(const Known& file, Clock::time_point now) const;
  // The files with a registration, those of the least value first.
  std::vector<Known*> by_value() REQUIRES(mutex_);
  // False if only registrations that are in use or worth as much as `file` could be dropped.
  bool make_room(const Known& file, std::uint64_t limit, Dropped& dropped) REQUIRES(mutex_);
  static Result<std::uint64_t> stream(const Registration& registration, Lane& lane, Memory& memory,
                                      const Segment& segment,
                                      const std::function<bool()>& is_cancelled);
  static Result<std::uint64_t> copy_all(const Registration& registration, Lane& lane,
                                        Memory& memory, std::span<const Segment> segments);
  // Called before each portion with the time that the last one took, 0 before the first; false: do
  // not register the rest.
  using Pace = std::function<bool(std::chrono::nanoseconds)>;
  // REQUIRES: the file's being_registered is set, and nobody else has set it.
  std::variant<Shared, Why> register_file(int fd, const FileVersion& version, Device& device,
                                          Wish wish, const Pace& pace);
  std::variant<Shared, Why> try_to_register(int fd, const FileVersion& version, Device& device,
                                            Wish wish, const Pace& pace);
  // The pace of the background.
  bool let_others_read(const FileVersion& version, std::chrono::nanoseconds took,
                       const std::stop_token& stop);
  // False: another file is being registered, or no thread could be started.
  bool register_in_background(int fd, const FileVersion& version, Device& device) REQUIRES(mutex_);
  // The most bytes that may be registered now, if `reserves` reserves stay available.
  std::uint64_t limit(unsigned reserves) const;
  void sweep();
  void release_outdated();
  void release_for_others();

  const Limits limits_;
  // The size of all registrations, including those that are only in use by requests.
  const std::shared_ptr<std::atomic<std::uint64_t>> bytes_;
  Mutex mutex_;                                // not held while registering or unregistering
  std::list<Known> files_ GUARDED_BY(mutex_);  // most recently used first
  CondVar registered_;  // signalled when a registration has succeeded or failed
  StopCondVar paused_;  // nobody signals it
  Sweeper sweeper_;     // started with the first registration
  bool in_background_ GUARDED_BY(mutex_) = false;
  std::jthread background_;  // replaced under mutex_, when in_background_ is false
};

}  // namespace sluice
