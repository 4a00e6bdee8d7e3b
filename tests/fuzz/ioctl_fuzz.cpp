// SPDX-License-Identifier: BSD-2-Clause
// Decodes arbitrary bytes as an ioctl. The result must be one of the decoder's errors, or a
// consistent request. A libFuzzer target (SLUICE_FUZZ=ON, clang); fs_gpu_requests_test runs the
// corpus and mutations of it through the same function.
//
// An input is one byte for the number, two for the size of the reply, then the request.
#include <cstdlib>
#include <limits>

#include "fs/gpu/gpu_requests.hpp"

namespace sluice {
namespace {

void check(bool holds) {
  if (!holds) std::abort();
}

void check(const Segment& segment) {
  check(segment.memory_offset + segment.length >= segment.length);
  check(segment.file_offset + segment.length >= segment.length);
  check(segment.file_offset + segment.length <=
        static_cast<std::uint64_t>(std::numeric_limits<std::int64_t>::max()));
}
void check(Route route) { check(static_cast<std::uint32_t>(route) < kRoutes); }

void check(const QueryRequest& request) { check(request.kind <= SLUICE_BUFFER_MEMFD); }
void check(const UnregisterRequest&) {}
void check(const StatsRequest&) {}
void check(const RingDestroyRequest&) {}
void check(const RingAddFileRequest&) {}
void check(const RingDropFileRequest&) {}
void check(const ShareRequest&) {}
void check(const GatherRequest& request) {
  const std::uint64_t bytes = request.count * request.records.size;
  check(request.count <= SLUICE_MAX_RECORDS && request.records.size > 0);
  check(request.memory_offset + bytes >= bytes && request.index_offset % 8 == 0);
}
void check(const RingCreateRequest& request) {
  check(request.fd >= 0 && request.length >= SLUICE_RING_HEADER_SIZE);
}
void check(const RegisterRequest& request) {
  check(request.kind >= SLUICE_BUFFER_CUDA_IPC && request.kind <= SLUICE_BUFFER_MEMFD);
  check(request.length > 0 && request.offset + request.length > request.offset);
  check(request.kind == SLUICE_BUFFER_CUDA_IPC || request.fd >= 0);
  check(request.kind != SLUICE_BUFFER_CUDA_FD ||
        request.allocation >= request.offset + request.length);
}
void check(const ReadRequest& request) {
  check(request.segment);
  check(request.route);
}
void check(const WriteRequest& request) {
  check(request.segment);
  check(request.route);
}
void check(const ReadvRequest& request) {
  check(request.segments.size() <= SLUICE_MAX_SEGMENTS);
  for (const Segment& segment : request.segments) check(segment);
  check(request.route);
}
void check(const PrefetchRequest& request) { check(request.warm || request.promote); }

}  // namespace
}  // namespace sluice

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace sluice;
  if (size < 3) return 0;
  const unsigned command = _IOC(_IOC_READ | _IOC_WRITE, SLUICE_IOC_TYPE, data[0], 0);
  const std::size_t out_size = data[1] | static_cast<std::size_t>(data[2]) << 8;
  const std::span in(reinterpret_cast<const std::byte*>(data) + 3, size - 3);
  const auto request = decode_gpu_request(command, in, out_size);
  if (request) {
    std::visit([](const auto& each) { check(each); }, *request);
    return 0;
  }
  const int code = request.error().code;
  check(code == EINVAL || code == ENOTTY || code == E2BIG || code == EBADF);
  return 0;
}
