// SPDX-License-Identifier: BSD-2-Clause
// A RingServer serves one ring. It takes entries from memory that it shares with a client, executes
// them, several at once, and returns completions. docs/rings.md has the rules for that memory. The
// class does not depend on FUSE or ioctls: the daemon uses it for the rings of other processes,
// libsluice for requests that the daemon can't do.
//
// The memory is not trusted. Sizes are read once, at the start. Each entry is copied once before it
// is examined. The server keeps its own indexes, and only compares the client's with them. A client
// that overwrites the memory gets wrong results, or its ring ends (EPROTO).
//
// Threads: start() starts a thread "sluice-ring"; the first large request starts a second one.
// serve() is called by that thread, or by a test that does not call start(). start() and stop() are
// for one owner.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <span>
#include <thread>

#include "base/mutex.hpp"
#include "base/result.hpp"
#include "client/include/sluice/ioctl.h"
#include "gpu/engine.hpp"

namespace sluice {

// Gives the entries of a ring their meaning. Both threads of a ring may call it at once.
class RingTarget {
 public:
  virtual ~RingTarget() = default;
  // An error applies to all segments. EBADF: unknown file, or not open for this. ENOENT: unknown
  // buffer. Other errors are those of Engine.
  virtual Result<Transfer> read(std::uint64_t file, std::uint64_t buffer,
                                std::span<const Segment> segments) = 0;
  virtual Result<Transfer> write(std::uint64_t file, std::uint64_t buffer,
                                 const Segment& segment) = 0;
};

// The words by which a thread that waits for completions is woken. Rings of one process may share
// them.
struct RingBell {
  std::uint32_t* waiting = nullptr;
  std::uint32_t* bell = nullptr;
};

// The size of a ring in bytes. REQUIRES: powers of two, at most SLUICE_RING_MAX_ENTRIES.
constexpr std::size_t ring_size(std::uint32_t entries, std::uint32_t completions) {
  return SLUICE_RING_HEADER_SIZE + entries * sizeof(sluice_ring_entry) +
         completions * sizeof(sluice_ring_completion);
}

// futex(2) on words that processes share. Waits while the word has that value; false after `limit`.
bool futex_wait(std::uint32_t* word, std::uint32_t value, std::chrono::nanoseconds limit);
void futex_wake(std::uint32_t* word);

class RingServer {
 public:
  static constexpr unsigned kBatch = 128;  // entries taken at once
  // Longer requests are executed by the second thread, in slices, so that small ones do not wait
  // for them.
  static constexpr std::uint64_t kLarge = 1 << 20, kSlice = 16 << 20;

  // EINVAL: the memory does not begin with a header, or is too small for it. REQUIRES: memory,
  // target and bell outlive the server, and the memory is aligned to pages. Without `bell`, the
  // ring's own is used.
  static Result<std::unique_ptr<RingServer>> create(std::span<std::byte> memory, RingTarget& target,
                                                    RingBell bell = {},
                                                    std::uint64_t completion_flags = 0);
  ~RingServer() { stop(ESHUTDOWN); }
  RingServer(const RingServer&) = delete;
  RingServer& operator=(const RingServer&) = delete;

  // EAGAIN: no thread can be started.
  Result<void> start();
  // Takes no more entries, waits until all taken ones are done, and stores `why` in the header.
  // Large requests are stopped half-way, without a completion.
  void stop(int why);
  // Starts to stop, without waiting. stop() must follow.
  void request_stop();
  // After request_stop(): true if stop() will not wait.
  bool is_at_rest() const { return running_ == 0; }

  // Takes up to one batch of entries, as far as there is room for their completions, and executes
  // them. Large requests may be in progress afterwards. Returns the number of entries taken.
  // EPROTO: the client's indexes are inconsistent.
  Result<unsigned> serve();

 private:
  RingServer(std::span<std::byte> memory, std::uint32_t entries, std::uint32_t completions,
             RingTarget& target, RingBell bell, std::uint64_t completion_flags);

  sluice_ring_header& header() { return *reinterpret_cast<sluice_ring_header*>(memory_.data()); }
  sluice_ring_entry copy_entry(std::uint32_t index) const;
  Result<unsigned> ready();  // how many entries may be taken now
  void run(const std::stop_token& stop);
  bool spin(const std::stop_token& stop);
  void sleep(const std::stop_token& stop);
  void end(int why);

  void read_group(std::span<const unsigned> group);
  void execute_large(const sluice_ring_entry& entry, const std::stop_token& stop);
  void leave_to_large(const sluice_ring_entry& entry);
  void work_large(const std::stop_token& stop);
  void post(std::span<const sluice_ring_completion> done, unsigned from_large);
  void post(const sluice_ring_entry& entry, const Result<Transfer>& done, unsigned from_large = 0);

  const std::span<std::byte> memory_;
  const std::uint32_t entries_, completions_;
  RingTarget& target_;
  const RingBell bell_;
  const std::uint64_t completion_flags_;

  std::uint32_t taken_ = 0;                      // the index of the next entry
  std::array<sluice_ring_entry, kBatch> batch_;  // copies of the entries
  std::array<Segment, kBatch> segments_;         // of one group
  unsigned needless_wakes_ = 0;                  // how often it was woken without finding an entry

  Mutex mutex_;
  StopCondVar changed_;
  std::uint32_t completed_ GUARDED_BY(mutex_) = 0;  // the index of the next completion
  unsigned in_flight_ GUARDED_BY(mutex_) = 0;       // large requests taken and not finished
  std::deque<sluice_ring_entry> large_ GUARDED_BY(mutex_);
  bool ended_ GUARDED_BY(mutex_) = false;
  std::atomic<int> running_{0};         // number of running threads; other threads may read it
  std::jthread large_thread_, thread_;  // only serve() starts large_thread_
};

}  // namespace sluice
