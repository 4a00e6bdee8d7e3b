// SPDX-License-Identifier: BSD-2-Clause
// A RingQueue is the client's side of a ring's memory (docs/rings.md): it puts entries in and takes
// completions out.
//
// Threads: put() and submit() are for one thread at a time; reap() is for one thread at a time.
#pragma once

#include <cstdint>
#include <memory>
#include <span>

#include "base/result.hpp"
#include "base/unique_fd.hpp"
#include "client/include/sluice/ioctl.h"

namespace sluice {

class RingQueue {
 public:
  // Creates it in a sealed memfd that can be passed to the daemon. CHECKED: `entries` is a power of
  // two.
  static Result<std::unique_ptr<RingQueue>> create(std::uint32_t entries);
  ~RingQueue();
  RingQueue(const RingQueue&) = delete;
  RingQueue& operator=(const RingQueue&) = delete;

  const UniqueFd& fd() const { return fd_; }
  std::span<std::byte> memory() const { return memory_; }
  sluice_ring_header& header() const {
    return *reinterpret_cast<sluice_ring_header*>(memory_.data());
  }

  // REQUIRES: fewer entries than the queue has places were put and not yet reaped.
  void put(const sluice_ring_entry& entry);
  // Makes the entries visible to the server, and wakes it if it sleeps. Returns their number.
  unsigned submit();
  // Takes as many completions as there are and fit into `out`. Returns their number.
  unsigned reap(std::span<sluice_ring_completion> out);
  // The index of the next completion that the server will post.
  std::uint32_t completed() const;
  // The errno with which the server has ended the ring, or 0.
  int ended() const;

 private:
  RingQueue(UniqueFd fd, std::span<std::byte> memory, std::uint32_t entries);

  const UniqueFd fd_;
  const std::span<std::byte> memory_;
  const std::uint32_t entries_;
  std::uint32_t put_ = 0, submitted_ = 0;  // of put() and submit()
  std::uint32_t reaped_ = 0;               // of reap()
};

}  // namespace sluice
