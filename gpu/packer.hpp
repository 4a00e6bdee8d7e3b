// SPDX-License-Identifier: BSD-2-Clause
// A Packer collects pieces that go to different places in GPU memory, and sends them with one
// kernel launch. If the GPU has no kernels, it sends them one by one.
//
// It uses a pinned slot: the bytes are stored from its front, the table of pieces from its end.
// Ownership: borrows the slot, which must not be reused before the lane has finished the copies.
// Threads: caller locks.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>

#include "base/result.hpp"
#include "gpu/kernels.hpp"
#include "gpu/lane.hpp"

namespace sluice {

class Packer {
 public:
  // The room that a piece takes in the slot in addition to its bytes, at most.
  static constexpr std::size_t kOverhead = sizeof(Kernels::Piece) + 15;

  // CHECKED: the slot is aligned to 16 bytes at both ends.
  explicit Packer(std::span<std::byte> slot);

  // Reserves room in the slot for `length` bytes that go to `to`, with the same alignment so that
  // the GPU can copy wide words, and for one add(). Null if there is no room for both.
  std::byte* place(CUdeviceptr to, std::size_t length);
  // Adds a piece: the bytes at `from`, in the slot or in other memory that the GPU can access, go
  // to `to`. A piece that continues the previous one is merged with it. False if there is no room.
  bool add(CUdeviceptr to, const std::byte* from, std::size_t length);
  // Starts the copies. All pieces must be in host memory, or all in GPU memory.
  enum class From { Host, Device };
  Result<void> send(Lane& lane, From where = From::Host) const;

 private:
  std::byte* next_;  // free from here ...
  Kernels::Piece* end_;
  Kernels::Piece* table_;     // ... to here
  std::size_t promised_ = 0;  // pieces that place() has reserved
  std::uint64_t longest_ = 0;
};

}  // namespace sluice
