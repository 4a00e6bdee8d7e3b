// SPDX-License-Identifier: BSD-2-Clause
// The fake libcuda.so.1: the kernels in gpu/kernels, executed by the CPU. It supports only these,
// identified by name (cuModuleLoadData of anything else returns 801).
#include <algorithm>
#include <array>
#include <cstring>
#include <string>
#include <string_view>
#include <vector>

#define XXH_INLINE_ALL
#include <xxhash.h>

#include "tests/support/fake_cuda.hpp"

namespace sluice {

using test::FakeCount;

namespace {

enum class Kernel : std::intptr_t { Copy = 1, Gather = 2, Checksum = 3, OddChecksum = 4 };
constexpr std::array<std::pair<std::string_view, Kernel>, 4> kKernels{
    {{"sluice_copy", Kernel::Copy},
     {"sluice_gather", Kernel::Gather},
     {"sluice_checksum_blocks", Kernel::Checksum},
     {"sluice_checksum_odd_blocks", Kernel::OddChecksum}}};

// Reads memory like a kernel. Returns false if the GPU cannot access the address.
bool fetch(void* to, CUdeviceptr from, std::size_t size) {
  {
    const MutexLock lock(fake().mutex);
    if (!fake().is_valid(from, size, false)) return false;
  }
  return fake().move(reinterpret_cast<CUdeviceptr>(to), from, size, true, false);
}

bool move(CUdeviceptr to, CUdeviceptr from, std::size_t size) {
  if (size == 0) return true;
  {
    const MutexLock lock(fake().mutex);
    if (!fake().is_valid(to, size, true) || !fake().is_valid(from, size, false)) return false;
  }
  return fake().move(to, from, size, false, false);
}

template <typename T>
T parameter(void** parameters, int index) {
  T value;
  std::memcpy(&value, parameters[index], sizeof value);
  return value;
}

struct Copy {
  CUdeviceptr pieces;
  unsigned count, parts, part_bytes;

  bool run() const {
    struct Piece {
      std::uint64_t to, from, length;
    };
    std::vector<Piece> table(count);
    if (!fetch(table.data(), pieces, count * sizeof(Piece))) return false;
    for (const auto& [to, from, length] : table) {
      for (std::uint64_t part = 0; part < parts; ++part) {
        const std::uint64_t begin = part * part_bytes;
        if (begin >= length) break;
        const std::uint64_t size = std::min<std::uint64_t>(length - begin, part_bytes);
        if (!move(to + begin, from + begin, size)) return false;
      }
    }
    return true;
  }
};

struct Gather {
  CUdeviceptr to, from, index;
  std::uint64_t count, records;
  unsigned record_bytes, tile, unit;
  CUdeviceptr bad;

  bool run() const {
    // With such arguments, a real GPU would stop or copy garbage.
    if (tile < 1 || tile > 32 || unit > 16 || (to | from | record_bytes) % unit != 0) return false;
    std::vector<std::uint64_t> numbers(count);
    if (!fetch(numbers.data(), index, count * sizeof(std::uint64_t))) return false;
    for (std::uint64_t i = 0; i < count; ++i) {
      if (numbers[i] >= records) {
        const std::uint32_t one = 1;
        if (!fake().move(bad, reinterpret_cast<CUdeviceptr>(&one), sizeof one, false, true)) {
          return false;
        }
      } else if (!move(to + i * record_bytes, from + numbers[i] * record_bytes, record_bytes)) {
        return false;
      }
    }
    return true;
  }
};

// Writes memory like a kernel.
bool store(CUdeviceptr to, const void* from, std::size_t size) {
  {
    const MutexLock lock(fake().mutex);
    if (!fake().is_valid(to, size, true)) return false;
  }
  return fake().move(to, reinterpret_cast<CUdeviceptr>(from), size, false, true);
}

struct Checksum {
  CUdeviceptr from;
  std::uint64_t bytes, begin, end;
  CUdeviceptr sums, differing;
  unsigned tile;
  static constexpr std::uint64_t kBlock = 4096;

  // With other arguments, a real GPU would stop or compute garbage.
  bool is_valid(bool odd) const {
    if (tile < 1 || tile > 32 || begin >= end || end > (bytes + kBlock - 1) / kBlock) return false;
    return odd || (from % 16 == 0 && end * kBlock <= bytes);
  }

  bool run() const {
    std::array<char, kBlock> block;
    for (std::uint64_t i = begin; i < end; ++i) {
      const std::uint64_t size = std::min(bytes - i * kBlock, kBlock);
      if (!fetch(block.data(), from + i * kBlock, size)) return false;
      const std::uint64_t sum = XXH3_64bits(block.data(), size);
      const CUdeviceptr place = sums + i * sizeof sum;
      const bool stored = differing == 0 ? store(place, &sum, sizeof sum) : compare(i, sum, place);
      if (!stored) return false;
    }
    return true;
  }

  bool compare(std::uint64_t block, std::uint64_t sum, CUdeviceptr place) const {
    std::uint64_t stored = 0;
    if (!fetch(&stored, place, sizeof stored)) return false;
    if (stored == sum) return true;
    std::array<std::uint64_t, 2> found;
    if (!fetch(found.data(), differing, sizeof found)) return false;
    found = {found[0] + 1, std::min(found[1], block)};
    return store(differing, found.data(), sizeof found);
  }
};

template <typename Work>
CUresult put(FakeStream& stream, int device, const Work& work) {
  stream.put([=] {
    int code = fake().faults.next("async");
    if (code == 0 && !work.run()) code = CUDA_ERROR_ILLEGAL_ADDRESS;
    if (code != 0) return fake().lose(device, static_cast<CUresult>(code));
    count(FakeCount::Launches, 1);
  });
  return CUDA_SUCCESS;
}

}  // namespace

extern "C" {

CUresult cuModuleLoadData(CUmodule* module, const void* image) {
  int device = 0;
  FAKE_CUDA_BEGIN("cuModuleLoadData", &device);
  const std::string_view text(static_cast<const char*>(image));
  if (text.find(".version 6.5") == text.npos ||
      (text.find(".entry sluice_gather") == text.npos &&
       text.find(".entry sluice_checksum_blocks") == text.npos)) {
    return CUDA_ERROR_NOT_SUPPORTED;
  }
  *module = reinterpret_cast<CUmodule>(&fake());
  count(FakeCount::Modules, 1);
  return CUDA_SUCCESS;
}

CUresult cuModuleUnload(CUmodule module) {
  int device = 0;
  FAKE_CUDA_BEGIN("cuModuleUnload", &device);
  if (module != reinterpret_cast<CUmodule>(&fake())) return CUDA_ERROR_INVALID_HANDLE;
  count(FakeCount::Modules, -1);
  return CUDA_SUCCESS;
}

CUresult cuModuleGetFunction(CUfunction* function, CUmodule module, const char* name) {
  int device = 0;
  FAKE_CUDA_BEGIN("cuModuleGetFunction", &device);
  if (module != reinterpret_cast<CUmodule>(&fake())) return CUDA_ERROR_INVALID_HANDLE;
  const auto found = std::find_if(kKernels.begin(), kKernels.end(),
                                  [&](const auto& known) { return known.first == name; });
  if (found == kKernels.end()) return CUDA_ERROR_NOT_FOUND;
  const Kernel kernel = found->second;
  *function = reinterpret_cast<CUfunction>(static_cast<std::intptr_t>(kernel));
  return CUDA_SUCCESS;
}

CUresult cuLaunchKernel(CUfunction function, unsigned blocks, unsigned, unsigned, unsigned threads,
                        unsigned, unsigned, unsigned, CUstream handle, void** parameters, void**) {
  int device = 0;
  FAKE_CUDA_BEGIN("cuLaunchKernel", &device);
  FakeStream* stream = fake().stream_of(handle, device);
  if (stream == nullptr) return CUDA_ERROR_INVALID_HANDLE;
  if (blocks == 0 || threads == 0 || threads % 32 != 0) return CUDA_ERROR_INVALID_VALUE;
  const auto address = [&](int i) { return parameter<CUdeviceptr>(parameters, i); };
  const auto number = [&](int i) { return parameter<unsigned>(parameters, i); };
  const auto kernel = static_cast<Kernel>(reinterpret_cast<std::intptr_t>(function));
  if (kernel == Kernel::Copy) {
    return put(*stream, device, Copy{address(0), number(1), number(2), number(3)});
  }
  if (kernel == Kernel::Gather) {
    return put(*stream, device,
               Gather{address(0), address(1), address(2), address(3), address(4), number(5),
                      number(6), number(7), address(8)});
  }
  if (kernel == Kernel::Checksum || kernel == Kernel::OddChecksum) {
    const auto checksum = parameter<Checksum>(parameters, 0);
    if (!checksum.is_valid(kernel == Kernel::OddChecksum)) return CUDA_ERROR_INVALID_VALUE;
    return put(*stream, device, checksum);
  }
  return CUDA_ERROR_INVALID_HANDLE;
}

}  // extern "C"
}  // namespace sluice
