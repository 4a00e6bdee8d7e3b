// SPDX-License-Identifier: BSD-2-Clause
#include "gpu/kernels.hpp"

#include <algorithm>
#include <array>
#include <bit>

#include "gpu/kernels/checksum_ptx.hpp"
#include "gpu/kernels/gather_ptx.hpp"

namespace sluice {
namespace {

// Bandwidth times latency of the bus is some hundred KiB. This many blocks keep megabytes in
// progress, and leave room on the GPU for other work.
constexpr unsigned kBlock = 256, kBlocks = 256, kWarp = 32;  // kBlock: as in *.cu
constexpr std::uint64_t kWarps = std::uint64_t{kBlocks} * kBlock / kWarp;
// The bytes that one warp has in progress at a time.
constexpr std::uint64_t kPart = 4096;
constexpr std::uint64_t kMostParts = 64;

// Checksums are limited by the memory of the GPU, not by the bus, and need all of the GPU. Many
// blocks let it balance the load.
constexpr unsigned kChecksumBlocks = 1 << 14;
constexpr std::uint64_t kChecksumBytes = 4096, kChecksumUnit = 16;  // as in checksum.cu

// As in checksum.cu.
struct ChecksumRange {
  CUdeviceptr from;
  std::uint64_t bytes, begin, end;
  CUdeviceptr sums, differing;
  unsigned tile;
};

}  // namespace

CUresult Kernels::load(const CudaApi& api, CUdevice device, std::unique_ptr<Kernels>& kernels) {
  // If registered memory had another address on the GPU, every address here would be wrong.
  int same_address = 0;
  CUresult code = api.cuDeviceGetAttribute(
      &same_address, CU_DEVICE_ATTRIBUTE_CAN_USE_HOST_POINTER_FOR_REGISTERED_MEM, device);
  if (code == CUDA_SUCCESS && same_address == 0) code = CUDA_ERROR_NOT_SUPPORTED;
  if (code != CUDA_SUCCESS) return code;
  std::unique_ptr<Kernels> made(new Kernels(api));
  code = api.cuModuleLoadData(&made->module_, kGatherPtx);
  if (code != CUDA_SUCCESS) {
    made->module_ = nullptr;
    return code;
  }
  code = api.cuModuleGetFunction(&made->copy_, made->module_, "sluice_copy");
  if (code != CUDA_SUCCESS) return code;
  code = api.cuModuleGetFunction(&made->gather_, made->module_, "sluice_gather");
  if (code == CUDA_SUCCESS) kernels = std::move(made);
  return code;
}

Kernels::~Kernels() {
  if (module_ != nullptr) api_.cuModuleUnload(module_);
  const MutexLock lock(mutex_);
  if (checksums_.module != nullptr) api_.cuModuleUnload(checksums_.module);
}

CUresult Kernels::launch(CUfunction function, CUstream stream, std::uint64_t warps,
                         unsigned most_blocks, void** parameters) const {
  const std::uint64_t blocks = (warps * kWarp + kBlock - 1) / kBlock;
  return api_.cuLaunchKernel(function,
                             static_cast<unsigned>(std::min<std::uint64_t>(blocks, most_blocks)), 1,
                             1, kBlock, 1, 1, 0, stream, parameters, nullptr);
}

CUresult Kernels::copy(CUstream stream, CUdeviceptr pieces, unsigned count,
                       std::uint64_t longest) const {
  const std::uint64_t shares =
      std::clamp<std::uint64_t>((longest + kPart - 1) / kPart, 1, kMostParts);
  auto parts = static_cast<unsigned>(shares);
  auto part_bytes = static_cast<unsigned>(((longest + shares - 1) / shares + 15) / 16 * 16);
  std::array<void*, 4> parameters{&pieces, &count, &parts, &part_bytes};
  return launch(copy_, stream, count * shares, kBlocks, parameters.data());
}

CUresult Kernels::gather(CUstream stream, const Gather& what) const {
  auto [to, from, index, count, records, bad, record_size] = what;
  // The largest tile that still gives every warp some.
  auto tile = static_cast<unsigned>(std::clamp<std::uint64_t>(count / kWarps, 1, kWarp));
  const std::uint64_t together = to | from | record_size;
  unsigned unit = 1U << std::min(std::countr_zero(together), 4);
  std::array<void*, 9> parameters{&to,          &from, &index, &count, &records,
                                  &record_size, &tile, &unit,  &bad};
  return launch(gather_, stream, (count + tile - 1) / tile, kBlocks, parameters.data());
}

CUresult Kernels::load_checksums(Checksums& loaded) const {
  const MutexLock lock(mutex_);
  if (checksums_.module == nullptr) {
    Checksums made;
    CUresult code = api_.cuModuleLoadData(&made.module, kChecksumPtx);
    if (code != CUDA_SUCCESS) return code;
    code = api_.cuModuleGetFunction(&made.blocks, made.module, "sluice_checksum_blocks");
    if (code == CUDA_SUCCESS) {
      code = api_.cuModuleGetFunction(&made.odd_blocks, made.module, "sluice_checksum_odd_blocks");
    }
    if (code != CUDA_SUCCESS) {
      api_.cuModuleUnload(made.module);
      return code;
    }
    checksums_ = made;
  }
  loaded = checksums_;
  return CUDA_SUCCESS;
}

void Kernels::prepare_checksums() const {
  Checksums loaded;
  static_cast<void>(load_checksums(loaded));  // who needs them tries again, and hears why
}

CUresult Kernels::checksum_range(CUfunction function, CUstream stream, const Checksum& what,
                                 std::uint64_t begin, std::uint64_t end) const {
  if (begin == end) return CUDA_SUCCESS;
  // The largest tile that still gives every warp some.
  const auto tile =
      static_cast<unsigned>(std::clamp<std::uint64_t>((end - begin) / kWarps, 1, kWarp));
  ChecksumRange range{what.from, what.bytes, begin, end, what.sums, what.differing, tile};
  std::array<void*, 1> parameters{&range};
  return launch(function, stream, (end - begin + tile - 1) / tile, kChecksumBlocks,
                parameters.data());
}

CUresult Kernels::checksum(CUstream stream, const Checksum& what) const {
  Checksums kernels;
  CUresult code = load_checksums(kernels);
  if (code != CUDA_SUCCESS) return code;
  const std::uint64_t blocks = (what.bytes + kChecksumBytes - 1) / kChecksumBytes;
  const std::uint64_t fast = what.from % kChecksumUnit == 0 ? what.bytes / kChecksumBytes : 0;
  code = checksum_range(kernels.blocks, stream, what, 0, fast);
  if (code != CUDA_SUCCESS) return code;
  return checksum_range(kernels.odd_blocks, stream, what, fast, blocks);
}

}  // namespace sluice
