// SPDX-License-Identifier: BSD-2-Clause
// A RingServer serves one ring: it takes entries out of memory that it shares with whoever fills
// them in, has them carried out, several at once, and puts completions back. docs/rings.md has the
// rules of that memory. It knows neither FUSE nor ioctls: the daemon serves the rings of other
// processes with it, libsluice those that the daemon can't serve.
//
// Nothing in the memory is trusted. Sizes are read once, before it begins; each entry is copied
// once before it is looked at; its own indexes are kept outside, and others' are only compared with
// them. Whoever scribbles on the memory gets wrong results, or the end of his ring (EPROTO).
//
// Threads: a thread "sluice-ring" once it is started, and one for large requests once there is one.
// serve() is for that thread, or for a test that starts none; start() and stop() for one owner.
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

// What the entries of a ring mean. Called by both threads of a ring at once.
class RingTarget {
 public:
  virtual ~RingTarget() = default;
  // Each fails for all of its segments alike: EBADF for a file that is none, or not open for this;
  // ENOENT for a buffer that is none; else as Engine's.
  virtual Result<Transfer> read(std::uint64_t file, std::uint64_t buffer,
                                std::span<const Segment> segments) = 0;
  virtual Result<Transfer> write(std::uint64_t file, std::uint64_t buffer,
                                 const Segment& segment) = 0;
};

// The words by which one that waits for completions is woken. Rings of one process may share them.
struct RingBell {
  std::uint32_t* waiting = nullptr;
  std::uint32_t* bell = nullptr;
};

// How many bytes a ring takes. REQUIRES: powers of two, at most SLUICE_RING_MAX_ENTRIES.
constexpr std::size_t ring_size(std::uint32_t entries, std::uint32_t completions) {
  return SLUICE_RING_HEADER_SIZE + entries * sizeof(sluice_ring_entry) +
         completions * sizeof(sluice_ring_completion);
}

// futex(2) on words that processes share. Waits while the word has that value; false if `limit` was
// over first.
bool futex_wait(std::uint32_t* word, std::uint32_t value, std::chrono::nanoseconds limit);
void futex_wake(std::uint32_t* word);

class RingServer {
 public:
  static constexpr unsigned kBatch = 128;  // entries taken at once
  // Longer ones are left to a thread of their own, in slices: nobody waits long for their end.
  static constexpr std::uint64_t kLarge = 1 << 20, kSlice = 16 << 20;

  // EINVAL if the memory does not begin with a header, or is too small for what that says.
  // REQUIRES: memory, target and bell outlive the server; the memory is aligned to pages. No bell:
  // the ring's own.
  static Result<std::unique_ptr<RingServer>> create(std::span<std::byte> memory, RingTarget& target,
                                                    RingBell bell = {},
                                                    std::uint64_t completion_flags = 0);
  ~RingServer() { stop(ESHUTDOWN); }
  RingServer(const RingServer&) = delete;
  RingServer& operator=(const RingServer&) = delete;

  // EAGAIN if there can be no thread.
  Result<void> start();
  // Takes no more entries, waits until what was taken is done, and tells why in the header.
  void stop(int why);
  // The beginning of stop(): does not wait.
  void request_stop();
  // After it: whether stop() will not have to wait, either.
  bool is_at_rest() const { return running_ == 0; }

  // Takes what is there, up to a batch and as much as the completions have room for, and carries it
  // out; large ones may be under way afterwards. Returns how many were taken. EPROTO: the indexes
  // make no sense.
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
  void carry_out_large(const sluice_ring_entry& entry, const std::stop_token& stop);
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
  std::array<sluice_ring_entry, kBatch> batch_;  // copies
  std::array<Segment, kBatch> segments_;         // of one group
  unsigned in_vain_ = 0;                         // times woken for nothing

  Mutex mutex_;
  StopCondVar changed_;
  std::uint32_t completed_ GUARDED_BY(mutex_) = 0;  // the index of the next completion
  unsigned in_flight_ GUARDED_BY(mutex_) = 0;       // large ones that were taken
  std::deque<sluice_ring_entry> large_ GUARDED_BY(mutex_);
  bool ended_ GUARDED_BY(mutex_) = false;
  std::atomic<int> running_{0};         // threads; a count that others may look at
  std::jthread large_thread_, thread_;  // large_thread_: made by serve() only
};

}  // namespace sluice
