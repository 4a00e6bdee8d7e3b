// SPDX-License-Identifier: BSD-2-Clause
// READ, READV, WRITE and GATHER.
#include <algorithm>

#include "fs/gpu/gpu_buffer.hpp"
#include "fs/gpu/gpu_service.hpp"

namespace sluice {
namespace {

// By one request. A copy within the GPU takes 2 ms for so many bytes.
constexpr std::uint64_t kMostGathered = 4ull << 30;
// A write is cancelled after such a part.
constexpr std::uint64_t kMostWritten = 64 << 20;

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

std::function<bool()> GpuService::cancelling(const From& from) {
  return [this, watch = CallerWatch(from.caller.pid)]() mutable {
    return ends_() || watch.is_killed();
  };
}

Result<Transfer> GpuService::read(const From& from, Memory& memory,
                                  std::span<const Segment> segments, Route route) {
  std::uint64_t length = 0;
  for (const Segment& each : segments) {
    SLUICE_TRY(check_range(memory, each));
    length += each.length;
  }
  return filesystem_.gpu().read(from.file, memory, segments, route, from.caller.uid,
                                length > kLongTransfer ? cancelling(from) : nullptr);
}

Result<void> GpuService::handle(const From& from, const ReadRequest& request, GpuReply& reply) {
  if (!from.open.reads()) return Error(EBADF, "the file is not open for reading");
  const BufferPtr buffer = SLUICE_TRY(find(from, request.buffer));
  if (!buffer->memory->is_writable()) return Error(EACCES, "the buffer is read-only");
  auto out = reply.start<sluice_transfer>();
  fill(out, SLUICE_TRY(read(from, *buffer->memory, {&request.segment, 1}, request.route)));
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

Result<void> GpuService::handle(const From& from, const ReadvRequest& request, GpuReply& reply) {
  if (!from.open.reads()) return Error(EBADF, "the file is not open for reading");
  const BufferPtr buffer = SLUICE_TRY(find(from, request.buffer));
  if (!buffer->memory->is_writable()) return Error(EACCES, "the buffer is read-only");
  Transfer done;
  if (!request.segments.empty())
    done = SLUICE_TRY(read(from, *buffer->memory, request.segments, request.route));
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
  out.count = static_cast<__u32>(request.segments.size() - done.left);
  reply.set(out);
  return {};
}

Result<void> GpuService::handle(const From& from, const WriteRequest& request, GpuReply& reply) {
  if (!from.open.writes()) return Error(EBADF, "the file is not open for writing");
  if (from.open.appends())
    return Error(EINVAL, "cannot write at an offset: the file is open for appending");
  const BufferPtr buffer = SLUICE_TRY(find(from, request.buffer));
  SLUICE_TRY(check_range(*buffer->memory, request.segment));
  const auto is_cancelled = cancelling(from);
  Transfer all;
  do {
    const Segment part{request.segment.memory_offset + all.bytes,
                       request.segment.file_offset + all.bytes,
                       std::min(kMostWritten, request.segment.length - all.bytes)};
    const auto done =
        filesystem_.gpu().write(from.file, *buffer->memory, part, request.route, from.caller);
    if (!done && all.bytes == 0) return done.error();
    if (!done) break;  // the next request returns the error
    all.add(*done);
  } while (all.bytes < request.segment.length && !is_cancelled());
  auto out = reply.start<sluice_transfer>();
  fill(out, all);
  reply.set(out);
  return {};
}

}  // namespace sluice
