// SPDX-License-Identifier: BSD-2-Clause
// Transfers between files and memory, on a ring of libsluice. It includes nothing of NIXL.
//
// A Region is a file or a piece of memory that the program registered. A Transfer is a list of
// blocks, each in one file and one piece of memory. The Queue executes transfers.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <string>
#include <unordered_set>
#include <vector>

#include "base/mutex.hpp"
#include "base/unique_fd.hpp"
#include "sluice/ring.h"

namespace sluice::plugin {

// Prints a line on stderr, as NIXL does with its own errors.
void complain(const std::string& what);
// Why a transfer failed, for a negative errno of the Queue.
std::string reason_of(int error);

// Ownership: it owns the descriptor, which is a duplicate, so that a program that closes its own
// one too early, and opens another file with the same number, does not read from that file.
// Threads: once the Queue has it, only the Queue changes it.
struct Region {
  Region() = default;
  ~Region() { close(); }
  Region(const Region&) = delete;
  Region& operator=(const Region&) = delete;

  // Afterwards the program may free the memory.
  void close();

  UniqueFd fd;
  sluice_file* file = nullptr;  // null: memory
  sluice_buffer* buffer = nullptr;
  std::uintptr_t address = 0;  // of the memory

  // Belongs to the Queue, whose mutex guards it.
  struct {
    unsigned uses = 0;       // blocks of posted transfers that are not done
    std::uint64_t ring = 0;  // the ring that has it; 0: none
    int number = 0;          // in that ring
    bool is_closed = false;
  } in_queue;
};

struct Transfer;

struct Block {
  Transfer* transfer;
  std::shared_ptr<Region> file, memory;
  std::uint64_t memory_offset, file_offset, length;
  bool is_done = true;
};

struct Transfer {
  bool is_read = true;
  std::vector<Block> blocks;  // must not move while the transfer is posted

  // Belongs to the Queue, whose mutex guards it.
  struct {
    std::size_t next = 0;  // the first block that is not in the ring
    std::size_t left = 0;  // blocks that are not done
    int error = 0;         // the first negative errno
  } in_queue;
};

// Threads: thread-safe. Different threads may use different transfers at the same time.
class Queue {
 public:
  Queue() = default;
  // Waits for blocks in progress.
  ~Queue();
  Queue(const Queue&) = delete;
  Queue& operator=(const Queue&) = delete;

  // These return 0 or a negative errno.

  // Adds the region to the ring. Transfers do this too; but then the first one takes longer.
  int add(Region& region);
  // Waits for the region's blocks in the ring and closes it. Its other blocks, and later transfers,
  // fail with -ENOENT.
  void close(Region& region);

  // Starts a transfer. It must stay where it is until poll() has a result or cancel() returns.
  // -EBUSY: it is in progress.
  int post(Transfer& transfer);
  // The result of a transfer; nothing while it is in progress. After an error, no block is in
  // progress, blocks may have been transferred in part, and the rest has not begun. -ENODATA: the
  // file ends before or inside of a block.
  std::optional<int> poll(Transfer& transfer);
  // Drops blocks that have not begun and waits for the others, since their memory may be freed
  // afterwards.
  void cancel(Transfer& transfer);

 private:
  int add_locked(Region& region) REQUIRES(mutex_);
  int put(Block& block) REQUIRES(mutex_);
  // Gives blocks to the ring until it is full.
  void fill() REQUIRES(mutex_);
  // Takes completions. Waits a millisecond for one if `must_wait`.
  void reap(bool must_wait) REQUIRES(mutex_);
  void finish(Block& block, std::int64_t result) REQUIRES(mutex_);
  // Finishes the blocks that are not in the ring.
  void drop_rest(Transfer& transfer, int error) REQUIRES(mutex_);
  // Ends the ring, and with it all transfers. The next use creates another ring.
  void abandon(int error) REQUIRES(mutex_);
  void drop(Region& region) REQUIRES(mutex_);
  void end_ring() REQUIRES(mutex_);

  Mutex mutex_;
  sluice_ring* ring_ GUARDED_BY(mutex_) = nullptr;
  std::uint64_t ring_id_ GUARDED_BY(mutex_) = 0;  // counts the rings
  std::size_t files_ GUARDED_BY(mutex_) = 0;      // in the ring
  std::size_t in_ring_ GUARDED_BY(mutex_) = 0;    // blocks
  std::unordered_set<Transfer*> posted_ GUARDED_BY(mutex_);
  std::deque<Transfer*> waiting_
      GUARDED_BY(mutex_);  // posted, with blocks that are not in the ring
};

}  // namespace sluice::plugin
