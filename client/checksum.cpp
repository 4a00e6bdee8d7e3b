// SPDX-License-Identifier: BSD-2-Clause
// sluice_checksum() and sluice_checksum_file(): by the GPU for GPU memory, by the CPU for others.
#include "gpu/checksum.hpp"

#include <unistd.h>

#include <algorithm>
#include <span>
#include <vector>

#include "client/barrier.hpp"
#include "client/buffer.hpp"
#include "client/include/sluice/sluice.h"
#include "client/library.hpp"
#include "client/request.hpp"
#include "client/stream.hpp"

namespace sluice {
namespace {

// What the CPU takes at a time.
constexpr std::uint64_t kChunk = 4 << 20;
static_assert(kChunk % kChecksumBlock == 0);

// Of GPU memory, by the CPU.
Result<void> add_copy(Device& device, CUdeviceptr from, std::uint64_t length, RangeChecksum& sum) {
  std::vector<std::byte> bytes(std::min(length, kChunk));
  for (std::uint64_t done = 0; done < length;) {
    const std::uint64_t size = std::min(length - done, kChunk);
    const CUresult code = device.api().cuMemcpyDtoH(bytes.data(), from + done, size);
    if (code != CUDA_SUCCESS) return device.failed(code, "copy from the GPU");
    sum.add({bytes.data(), size});
    done += size;
  }
  return {};
}

Result<std::uint64_t> of_buffer(Library& library, Buffer& buffer, std::uint64_t offset,
                                std::uint64_t length) {
  SLUICE_TRY(check(library, buffer));
  if (offset > buffer.length() || length > buffer.length() - offset) {
    return Error{ERANGE, "the range exceeds the buffer"};
  }
  RangeChecksum sum;
  const Memory& memory = buffer.memory();
  Device* const device = memory.device();
  if (device == nullptr) {
    sum.add({memory.host() + offset, length});
    return sum.value();
  }
  SLUICE_TRY(wait_for_default_stream(library, buffer));
  const ContextKeeper keeper(library.cuda());
  SLUICE_TRY(device->enter());
  const CUdeviceptr from = memory.address() + offset;
  const auto added = library.checksums().add(*device, from, length, sum);
  if (failed_with(added, EOPNOTSUPP)) {
    RangeChecksum again;
    SLUICE_TRY(add_copy(*device, from, length, again));
    return again.value();
  }
  SLUICE_TRY(added);
  return sum.value();
}

// Reads until `bytes` is full or the file ends, and returns the number of bytes.
Result<std::size_t> read_fully(int fd, std::span<std::byte> bytes, std::uint64_t offset) {
  std::size_t done = 0;
  while (done < bytes.size()) {
    const ssize_t got =
        ::pread(fd, bytes.data() + done, bytes.size() - done, static_cast<off_t>(offset + done));
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return Error::last("read");
    if (got == 0) break;
    done += static_cast<std::size_t>(got);
  }
  return done;
}

Result<std::uint64_t> of_file(const File& file, std::uint64_t offset, std::uint64_t length) {
  SLUICE_TRY(check(file, Direction::Read));
  if (offset > INT64_MAX) return Error{EINVAL, "the offset is too large"};
  length = std::min(length, INT64_MAX - offset);
  RangeChecksum sum;
  std::vector<std::byte> bytes(std::min(length, kChunk));
  while (length > 0) {
    const std::size_t wanted = std::min<std::uint64_t>(length, bytes.size());
    const std::size_t got =
        SLUICE_TRY(read_fully(file.for_engine().fd, {bytes.data(), wanted}, offset));
    sum.add({bytes.data(), got});
    if (got < wanted) break;
    offset += got;
    length -= got;
  }
  return sum.value();
}

}  // namespace
}  // namespace sluice

SLUICE_API int sluice_checksum(sluice_buffer* buffer, size_t buffer_offset, size_t length,
                               uint64_t* sum) {
  using namespace sluice;
  return static_cast<int>(barrier("checksum", kNowhere, [&]() -> Result<std::int64_t> {
    SLUICE_TRY(need(buffer != nullptr, "buffer must not be NULL"));
    SLUICE_TRY(need(sum != nullptr, "sum must not be NULL"));
    *sum = SLUICE_TRY(of_buffer(Library::get(), *buffer->buffer, buffer_offset, length));
    return 0;
  }));
}

SLUICE_API int sluice_checksum_file(sluice_file* file, uint64_t file_offset, uint64_t length,
                                    uint64_t* sum) {
  using namespace sluice;
  const File* const where = file != nullptr ? file->file.get() : nullptr;
  return static_cast<int>(barrier("checksum", where, [&]() -> Result<std::int64_t> {
    SLUICE_TRY(need(file != nullptr, "file must not be NULL"));
    SLUICE_TRY(need(sum != nullptr, "sum must not be NULL"));
    *sum = SLUICE_TRY(of_file(*where, file_offset, length));
    return 0;
  }));
}
