// SPDX-License-Identifier: BSD-2-Clause
// The fake libcuda.so.1: the kernels of gpu/kernels/gather.cu, executed by the CPU. It supports
// only these, identified by name (cuModuleLoadData of anything else returns 801).
#include <array>
#include <cstring>
#include <string>
#include <string_view>
#include <vector>

#include "tests/support/fake_cuda.hpp"

namespace sluice {

using test::FakeCount;

namespace {

enum class Kernel : std::intptr_t { Copy = 1, Gather = 2 };

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
  if (text.find(".version 6.5") == text.npos || text.find(".entry sluice_gather") == text.npos) {
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
  const std::string wanted = name;
  if (wanted != "sluice_copy" && wanted != "sluice_gather") return CUDA_ERROR_NOT_FOUND;
  const Kernel kernel = wanted == "sluice_copy" ? Kernel::Copy : Kernel::Gather;
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
  return CUDA_ERROR_INVALID_HANDLE;
}

}  // extern "C"
}  // namespace sluice
