// SPDX-License-Identifier: BSD-2-Clause
// A Lane is a stream of copies between host memory and one GPU after another, with slots of pinned
// memory that bytes pass through. A LanePool lends lanes to the threads of requests.
//
// Ownership: borrows its memory. INVARIANT: a lane that is not lent has no copy under way.
// Threads: a Lane serves one thread at a time; LanePool is thread-safe, and takes no lock while
// there are lanes left.
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
  enum class Wait { Spin, Block };  // for a few microseconds, or for longer

  // REQUIRES: `memory` can be divided into slots of whole pages, or there are none. Each Device
  // that the lane enters outlives it.
  Lane(std::span<std::byte> memory, unsigned slots, Wait wait);
  ~Lane();
  Lane(const Lane&) = delete;
  Lane& operator=(const Lane&) = delete;

  unsigned slots() const { return slots_; }
  std::size_t slot_size() const { return slots_ ? memory_.size() / slots_ : 0; }
  std::byte* slot(unsigned index) const { return memory_.data() + index * slot_size(); }
  std::span<std::byte> whole_slot(unsigned index) const { return {slot(index), slot_size()}; }

  // Makes `device` the one that copies go to and come from.
  Result<void> enter(Device& device);
  // Begin a copy. The host's memory must stay as it is until wait() or settle().
  Result<void> to_device(CUdeviceptr to, const std::byte* from, std::size_t size);
  Result<void> to_host(std::byte* to, CUdeviceptr from, std::size_t size);
  // Whether the two below can be used with the GPU that was entered.
  bool has_kernels() const { return on_->device->kernels() != nullptr; }
  // Begin copies by a kernel, as gpu/kernels.hpp describes them.
  Result<void> copy(std::span<const Kernels::Piece> pieces, std::uint64_t longest);
  Result<void> gather(const Kernels::Gather& what);
  // What was begun since the last mark belongs to this slot.
  Result<void> mark(unsigned slot);
  // Waits until no copy uses the slot.
  Result<void> wait(unsigned slot);
  // Waits until no copy is under way, whatever happened before. An error says that some may not
  // have brought their bytes; under way they are not.
  Result<void> settle();

 private:
  struct OnDevice {
    Device* device = nullptr;
    CUstream stream = nullptr;
    std::vector<CUevent> events = {};  // one a slot, and one for settle()
  };
  Result<void> create(OnDevice& on);
  Result<void> begun(CUresult code, Operation what);

  const std::span<std::byte> memory_;
  const unsigned slots_;
  const Wait wait_;
  std::vector<std::unique_ptr<OnDevice>> devices_;
  OnDevice* on_ = nullptr;
  std::vector<bool> busy_;  // by slot
  bool under_way_ = false;
};

class LanePool {
 public:
  // Divides `memory` among `lanes` lanes.
  LanePool(std::span<std::byte> memory, unsigned lanes, unsigned slots, Lane::Wait wait);

  // A lane on loan. Ends with settle(), for whoever returned early.
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
  std::atomic<std::uint32_t> returned_{0};  // what those who found no lane wait for
};

}  // namespace sluice
