// SPDX-License-Identifier: BSD-2-Clause
// sluice_gather() and sluice_scatter(): records by number, by the engine of this process; or by the
// daemon, if it has the file in GPU memory.
#include <algorithm>
#include <climits>
#include <memory>
#include <optional>
#include <vector>

#include "client/barrier.hpp"
#include "client/buffer.hpp"
#include "client/file.hpp"
#include "client/include/sluice/ioctl.h"
#include "client/include/sluice/sluice.h"
#include "client/library.hpp"
#include "client/request.hpp"
#include "client/stream.hpp"
#include "gpu/cutter.hpp"

namespace sluice {
namespace {

struct Call {
  sluice_file* file;
  sluice_buffer* buffer;
  std::size_t buffer_offset;
  const std::uint64_t* index;
  std::size_t count;
  std::size_t record_bytes;
  std::uint64_t file_offset;
  Direction direction;

  const char* name() const { return direction == Direction::Read ? "gather" : "scatter"; }
};

Result<void> check(Library& library, const Call& call) {
  if (call.file == nullptr) return Error{EINVAL, "file must not be NULL"};
  if (call.buffer == nullptr) return Error{EINVAL, "buffer must not be NULL"};
  if (call.record_bytes == 0) return Error{EINVAL, "a record must have at least one byte"};
  if (call.index == nullptr && call.count > 0) return Error{EINVAL, "index must not be NULL"};
  // An unaligned address would be a fatal error on the GPU for this process.
  if (reinterpret_cast<std::uintptr_t>(call.index) % sizeof *call.index != 0) {
    return Error{EINVAL, "the index is not aligned to 8 bytes"};
  }
  if (call.count > SSIZE_MAX / sizeof *call.index || call.count > SSIZE_MAX / call.record_bytes) {
    return Error{ERANGE, "the range exceeds the buffer"};
  }
  SLUICE_TRY(check(library, *call.buffer->buffer));
  return check(*call.file->file, call.direction);
}

// The index as the engine takes it. An index on a different GPU than the buffer is copied to `own`.
// `memory` is set to that of the index.
Result<RecordIndex> index_of(Library& library, const Call& call, std::vector<std::uint64_t>& own,
                             std::unique_ptr<Buffer>& memory) {
  RecordIndex index{call.index, 0, call.count};
  if (call.count == 0) return index;
  memory = SLUICE_TRY(Buffer::create(library, const_cast<std::uint64_t*>(call.index),
                                     call.count * sizeof *call.index));
  Device* const device = memory->device();
  if (device == nullptr) return index;
  if (!call.buffer->buffer->is_ordered()) memory->do_not_order();
  SLUICE_TRY(wait_for_default_stream(library, *memory));
  if (device == call.buffer->buffer->device()) {
    return RecordIndex{nullptr, memory->memory().address(), call.count};
  }
  own.resize(call.count);
  SLUICE_TRY(device->enter());
  const CUresult code = device->api().cuMemcpyDtoH(own.data(), memory->memory().address(),
                                                   call.count * sizeof *call.index);
  if (code != CUDA_SUCCESS) return device->failed(code, "copy the index from its GPU");
  return RecordIndex{own.data(), 0, call.count};
}

// From the copy of the file in GPU memory, which only the daemon may use. Empty if there is none,
// or anything else prevents it: the engine of this process then does it, and explains errors.
std::optional<Transfer> by_daemon(Library& library, const Call& call, Buffer& index) {
  File& file = *call.file->file;
  const auto ids = ids_at_daemon(file, *call.buffer->buffer);
  if (ids == nullptr || ids->size() != 1) return std::nullopt;
  const auto numbers = ids_at_daemon(file, index);
  struct Forget {
    ~Forget() { library.forget(index); }
    Library& library;
    Buffer& index;
  } forget{library, index};
  if (numbers == nullptr || numbers->size() != 1) return std::nullopt;
  Transfer sum;
  for (std::size_t done = 0; done < call.count;) {
    struct sluice_records request {};
    request.buffer = ids->front();
    request.buffer_offset = call.buffer_offset + done * call.record_bytes;
    request.index = numbers->front();
    request.index_offset = done * sizeof *call.index;
    request.file_offset = call.file_offset;
    request.count =
        static_cast<__u32>(std::min<std::size_t>(call.count - done, SLUICE_MAX_RECORDS));
    request.record_bytes = static_cast<__u32>(call.record_bytes);
    const auto went = ask(file, SLUICE_IOC_GATHER, request);
    if (!went || went->bytes < call.record_bytes) return std::nullopt;
    done += went->bytes / call.record_bytes;
    sum.add(*went);
  }
  return sum;
}

// Registering the index with the daemon takes longer than a few records.
bool pays_at_daemon(const Call& call, const RecordIndex& index) {
  constexpr std::size_t kLeast = 4 << 20;
  return call.direction == Direction::Read && index.device != 0 && call.record_bytes <= kSmall &&
         call.count * call.record_bytes >= kLeast && call.file->file->may_be_in_hbm();
}

ssize_t by_number(const Call& call, struct sluice_result* result) noexcept {
  const File* const where = call.file != nullptr ? call.file->file.get() : nullptr;
  return barrier(call.name(), where, [&]() -> Result<std::int64_t> {
    Library& library = Library::get();
    SLUICE_TRY(check(library, call));
    SLUICE_TRY(wait_for_default_stream(library, *call.buffer->buffer));
    const ContextKeeper keeper(library.cuda());
    std::vector<std::uint64_t> own;
    std::unique_ptr<Buffer> numbers;
    const RecordIndex index = SLUICE_TRY(index_of(library, call, own, numbers));
    if (pays_at_daemon(call, index)) {
      if (const auto done = by_daemon(library, call, *numbers)) {
        if (result != nullptr) *result = result_of({*done, false});
        return static_cast<std::int64_t>(done->bytes);
      }
      call.file->file->is_not_in_hbm();
    }
    Engine& engine = library.engine();
    Memory& memory = call.buffer->buffer->memory();
    const Engine::Records records{call.record_bytes, call.file_offset};
    std::optional<BadIndex> bad;
    const auto went =
        call.direction == Direction::Read
            ? engine.gather(where->for_engine(), memory, call.buffer_offset, records, index, &bad)
            : engine.scatter(where->for_engine(), memory, call.buffer_offset, records, index, &bad);
    if (bad) {
      return explained(call.name(), where->path(), *bad, call.record_bytes);
    }
    const Transfer transfer = SLUICE_TRY(went);
    if (result != nullptr) *result = result_of({transfer, true});
    return static_cast<std::int64_t>(transfer.bytes);
  });
}

}  // namespace
}  // namespace sluice

using sluice::Direction;

SLUICE_API ssize_t sluice_gather(sluice_file* file, sluice_buffer* buffer, size_t buffer_offset,
                                 const uint64_t* index, size_t count, size_t record_bytes,
                                 uint64_t file_offset, struct sluice_result* result) {
  return sluice::by_number(
      {file, buffer, buffer_offset, index, count, record_bytes, file_offset, Direction::Read},
      result);
}

SLUICE_API ssize_t sluice_scatter(sluice_file* file, sluice_buffer* buffer, size_t buffer_offset,
                                  const uint64_t* index, size_t count, size_t record_bytes,
                                  uint64_t file_offset, struct sluice_result* result) {
  return sluice::by_number(
      {file, buffer, buffer_offset, index, count, record_bytes, file_offset, Direction::Write},
      result);
}
