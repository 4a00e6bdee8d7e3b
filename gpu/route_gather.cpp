// SPDX-License-Identifier: BSD-2-Clause
#include "gpu/route_gather.hpp"

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <vector>

#include "base/mutex.hpp"
#include "gpu/packer.hpp"
#include "gpu/route_host.hpp"

namespace sluice {
namespace {

// The number of records sorted at once. It bounds the memory for sorting and is large enough to
// cost no speed.
constexpr std::size_t kSortedAtOnce = 4 << 20;
// If the gap between two records is at most this, the bytes in between are read too: another
// request to the disk would cost more.
constexpr std::uint64_t kGap = 32 << 10;
constexpr std::size_t kWriteBuffer = 1 << 20;  // from host memory

struct Wanted {
  std::uint64_t record;
  std::uint64_t place;
  bool operator<(const Wanted& other) const {
    return record != other.record ? record < other.record : place < other.place;
  }
};

std::vector<Wanted> sorted(std::span<const std::uint64_t> index, std::uint64_t first_place) {
  std::vector<Wanted> wanted(index.size());
  for (std::size_t i = 0; i < index.size(); ++i) wanted[i] = {index[i], first_place + i};
  std::sort(wanted.begin(), wanted.end());
  return wanted;
}

Error became_shorter() { return Error(ERANGE, "the file became shorter during the request"); }

Result<void> read_whole(int fd, std::uint64_t offset, std::byte* to, std::size_t length) {
  const std::size_t got = SLUICE_TRY(read_buffered(fd, offset, to, length));
  if (got < length) return became_shorter();
  return {};
}

struct Free {
  void operator()(std::byte* memory) const { std::free(memory); }
};

// Common to both ways of gathering: the lane of a worker, or its piece of host memory.
class GatherJob : public WorkerPool::Job {
 public:
  GatherJob(const Gatherers& with, const RecordPlaces& to, const RecordFile& records)
      : with_(with), to_(to), records_(records) {}

  Result<bool> work(unsigned worker, WorkerPool::Turn& turn) override {
    if (!with_.staging) return to_host(turn);
    Lane& lane = with_.staging->lane(worker);
    SLUICE_TRY(lane.enter(*to_.memory.device()));
    const auto more = to_device(lane, turn);
    const auto synchronized = lane.synchronize();
    SLUICE_TRY(more);
    SLUICE_TRY(synchronized);
    return *more;
  }

 protected:
  // Does a piece of the work. False if nothing is left.
  virtual Result<bool> pass(Lane& lane, std::span<std::byte> slot) = 0;
  virtual Result<bool> pass_to_host(std::span<std::byte> buffer) = 0;
  virtual bool needs_buffer() const = 0;

  CUdeviceptr address(std::uint64_t place) const {
    return to_.memory.address() + to_.offset + place * records_.size;
  }
  std::byte* host(std::uint64_t place) const {
    return to_.memory.host() + to_.offset + place * records_.size;
  }

  const Gatherers with_;
  const RecordPlaces to_;
  const RecordFile records_;

 private:
  Result<bool> to_device(Lane& lane, WorkerPool::Turn& turn) {
    for (unsigned slot = 0; !is_stopped(); slot = (slot + 1) % lane.slots()) {
      SLUICE_TRY(lane.wait(slot));
      if (!SLUICE_TRY(pass(lane, lane.whole_slot(slot)))) return false;
      SLUICE_TRY(lane.mark(slot));
      if (turn.is_over()) return true;
    }
    return false;
  }

  Result<bool> to_host(WorkerPool::Turn& turn) {
    std::unique_ptr<std::byte, Free> buffer;
    if (needs_buffer()) {
      buffer.reset(static_cast<std::byte*>(std::aligned_alloc(kGrain, with_.chunk)));
      if (!buffer) return Error(ENOMEM, "allocate memory to gather in");
    }
    while (!is_stopped()) {
      if (!SLUICE_TRY(pass_to_host({buffer.get(), buffer ? with_.chunk : 0}))) return false;
      if (turn.is_over()) return true;
    }
    return false;
  }
};

class OrderedGather final : public GatherJob {
 public:
  OrderedGather(const Gatherers& with, int fd, const RecordPlaces& to, const RecordFile& records,
                std::span<const std::uint64_t> index)
      : GatherJob(with, to, records), fd_(fd), index_(index) {
    const std::size_t fair = index.size() / (4 * with.workers.size());
    step_ = std::clamp<std::size_t>(fair, 1, with.chunk / records.size);
  }

 private:
  Result<bool> pass(Lane& lane, std::span<std::byte> slot) override {
    const auto numbers = take();
    if (numbers.empty()) return false;
    SLUICE_TRY(read(numbers, slot.data()));
    const auto place = static_cast<std::uint64_t>(numbers.data() - index_.data());
    SLUICE_TRY(lane.to_device(address(place), slot.data(), numbers.size() * records_.size));
    return true;
  }

  Result<bool> pass_to_host(std::span<std::byte>) override {
    const auto numbers = take();
    if (numbers.empty()) return false;
    SLUICE_TRY(read(numbers, host(static_cast<std::uint64_t>(numbers.data() - index_.data()))));
    return true;
  }

  bool needs_buffer() const override { return false; }

  std::span<const std::uint64_t> take() {
    const std::size_t begin = next_.fetch_add(step_, std::memory_order_relaxed);
    if (begin >= index_.size()) return {};
    return index_.subspan(begin, std::min(step_, index_.size() - begin));
  }

  Result<void> read(std::span<const std::uint64_t> numbers, std::byte* to) const {
    for (std::size_t i = 0; i < numbers.size();) {
      std::size_t run = 1;
      while (i + run < numbers.size() && numbers[i + run] == numbers[i] + run) ++run;
      SLUICE_TRY(read_whole(fd_, records_.offset_of(numbers[i]), to, run * records_.size));
      to += run * records_.size;
      i += run;
    }
    return {};
  }

  const int fd_;
  const std::span<const std::uint64_t> index_;
  std::size_t step_ = 1;
  std::atomic<std::size_t> next_{0};  // hands out pieces; nothing else depends on it
};

class SortedGather final : public GatherJob {
 public:
  SortedGather(const Gatherers& with, FileReader& reader, const RecordPlaces& to,
               const RecordFile& records, std::span<const Wanted> wanted)
      : GatherJob(with, to, records),
        reader_(reader),
        wanted_(wanted),
        room_(with.chunk - with.chunk / 8),
        most_((with.chunk - room_) / Packer::kOverhead) {}

 private:
  // Records that are read at once, and where they go.
  struct Extent {
    std::span<const Wanted> wanted;
    std::uint64_t begin = 0, end = 0;  // record numbers
  };

  Result<bool> pass(Lane& lane, std::span<std::byte> slot) override {
    Extent extent;
    if (!take(extent)) return false;
    const std::byte* const bytes = SLUICE_TRY(read(extent, slot.data()));
    Packer packer(slot.subspan(room_));
    for (const auto& [record, place] : extent.wanted) {
      packer.add(address(place), bytes + (record - extent.begin) * records_.size, records_.size);
    }
    SLUICE_TRY(packer.send(lane));
    return true;
  }

  Result<bool> pass_to_host(std::span<std::byte> buffer) override {
    Extent extent;
    if (!take(extent)) return false;
    const std::byte* const bytes = SLUICE_TRY(read(extent, buffer.data()));
    for (const auto& [record, place] : extent.wanted) {
      std::memcpy(host(place), bytes + (record - extent.begin) * records_.size, records_.size);
    }
    return true;
  }

  bool needs_buffer() const override { return true; }

  // The size of the slot that these records need, in whole grains.
  std::uint64_t widened(std::uint64_t begin, std::uint64_t end) const {
    const std::uint64_t from = records_.offset_of(begin) / kGrain * kGrain;
    return (records_.offset_of(end) + kGrain - 1) / kGrain * kGrain - from;
  }

  bool take(Extent& extent) {
    const MutexLock lock(mutex_);
    if (next_ == wanted_.size()) return false;
    const std::size_t first = next_;
    extent.begin = wanted_[first].record;
    extent.end = extent.begin + 1;
    while (++next_ < wanted_.size() && next_ - first < most_) {
      const std::uint64_t record = wanted_[next_].record;
      if (record >= extent.end && (record - extent.end) * records_.size > kGap) break;
      if (widened(extent.begin, record + 1) > room_) break;
      extent.end = std::max(extent.end, record + 1);
    }
    extent.wanted = wanted_.subspan(first, next_ - first);
    return true;
  }

  // Returns the address of the extent's bytes in `slot`.
  Result<const std::byte*> read(const Extent& extent, std::byte* slot) {
    const std::uint64_t offset = records_.offset_of(extent.begin);
    const std::size_t length = (extent.end - extent.begin) * records_.size;
    // With small slots, a single record may touch more grains than the slot has room for.
    if (widened(extent.begin, extent.end) > room_) {
      SLUICE_TRY(read_whole(reader_.fd(), offset, slot, length));
      return slot;
    }
    const auto got = SLUICE_TRY(reader_.read_to_slot(offset, length, slot));
    if (got.bytes < length) return became_shorter();
    return slot + got.skip;
  }

  FileReader& reader_;
  const std::span<const Wanted> wanted_;
  const std::uint64_t room_;  // for bytes; the rest of a slot is for the table
  const std::size_t most_;
  Mutex mutex_;
  std::size_t next_ GUARDED_BY(mutex_) = 0;
};

// Writes the collected records: they are in file order and contiguous.
Result<void> write_runs(const EngineFile& file, const RecordFile& records,
                        std::span<const Wanted> wanted, const std::byte* bytes) {
  for (std::size_t i = 0; i < wanted.size();) {
    std::size_t run = 1;
    while (i + run < wanted.size() && wanted[i + run].record == wanted[i].record + run) ++run;
    SLUICE_TRY(write_out(file, bytes + i * records.size, run * records.size,
                         records.offset_of(wanted[i].record)));
    i += run;
  }
  return {};
}

Result<void> scatter_host(const EngineFile& file, const RecordPlaces& from,
                          const RecordFile& records, std::span<const Wanted> wanted) {
  const std::size_t step = std::max<std::size_t>(kWriteBuffer / records.size, 1);
  std::vector<std::byte> buffer(std::min(step, wanted.size()) * records.size);
  for (std::size_t begin = 0; begin < wanted.size(); begin += step) {
    const auto part = wanted.subspan(begin, std::min(step, wanted.size() - begin));
    for (std::size_t i = 0; i < part.size(); ++i) {
      std::memcpy(buffer.data() + i * records.size,
                  from.memory.host() + from.offset + part[i].place * records.size, records.size);
    }
    SLUICE_TRY(write_runs(file, records, part, buffer.data()));
  }
  return {};
}

// Copies records to a slot: their bytes to its front; the kernel's index, and its error word, to
// its end.
Result<void> fetch(Lane& lane, std::span<std::byte> slot, const RecordPlaces& from,
                   const RecordFile& records, std::span<const Wanted> wanted) {
  const CUdeviceptr base = from.memory.address() + from.offset;
  if (!lane.has_kernels()) {
    for (std::size_t i = 0; i < wanted.size(); ++i) {
      SLUICE_TRY(lane.to_host(slot.data() + i * records.size, base + wanted[i].place * records.size,
                              records.size));
    }
    return {};
  }
  auto* const end = reinterpret_cast<std::uint64_t*>(slot.data() + slot.size());
  std::uint64_t* const index = end - 1 - wanted.size();
  std::uint64_t places = 0;
  for (std::size_t i = 0; i < wanted.size(); ++i) {
    index[i] = wanted[i].place;
    places = std::max(places, wanted[i].place + 1);
  }
  return lane.gather({.to = reinterpret_cast<CUdeviceptr>(slot.data()),
                      .from = base,
                      .index = reinterpret_cast<CUdeviceptr>(index),
                      .count = wanted.size(),
                      .records = places,
                      .bad = reinterpret_cast<CUdeviceptr>(end - 1),
                      .record_size = static_cast<std::uint32_t>(records.size)});
}

Result<void> scatter_device(Lane& lane, const EngineFile& file, const RecordPlaces& from,
                            const RecordFile& records, std::span<const Wanted> wanted) {
  SLUICE_TRY(lane.enter(*from.memory.device()));
  const std::size_t step =
      (lane.slot_size() - sizeof(std::uint64_t)) / (records.size + sizeof(std::uint64_t));
  const std::size_t pieces = (wanted.size() + step - 1) / step;
  const auto part_of = [&](std::size_t piece) {
    return wanted.subspan(piece * step, std::min(step, wanted.size() - piece * step));
  };
  const auto begin = [&](std::size_t piece) -> Result<void> {
    const auto slot = static_cast<unsigned>(piece % lane.slots());
    SLUICE_TRY(fetch(lane, lane.whole_slot(slot), from, records, part_of(piece)));
    return lane.mark(slot);
  };
  for (std::size_t piece = 0; piece < std::min<std::size_t>(pieces, lane.slots()); ++piece) {
    SLUICE_TRY(begin(piece));
  }
  for (std::size_t piece = 0; piece < pieces; ++piece) {
    const auto slot = static_cast<unsigned>(piece % lane.slots());
    SLUICE_TRY(lane.wait(slot));
    SLUICE_TRY(write_runs(file, records, part_of(piece), lane.slot(slot)));
    if (piece + lane.slots() < pieces) SLUICE_TRY(begin(piece + lane.slots()));
  }
  return lane.synchronize();
}

// Most records per launch of a kernel, because others use the GPU, too.
constexpr std::uint64_t kLaunch = 1 << 24;

}  // namespace

Result<bool> gather_by_kernel(Lane& lane, CUdeviceptr to, CUdeviceptr from,
                              const RecordFile& records, const RecordIndex& index) {
  // The kernels' error word is behind the part of the index in the first slot.
  const std::uint64_t part = (lane.slot_size() - sizeof(std::uint64_t)) / sizeof(std::uint64_t);
  auto* const bad = reinterpret_cast<std::uint32_t*>(lane.slot(0)) + 2 * part;
  const std::atomic_ref flag(*bad);
  flag = 0;
  Kernels::Gather what{.to = to,
                       .from = from,
                       .index = index.device,
                       .count = 0,
                       .records = records.count,
                       .bad = reinterpret_cast<CUdeviceptr>(bad),
                       .record_size = static_cast<std::uint32_t>(records.size)};
  unsigned slot = 0;
  for (std::uint64_t done = 0; done < index.count; done += what.count) {
    what.to = to + done * records.size;
    what.count = std::min(index.count - done, index.host ? part : kLaunch);
    if (index.host) {
      SLUICE_TRY(lane.wait(slot));
      std::memcpy(lane.slot(slot), index.host + done, what.count * sizeof(std::uint64_t));
      what.index = reinterpret_cast<CUdeviceptr>(lane.slot(slot));
    } else {
      what.index = index.device + done * sizeof(std::uint64_t);
    }
    SLUICE_TRY(lane.gather(what));
    SLUICE_TRY(lane.mark(slot));
    slot = (slot + 1) % lane.slots();
  }
  SLUICE_TRY(lane.synchronize());
  return flag == 0;
}

Result<void> gather_in_order(const Gatherers& with, int fd, const RecordPlaces& to,
                             const RecordFile& records, std::span<const std::uint64_t> index) {
  OrderedGather job(with, fd, to, records, index);
  return with.workers.run(job, with.user);
}

Result<void> gather_sorted(const Gatherers& with, FileReader& reader, const RecordPlaces& to,
                           const RecordFile& records, std::span<const std::uint64_t> index) {
  for (std::size_t begin = 0; begin < index.size(); begin += kSortedAtOnce) {
    const auto part = index.subspan(begin, std::min(kSortedAtOnce, index.size() - begin));
    const std::vector<Wanted> wanted = sorted(part, begin);
    SortedGather job(with, reader, to, records, wanted);
    SLUICE_TRY(with.workers.run(job, with.user));
  }
  return {};
}

Result<void> scatter_sorted(Staging* staging, const EngineFile& file, const RecordPlaces& from,
                            const RecordFile& records, std::span<const std::uint64_t> index) {
  for (std::size_t begin = 0; begin < index.size(); begin += kSortedAtOnce) {
    const auto part = index.subspan(begin, std::min(kSortedAtOnce, index.size() - begin));
    std::vector<Wanted> wanted = sorted(part, begin);
    // Keeps the last of each record, which is the first in reverse order.
    const auto kept = std::unique(wanted.rbegin(), wanted.rend(), [](const auto& a, const auto& b) {
      return a.record == b.record;
    });
    wanted.erase(wanted.begin(), kept.base());
    if (!staging) {
      SLUICE_TRY(scatter_host(file, from, records, wanted));
      continue;
    }
    const LanePool::Loan lane(staging->writers());
    SLUICE_TRY(scatter_device(*lane, file, from, records, wanted));
  }
  return {};
}

}  // namespace sluice
