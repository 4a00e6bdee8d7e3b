// SPDX-License-Identifier: BSD-2-Clause
// sluice_gather() and sluice_scatter(): records by number, by the engine of this process.
#include <climits>
#include <optional>
#include <vector>

#include "client/barrier.hpp"
#include "client/buffer.hpp"
#include "client/file.hpp"
#include "client/include/sluice/sluice.h"
#include "client/library.hpp"
#include "client/request.hpp"

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
Result<RecordIndex> index_of(Library& library, const Call& call, std::vector<std::uint64_t>& own) {
  RecordIndex index{call.index, 0, call.count};
  if (call.count == 0) return index;
  const auto memory = SLUICE_TRY(Buffer::create(library, const_cast<std::uint64_t*>(call.index),
                                                call.count * sizeof *call.index));
  Device* const device = memory->device();
  if (device == nullptr) return index;
  if (device == call.buffer->buffer->device()) {
    return RecordIndex{nullptr, memory->memory().address(), call.count};
  }
  own.resize(call.count);
  const ContextKeeper keeper(library.cuda());
  SLUICE_TRY(device->enter());
  const CUresult code = device->api().cuMemcpyDtoH(own.data(), memory->memory().address(),
                                                   call.count * sizeof *call.index);
  if (code != CUDA_SUCCESS) return device->failed(code, "copy the index from its GPU");
  return RecordIndex{own.data(), 0, call.count};
}

ssize_t by_number(const Call& call, struct sluice_result* result) noexcept {
  const File* const where = call.file != nullptr ? call.file->file.get() : nullptr;
  return barrier(call.name(), where, [&]() -> Result<std::int64_t> {
    Library& library = Library::get();
    SLUICE_TRY(check(library, call));
    std::vector<std::uint64_t> own;
    const RecordIndex index = SLUICE_TRY(index_of(library, call, own));
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
    if (result != nullptr) {
      *result = {};
      result->bytes = transfer.bytes;
      result->route = static_cast<std::uint32_t>(transfer.route);
      result->why = static_cast<std::uint32_t>(transfer.why);
      result->in_process = 1;
    }
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
