// SPDX-License-Identifier: BSD-2-Clause
#include "client/request.hpp"

#include <fcntl.h>
#include <sys/ioctl.h>

#include <algorithm>
#include <memory>
#include <vector>

namespace sluice {
namespace {

// A part of one segment that lies in one piece of the buffer.
struct Part {
  std::size_t segment;  // its number, to skip the rest of it at the end of the file
  std::size_t piece;
  struct sluice_segment where;  // in the piece
};

Result<void> check(Library& library, const Request& request) {
  SLUICE_TRY(check(library, request.buffer));
  SLUICE_TRY(check(request.file, request.direction));
  for (const auto& segment : request.segments) {
    const std::uint64_t size = request.buffer.length();
    if (segment.memory_offset > size || segment.length > size - segment.memory_offset) {
      return Error{ERANGE, "the range exceeds the buffer"};
    }
    if (segment.file_offset > INT64_MAX || segment.length > INT64_MAX - segment.file_offset) {
      return Error{EINVAL, "the offset and length exceed the largest file size"};
    }
  }
  return {};
}

std::vector<Part> parts_of(const Request& request) {
  const auto& pieces = request.buffer.pieces();
  std::vector<Part> parts;
  for (std::size_t i = 0; i < request.segments.size(); ++i) {
    Segment left = request.segments[i];
    // The last piece that begins at or before the segment.
    auto piece = std::upper_bound(pieces.begin(), pieces.end(), left.memory_offset,
                                  [](auto offset, auto& each) { return offset < each.offset; }) -
                 1;
    while (left.length > 0) {
      const std::uint64_t offset = left.memory_offset - piece->offset;
      const std::uint64_t length = std::min(left.length, piece->length - offset);
      parts.push_back({i,
                       static_cast<std::size_t>(piece - pieces.begin()),
                       {offset, left.file_offset, length}});
      left.memory_offset += length;
      left.file_offset += length;
      left.length -= length;
      if (offset + length == piece->length) ++piece;
    }
  }
  return parts;
}

Result<Transfer> ask_one(const Request& request, const Part& part, std::uint64_t id) {
  struct sluice_transfer transfer {};
  transfer.buffer = id;
  transfer.buffer_offset = part.where.buffer_offset;
  transfer.file_offset = part.where.file_offset;
  transfer.length = part.where.length;
  transfer.route = static_cast<std::uint32_t>(request.route);
  const bool is_read = request.direction == Direction::Read;
  return ask(request.file, is_read ? SLUICE_IOC_READ : SLUICE_IOC_WRITE, transfer);
}

// `count` is set to the number of parts that were read.
Result<Transfer> ask_many(const Request& request, std::span<const Part> parts, std::uint64_t id,
                          std::size_t& count) {
  auto readv = std::make_unique<struct sluice_readv>();
  readv->buffer = id;
  readv->count = static_cast<__u32>(parts.size());
  readv->route = static_cast<std::uint32_t>(request.route);
  for (std::size_t i = 0; i < parts.size(); ++i) readv->segments[i] = parts[i].where;
  const Transfer done = SLUICE_TRY(ask(request.file, SLUICE_IOC_READV, *readv));
  // A count of 0 would make the caller loop forever.
  if (readv->count == 0 || readv->count > parts.size())
    return Error{EIO, "invalid reply of the daemon"};
  count = readv->count;
  return done;
}

// How many of `parts` fit into one request: parts of one piece. A large part gets its own request.
std::size_t batch_size(std::span<const Part> parts) {
  std::size_t count = 0;
  for (const auto& part : parts) {
    const bool fits = part.piece == parts[0].piece && part.where.length <= SLUICE_MAX_SEGMENT;
    if (!fits || count == SLUICE_MAX_SEGMENTS) break;
    ++count;
  }
  return std::max<std::size_t>(count, 1);
}

// After a request with `ids` has failed with ESTALE. EOPNOTSUPP: the new daemon can't use the
// buffer.
Result<void> renew(const Request& request, std::shared_ptr<const File::BufferIds>& ids) {
  auto renewed = request.file.renewed_ids(request.buffer, *ids);
  if (failed_with(renewed, ESTALE) || failed_with(renewed, ECONNABORTED)) return renewed.error();
  if (!renewed) return Error{EOPNOTSUPP, "register the memory with the mount's new daemon"};
  ids = *std::move(renewed);
  return {};
}

// Of by_daemon(): one daemon after the other has ended. No system call fails with it.
constexpr int kNoDaemonStays = ERESTART;

// Each of them may take a second until its GPU is ready. This process can do what they do, so it
// does not wait for more of them in a row.
constexpr int kMostDaemons = 3;

// If another daemon takes over the mount, what it has to do begins with the part that the earlier
// one has not answered: bytes that were answered have arrived, or are in the file.
Result<Transfer> by_daemon(const Request& request, std::shared_ptr<const File::BufferIds> ids) {
  auto parts = parts_of(request);
  int stale_in_a_row = 0;
  const bool is_write = request.direction == Direction::Write;
  Transfer sum;
  for (std::size_t i = 0; i < parts.size();) {
    std::size_t count = is_write ? 1 : batch_size(std::span<const Part>(parts).subspan(i));
    Part& first = parts[i];
    const bool is_one = count == 1;
    const std::uint64_t id = (*ids)[first.piece];
    const auto answer =
        is_one ? ask_one(request, first, id) : ask_many(request, {&first, count}, id, count);
    if (failed_with(answer, ESTALE)) {
      if (++stale_in_a_row == kMostDaemons) return Error{kNoDaemonStays, "ask the mount's daemon"};
      SLUICE_TRY(renew(request, ids));
      continue;
    }
    stale_in_a_row = 0;
    if (!answer) {
      // Report the bytes that were written; the next call returns the error.
      if (is_write && sum.bytes > 0) break;
      return answer.error();
    }
    sum.add(*answer);
    if (is_one && answer->bytes > 0 && answer->bytes < first.where.length) {
      // Either another daemon takes over, or this is the end of the file: then the next request
      // reads 0 bytes.
      first.where.buffer_offset += answer->bytes;
      first.where.file_offset += answer->bytes;
      first.where.length -= answer->bytes;
      continue;
    }
    const bool is_end = is_one && answer->bytes == 0;
    const std::size_t segment = first.segment;
    i += count;
    while (is_end && i < parts.size() && parts[i].segment == segment) ++i;
  }
  return sum;
}

// Errors that mean that the daemon or the kernel can't do this, although the request may be valid.
bool means_cannot(int code) {
  return code == EOPNOTSUPP || code == ENODEV || code == ENOTTY || code == ENOSYS || code == EPERM;
}

Result<Transfer> by_engine(Library& library, const Request& request) {
  Engine& engine = library.engine();
  const EngineFile& file = request.file.for_engine();
  Memory& memory = request.buffer.memory();
  if (request.direction == Direction::Write) {
    return engine.write(file, memory, request.segments[0], request.route);
  }
  return engine.read(file, memory, request.segments, request.route);
}

}  // namespace

std::shared_ptr<const File::BufferIds> ids_at_daemon(File& file, Buffer& buffer) {
  if (!buffer.is_for_daemon()) return nullptr;
  const auto& daemon = file.daemon();
  if (!daemon || daemon->gpus == 0) return nullptr;
  auto ids = file.daemon_ids(buffer);
  if (ids) return *ids;
  // The file is not at fault, and another attempt would fail in the same way.
  buffer.refuse();
  return nullptr;
}

struct sluice_result result_of(const Outcome& outcome) {
  struct sluice_result result {};
  result.bytes = outcome.transfer.bytes;
  result.route = static_cast<std::uint32_t>(outcome.transfer.route);
  result.why = static_cast<std::uint32_t>(outcome.transfer.why);
  result.in_process = outcome.in_process ? 1 : 0;
  return result;
}

Result<void> check(Library& library, const Buffer& buffer) {
  if (buffer.device() != nullptr && !library.engine().is_enabled()) {
    return Error{ENODEV, "the GPU memory belongs to the parent: CUDA does not work after fork()"};
  }
  return {};
}

Result<void> check(const File& file, Direction direction) {
  const int mode = ::fcntl(file.fd(), F_GETFL) & O_ACCMODE;
  if (direction == Direction::Read && mode == O_WRONLY) {
    return Error{EBADF, "the file is not open for reading"};
  }
  if (direction == Direction::Write && mode == O_RDONLY) {
    return Error{EBADF, "the file is not open for writing"};
  }
  return {};
}

Result<Route> prepare(Library& library, const Request& request) {
  SLUICE_TRY(check(library, request));
  Device* device = request.buffer.device();
  if (device == nullptr) return Route::Auto;
  const ContextKeeper keeper(library.cuda());
  if (ids_at_daemon(request.file, request.buffer) != nullptr) return Route::Auto;
  // This is the only route that can be prepared completely; the others register memory during the
  // request.
  return library.engine().prepare(*device) ? Route::Staged : Route::Auto;
}

Result<Outcome> execute(Library& library, const Request& request) {
  SLUICE_TRY(check(library, request));
  if (request.segments.empty()) return Outcome{};
  const ContextKeeper keeper(request.buffer.device() != nullptr ? library.cuda() : nullptr);
  if (const auto ids = ids_at_daemon(request.file, request.buffer)) {
    const auto done = by_daemon(request, ids);
    if (done) return Outcome{*done, false};
    const int code = done.error().code;
    if (code != kNoDaemonStays) {
      if (!means_cannot(code)) return done.error();
      // If a certain route was requested, the buffer itself may still be fine for the daemon.
      if (request.route == Route::Auto) request.buffer.refuse();
    }
  }
  return Outcome{SLUICE_TRY(by_engine(library, request)), true};
}

}  // namespace sluice
