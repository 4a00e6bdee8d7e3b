// SPDX-License-Identifier: BSD-2-Clause
#include "gpu/hbm_copy.hpp"

#include <algorithm>
#include <utility>

namespace sluice {
namespace {

std::uint64_t rounded_up(std::uint64_t bytes, std::uint64_t unit) {
  return (bytes + unit - 1) / unit * unit;
}

// The numbers of the units that the segment touches: [first, last].
std::pair<std::uint64_t, std::uint64_t> touched(const Segment& segment, std::uint64_t unit) {
  return {segment.file_offset / unit, (segment.file_offset + segment.length - 1) / unit};
}

}  // namespace

Result<std::shared_ptr<HbmCopy>> HbmCopy::create(Device& device, const FileVersion& version,
                                                 std::shared_ptr<Use> use) {
  SLUICE_TRY(device.enter());
  const CudaApi& api = device.api();
  if (!api.has_virtual_memory()) return Error(EOPNOTSUPP, "keep files in GPU memory");
  CUdeviceptr address = 0;
  const CUresult code =
      api.cuMemAddressReserve(&address, rounded_up(version.size, kBlock), 0, 0, 0);
  if (code != CUDA_SUCCESS) return device.failed(code, "reserve GPU addresses");
  return std::shared_ptr<HbmCopy>(new HbmCopy(device, version, address, std::move(use)));
}

HbmCopy::HbmCopy(Device& device, const FileVersion& version, CUdeviceptr address,
                 std::shared_ptr<Use> use)
    : device_(device),
      version_(version),
      reserved_(rounded_up(version.size, kBlock)),
      memory_(borrow_device(device, address, version.size)),
      use_(std::move(use)),
      blocks_(reserved_ / kBlock, Block::NoMemory) {}

HbmCopy::~HbmCopy() {
  exported_.reset();  // it holds the memory, too
  const CudaApi& api = device_.api();
  if (device_.enter()) {
    for (const Piece& piece : pieces_) {
      api.cuMemUnmap(address() + piece.range.begin, piece.range.end - piece.range.begin);
      api.cuMemRelease(piece.handle);
    }
    api.cuMemAddressFree(address(), reserved_);
    if (sums_ != 0) api.cuMemFree(sums_);
  }
  use_->bytes -= bytes_;
}

std::uint64_t HbmCopy::end_of(std::uint64_t block) const {
  return std::min((block + 1) * kBlock, version_.size);
}

std::vector<HbmCopy::Range> HbmCopy::without_memory(std::span<const Segment> segments) const {
  std::vector<bool> wanted(rounded_up(reserved_, kPiece) / kPiece, segments.empty());
  for (const Segment& segment : segments) {
    const auto [first, last] = touched(segment, kPiece);
    for (auto piece = first; piece <= last; ++piece) wanted[piece] = true;
  }
  std::vector<Range> ranges;
  const MutexLock lock(mutex_);
  for (std::uint64_t piece = 0; piece < wanted.size(); ++piece) {
    const std::uint64_t begin = piece * kPiece, end = std::min(begin + kPiece, reserved_);
    if (!wanted[piece] || blocks_[begin / kBlock] != Block::NoMemory) continue;
    if (!ranges.empty() && ranges.back().end == begin) {
      ranges.back().end = end;
    } else {
      ranges.push_back({begin, end});
    }
  }
  return ranges;
}

Result<void> HbmCopy::add_memory(const Range& range) {
  const CudaApi& api = device_.api();
  SLUICE_TRY(device_.enter());
  CUmemAllocationProp properties{};
  properties.type = CU_MEM_ALLOCATION_TYPE_PINNED;
  properties.requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
  properties.location = {CU_MEM_LOCATION_TYPE_DEVICE, device_.ordinal()};
  const std::uint64_t size = range.end - range.begin;
  CUmemGenericAllocationHandle handle = 0;
  CUresult code = api.cuMemCreate(&handle, size, &properties, 0);
  if (code != CUDA_SUCCESS) return device_.failed(code, "allocate GPU memory for a file");
  const CUdeviceptr at = address() + range.begin;
  code = api.cuMemMap(at, size, 0, handle, 0);
  const bool mapped = code == CUDA_SUCCESS;
  if (mapped) {
    const CUmemAccessDesc access{{CU_MEM_LOCATION_TYPE_DEVICE, device_.ordinal()},
                                 CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
    code = api.cuMemSetAccess(at, size, &access, 1);
  }
  if (code != CUDA_SUCCESS) {
    if (mapped) api.cuMemUnmap(at, size);
    api.cuMemRelease(handle);
    return device_.failed(code, "map GPU memory for a file");
  }
  bytes_ += size;
  use_->bytes += size;
  const MutexLock lock(mutex_);
  pieces_.push_back({range, handle});
  std::fill(blocks_.begin() + static_cast<std::ptrdiff_t>(range.begin / kBlock),
            blocks_.begin() + static_cast<std::ptrdiff_t>(range.end / kBlock), Block::Empty);
  return {};
}

std::uint64_t HbmCopy::filled_bytes() const {
  const MutexLock lock(mutex_);
  std::uint64_t bytes = 0;
  for (std::uint64_t block = 0; block < blocks_.size(); ++block) {
    if (blocks_[block] == Block::Filled) bytes += end_of(block) - block * kBlock;
  }
  return bytes;
}

bool HbmCopy::is_filled(std::span<const Segment> segments) const {
  const MutexLock lock(mutex_);
  for (const Segment& segment : segments) {
    const auto [first, last] = touched(segment, kBlock);
    for (auto block = first; block <= last; ++block) {
      if (blocks_[block] != Block::Filled) return false;
    }
  }
  return true;
}

std::vector<HbmCopy::Range> HbmCopy::claim(std::span<const Segment> segments) {
  std::vector<Range> mine;
  const MutexLock lock(mutex_);
  for (const Segment& segment : segments) {
    const auto [first, last] = touched(segment, kBlock);
    for (auto block = first; block <= last; ++block) {
      if (blocks_[block] != Block::Empty) continue;
      blocks_[block] = Block::Filling;
      if (!mine.empty() && mine.back().end == block * kBlock) {
        mine.back().end = end_of(block);
      } else {
        mine.push_back({block * kBlock, end_of(block)});
      }
    }
  }
  return mine;
}

void HbmCopy::filled(std::span<const Range> ranges, bool good) {
  const MutexLock lock(mutex_);
  for (const Range& range : ranges) {
    for (auto block = range.begin / kBlock; block * kBlock < range.end; ++block) {
      blocks_[block] = good ? Block::Filled : Block::Empty;
    }
    if (good) use_->filled_bytes += range.end - range.begin;
  }
  filled_.notify_all();
}

void HbmCopy::wait(std::span<const Segment> segments) {
  const MutexLock lock(mutex_);
  for (const Segment& segment : segments) {
    const auto [first, last] = touched(segment, kBlock);
    for (auto block = first; block <= last; ++block) {
      while (blocks_[block] == Block::Filling) filled_.wait(mutex_);
    }
  }
}

}  // namespace sluice
