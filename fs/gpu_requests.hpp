// SPDX-License-Identifier: BSD-2-Clause
// The decoder of our ioctls: from whatever bytes a process sent to a request that holds together,
// or to an error. docs/ioctl.md describes them.
//
// An ioctl is told by its type and number; its size says only how many bytes came. At least the
// first version's structure must be there (EINVAL). What a later version has appended and the
// caller does not know reads as zero; what the caller appended and we don't know must be zero, or
// it asks for something that we can't do (E2BIG, as openat2 has it).
// Threads: a pure function.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <variant>
#include <vector>

#include "base/result.hpp"
#include "client/include/sluice/ioctl.h"
#include "gpu/engine.hpp"

namespace sluice {

struct QueryRequest {
  std::uint32_t kind = 0;  // 0 or a sluice_buffer_kind
  GpuUuid gpu{};
};

struct RegisterRequest {
  std::uint32_t kind = 0;  // a sluice_buffer_kind
  std::uint64_t offset = 0, length = 0, allocation = 0;
  int fd = -1;  // the caller's
  GpuUuid gpu{};
  IpcHandle handle{};
};

struct UnregisterRequest {
  std::uint64_t buffer = 0;
};

struct ReadRequest {
  std::uint64_t buffer = 0;
  Segment segment;
  Route route = Route::Auto;
};

struct WriteRequest {
  std::uint64_t buffer = 0;
  Segment segment;
  Route route = Route::Auto;
};

struct ReadvRequest {
  std::uint64_t buffer = 0;
  std::vector<Segment> segments;
  Route route = Route::Auto;
};

struct PrefetchRequest {
  std::uint64_t offset = 0, length = 0;
  bool warm = false, promote = false;  // at least one
};

struct StatsRequest {
  GpuUuid gpu{};  // zero: of all
  bool reset = false;
};

using GpuRequest = std::variant<QueryRequest, RegisterRequest, UnregisterRequest, ReadRequest,
                                WriteRequest, ReadvRequest, PrefetchRequest, StatsRequest>;

// `in` is what the caller sent, `out_size` how much it takes back. Segments of the result neither
// wrap around nor reach beyond the largest file offset. ENOTTY for a number that is none of ours.
Result<GpuRequest> decode_gpu_request(unsigned command, std::span<const std::byte> in,
                                      std::size_t out_size);

// What goes back: the beginning of a structure of the ABI.
class GpuReply {
 public:
  template <typename Structure>
  void set(const Structure& structure, std::size_t size = sizeof(Structure)) {
    static_assert(sizeof(Structure) <= sizeof(sluice_readv));
    size_ = std::min(size, bytes_.size());
    std::memcpy(bytes_.data(), &structure, size_);
  }
  const std::byte* data() const { return bytes_.data(); }
  std::size_t size() const { return size_; }

 private:
  std::array<std::byte, 1024> bytes_;  // more than the longest; not cleared, a read is short
  std::size_t size_ = 0;
};

}  // namespace sluice
