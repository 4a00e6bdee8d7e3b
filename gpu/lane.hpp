// SPDX-License-Identifier: BSD-2-Clause
// A Lane is a CUDA stream for copies between host memory and a GPU, with slots of pinned memory
// that the bytes pass through. It can switch to another GPU. A LanePool lends lanes to the threads
// of requests.
//
// Ownership: borrows its memory. INVARIANT: a lane of a LanePool that is not lent has no copy in
// progress.
// Threads: a Lane is used by one thread at a time. LanePool is thread-safe, and takes no lock while
// it has free lanes.
#pragma once

#include <atomic>
#include <cstddef>
#include <memory>
#include <span>
#include <vector>

#include "base/result.hpp"
#include "gpu/device.hpp"

namespace sluice {

class Lane {
 public:
  enum class Wait { Spin, Block };  // for waits of a few microseconds, or for longer ones

  // CHECKED: `memory` can be divided into slots of whole pages, or `slots` is 0. REQUIRES: each
  // Device that the lane enters outlives it.
  Lane(std::span<std::byte> memory, unsigned slots, Wait wait);
  ~Lane();
  Lane(const Lane&) = delete;
  Lane& operator=(const Lane&) = delete;

  unsigned slots() const { return slots_; }
  std::size_t slot_size() const { return slots_ ? memory_.size() / slots_ : 0; }
  std::byte* slot(unsigned index) const { return memory_.data() + index * slot_size(); }
  std::span<std::byte> whole_slot(unsigned index) const { return {slot(index), slot_size()}; }

  // The slot to use next, of the first `among` ones.
  unsigned next_slot(unsigned among) { return slot_ = (slot_ + 1) % among; }

  // Selects the GPU for the following copies. Waits for those of another GPU, whose errors are not
  // returned here.
  Result<void> enter(Device& device);
  // These start a copy. The host memory must not change until wait() or synchronize().
  Result<void> to_device(CUdeviceptr to, const std::byte* from, std::size_t size);
  Result<void> to_host(std::byte* to, CUdeviceptr from, std::size_t size);
  // Copies within the GPU.
  Result<void> on_device(CUdeviceptr to, CUdeviceptr from, std::size_t size);
  // True if the three functions below can be used with the selected GPU.
  bool has_kernels() const { return on_->device->kernels() != nullptr; }
  // These start copies by a kernel, see gpu/kernels.hpp.
  Result<void> copy(std::span<const Kernels::Piece> pieces, std::uint64_t longest);
  Result<void> gather(const Kernels::Gather& what);
  // Starts to compute checksums.
  Result<void> checksum(const Kernels::Checksum& what);
  // Assigns all copies since the last mark to this slot.
  Result<void> mark(unsigned slot);
  // Waits until no copy uses the slot.
  Result<void> wait(unsigned slot);
  // For copies whose end another thread waits for: reached when all copies up to the last mark have
  // ended, or later. Valid as long as the lane exists.
  CUevent last_mark() const { return last_mark_; }
  // Waits until no copy is in progress, even after errors. An error means that some copies may not
  // have transferred their bytes; none is in progress then either.
  Result<void> synchronize();

 private:
  struct OnDevice {
    Device* device = nullptr;
    CUstream stream = nullptr;
    std::vector<CUevent> events = {};  // one per slot, and one for synchronize()
  };
  Result<void> create(OnDevice& on);
  Result<void> begun(CUresult code, Operation what);

  const std::span<std::byte> memory_;
  const unsigned slots_;
  const Wait wait_;
  std::vector<std::unique_ptr<OnDevice>> devices_;
  OnDevice* on_ = nullptr;
  std::vector<bool> busy_;  // by slot
  unsigned slot_ = 0;       // of next_slot()
  CUevent last_mark_ = nullptr;
  bool under_way_ = false;
};

class LanePool {
 public:
  // Divides `memory` among `lanes` lanes.
  LanePool(std::span<std::byte> memory, unsigned lanes, unsigned slots, Lane::Wait wait);

  // A lane on loan. Its destructor calls synchronize(), for callers that return early.
  class Loan {
   public:
    explicit Loan(LanePool& pool);
    ~Loan();
    Loan(const Loan&) = delete;
    Loan& operator=(const Loan&) = delete;
    Lane& operator*() const { return *lane_; }
    Lane* operator->() const { return lane_; }

   private:
    LanePool& pool_;
    std::size_t index_ = 0;
    Lane* lane_ = nullptr;
  };

 private:
  struct Place {
    std::unique_ptr<Lane> lane;
    std::atomic<bool> taken{false};
  };
  std::vector<Place> places_;
  std::atomic<std::uint32_t> returned_{0};  // threads that found no free lane wait for it
};

}  // namespace sluice
