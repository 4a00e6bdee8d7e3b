// SPDX-License-Identifier: BSD-2-Clause
#include "fs/gpu/gpu_requests.hpp"

#include <algorithm>
#include <cstddef>
#include <limits>

namespace sluice {
namespace {

using Bytes = std::span<const std::byte>;

constexpr std::size_t kReadvHeader = offsetof(sluice_readv, segments);

// ABI: the sizes of the first version. Structures may grow, but these numbers stay.
constexpr std::size_t kFirstQuery = 280, kFirstRegister = 128, kFirstUnregister = 8,
                      kFirstTransfer = 56, kFirstPrefetch = 24, kFirstStats = 560,
                      kFirstRingCreate = 24, kFirstRingDestroy = 8, kFirstRingFile = 16,
                      kFirstShare = 336, kFirstRecords = 72;
static_assert(sizeof(sluice_query) == kFirstQuery);
static_assert(sizeof(sluice_buffer_register) == kFirstRegister);
static_assert(sizeof(sluice_buffer_unregister) == kFirstUnregister);
static_assert(sizeof(sluice_transfer) == kFirstTransfer);
static_assert(sizeof(sluice_prefetch) == kFirstPrefetch);
static_assert(sizeof(sluice_stats) == kFirstStats);
static_assert(sizeof(sluice_ring_create) == kFirstRingCreate);
static_assert(sizeof(sluice_ring_destroy) == kFirstRingDestroy);
static_assert(sizeof(sluice_ring_file) == kFirstRingFile);
static_assert(sizeof(sluice_share) == kFirstShare);
static_assert(sizeof(sluice_records) == kFirstRecords);
static_assert(kReadvHeader == 32 && sizeof(sluice_segment) == 24);
static_assert(sizeof(sluice_readv) == kReadvHeader + 24 * SLUICE_MAX_SEGMENTS);

bool is_zero(Bytes bytes) {
  return std::all_of(bytes.begin(), bytes.end(), [](std::byte b) { return b == std::byte{0}; });
}

// The structure at the beginning of `in`, with zeros for missing bytes.
template <typename Structure>
Result<Structure> structure(Bytes in, std::size_t out_size, std::size_t first) {
  if (in.size() < first || out_size < first) return Error(EINVAL, "ioctl structure too short");
  Structure out{};
  const std::size_t known = std::min(in.size(), sizeof out);
  std::memcpy(&out, in.data(), known);
  if (!is_zero(in.subspan(known))) return Error(E2BIG, "ioctl structure of a newer version");
  return out;
}

template <std::size_t N>
std::array<std::uint8_t, N> to_array(const __u8 (&bytes)[N]) {
  std::array<std::uint8_t, N> out;
  std::copy(std::begin(bytes), std::end(bytes), out.begin());
  return out;
}

bool overflows(std::uint64_t offset, std::uint64_t length) {
  return length > std::numeric_limits<std::uint64_t>::max() - offset;
}

// True if the range exceeds the largest file offset.
bool beyond_files(std::uint64_t offset, std::uint64_t length) {
  constexpr auto kMost = static_cast<std::uint64_t>(std::numeric_limits<std::int64_t>::max());
  return offset > kMost || length > kMost - offset;
}

Result<Segment> to_segment(const auto& from) {
  if (overflows(from.buffer_offset, from.length) || beyond_files(from.file_offset, from.length))
    return Error(EINVAL, "ioctl range");
  return Segment{from.buffer_offset, from.file_offset, from.length};
}

Result<Route> to_route(std::uint32_t number) {
  if (number >= kRoutes) return Error(EINVAL, "ioctl route");
  return static_cast<Route>(number);
}

Result<GpuRequest> query(Bytes in, std::size_t out_size) {
  const auto from = SLUICE_TRY(structure<sluice_query>(in, out_size, kFirstQuery));
  if (from.kind > SLUICE_BUFFER_MEMFD) return Error(EINVAL, "ioctl query");
  return GpuRequest(QueryRequest{from.kind, to_array(from.gpu_uuid)});
}

Result<GpuRequest> buffer_register(Bytes in, std::size_t out_size) {
  const auto from = SLUICE_TRY(structure<sluice_buffer_register>(in, out_size, kFirstRegister));
  if (from.kind < SLUICE_BUFFER_CUDA_IPC || from.kind > SLUICE_BUFFER_MEMFD)
    return Error(EINVAL, "ioctl buffer kind");
  if (from.reserved != 0 || from.reserved2 != 0) return Error(EINVAL, "ioctl buffer register");
  if (from.length == 0 || overflows(from.offset, from.length))
    return Error(EINVAL, "ioctl buffer range");
  if (from.kind == SLUICE_BUFFER_CUDA_FD ? from.allocation_length < from.offset + from.length
                                         : from.allocation_length != 0)
    return Error(EINVAL, "ioctl buffer allocation");
  if (from.kind != SLUICE_BUFFER_CUDA_IPC && from.fd < 0) return Error(EBADF, "ioctl buffer fd");
  return GpuRequest(RegisterRequest{from.kind, from.offset, from.length, from.allocation_length,
                                    from.fd, to_array(from.gpu_uuid), to_array(from.ipc_handle)});
}

template <typename Request>
Result<GpuRequest> transfer(Bytes in, std::size_t out_size) {
  const auto from = SLUICE_TRY(structure<sluice_transfer>(in, out_size, kFirstTransfer));
  if (from.reserved != 0) return Error(EINVAL, "ioctl transfer");
  const Segment segment = SLUICE_TRY(to_segment(from));
  const Route route = SLUICE_TRY(to_route(from.route));
  return GpuRequest(Request{from.buffer, segment, route});
}

// Callers may send only the segments that they use.
Result<GpuRequest> readv(Bytes in, std::size_t out_size) {
  sluice_readv header;
  if (in.size() < kReadvHeader || out_size < kReadvHeader) return Error(EINVAL, "ioctl readv");
  std::memcpy(&header, in.data(), kReadvHeader);
  if (header.reserved != 0 || header.count > SLUICE_MAX_SEGMENTS)
    return Error(EINVAL, "ioctl readv");
  const Bytes rest = in.subspan(kReadvHeader);
  if (rest.size() / sizeof(sluice_segment) < header.count)
    return Error(EINVAL, "ioctl readv has fewer segments than its count");
  if (in.size() > sizeof(sluice_readv) && !is_zero(in.subspan(sizeof(sluice_readv))))
    return Error(E2BIG, "ioctl structure of a newer version");
  ReadvRequest request;
  request.buffer = header.buffer;
  request.route = SLUICE_TRY(to_route(header.route));
  request.segments.reserve(header.count);
  for (std::uint32_t i = 0; i < header.count; ++i) {
    sluice_segment from;
    std::memcpy(&from, rest.data() + i * sizeof from, sizeof from);
    if (from.length > SLUICE_MAX_SEGMENT) return Error(E2BIG, "ioctl readv segment");
    request.segments.push_back(SLUICE_TRY(to_segment(from)));
  }
  return GpuRequest(std::move(request));
}

Result<GpuRequest> prefetch(Bytes in, std::size_t out_size) {
  const auto from = SLUICE_TRY(structure<sluice_prefetch>(in, out_size, kFirstPrefetch));
  constexpr std::uint32_t kFlags =
      SLUICE_PREFETCH_WARM | SLUICE_PREFETCH_PROMOTE | SLUICE_PREFETCH_HBM;
  if (from.reserved != 0 || (from.flags & ~kFlags) != 0 || beyond_files(from.offset, from.length))
    return Error(EINVAL, "ioctl prefetch");
  return GpuRequest(PrefetchRequest{
      from.offset, from.length, from.flags == 0 || (from.flags & SLUICE_PREFETCH_WARM) != 0,
      (from.flags & SLUICE_PREFETCH_PROMOTE) != 0, (from.flags & SLUICE_PREFETCH_HBM) != 0});
}

Result<GpuRequest> stats(Bytes in, std::size_t out_size) {
  const auto from = SLUICE_TRY(structure<sluice_stats>(in, out_size, kFirstStats));
  if ((from.flags & ~SLUICE_STATS_RESET) != 0) return Error(EINVAL, "ioctl stats");
  return GpuRequest(StatsRequest{to_array(from.gpu_uuid), from.flags != 0});
}

Result<GpuRequest> unregister(Bytes in, std::size_t out_size) {
  const auto from = SLUICE_TRY(structure<sluice_buffer_unregister>(in, out_size, kFirstUnregister));
  return GpuRequest(UnregisterRequest{from.buffer});
}

Result<GpuRequest> ring_create(Bytes in, std::size_t out_size) {
  const auto from = SLUICE_TRY(structure<sluice_ring_create>(in, out_size, kFirstRingCreate));
  // No ring is larger than this.
  constexpr std::uint64_t kMost = 64 << 20;
  if (from.reserved != 0 || from.length < SLUICE_RING_HEADER_SIZE || from.length > kMost)
    return Error(EINVAL, "ioctl ring create");
  if (from.fd < 0) return Error(EBADF, "ioctl ring fd");
  return GpuRequest(RingCreateRequest{from.fd, from.length});
}

Result<GpuRequest> ring_destroy(Bytes in, std::size_t out_size) {
  const auto from = SLUICE_TRY(structure<sluice_ring_destroy>(in, out_size, kFirstRingDestroy));
  return GpuRequest(RingDestroyRequest{from.ring});
}

Result<GpuRequest> ring_add_file(Bytes in, std::size_t out_size) {
  const auto from = SLUICE_TRY(structure<sluice_ring_file>(in, out_size, kFirstRingFile));
  return GpuRequest(RingAddFileRequest{from.ring});
}

Result<GpuRequest> ring_drop_file(Bytes in, std::size_t out_size) {
  const auto from = SLUICE_TRY(structure<sluice_ring_file>(in, out_size, kFirstRingFile));
  return GpuRequest(RingDropFileRequest{from.ring, from.file});
}

Result<GpuRequest> share(Bytes in, std::size_t out_size) {
  const auto from = SLUICE_TRY(structure<sluice_share>(in, out_size, kFirstShare));
  if (from.reserved[0] != 0 || from.reserved[1] != 0) return Error(EINVAL, "ioctl share");
  return GpuRequest(ShareRequest{to_array(from.gpu_uuid)});
}

Result<GpuRequest> gather(Bytes in, std::size_t out_size) {
  const auto from = SLUICE_TRY(structure<sluice_records>(in, out_size, kFirstRecords));
  if (from.reserved != 0 || from.record_bytes == 0 ||
      from.index_offset % sizeof(std::uint64_t) != 0)
    return Error(EINVAL, "ioctl gather");
  if (from.count > SLUICE_MAX_RECORDS) return Error(E2BIG, "ioctl gather records");
  const std::uint64_t count = from.count;
  if (overflows(from.buffer_offset, count * from.record_bytes) ||
      overflows(from.index_offset, count * sizeof(std::uint64_t)) ||
      beyond_files(from.file_offset, 0))
    return Error(EINVAL, "ioctl range");
  return GpuRequest(GatherRequest{from.buffer,
                                  from.buffer_offset,
                                  from.index,
                                  from.index_offset,
                                  {from.record_bytes, from.file_offset},
                                  count});
}

template <typename Number>
Number number_at(Bytes in, std::size_t at) {
  Number number = 0;
  if (at + sizeof number <= in.size()) std::memcpy(&number, in.data() + at, sizeof number);
  return number;
}

}  // namespace

bool is_long(unsigned command, Bytes in) {
  switch (_IOC_NR(command)) {
    case _IOC_NR(SLUICE_IOC_READ):
    case _IOC_NR(SLUICE_IOC_WRITE):
      return number_at<std::uint64_t>(in, offsetof(sluice_transfer, length)) > kLongTransfer;
    case _IOC_NR(SLUICE_IOC_READV): {
      // What follows the segments that count may be left over from another request.
      const auto count = number_at<std::uint32_t>(in, offsetof(sluice_readv, count));
      std::uint64_t left = kLongTransfer;
      for (std::uint32_t i = 0; i < std::min<std::uint32_t>(count, SLUICE_MAX_SEGMENTS); ++i) {
        const auto length = number_at<std::uint64_t>(
            in, offsetof(sluice_readv, segments[0].length) + i * sizeof(sluice_segment));
        if (length > left) return true;
        left -= length;
      }
      return false;
    }
    default:
      return false;
  }
}

Result<GpuRequest> decode_gpu_request(unsigned command, Bytes in, std::size_t out_size) {
  if (_IOC_TYPE(command) != SLUICE_IOC_TYPE) return Error(ENOTTY, "ioctl");
  switch (_IOC_NR(command)) {
    case _IOC_NR(SLUICE_IOC_QUERY):
      return query(in, out_size);
    case _IOC_NR(SLUICE_IOC_BUFFER_REGISTER):
      return buffer_register(in, out_size);
    case _IOC_NR(SLUICE_IOC_BUFFER_UNREGISTER):
      return unregister(in, out_size);
    case _IOC_NR(SLUICE_IOC_READ):
      return transfer<ReadRequest>(in, out_size);
    case _IOC_NR(SLUICE_IOC_WRITE):
      return transfer<WriteRequest>(in, out_size);
    case _IOC_NR(SLUICE_IOC_READV):
      return readv(in, out_size);
    case _IOC_NR(SLUICE_IOC_PREFETCH):
      return prefetch(in, out_size);
    case _IOC_NR(SLUICE_IOC_STATS):
      return stats(in, out_size);
    case _IOC_NR(SLUICE_IOC_RING_CREATE):
      return ring_create(in, out_size);
    case _IOC_NR(SLUICE_IOC_RING_DESTROY):
      return ring_destroy(in, out_size);
    case _IOC_NR(SLUICE_IOC_RING_ADD_FILE):
      return ring_add_file(in, out_size);
    case _IOC_NR(SLUICE_IOC_RING_DROP_FILE):
      return ring_drop_file(in, out_size);
    case _IOC_NR(SLUICE_IOC_SHARE):
      return share(in, out_size);
    case _IOC_NR(SLUICE_IOC_GATHER):
      return gather(in, out_size);
    default:
      return Error(ENOTTY, "ioctl");
  }
}

}  // namespace sluice
