// SPDX-License-Identifier: BSD-2-Clause
// Kernels copy many small pieces with one launch, because a separate copy for each would cost more
// than the transfer. Their source is gpu/kernels/gather.cu; the library contains them as PTX.
//
// The GPU must be able to access all addresses directly: its own memory, pinned memory, registered
// page cache. This includes the tables, which are read when the kernel runs. Ownership: a Device
// owns it. Threads: immutable.
#pragma once

#include <cstdint>
#include <memory>

#include "gpu/cuda_api.hpp"

namespace sluice {

class Kernels {
 public:
  // REQUIRES: the GPU's context is current in the calling thread.
  static CUresult load(const CudaApi& api, CUdevice device, std::unique_ptr<Kernels>& kernels);
  ~Kernels();
  Kernels(const Kernels&) = delete;
  Kernels& operator=(const Kernels&) = delete;

  struct Piece {
    CUdeviceptr to, from;
    std::uint64_t length;
  };
  // Starts to copy `count` pieces, none longer than `longest`.
  CUresult copy(CUstream stream, CUdeviceptr pieces, unsigned count, std::uint64_t longest) const;

  // Copies records of one size: to[i] = from[index[i]].
  struct Gather {
    CUdeviceptr to, from;
    CUdeviceptr index;  // 64-bit numbers
    std::uint64_t count;
    std::uint64_t records;      // number of records; numbers from this on are skipped ...
    CUdeviceptr bad;            // ... and this 32-bit word is set to 1
    std::uint32_t record_size;  // in bytes
  };
  CUresult gather(CUstream stream, const Gather& what) const;

 private:
  explicit Kernels(const CudaApi& api) : api_(api) {}
  CUresult launch(CUfunction function, CUstream stream, std::uint64_t warps,
                  void** parameters) const;

  const CudaApi& api_;
  CUmodule module_ = nullptr;
  CUfunction copy_ = nullptr, gather_ = nullptr;
};

}  // namespace sluice
