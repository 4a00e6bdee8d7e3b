// SPDX-License-Identifier: BSD-2-Clause
// A Ring takes requests and gives completions. Behind it are two queues: one that the daemon of a
// mount serves, once a file of such was added, and one that a thread of this process serves. Each
// request goes to the first where daemon, file and buffer allow it. Both ring the same bell.
//
// Ownership: files and buffers stay the caller's, and outlive the ring or are dropped first.
// Threads: thread-safe.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <thread>
#include <vector>

#include "base/mutex.hpp"
#include "base/result.hpp"
#include "base/unique_fd.hpp"
#include "client/buffer.hpp"
#include "client/file.hpp"
#include "client/library.hpp"
#include "client/ring_queue.hpp"
#include "gpu/ring.hpp"

namespace sluice {

class Ring final : private RingTarget {
 public:
  static Result<std::unique_ptr<Ring>> create(Library& library, unsigned entries);
  ~Ring() override;
  Ring(const Ring&) = delete;
  Ring& operator=(const Ring&) = delete;

  // A number for requests to name it by.
  Result<unsigned> add(File& file);
  Result<unsigned> add(Buffer& buffer);
  // ENOENT for a number that is none. Waits for what this process is at; requests for it that have
  // not begun fail, also when something else has its number by then.
  Result<void> drop_file(unsigned file);
  Result<void> drop_buffer(unsigned buffer);

  struct Request {
    std::uint32_t operation;  // enum sluice_ring_operation
    unsigned file, buffer;
    Segment segment;
    std::uint64_t user_data;
  };
  // EAGAIN if as many are under way as the ring has entries.
  Result<void> put(const Request& request);
  Result<unsigned> submit();
  // As sluice_ring_wait(); nothing for `timeout`: for ever.
  Result<unsigned> wait(std::span<sluice_ring_completion> out, unsigned least,
                        std::optional<std::chrono::nanoseconds> timeout);
  // Stays the ring's.
  Result<int> event_fd();

 private:
  // Of a slot, by requests of this process.
  struct Uses {
    std::uint32_t tenant = 0;     // how often it was given up
    std::uint32_t under_way = 0;  // requests that have begun
  };
  struct FileSlot {
    File* file = nullptr;     // null: free
    std::uint64_t token = 0;  // of the daemon's; 0: it has none
    Uses uses;
  };
  struct BufferSlot {
    Buffer* buffer = nullptr;
    std::vector<std::uint64_t> names;  // the daemon's, of its pieces
    Uses uses;
  };

  Ring(Library& library, std::unique_ptr<RingQueue> shared, std::unique_ptr<RingQueue> own,
       std::uint32_t entries);
  Result<Transfer> read(std::uint64_t file, std::uint64_t buffer,
                        std::span<const Segment> segments) override;
  Result<Transfer> write(std::uint64_t file, std::uint64_t buffer, const Segment& segment) override;
  Result<Transfer> do_here(std::uint64_t file, std::uint64_t buffer,
                           std::span<const Segment> segments, bool is_read);

  // Makes the daemon of the file's mount serve the shared queue, if it is the first such file.
  void bind(File& file) REQUIRES(mutex_);
  // The entry for the daemon, if it can do this.
  std::optional<sluice_ring_entry> for_daemon(const Request& request) REQUIRES(mutex_);
  Result<void> start_own() REQUIRES(mutex_);
  // By which entries of our own queue name what is in a slot now.
  template <typename Slot>
  static std::uint64_t name_in(const std::vector<Slot>& slots, unsigned index);
  // What has that name, if it is still there; else null.
  template <typename Slot>
  static Slot* named(std::vector<Slot>& slots, std::uint64_t name);
  unsigned reap(std::span<sluice_ring_completion> out);
  // Why something that is under way will not be done, if that is so. `ask`: the daemon too, not
  // only the memory.
  Result<void> check_servers(bool ask);

  Library& library_;
  const std::uint32_t entries_;
  const std::unique_ptr<RingQueue> shared_, own_;
  const RingBell bell_;
  std::atomic<std::uint32_t> with_daemon_{0}, with_own_{0};  // put and not reaped

  Mutex mutex_;  // of files, buffers, and of putting and submitting
  std::vector<FileSlot> files_ GUARDED_BY(mutex_);
  std::vector<BufferSlot> buffers_ GUARDED_BY(mutex_);
  bool is_refused_ GUARDED_BY(mutex_) = false;  // the daemon wants no ring
  std::uint64_t name_ GUARDED_BY(mutex_) = 0;   // of the daemon's
  dev_t mount_ GUARDED_BY(mutex_) = 0;
  CondVar idle_;     // a request of this process has ended
  UniqueFd anchor_;  // set once, before with_daemon_ first counts
  std::unique_ptr<RingServer> server_ GUARDED_BY(mutex_);

  Mutex reaping_;
  UniqueFd event_ GUARDED_BY(mutex_);
  std::jthread notifier_ GUARDED_BY(mutex_);
};

}  // namespace sluice

// The C name of it.
struct sluice_ring {
  std::unique_ptr<sluice::Ring> ring;
};
