// SPDX-License-Identifier: BSD-2-Clause
// Records by number: chooses how they are read.
#include <sys/stat.h>

#include <algorithm>
#include <limits>
#include <vector>

#include "gpu/cutter.hpp"
#include "gpu/engine.hpp"
#include "gpu/engine_parts.hpp"
#include "gpu/residency.hpp"
#include "gpu/route_gather.hpp"

namespace sluice {
namespace {

// Up to this many records are read like segments, on the calling thread.
constexpr std::size_t kFew = 512;
constexpr std::size_t kSegments = 4096;  // of one request that reads records as segments
// The cost of a record on another route, in bytes of one large read. Used to decide when
// registering pays off.
constexpr std::uint64_t kRecordWeight = 4;
constexpr std::size_t kSamples = 32;

std::optional<BadIndex> find_bad(std::span<const std::uint64_t> index, std::uint64_t records) {
  constexpr std::size_t kAtOnce = 4096;
  for (std::size_t begin = 0; begin < index.size(); begin += kAtOnce) {
    const auto part = index.subspan(begin, std::min(kAtOnce, index.size() - begin));
    bool any = false;  // no early exit, so that the compiler can vectorize the loop
    for (const std::uint64_t number : part) any |= number >= records;
    if (!any) continue;
    const auto bad = std::find_if(part.begin(), part.end(), [&](auto n) { return n >= records; });
    const auto position = begin + static_cast<std::size_t>(bad - part.begin());
    return BadIndex{position, index[position], records};
  }
  return std::nullopt;
}

bool is_cold(int fd, const RecordFile& records, std::span<const std::uint64_t> index) {
  const std::size_t samples = std::min(kSamples, index.size());
  double cached = 0;
  for (std::size_t i = 0; i < samples; ++i) {
    const std::uint64_t number = index[i * (index.size() / samples)];
    cached += cached_share(fd, records.offset_of(number), records.size).value_or(1);
  }
  return cached < 0.9 * static_cast<double>(samples);
}

}  // namespace

// The index in host memory; `own` stores it if it was on the GPU.
Result<std::span<const std::uint64_t>> Engine::Parts::host_index(const RecordRequest& request,
                                                                 std::vector<std::uint64_t>& own) {
  std::span<const std::uint64_t> index(request.index.host, request.index.count);
  if (!request.index.host) {
    Device& device = *request.memory.device();
    own.resize(request.index.count);
    SLUICE_TRY(device.enter());
    const CUresult code = device.api().cuMemcpyDtoH(own.data(), request.index.device,
                                                    own.size() * sizeof(std::uint64_t));
    if (code != CUDA_SUCCESS) return device.failed(code, "copy the index from the GPU");
    index = own;
  }
  request.bad = find_bad(index, request.records.count);
  if (request.bad) return Error(ERANGE, "record number out of range");
  return index;
}

Result<Transfer> Engine::Parts::gather(const RecordRequest& request) {
  const std::uint64_t bytes = request.index.count * request.records.size;
  Device* const device = request.memory.device();
  Why why = Why::HostMemory;
  if (device && request.records.size <= kSmall) {
    if (const auto done = SLUICE_TRY(gather_hbm(request))) return *done;
  }
  if (request.wanted == Route::Hbm)
    return Error(EOPNOTSUPP, "gather from GPU memory: the file is not there");
  if (device && request.records.size <= kSmall) {
    const auto went = SLUICE_TRY(gather_mapped(request, bytes));
    if (const auto* transfer = std::get_if<Transfer>(&went)) return *transfer;
    why = std::get<Why>(went);
  }
  std::vector<std::uint64_t> own;
  const auto index = SLUICE_TRY(host_index(request, own));
  const bool few = bytes <= kBatch && index.size() <= kFew;
  const bool large = request.records.size > std::min(kSmall, largest_gathered(settings.chunk));
  if (few || large) return gather_by_segments(request, index);
  Staging* slots = nullptr;
  if (device) {
    auto lent = staging(*device);
    if (failed_with(lent, EOPNOTSUPP)) return gather_by_segments(request, index);
    slots = SLUICE_TRY(std::move(lent));
  }

  const Route route = device ? Route::Staged : Route::Host;
  request.timer.take(route);
  const Gate::Pass pass(gate);
  const Gatherers with{workers(), slots, settings.chunk, request.file.user};
  const RecordPlaces to{request.memory, request.memory_offset};
  if (is_cold(request.file.fd, request.records, index)) {
    FileReader reader(request.file.fd, {request.version.id}, notes);
    SLUICE_TRY(gather_sorted(with, reader, to, request.records, index));
    if (device) why = Why::NotCached;
  } else {
    SLUICE_TRY(gather_in_order(with, request.file.fd, to, request.records, index));
  }
  return Transfer{bytes, route, why};
}

// Reads from registered page cache; returns a reason if that is not possible.
Result<std::variant<Transfer, Why>> Engine::Parts::gather_mapped(const RecordRequest& request,
                                                                 std::uint64_t bytes) {
  using Went = std::variant<Transfer, Why>;
  Device& device = *request.memory.device();
  SLUICE_TRY(device.enter());
  if (!device.kernels()) return Went(Why::Cached);
  mapped.count(request.version, kRecordWeight * bytes);
  auto found = mapped.find(request.file.fd, request.version, device, MappedFiles::Wish::ToGather,
                           kRecordWeight * bytes);
  if (const Why* why = std::get_if<Why>(&found)) return Went(*why);
  auto lent = staging(device);
  if (failed_with(lent, EOPNOTSUPP)) return Went(Why::NotPinned);
  Staging& slots = *SLUICE_TRY(std::move(lent));

  request.timer.take(Route::Mapped);
  std::optional<Gate::Pass> pass;
  if (bytes > kBatch) pass.emplace(gate);
  auto went = MappedFiles::Gathered::All;
  {
    const LanePool::Loan lane(slots.batches());
    went = SLUICE_TRY(MappedFiles::gather(
        *std::get<MappedFiles::Shared>(found), *lane, device, request.file.fd,
        request.memory.address() + request.memory_offset, request.records, request.index));
  }
  switch (went) {
    case MappedFiles::Gathered::All:
      return Went(Transfer{bytes, Route::Mapped, Why::Registered});
    case MappedFiles::Gathered::BadIndex: {
      std::vector<std::uint64_t> own;
      SLUICE_TRY(host_index(request, own));
      return Error(ERANGE, "the index changed while it was used");
    }
    case MappedFiles::Gathered::Changed:
      mapped.forget([&](const FileId& id) { return id == request.version.id; });
  }
  return Went(Why::Changed);
}

// Reads records as segments: if there are few, or large ones, or nothing is pinned.
Result<Transfer> Engine::Parts::gather_by_segments(const RecordRequest& request,
                                                   std::span<const std::uint64_t> index) {
  const std::uint64_t size = request.records.size;
  const EngineFile file{.fd = request.file.fd};
  Transfer sum;
  std::vector<Segment> segments;
  for (std::size_t begin = 0; begin < index.size(); begin += kSegments) {
    const std::size_t count = std::min(kSegments, index.size() - begin);
    segments.clear();
    for (std::size_t i = begin; i < begin + count; ++i) {
      segments.push_back(
          {request.memory_offset + i * size, request.records.offset_of(index[i]), size});
    }
    EngineRequest read{
        {file, request.version, request.memory.device(), segments, Route::Auto, Purpose::Read},
        request.memory,
        request.timer};
    const auto part = SLUICE_TRY(transfer(read));
    if (part.bytes < read.length)
      return Error(ERANGE, "the file became shorter during the request");
    sum.add(part);
  }
  return sum;
}

Result<Transfer> Engine::Parts::scatter(const RecordRequest& request) {
  std::vector<std::uint64_t> own;
  const auto index = SLUICE_TRY(host_index(request, own));
  Device* const device = request.memory.device();
  const std::uint64_t size = request.records.size, bytes = index.size() * size;
  Staging* slots = nullptr;
  bool one_by_one = size > kSmall;
  if (device && !one_by_one) {
    auto lent = staging(*device);
    one_by_one = failed_with(lent, EOPNOTSUPP);
    if (!one_by_one) slots = SLUICE_TRY(std::move(lent));
  }
  if (one_by_one) {
    Transfer sum;
    for (std::size_t i = 0; i < index.size(); ++i) {
      const Segment record{request.memory_offset + i * size, request.records.offset_of(index[i]),
                           size};
      EngineRequest one{
          {request.file, request.version, device, {&record, 1}, Route::Auto, Purpose::Write},
          request.memory,
          request.timer};
      sum.add(SLUICE_TRY(transfer(one)));
    }
    return sum;
  }
  const Route route = device ? Route::Staged : Route::Host;
  request.timer.take(route);
  std::optional<Gate::Pass> pass;
  if (bytes > kSmall) pass.emplace(gate);
  SLUICE_TRY(scatter_sorted(slots, request.file, {request.memory, request.memory_offset},
                            request.records, index));
  return Transfer{bytes, route, device ? Why::Writing : Why::HostMemory};
}

// Common to gather() and scatter(): `work` is a member function of Parts.
Result<Transfer> Engine::with_records(const EngineFile& file, Memory& memory,
                                      std::uint64_t memory_offset, const Records& records,
                                      const RecordIndex& index, std::optional<BadIndex>* bad,
                                      Route wanted, RecordWork work) {
  if (records.size == 0) return Error(EINVAL, "a record must have at least one byte");
  if (memory_offset > memory.length() ||
      index.count > (memory.length() - memory_offset) / records.size) {
    return Error(ERANGE, "the buffer has no room for so many records");
  }
  if (memory.device() && !settings_.enabled) return Error(EOPNOTSUPP, "use a GPU");
  if (!index.host && index.count > 0 && !memory.device()) {
    return Error(EINVAL, "the index is not in host memory");
  }

  Stats::Timer timer(stats_, memory.device() ? memory.device()->uuid() : GpuUuid{});
  struct stat stat {};
  if (::fstat(file.fd, &stat) != 0) return Error::last("stat the file");
  const FileVersion version = FileVersion::of(stat);
  const std::uint64_t end = std::min(version.size, kLargestOffset);
  const std::uint64_t count = records.offset >= end ? 0 : (end - records.offset) / records.size;
  std::optional<BadIndex> found;
  const RecordRequest request{
      file,  version, memory, memory_offset, {records.size, records.offset, count},
      index, found,   wanted, timer};
  const CallersContext context(memory);
  auto transfer = index.count == 0
                      ? Result<Transfer>(Transfer{0, memory.device() ? Route::Staged : Route::Host,
                                                  memory.device() ? Why::Small : Why::HostMemory})
                      : (parts_.get()->*work)(request);
  if (transfer) timer.finish(*transfer);
  if (bad) *bad = found;
  return transfer;
}

Result<Transfer> Engine::gather(const EngineFile& file, Memory& memory, std::uint64_t memory_offset,
                                const Records& records, const RecordIndex& index,
                                std::optional<BadIndex>* bad, Route wanted) {
  if (!memory.device() && !memory.is_writable())
    return Error(EACCES, "read into a buffer that is mapped read-only");
  return with_records(file, memory, memory_offset, records, index, bad, wanted, &Parts::gather);
}

Result<Transfer> Engine::scatter(const EngineFile& file, Memory& memory,
                                 std::uint64_t memory_offset, const Records& records,
                                 const RecordIndex& index, std::optional<BadIndex>* bad) {
  return with_records(file, memory, memory_offset, records, index, bad, Route::Auto,
                      &Parts::scatter);
}

}  // namespace sluice
