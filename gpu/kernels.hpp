// SPDX-License-Identifier: BSD-2-Clause
// Kernels copy many small pieces with one launch, because a separate copy for each would cost more
// than the transfer, and compute checksums. Their sources are in gpu/kernels; the library contains
// them as PTX.
//
// The GPU must be able to access all addresses directly: its own memory, pinned memory, registered
// page cache. This includes the tables, which are read when the kernel runs. Ownership: a Device
// owns it. Threads: thread-safe.
#pragma once

#include <cstdint>
#include <memory>

#include "base/mutex.hpp"
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

  // Computes the checksum of each block of `from` (see gpu/checksum.hpp), or compares them. The
  // first call, or prepare_checksums(), compiles these kernels, which takes a fraction of a second.
  struct Checksum {
    CUdeviceptr from;
    std::uint64_t bytes;
    CUdeviceptr sums;       // 64-bit numbers, one for each block
    CUdeviceptr differing;  // 0: store in `sums`; else compare with `sums` and update Differing
  };
  struct Differing {
    std::uint64_t blocks;  // is increased by the number of blocks that differ
    std::uint64_t first;   // becomes the number of the first one, if that is less
  };
  CUresult checksum(CUstream stream, const Checksum& what) const;
  void prepare_checksums() const;

 private:
  struct Checksums {
    CUmodule module = nullptr;
    CUfunction blocks = nullptr, odd_blocks = nullptr;
  };

  explicit Kernels(const CudaApi& api) : api_(api) {}
  CUresult launch(CUfunction function, CUstream stream, std::uint64_t warps, unsigned most_blocks,
                  void** parameters) const;
  CUresult load_checksums(Checksums& loaded) const;
  CUresult checksum_range(CUfunction function, CUstream stream, const Checksum& what,
                          std::uint64_t begin, std::uint64_t end) const;

  const CudaApi& api_;
  CUmodule module_ = nullptr;
  CUfunction copy_ = nullptr, gather_ = nullptr;
  mutable Mutex mutex_;                             // held while CUDA loads the checksum kernels
  mutable Checksums checksums_ GUARDED_BY(mutex_);  // loaded at the first use
};

}  // namespace sluice
