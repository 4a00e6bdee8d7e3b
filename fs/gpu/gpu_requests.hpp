// SPDX-License-Identifier: BSD-2-Clause
// The decoder of our ioctls: it turns the bytes that a process sent into a consistent request, or
// returns an error. docs/ioctl.md describes the ioctls.
//
// The type and number identify an ioctl; the size only says how many bytes were sent. At least the
// first version of the structure must be there (EINVAL). Fields that a later version has added and
// the caller does not know are zero. Bytes that the caller has added and we do not know must be
// zero; otherwise it asks for something unknown (E2BIG, as openat2 does). Threads: a pure function.
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
  int fd = -1;  // a descriptor of the caller
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

struct GatherRequest {
  std::uint64_t buffer = 0, memory_offset = 0;
  std::uint64_t index = 0, index_offset = 0;  // a buffer of numbers
  Engine::Records records;
  std::uint64_t count = 0;
};

struct PrefetchRequest {
  std::uint64_t offset = 0, length = 0;
  bool warm = false, promote = false, hbm = false;  // at least one is true
};

struct StatsRequest {
  GpuUuid gpu{};  // zero: all GPUs
  bool reset = false;
};

struct RingCreateRequest {
  int fd = -1;  // a descriptor of the caller
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

struct ShareRequest {
  GpuUuid gpu{};  // zero: the first GPU
};

using GpuRequest =
    std::variant<QueryRequest, RegisterRequest, UnregisterRequest, ReadRequest, WriteRequest,
                 ReadvRequest, PrefetchRequest, StatsRequest, RingCreateRequest, RingDestroyRequest,
                 RingAddFileRequest, RingDropFileRequest, ShareRequest, GatherRequest>;

// A transfer of more bytes than this should not occupy the thread that takes requests: from the
// page cache it takes over half a millisecond. Waking another thread takes some 50 us.
inline constexpr std::uint64_t kLongTransfer = 16 << 20;
// Whether the ioctl is such a transfer. `in` as below.
bool is_long(unsigned command, std::span<const std::byte> in);

// `in` is what the caller sent, `out_size` the size of its reply buffer. Segments of the result
// neither wrap around nor exceed the largest file offset. ENOTTY: the number is not one of ours.
Result<GpuRequest> decode_gpu_request(unsigned command, std::span<const std::byte> in,
                                      std::size_t out_size);

// The reply: the caller's structure with the requested fields filled in.
class GpuReply {
 public:
  explicit GpuReply(std::span<const std::byte> in) : in_(in) {}

  // The structure as it was sent. REQUIRES: it was decoded.
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
  std::array<std::byte, kMost> bytes_;  // not cleared, because small reads must be fast
  std::size_t size_ = 0;
};

}  // namespace sluice
