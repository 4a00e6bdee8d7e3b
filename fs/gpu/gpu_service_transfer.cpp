// SPDX-License-Identifier: BSD-2-Clause
// READ, READV and WRITE, in turns with other requests.
#include <algorithm>

#include "fs/gpu/gpu_buffer.hpp"
#include "fs/gpu/gpu_service.hpp"
#include "fs/gpu/request_turn.hpp"

namespace sluice {
namespace {

// A copy within the GPU takes a tenth of a millisecond for so many bytes.
constexpr std::uint64_t kHbmSlice = 256 << 20;
constexpr std::uint64_t kMostGathered = 16 * kHbmSlice;  // by one request

void fill(auto& out, const Transfer& done) {
  out.route = static_cast<std::uint32_t>(done.route);
  out.why = static_cast<std::uint32_t>(done.why);
  out.done = done.bytes;
}

// Called before anything is transferred.
Result<void> check_range(const Memory& memory, const Segment& segment) {
  const std::uint64_t length = memory.length();
  if (segment.memory_offset > length || segment.length > length - segment.memory_offset)
    return Error(ERANGE, "the range exceeds the buffer");
  return {};
}

}  // namespace

// Counts a request in progress.
class GpuService::AtWork {
 public:
  explicit AtWork(GpuService& service) : service_(service) { ++service_.at_work_; }
  ~AtWork() { --service_.at_work_; }
  AtWork(const AtWork&) = delete;
  AtWork& operator=(const AtWork&) = delete;

  RequestTurn turn() {
    return RequestTurn([this] {
      const unsigned all = service_.waiting_(), ours = service_.at_work_.load();
      if (all == 0) return 1u;  // unknown
      return all > ours ? all - ours : 0u;
    });
  }

 private:
  GpuService& service_;
};

template <typename Work>
Result<Transfer> GpuService::in_turn(const Segment& segment, Work work) {
  if (segment.length <= RequestTurn::kLeastSlice) return work(segment);
  AtWork at_work(*this);
  RequestTurn turn = at_work.turn();
  const std::uint64_t most = std::min<std::uint64_t>(segment.length, SLUICE_MAX_TRANSFER);
  Transfer all;
  do {
    const std::uint64_t slice =
        all.route == Route::Hbm ? std::max(kHbmSlice, turn.slice()) : turn.slice();
    const Segment part{segment.memory_offset + all.bytes, segment.file_offset + all.bytes,
                       std::min(slice, most - all.bytes)};
    const auto done = work(part);
    if (!done && all.bytes == 0) return done.error();
    if (!done) break;  // the next request returns the error
    // The route is that of the first slice, which is not the smallest.
    const std::uint64_t before = all.bytes;
    if (before == 0) all = *done;
    all.bytes = before + done->bytes;
    if (done->bytes < part.length) break;  // the end of the file
    if (turn.is_over(done->bytes)) break;
  } while (all.bytes < most);
  return all;
}

Result<void> GpuService::handle(const From& from, const ReadRequest& request, GpuReply& reply) {
  if (!from.open.reads()) return Error(EBADF, "the file is not open for reading");
  const BufferPtr buffer = SLUICE_TRY(find(from, request.buffer));
  if (!buffer->memory->is_writable()) return Error(EACCES, "the buffer is read-only");
  SLUICE_TRY(check_range(*buffer->memory, request.segment));
  auto out = reply.start<sluice_transfer>();
  fill(out, SLUICE_TRY(in_turn(request.segment, [&](const Segment& part) {
         return filesystem_.gpu().read(from.file, *buffer->memory, {&part, 1}, request.route,
                                       from.caller.uid);
       })));
  reply.set(out);
  return {};
}

Result<void> GpuService::handle(const From& from, const GatherRequest& request, GpuReply& reply) {
  if (!from.open.reads()) return Error(EBADF, "the file is not open for reading");
  const BufferPtr to = SLUICE_TRY(find(from, request.buffer));
  const BufferPtr numbers = SLUICE_TRY(find(from, request.index));
  const Memory& index = *numbers->memory;
  if (to->memory->device() == nullptr || index.device() != to->memory->device())
    return Error(EOPNOTSUPP, "gather with an index that is not on the GPU of the buffer");
  const std::uint64_t size = request.records.size;
  SLUICE_TRY(check_range(*to->memory, {request.memory_offset, 0, request.count * size}));
  SLUICE_TRY(check_range(index, {request.index_offset, 0, request.count * sizeof(std::uint64_t)}));
  const CUdeviceptr first = index.address() + request.index_offset;
  // Otherwise it would be a fatal error on the GPU for this process.
  if (first % sizeof(std::uint64_t) != 0)
    return Error(EINVAL, "the index is not aligned to 8 bytes");
  const std::uint64_t count =
      std::min(request.count, std::max<std::uint64_t>(kMostGathered / size, 1));
  auto out = reply.start<sluice_records>();
  fill(out, SLUICE_TRY(filesystem_.gpu().gather_from_hbm(
                from.file, *to->memory, request.memory_offset, request.records,
                RecordIndex{nullptr, first, count}, from.caller.uid)));
  reply.set(out);
  return {};
}

// Reads whole segments, in order, until the turn is over.
Result<Transfer> GpuService::read_segments(const From& from, const ReadvRequest& request,
                                           Memory& memory, std::size_t& count) {
  AtWork at_work(*this);
  RequestTurn turn = at_work.turn();
  Transfer all;
  std::uint64_t asked = 0, largest = 0;
  const std::span<const Segment> segments = request.segments;
  for (const Segment& each : segments) SLUICE_TRY(check_range(memory, each));
  for (count = 0; count < segments.size();) {
    std::size_t next = count;
    std::uint64_t bytes = 0;
    while (next < segments.size() &&
           (next == count || bytes + segments[next].length <= turn.slice()))
      bytes += segments[next++].length;
    if (count > 0 && asked + bytes > SLUICE_MAX_TRANSFER) break;
    const auto part = segments.subspan(count, next - count);
    const auto done =
        filesystem_.gpu().read(from.file, memory, part, request.route, from.caller.uid);
    if (!done && count == 0) return done.error();
    if (!done) break;  // the next request returns the error
    all.bytes += done->bytes;
    if (done->bytes >= largest) {
      largest = done->bytes;
      all.route = done->route;
      all.why = done->why;
    }
    asked += bytes;
    count = next;
    if (turn.is_over(bytes)) break;
  }
  return all;
}

Result<void> GpuService::handle(const From& from, const ReadvRequest& request, GpuReply& reply) {
  if (!from.open.reads()) return Error(EBADF, "the file is not open for reading");
  const BufferPtr buffer = SLUICE_TRY(find(from, request.buffer));
  if (!buffer->memory->is_writable()) return Error(EACCES, "the buffer is read-only");
  Transfer done;
  std::size_t count = 0;
  if (!request.segments.empty())
    done = SLUICE_TRY(read_segments(from, request, *buffer->memory, count));
  // The segments are not sent back.
  struct Header {
    __u64 buffer;
    __u32 count, route, why, reserved;
    __u64 done;
  };
  static_assert(sizeof(Header) == offsetof(sluice_readv, segments));
  static_assert(offsetof(sluice_readv, done) == 24 && offsetof(sluice_readv, why) == 16);
  auto out = reply.start<Header>();
  fill(out, done);
  out.count = static_cast<__u32>(count);
  reply.set(out);
  return {};
}

Result<void> GpuService::handle(const From& from, const WriteRequest& request, GpuReply& reply) {
  if (!from.open.writes()) return Error(EBADF, "the file is not open for writing");
  if (from.open.appends())
    return Error(EINVAL, "cannot write at an offset: the file is open for appending");
  const BufferPtr buffer = SLUICE_TRY(find(from, request.buffer));
  SLUICE_TRY(check_range(*buffer->memory, request.segment));
  const auto strip_suid = from.caller.uid == 0 ? std::nullopt : std::optional(from.caller);
  auto out = reply.start<sluice_transfer>();
  fill(out, SLUICE_TRY(in_turn(request.segment, [&](const Segment& part) {
         return filesystem_.gpu().write(from.file, *buffer->memory, part, request.route,
                                        strip_suid);
       })));
  reply.set(out);
  return {};
}

}  // namespace sluice
