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

#include <algorithm>
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

struct RingCreateRequest {
  int fd = -1;  // the caller's
  std::uint64_t length = 0;
};

struct RingDestroyRequest {
  std::uint64_t ring = 0;
};

struct RingAddFileRequest {
  std::uint64_t ring = 0;
};

struct RingDropFileRequest {
  std::uint64_t ring = 0, file = 0;
};

using GpuRequest =
    std::variant<QueryRequest, RegisterRequest, UnregisterRequest, ReadRequest, WriteRequest,
                 ReadvRequest, PrefetchRequest, StatsRequest, RingCreateRequest, RingDestroyRequest,
                 RingAddFileRequest, RingDropFileRequest>;

// `in` is what the caller sent, `out_size` how much it takes back. Segments of the result neither
// wrap around nor reach beyond the largest file offset. ENOTTY for a number that is none of ours.
Result<GpuRequest> decode_gpu_request(unsigned command, std::span<const std::byte> in,
                                      std::size_t out_size);

// What goes back: the caller's structure with what it asked for filled in.
class GpuReply {
 public:
  explicit GpuReply(std::span<const std::byte> in) : in_(in) {}

  // The structure as it came. REQUIRES: it was decoded.
  template <typename Structure>
  Structure start() const {
    Structure out{};
    std::memcpy(&out, in_.data(), std::min(in_.size(), sizeof out));
    return out;
  }
  template <typename Structure>
  void set(const Structure& structure) {
    static_assert(sizeof(Structure) <= kMost);
    size_ = sizeof structure;
    std::memcpy(bytes_.data(), &structure, size_);
  }
  const std::byte* data() const { return bytes_.data(); }
  std::size_t size() const { return size_; }

 private:
  static constexpr std::size_t kMost = 1024;  // no reply is longer
  const std::span<const std::byte> in_;
  std::array<std::byte, kMost> bytes_;  // not cleared: a small read is short
  std::size_t size_ = 0;
};

}  // namespace sluice
