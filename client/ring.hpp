// SPDX-License-Identifier: BSD-2-Clause
// A Ring takes requests and returns completions. It has two queues. The daemon of a mount serves
// the first, as soon as a file of that mount was added. A thread of this process serves the second.
// A request goes to the daemon if it can use both file and buffer. Both servers ring the same bell.
//
// If the daemon dies and another one takes over the mount, the ring notices it while requests are
// in progress, creates itself again with the new daemon and repeats what has no completion.
//
// Ownership: files and buffers belong to the caller, who drops or destroys them only after their
// requests have completed.
// Threads: thread-safe.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <deque>
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
#include "client/ring_outstanding.hpp"
#include "client/ring_queue.hpp"
#include "gpu/ring.hpp"

namespace sluice {

class Ring final : private RingTarget {
 public:
  // Who serves it: the daemon of a mount and this process, or this process alone. Then the ring
  // keeps no file open.
  enum class Servers { DaemonAndProcess, Process };
  static Result<std::unique_ptr<Ring>> create(Library& library, unsigned entries, Servers servers);
  ~Ring() override;
  Ring(const Ring&) = delete;
  Ring& operator=(const Ring&) = delete;

  // These return a number for use in requests.
  Result<unsigned> add(File& file);
  Result<unsigned> add(Buffer& buffer);
  // ENOENT: unknown number. Waits for requests that this process is executing. Requests that have
  // not begun fail, even if the number has been reused by then.
  Result<void> drop_file(unsigned file);
  Result<void> drop_buffer(unsigned buffer);

  struct Request {
    std::uint32_t operation;  // enum sluice_ring_operation
    unsigned file, buffer;
    Segment segment;
    std::uint64_t user_data;
  };
  // EAGAIN: as many requests are in progress as the ring has entries.
  Result<void> put(const Request& request);
  Result<unsigned> submit();
  // As sluice_ring_wait(); without `timeout` it waits forever.
  Result<unsigned> wait(std::span<sluice_ring_completion> out, unsigned least,
                        std::optional<std::chrono::nanoseconds> timeout);
  // The ring closes it.
  Result<int> event_fd();

 private:
  // How requests of this process use a slot.
  struct Uses {
    std::uint32_t tenant = 0;     // how often the slot was freed; tells reused slots apart
    std::uint32_t under_way = 0;  // number of requests in progress
  };
  struct FileSlot {
    File* file = nullptr;     // null: free
    std::uint64_t token = 0;  // the daemon's; 0: none
    Uses uses;
  };
  struct BufferSlot {
    Buffer* buffer = nullptr;
    std::vector<std::uint64_t> ids;  // the daemon's ids of its pieces
    Uses uses;
  };
  // A request that was put. Its entry is as for the queue of this process.
  struct Pending {
    sluice_ring_entry entry;
    bool is_for_daemon;
  };

  // How long the daemon may complete nothing before it is asked whether it still serves the ring.
  static constexpr std::chrono::nanoseconds kSilence = std::chrono::milliseconds(100);

  Ring(Library& library, std::unique_ptr<RingQueue> shared, std::unique_ptr<RingQueue> own,
       std::uint32_t entries, Servers servers);
  Result<Transfer> read(std::uint64_t file, std::uint64_t buffer,
                        std::span<const Segment> segments) override;
  Result<Transfer> write(std::uint64_t file, std::uint64_t buffer, const Segment& segment) override;
  Result<Transfer> do_here(std::uint64_t file, std::uint64_t buffer,
                           std::span<const Segment> segments, bool is_read);

  // Asks the daemon of the file's mount to serve the shared queue, if this is the first such file.
  void bind(File& file) REQUIRES(mutex_);
  // The entry for the daemon, if the daemon can do the request.
  std::optional<sluice_ring_entry> for_daemon(const sluice_ring_entry& entry) REQUIRES(mutex_);
  // Before these requests begin. The error is that of wait_for_default_stream().
  Result<void> wait_for_default_streams(std::span<const Pending> requests);
  // Puts a request into the queue of the daemon or of this process.
  void hand_over(const Pending& request) REQUIRES(mutex_, reaping_);
  Result<void> start_own() REQUIRES(mutex_);
  // The id by which entries of this process's queue refer to the current content of a slot.
  template <typename Slot>
  static std::uint64_t id_in(const std::vector<Slot>& slots, unsigned index);
  // The slot with that id; null if its content is no longer there.
  template <typename Slot>
  static Slot* slot_with_id(std::vector<Slot>& slots, std::uint64_t id);
  unsigned reap(std::span<sluice_ring_completion> out);

  // An error if some requests in progress will never be completed. If the daemon is silent, asks
  // whether it still serves the ring, and switches to the one that serves the mount now.
  Result<void> check_servers();
  Result<void> ask_daemon();
  // The daemon's token for the file; 0: this process executes its requests. ESTALE: the ring
  // belongs to an earlier daemon.
  Result<std::uint64_t> token_of(const File& file) REQUIRES(mutex_);
  // Creates the ring with the daemon of the open file `anchor`, and its buffers and files. ESTALE:
  // another daemon took over meanwhile.
  Result<void> introduce(int anchor) REQUIRES(mutex_);
  Result<void> introduce_again(int anchor) REQUIRES(mutex_);
  // Gives the requests of the ring `stale` to the daemon that serves the mount now. ECONNABORTED:
  // they were repeated too often.
  Result<void> take_over(std::uint64_t stale) REQUIRES(mutex_);
  void salvage() REQUIRES(reaping_);

  Library& library_;
  const std::uint32_t entries_;
  const std::unique_ptr<RingQueue> shared_, own_;
  const RingBell bell_;
  std::atomic<std::uint32_t> with_daemon_{0}, with_own_{0};  // put and not yet reaped

  Mutex mutex_;  // guards files and buffers; put() and submit() hold it
  std::vector<FileSlot> files_ GUARDED_BY(mutex_);
  std::vector<BufferSlot> buffers_ GUARDED_BY(mutex_);
  std::vector<Pending> pending_ GUARDED_BY(mutex_);  // put and not submitted
  bool is_refused_ GUARDED_BY(mutex_);               // the daemon accepts no ring, or is not asked
  std::uint64_t ring_id_ GUARDED_BY(mutex_) = 0;     // the daemon's id; 0: none
  dev_t mount_ GUARDED_BY(mutex_) = 0;
  CondVar idle_;     // signalled when a request of this process has ended
  UniqueFd anchor_;  // set once, before with_daemon_ becomes nonzero
  std::unique_ptr<RingServer> server_ GUARDED_BY(mutex_);

  Mutex reaping_ ACQUIRED_AFTER(mutex_);
  RingOutstanding outstanding_ GUARDED_BY(reaping_);
  std::deque<sluice_ring_completion> early_ GUARDED_BY(reaping_);  // returned before others
  // The steady time at which a silent daemon was last seen or asked; 0: it has completed something.
  std::atomic<std::int64_t> silent_since_{0};
  // Takeovers in which requests were repeated, since a daemon completed something.
  std::atomic<int> takeovers_{0};

  UniqueFd event_ GUARDED_BY(mutex_);
  std::jthread notifier_ GUARDED_BY(mutex_);
};

}  // namespace sluice

// The handle that C programs see.
struct sluice_ring {
  std::unique_ptr<sluice::Ring> ring;
};
