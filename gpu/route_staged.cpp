// SPDX-License-Identifier: BSD-2-Clause
#include "gpu/route_staged.hpp"

#include <algorithm>
#include <memory>

#include "base/units.hpp"
#include "gpu/cached_reads.hpp"
#include "gpu/cutter.hpp"
#include "gpu/engine_parts.hpp"
#include "gpu/packer.hpp"
#include "gpu/residency.hpp"
#include "gpu/route_host.hpp"

namespace sluice {
namespace {

// The number of threads with small requests that are served at once; each has a slot of kSmall.
constexpr unsigned kSmallLanes = 64;
// The number of writes at once. Two slots would be enough, because the bus is faster than write(2).
// Slots of 2 MiB leave the last-level cache to the data being written.
constexpr unsigned kWriters = 4, kWriteSlots = 4;
constexpr std::size_t kWriteSlot = 2 << 20;

// The size of one read that bypasses the page cache, and the number of slots of a lane for it. On a
// virtual disk, 8 threads with 3 slots each reached 3.6 GB/s with pieces of 4 MiB, 4.1 with 1 MiB
// and 4.7 with 512 KiB, probably because more of the memory stays in the CPU's caches. The copy to
// the GPU ends long before the next piece is read, so two slots are enough.
constexpr std::uint64_t kDirectPiece = 512 << 10;
constexpr unsigned kDirectSlots = 2;

// The number of threads with batches that are served at once. A slot has room for 128 pages and
// their table: a batch of a ring, in one launch.
constexpr unsigned kBatchLanes = 16, kBatchSlots = 2;
constexpr std::size_t kBatchSlot = (512 + 32) << 10;
static_assert(kBatchSlot >= 128 * (4096 + Packer::kOverhead) && kBatchSlot % 4096 == 0);

constexpr std::size_t kPageable = 4 << 20;

// The places of the different lanes in the pinned memory.
struct Layout {
  Layout(unsigned workers, std::uint64_t chunk, unsigned slots)
      : writers(workers * slots * chunk),
        batches(writers + kWriters * kWriteSlots * kWriteSlot),
        small(batches + kBatchLanes * kBatchSlots * kBatchSlot),
        end(small + kSmallLanes * kSmall) {}
  const std::size_t writers, batches, small, end;
};

std::span<std::byte> part_of(std::span<std::byte> all, std::size_t from, std::size_t size) {
  return all.subspan(from, size);
}

}  // namespace

Result<std::unique_ptr<Staging>> Staging::create(Device& device, WorkerPool& workers,
                                                 std::uint64_t chunk, unsigned slots) {
  const Layout layout(workers.size(), chunk, slots);
  auto pinned = SLUICE_TRY(PinnedMemory::create(device, layout.end));
  std::unique_ptr<Staging> staging(new Staging(std::move(pinned), workers, chunk, slots));
  // Creates their streams now. After an error, the first request tries again.
  for (const auto& lane : staging->lanes_) static_cast<void>(lane->enter(device));
  return staging;
}

Staging::Staging(std::unique_ptr<PinnedMemory> pinned, WorkerPool& workers, std::uint64_t chunk,
                 unsigned slots)
    : pinned_(std::move(pinned)),
      workers_(workers),
      chunk_(chunk),
      small_(pinned_->bytes().last(kSmallLanes * kSmall), kSmallLanes, 1, Lane::Wait::Spin),
      writers_(part_of(pinned_->bytes(), Layout(workers.size(), chunk, slots).writers,
                       kWriters * kWriteSlots * kWriteSlot),
               kWriters, kWriteSlots, Lane::Wait::Block),
      batches_(part_of(pinned_->bytes(), Layout(workers.size(), chunk, slots).batches,
                       kBatchLanes * kBatchSlots * kBatchSlot),
               kBatchLanes, kBatchSlots, Lane::Wait::Spin) {
  for (unsigned i = 0; i < workers.size(); ++i) {
    lanes_.push_back(std::make_unique<Lane>(
        part_of(pinned_->bytes(), i * slots * chunk, slots * chunk), slots, Lane::Wait::Block));
  }
}

// A worker that finds nothing left to read goes on with the next request while its last copies are
// on the bus. Waiting for them there cost half of the speed when requests have few pieces per
// worker: 22 GB/s instead of 45.
class Staging::ReadJob : public WorkerPool::Job {
 public:
  ReadJob(Staging& staging, Cutter& cutter, FileReader& reader, Memory& memory)
      : staging_(staging), cutter_(cutter), reader_(reader), memory_(memory) {
    copies_.resize(staging.lanes_.size());
  }

  Result<bool> work(unsigned worker, WorkerPool::Turn& turn) override {
    Lane& lane = *staging_.lanes_[worker];
    SLUICE_TRY(lane.enter(*memory_.device()));
    const auto more = stream(lane, turn, copies_[worker]);
    if (!more) {
      static_cast<void>(lane.synchronize());
      return more.error();
    }
    return *more;
  }

  // Waits until no copy of the job is in progress, even after errors. REQUIRES: no worker is at
  // work.
  Result<void> finish() {
    Device& device = *memory_.device();
    const auto entered = device.enter();
    CUresult failure = CUDA_SUCCESS;
    for (const CUevent copy : copies_) {
      if (copy == nullptr) continue;
      const CUresult code = device.api().cuEventSynchronize(copy);
      if (code != CUDA_SUCCESS) failure = code;
    }
    SLUICE_TRY(entered);
    if (failure == CUDA_SUCCESS) return {};
    // As in Lane::synchronize(): the memory may be freed after the return.
    if (device.api().cuCtxSynchronize() != CUDA_SUCCESS) device.lose();
    return device.failed(failure, "wait for the copies");
  }

 private:
  // `last` is set to the last copy that was begun.
  Result<bool> stream(Lane& lane, WorkerPool::Turn& turn, CUevent& last) {
    Cutter::Piece piece;
    while (!is_stopped()) {
      const bool direct = reader_.is_direct();
      if (!cutter_.take(piece, direct ? kDirectPiece : lane.slot_size(), turn.others_wait())) break;
      const unsigned slot = lane.next_slot(direct ? kDirectSlots : lane.slots());
      SLUICE_TRY(lane.wait(slot));
      if (piece.is_large()) {
        SLUICE_TRY(pass_large(lane, lane.slot(slot), piece.parts[0]));
      } else {
        SLUICE_TRY(pass_small(lane, lane.whole_slot(slot), piece.all()));
      }
      SLUICE_TRY(lane.mark(slot));
      last = lane.last_mark();
      if (turn.is_over()) return true;
    }
    return false;
  }

  Result<void> pass_large(Lane& lane, std::byte* slot, const Cutter::Part& part) {
    const auto& [to, from, length] = part.range;
    const auto got = SLUICE_TRY(reader_.read_to_slot(from, length, slot));
    if (got.bytes < length) cutter_.ends(part, got.bytes);
    if (got.bytes == 0) return {};
    return lane.to_device(memory_.address() + to, slot + got.skip, got.bytes);
  }

  Result<void> pass_small(Lane& lane, std::span<std::byte> slot,
                          std::span<const Cutter::Part> parts) {
    if (parts.size() == 1) return pass_one(lane, slot.data(), parts[0]);
    Packer packer(slot);
    for (const Cutter::Part& part : parts) {
      const auto& [to, from, length] = part.range;
      const CUdeviceptr target = memory_.address() + to;
      std::byte* const place = packer.place(target, length);
      const std::size_t got = SLUICE_TRY(read_buffered(reader_.fd(), from, place, length));
      if (got < length) cutter_.ends(part, got);
      packer.add(target, place, got);
    }
    return packer.send(lane);
  }

  // The part may fill the slot.
  Result<void> pass_one(Lane& lane, std::byte* slot, const Cutter::Part& part) {
    const auto& [to, from, length] = part.range;
    const std::size_t got = SLUICE_TRY(read_buffered(reader_.fd(), from, slot, length));
    if (got < length) cutter_.ends(part, got);
    if (got == 0) return {};
    return lane.to_device(memory_.address() + to, slot, got);
  }

  Staging& staging_;
  Cutter& cutter_;
  FileReader& reader_;
  Memory& memory_;
  std::vector<CUevent> copies_;  // the last one of each worker
};

Result<std::uint64_t> Staging::read_small(int fd, Memory& memory,
                                          std::span<const Segment> segments) {
  const LanePool::Loan lane(small_);
  SLUICE_TRY(lane->enter(*memory.device()));
  std::byte* slot = lane->slot(0);
  std::uint64_t done = 0;
  for (const auto& [to, from, length] : segments) {
    const std::size_t got = SLUICE_TRY(read_buffered(fd, from, slot, length));
    if (got > 0) SLUICE_TRY(lane->to_device(memory.address() + to, slot, got));
    slot += got;
    done += got;
  }
  SLUICE_TRY(lane->synchronize());
  return done;
}

class Staging::BatchRead {
 public:
  BatchRead(Lane& lane, int fd, const Memory& memory)
      : lane_(lane), fd_(fd), reads_(fd), memory_(memory), packer_(lane.whole_slot(0)) {}

  Result<std::uint64_t> run(std::span<const Segment> segments) {
    for (const Segment& segment : segments) {
      std::byte* place = packer_.place(memory_.address() + segment.memory_offset, segment.length);
      if (!place) {
        SLUICE_TRY(next_slot());
        place = packer_.place(memory_.address() + segment.memory_offset, segment.length);
      }
      const auto got = SLUICE_TRY(reads_.read(segment.file_offset, place, segment.length));
      if (got) {
        add(segment, place, *got);
      } else {
        missed_.push_back({segment, place});
      }
    }
    SLUICE_TRY(send());
    SLUICE_TRY(lane_.synchronize());
    return done_;
  }

 private:
  struct Missed {
    Segment segment;
    std::byte* place;
  };

  void add(const Segment& segment, std::byte* place, std::size_t got) {
    packer_.add(memory_.address() + segment.memory_offset, place, got);
    done_ += got;
  }

  Result<void> send() {
    for (const auto& [segment, place] : missed_) {
      add(segment, place,
          SLUICE_TRY(read_buffered(fd_, segment.file_offset, place, segment.length)));
    }
    missed_.clear();
    return packer_.send(lane_);
  }

  Result<void> next_slot() {
    SLUICE_TRY(send());
    SLUICE_TRY(lane_.mark(slot_));
    slot_ = (slot_ + 1) % lane_.slots();
    SLUICE_TRY(lane_.wait(slot_));
    packer_ = Packer(lane_.whole_slot(slot_));
    return {};
  }

  Lane& lane_;
  const int fd_;
  CachedReads reads_;
  const Memory& memory_;
  unsigned slot_ = 0;
  Packer packer_;
  std::vector<Missed> missed_;  // of the current slot
  std::uint64_t done_ = 0;
};

Result<std::uint64_t> Staging::read_batch(int fd, Memory& memory,
                                          std::span<const Segment> segments) {
  const LanePool::Loan lane(batches_);
  SLUICE_TRY(lane->enter(*memory.device()));
  return BatchRead(*lane, fd, memory).run(segments);
}

Result<Cutter::Done> Staging::read(FileReader& reader, Memory& memory, Cutter& cutter, uid_t user) {
  ReadJob job(*this, cutter, reader, memory);
  const auto ran = workers_.run(job, user);
  const auto finished = job.finish();
  SLUICE_TRY(ran);
  SLUICE_TRY(finished);
  return cutter.done();
}

Result<void> Staging::write(const EngineFile& file, Memory& memory, const Segment& segment) {
  // Small writes have their own lanes, so that they never wait for large ones.
  const LanePool::Loan lane(segment.length <= kSmall ? small_ : writers_);
  SLUICE_TRY(lane->enter(*memory.device()));
  const std::uint64_t size = lane->slot_size(), pieces = (segment.length + size - 1) / size;
  const auto size_of = [&](std::uint64_t piece) {
    return std::min(size, segment.length - piece * size);
  };
  const auto slot_of = [&](std::uint64_t piece) {
    return static_cast<unsigned>(piece % lane->slots());
  };
  const auto fetch = [&](std::uint64_t piece) -> Result<void> {
    const CUdeviceptr from = memory.address() + segment.memory_offset + piece * size;
    SLUICE_TRY(lane->to_host(lane->slot(slot_of(piece)), from, size_of(piece)));
    return lane->mark(slot_of(piece));
  };
  for (std::uint64_t piece = 0; piece < pieces && piece < lane->slots(); ++piece) {
    SLUICE_TRY(fetch(piece));
  }
  for (std::uint64_t piece = 0; piece < pieces; ++piece) {
    SLUICE_TRY(lane->wait(slot_of(piece)));
    SLUICE_TRY(write_out(file, lane->slot(slot_of(piece)), size_of(piece),
                         segment.file_offset + piece * size));
    if (piece + lane->slots() < pieces) SLUICE_TRY(fetch(piece + lane->slots()));
  }
  return lane->synchronize();
}

namespace {

RouteOffer offer_staged(Engine::Parts& parts, RouteQuery& query) {
  if (query.purpose != Purpose::Preview)
    return parts.pays_for_staging(query) ? RouteOffer::yes() : RouteOffer::no();
  const bool is_cold =
      query.work != Work::Small && cached_share(query.file.fd, 0, query.length).value_or(1) < 0.5;
  return is_cold ? RouteOffer::yes(Why::NotCached) : RouteOffer::yes();
}

Result<RouteWent> read_staged(Engine::Parts& parts, EngineRequest& request) {
  const auto lent = parts.staging(*request.device);
  if (failed_with(lent, EOPNOTSUPP)) return RouteWent(RouteOffer::no(Why::NotPinned));
  Staging& slots = *SLUICE_TRY(lent);
  const EngineFile& file = request.file;
  Memory& memory = request.memory;
  const auto segments = request.segments;
  if (request.work != Work::Large) {
    const auto bytes =
        SLUICE_TRY(segments.size() > 1 ? slots.read_batch(file.fd, memory, segments)
                                       : slots.read_small(file.fd, memory, segments));
    if (request.work == Work::Batch) parts.mapped.count(request.version, bytes);
    return RouteWent(Transfer{bytes});
  }
  FileReader reader = parts.reader_for(request);
  Cutter cutter(segments, slots.chunk(), parts.workers().size(), file.is_cancelled);
  const auto done = SLUICE_TRY(slots.read(reader, memory, cutter, file.user));
  parts.mapped.count(request.version, done.bytes);
  if (reader.left_room()) parts.fill_behind(request, done.bytes);
  const bool say_cold = request.wanted == Route::Auto && reader.was_cold();
  return RouteWent(say_cold ? Transfer{done.bytes, Route::Staged, Why::NotCached, done.left}
                            : Transfer{.bytes = done.bytes, .left = done.left});
}

Result<RouteWent> write_staged(Engine::Parts& parts, EngineRequest& request) {
  const auto lent = parts.staging(*request.device);
  if (failed_with(lent, EOPNOTSUPP)) return RouteWent(RouteOffer::no(Why::NotPinned));
  Staging& slots = *SLUICE_TRY(lent);
  SLUICE_TRY(slots.write(request.file, request.memory, request.segments[0]));
  return RouteWent(Transfer{request.length});
}

Engine::Possibility describe_staged(Engine::Parts& parts, const RouteQuery& query) {
  const auto lent = parts.staging(*query.device);
  return {Route::Staged, lent.has_value(),
          lent ? format_size((*lent)->pinned_bytes()) + " of host memory are pinned"
               : why_not_pinned(*query.device)};
}

Result<RouteWent> read_pageable(Engine::Parts& parts, EngineRequest& request) {
  const LanePool::Loan lane(parts.bare);
  SLUICE_TRY(lane->enter(*request.device));
  std::uint64_t longest = 0;
  for (const Segment& segment : request.segments) longest = std::max(longest, segment.length);
  const std::unique_ptr<std::byte[]> buffer(
      new std::byte[std::min<std::size_t>(kPageable, longest)]);
  Cutter cutter(request.segments, kPageable, 1, request.file.is_cancelled);
  for (Cutter::Piece piece; cutter.take(piece);) {
    for (const Cutter::Part& part : piece.all()) {
      const auto& [to, from, length] = part.range;
      const CUdeviceptr place = request.memory.address() + to;
      const auto got = SLUICE_TRY(read_buffered(request.file.fd, from, buffer.get(), length));
      const auto begun = got > 0 ? lane->to_device(place, buffer.get(), got) : Result<void>();
      SLUICE_TRY(lane->synchronize());  // before the buffer is reused or freed
      SLUICE_TRY(begun);
      if (got < length) cutter.ends(part, got);
    }
  }
  const auto done = cutter.done();
  return RouteWent(Transfer{.bytes = done.bytes, .left = done.left});
}

Result<RouteWent> write_pageable(Engine::Parts& parts, EngineRequest& request) {
  const LanePool::Loan lane(parts.bare);
  SLUICE_TRY(lane->enter(*request.device));
  const auto& [from, to, length] = request.segments[0];
  const std::unique_ptr<std::byte[]> buffer(new std::byte[kPageable]);
  for (std::uint64_t at = 0; at < length; at += kPageable) {
    const std::size_t size = std::min<std::uint64_t>(kPageable, length - at);
    const auto begun = lane->to_host(buffer.get(), request.memory.address() + from + at, size);
    SLUICE_TRY(lane->synchronize());
    SLUICE_TRY(begun);
    SLUICE_TRY(write_out(request.file, buffer.get(), size, to + at));
  }
  return RouteWent(Transfer{length});
}

Engine::Possibility describe_pageable(Engine::Parts&, const RouteQuery& query) {
  const bool is_lost = query.device->is_lost();
  return {Route::Pageable, !is_lost,
          is_lost ? why_not_pinned(*query.device) : "on request, or if no memory can be pinned"};
}

}  // namespace

extern const RouteWay kStagedWay = {offer_staged, read_staged, write_staged, describe_staged};
// Without pinned memory, at a fraction of the speed: into a plain buffer, which the driver copies
// once more. Mapping the file would save one copy, but the driver would read the mapping with the
// CPU, and if the file were truncated meanwhile, SIGBUS would end the process.
extern const RouteWay kPageableWay = {nullptr, read_pageable, write_pageable, describe_pageable};

std::string why_not_pinned(const Device& device) {
  return device.is_lost() ? "the GPU is lost for this process: restart it"
                          : "cannot pin host memory: see the log, and free memory";
}

}  // namespace sluice
