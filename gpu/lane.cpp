// SPDX-License-Identifier: BSD-2-Clause
#include "gpu/lane.hpp"

#include <functional>
#include <thread>

#include "base/check.hpp"

namespace sluice {

Lane::Lane(std::span<std::byte> memory, unsigned slots, Wait wait)
    : memory_(memory), slots_(slots), wait_(wait), busy_(slots) {
  constexpr std::size_t kPage = 4096;
  SLUICE_CHECK(slots == 0 || memory.size() % (slots * kPage) == 0,
               "the memory of a lane is divided into slots of whole pages");
}

Lane::~Lane() {
  for (const auto& on : devices_) {
    if (!on->device->enter()) continue;
    const CudaApi& api = on->device->api();
    for (CUevent event : on->events) api.cuEventDestroy(event);
    if (on->stream) api.cuStreamDestroy(on->stream);
  }
}

Result<void> Lane::create(OnDevice& on) {
  const CudaApi& api = on.device->api();
  // A non-blocking stream: copies in the default stream would wait for the kernels of other CUDA
  // users in the process.
  if (!on.stream) {
    const CUresult code = api.cuStreamCreate(&on.stream, kStreamNonBlocking);
    if (code != CUDA_SUCCESS) return on.device->failed(code, "create a stream");
  }
  const unsigned flags = kEventDisableTiming | (wait_ == Wait::Block ? kEventBlockingSync : 0);
  while (on.events.size() < slots_ + 1) {
    CUevent event = nullptr;
    const CUresult code = api.cuEventCreate(&event, flags);
    if (code != CUDA_SUCCESS) return on.device->failed(code, "create an event");
    on.events.push_back(event);
  }
  return {};
}

Result<void> Lane::enter(Device& device) {
  if (on_ && on_->device != &device && under_way_ && on_->device->enter())
    static_cast<void>(synchronize());
  SLUICE_TRY(device.enter());
  if (on_ && on_->device == &device) return {};
  on_ = nullptr;
  OnDevice* found = nullptr;
  for (const auto& on : devices_) {
    if (on->device == &device) found = on.get();
  }
  if (!found) {
    devices_.push_back(std::make_unique<OnDevice>(OnDevice{&device}));
    found = devices_.back().get();
  }
  SLUICE_TRY(create(*found));
  on_ = found;
  return {};
}

Result<void> Lane::begun(CUresult code, Operation what) {
  under_way_ = true;
  if (code != CUDA_SUCCESS) return on_->device->failed(code, what);
  return {};
}

Result<void> Lane::to_device(CUdeviceptr to, const std::byte* from, std::size_t size) {
  return begun(on_->device->api().cuMemcpyHtoDAsync(to, from, size, on_->stream),
               "copy to the GPU");
}

Result<void> Lane::to_host(std::byte* to, CUdeviceptr from, std::size_t size) {
  return begun(on_->device->api().cuMemcpyDtoHAsync(to, from, size, on_->stream),
               "copy from the GPU");
}

Result<void> Lane::on_device(CUdeviceptr to, CUdeviceptr from, std::size_t size) {
  return begun(on_->device->api().cuMemcpyDtoDAsync(to, from, size, on_->stream),
               "copy within the GPU");
}

Result<void> Lane::copy(std::span<const Kernels::Piece> pieces, std::uint64_t longest) {
  const auto table = reinterpret_cast<CUdeviceptr>(pieces.data());
  return begun(on_->device->kernels()->copy(on_->stream, table,
                                            static_cast<unsigned>(pieces.size()), longest),
               "copy pieces with a kernel");
}

Result<void> Lane::gather(const Kernels::Gather& what) {
  return begun(on_->device->kernels()->gather(on_->stream, what), "gather records with a kernel");
}

Result<void> Lane::checksum(const Kernels::Checksum& what) {
  return begun(on_->device->kernels()->checksum(on_->stream, what), "compute checksums");
}

Result<void> Lane::mark(unsigned slot) {
  busy_[slot] = true;
  last_mark_ = on_->events[slot];
  return begun(on_->device->api().cuEventRecord(on_->events[slot], on_->stream),
               "record an event after a copy");
}

Result<void> Lane::wait(unsigned slot) {
  if (!busy_[slot]) return {};
  const CUresult code = on_->device->api().cuEventSynchronize(on_->events[slot]);
  if (code != CUDA_SUCCESS) return on_->device->failed(code, "wait for a copy");
  busy_[slot] = false;
  return {};
}

Result<void> Lane::synchronize() {
  if (!under_way_) return {};
  const CudaApi& api = on_->device->api();
  const CUevent last = on_->events.back();
  CUresult code = CUDA_SUCCESS;
  if (wait_ == Wait::Block) {  // waiting for an event does not occupy the core
    code = api.cuEventRecord(last, on_->stream);
    if (code == CUDA_SUCCESS) code = api.cuEventSynchronize(last);
  } else {
    code = api.cuStreamSynchronize(on_->stream);
  }
  under_way_ = false;
  busy_.assign(slots_, false);
  if (code == CUDA_SUCCESS) return {};
  // The memory of these copies may be freed after the return, so all ways of waiting are tried. If
  // none works, the context is broken, and nothing runs in a broken context.
  if (api.cuStreamSynchronize(on_->stream) != CUDA_SUCCESS &&
      api.cuCtxSynchronize() != CUDA_SUCCESS) {
    on_->device->lose();
  }
  return on_->device->failed(code, "wait for the copies");
}

LanePool::LanePool(std::span<std::byte> memory, unsigned lanes, unsigned slots, Lane::Wait wait)
    : places_(lanes) {
  const std::size_t share = memory.size() / lanes;
  for (std::size_t i = 0; i < lanes; ++i) {
    places_[i].lane = std::make_unique<Lane>(memory.subspan(i * share, share), slots, wait);
  }
}

LanePool::Loan::Loan(LanePool& pool) : pool_(pool) {
  // A thread first tries the lane that it used last: its stream is in that core's caches.
  static thread_local std::size_t hint = std::hash<std::thread::id>{}(std::this_thread::get_id());
  for (;;) {
    const std::uint32_t returned = pool_.returned_.load();
    for (std::size_t i = 0; i < pool_.places_.size(); ++i) {
      index_ = (hint + i) % pool_.places_.size();
      Place& place = pool_.places_[index_];
      if (place.taken.load(std::memory_order_relaxed)) continue;
      if (place.taken.exchange(true, std::memory_order_acquire)) continue;
      hint = index_;
      lane_ = place.lane.get();
      return;
    }
    pool_.returned_.wait(returned);
  }
}

LanePool::Loan::~Loan() {
  static_cast<void>(lane_->synchronize());  // callers that need the result have called it before
  pool_.places_[index_].taken.store(false, std::memory_order_release);
  pool_.returned_.fetch_add(1);
  pool_.returned_.notify_one();
}

}  // namespace sluice
