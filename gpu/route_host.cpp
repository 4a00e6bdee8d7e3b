// SPDX-License-Identifier: BSD-2-Clause
#include "gpu/route_host.hpp"

#include <unistd.h>

#include <algorithm>
#include <vector>

#include "gpu/cached_reads.hpp"

namespace sluice {
namespace {

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

}  // namespace

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

Result<Cutter::Done> read_host(WorkerPool& workers, FileReader& reader, std::byte* memory,
                               Cutter& cutter, uid_t user) {
  HostRead job(cutter, reader, memory);
  SLUICE_TRY(workers.run(job, user));
  return cutter.done();
}

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
