// SPDX-License-Identifier: BSD-2-Clause
// A Packer gathers pieces that go to different places of a GPU's memory, and sends them with one
// launch of a kernel; one by one where the GPU has no kernels.
//
// It has a pinned slot: bytes go to its front, the table of pieces to its end.
// Ownership: borrows the slot, which must not be used again before the lane has done what was sent.
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
  // What a piece takes of the slot beside its bytes, at most.
  static constexpr std::size_t kOverhead = sizeof(Kernels::Piece) + 15;

  // REQUIRES: the slot is aligned to 16 bytes at both ends.
  explicit Packer(std::span<std::byte> slot);

  // Where to put `length` bytes that go to `to`: aligned as that is, so that the GPU copies in wide
  // words. There is room in the table for one add() then. Null: there is none for both.
  std::byte* place(CUdeviceptr to, std::size_t length);
  // The bytes at `from`, in the slot or in other memory that the GPU reaches, go to `to`. What
  // continues the piece before is one with it. False: there is no room for another.
  bool add(CUdeviceptr to, const std::byte* from, std::size_t length);
  // Begins the copies.
  Result<void> send(Lane& lane) const;

 private:
  std::byte* next_;  // free from here ...
  Kernels::Piece* end_;
  Kernels::Piece* table_;     // ... to here
  std::size_t promised_ = 0;  // pieces, by place()
  std::uint64_t longest_ = 0;
};

}  // namespace sluice
