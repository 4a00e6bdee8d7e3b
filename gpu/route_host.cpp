// SPDX-License-Identifier: BSD-2-Clause
#include "gpu/route_host.hpp"

#include <unistd.h>

#include <algorithm>
#include <vector>

#include "gpu/cached_reads.hpp"
#include "gpu/engine_parts.hpp"

namespace sluice {
namespace {

// The size of one pwrite(2); the kernel's limit is 2 GiB.
constexpr std::uint64_t kWritePiece = 64 << 20;

class HostRead : public WorkerPool::Job {
 public:
  HostRead(Cutter& cutter, FileReader& reader, std::byte* memory)
      : cutter_(cutter), reader_(reader), memory_(memory) {}

  Result<bool> work(unsigned, WorkerPool::Turn& turn) override {
    Cutter::Piece piece;
    while (!is_stopped() && cutter_.take(piece)) {
      for (const Cutter::Part& part : piece.all()) {
        const auto& [to, from, length] = part.range;
        const std::size_t got = SLUICE_TRY(reader_.read_to(from, length, memory_ + to));
        if (got < length) cutter_.ends(part, got);
      }
      if (turn.is_over()) return true;
    }
    return false;
  }

 private:
  Cutter& cutter_;
  FileReader& reader_;
  std::byte* const memory_;
};

// On the calling thread, through the page cache; reads of missing bytes are all started first.
// Returns the number of bytes.
Result<std::uint64_t> read_host_small(int fd, std::byte* memory,
                                      std::span<const Segment> segments) {
  if (segments.size() == 1) {
    const auto& [to, from, length] = segments[0];
    return SLUICE_TRY(read_buffered(fd, from, memory + to, length));
  }
  CachedReads reads(fd);
  std::vector<const Segment*> missed;
  std::uint64_t done = 0;
  for (const Segment& segment : segments) {
    const auto& [to, from, length] = segment;
    const auto got = SLUICE_TRY(reads.read(from, memory + to, length));
    if (got) {
      done += *got;
    } else {
      missed.push_back(&segment);
    }
  }
  for (const Segment* segment : missed) {
    const auto& [to, from, length] = *segment;
    done += SLUICE_TRY(read_buffered(fd, from, memory + to, length));
  }
  return done;
}

Result<RouteWent> read_host(Engine::Parts& parts, EngineRequest& request) {
  std::byte* const memory = request.memory.host();
  if (request.work != Work::Large) {
    return RouteWent(
        Transfer{SLUICE_TRY(read_host_small(request.file.fd, memory, request.segments))});
  }
  FileReader reader = parts.reader_for(request);
  WorkerPool& workers = parts.workers();
  Cutter cutter(request.segments, parts.settings.chunk, workers.size(), request.file.is_cancelled);
  HostRead job(cutter, reader, memory);
  SLUICE_TRY(workers.run(job, request.file.user));
  const auto done = cutter.done();
  if (reader.left_room()) parts.fill_behind(request, done.bytes);
  return RouteWent(Transfer{.bytes = done.bytes, .left = done.left});
}

Result<RouteWent> write_host(Engine::Parts&, EngineRequest& request) {
  const auto& [from, to, length] = request.segments[0];
  for (std::uint64_t at = 0; at < length; at += kWritePiece) {
    SLUICE_TRY(write_out(request.file, request.memory.host() + from + at,
                         std::min(kWritePiece, length - at), to + at));
  }
  return RouteWent(Transfer{length});
}

}  // namespace

extern const RouteWay kHostWay = {nullptr, read_host, write_host, nullptr};

Result<void> write_out(const EngineFile& file, const std::byte* data, std::size_t size,
                       std::uint64_t offset) {
  if (file.write) return file.write(data, size, offset);
  while (size > 0) {
    const ssize_t count = ::pwrite(file.fd, data, size, static_cast<off_t>(offset));
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) return Error::last("write the file");
    if (count == 0) return Error(EIO, "write the file");
    data += count;
    size -= static_cast<std::size_t>(count);
    offset += static_cast<std::uint64_t>(count);
  }
  return {};
}

}  // namespace sluice
