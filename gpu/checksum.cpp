// SPDX-License-Identifier: BSD-2-Clause
#include "gpu/checksum.hpp"

#include <algorithm>
#include <array>
#include <bit>

#define XXH_INLINE_ALL
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define XXH_NO_INLINE_HINTS 1  // GCC cannot inline calls by address that it instruments
#endif
#include <xxhash.h>

namespace sluice {
namespace {

static_assert(std::endian::native == std::endian::little);

// Two slots, so that the CPU can combine the results of one launch while the GPU computes the next.
constexpr unsigned kSumsSlots = 2;

}  // namespace

struct RangeChecksum::State {
  XXH3_state_t sums;
};

RangeChecksum::RangeChecksum() : state_(std::make_unique<State>()) {
  XXH3_64bits_reset(&state_->sums);
}
RangeChecksum::~RangeChecksum() = default;

void RangeChecksum::add_sums(std::span<const std::uint64_t> sums) {
  XXH3_64bits_update(&state_->sums, sums.data(), sums.size_bytes());
}

void RangeChecksum::add(std::span<const std::byte> bytes) {
  std::array<std::uint64_t, 64> sums;
  while (!bytes.empty()) {
    std::size_t count = 0;
    for (; count < sums.size() && !bytes.empty(); ++count) {
      const auto block = bytes.first(std::min<std::size_t>(bytes.size(), kChecksumBlock));
      sums[count] = XXH3_64bits(block.data(), block.size());
      bytes = bytes.subspan(block.size());
    }
    add_sums({sums.data(), count});
  }
}

std::uint64_t RangeChecksum::value() const { return XXH3_64bits_digest(&state_->sums); }

Result<void> checksum_blocks(Lane& lane, CUdeviceptr from, std::uint64_t bytes, CUdeviceptr sums) {
  if (!lane.has_kernels()) return Error{EOPNOTSUPP, "the GPU cannot run the checksum kernel"};
  return lane.checksum({from, bytes, sums, 0});
}

Result<Kernels::Differing> verify_blocks(Lane& lane, CUdeviceptr from, std::uint64_t bytes,
                                         CUdeviceptr sums) {
  if (!lane.has_kernels()) return Error{EOPNOTSUPP, "the GPU cannot run the checksum kernel"};
  auto* const differing = reinterpret_cast<Kernels::Differing*>(lane.slot(0));
  *differing = {0, UINT64_MAX};
  const auto begun = lane.checksum({from, bytes, sums, reinterpret_cast<CUdeviceptr>(differing)});
  SLUICE_TRY(lane.synchronize());  // also after an error: the slot must not be in use
  SLUICE_TRY(begun);
  return *differing;
}

Result<void> GpuChecksums::add(Device& device, CUdeviceptr from, std::uint64_t bytes,
                               RangeChecksum& sum) {
  const MutexLock lock(mutex_);
  if (!lane_) {
    SLUICE_TRY(device.enter());
    pinned_ = SLUICE_TRY(PinnedMemory::create(device, kSumsSlots * slot_));
    lane_.emplace(pinned_->bytes(), kSumsSlots, Lane::Wait::Block);
  }
  SLUICE_TRY(lane_->enter(device));
  const auto added = add(*lane_, from, bytes, sum);
  SLUICE_TRY(lane_->synchronize());  // also after an error: the slots must not be in use
  return added;
}

Result<void> GpuChecksums::add(Lane& lane, CUdeviceptr from, std::uint64_t bytes,
                               RangeChecksum& sum) const {
  const std::uint64_t per_launch = slot_ / sizeof(std::uint64_t) * kChecksumBlock;
  const std::uint64_t launches = (bytes + per_launch - 1) / per_launch;
  const auto bytes_of = [&](std::uint64_t launch) {
    return std::min(bytes - launch * per_launch, per_launch);
  };
  const auto slot_of = [](std::uint64_t launch) {
    return static_cast<unsigned>(launch % kSumsSlots);
  };
  const auto begin = [&](std::uint64_t launch) -> Result<void> {
    if (launch >= launches) return {};
    const unsigned slot = slot_of(launch);
    SLUICE_TRY(checksum_blocks(lane, from + launch * per_launch, bytes_of(launch),
                               reinterpret_cast<CUdeviceptr>(lane.slot(slot))));
    return lane.mark(slot);
  };
  for (unsigned launch = 0; launch < kSumsSlots; ++launch) SLUICE_TRY(begin(launch));
  for (std::uint64_t launch = 0; launch < launches; ++launch) {
    const unsigned slot = slot_of(launch);
    SLUICE_TRY(lane.wait(slot));
    const auto* sums = reinterpret_cast<const std::uint64_t*>(lane.slot(slot));
    sum.add_sums({sums, checksum_count(bytes_of(launch))});
    SLUICE_TRY(begin(launch + kSumsSlots));
  }
  return {};
}

}  // namespace sluice
