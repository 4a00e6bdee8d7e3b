// SPDX-License-Identifier: BSD-2-Clause
// Reads from the copies of files in GPU memory, and fills them.
#include <sys/stat.h>

#include <algorithm>

#include "gpu/cutter.hpp"
#include "gpu/engine.hpp"
#include "gpu/engine_parts.hpp"
#include "gpu/route_gather.hpp"

namespace sluice {
namespace {

// Others may come between two parts of this size when a whole file is filled.
constexpr std::uint64_t kFillPart = 32 << 20;  // a reader of any of it waits for all
// A read that fills more than this can be cancelled between two parts.
constexpr std::uint64_t kMostAtOnce = 256 << 20;

}  // namespace

// Reads ranges that the caller has claimed, and reports them to the copy. Nothing: it failed.
std::optional<Transfer> Engine::Parts::fill_ranges(HbmCopy& copy, int fd,
                                                   std::span<const HbmCopy::Range> ranges,
                                                   Stats::Timer& timer) {
  // Others wait for the report, so it is always made.
  struct Report {
    ~Report() { copy.filled(ranges, good); }
    HbmCopy& copy;
    std::span<const HbmCopy::Range> ranges;
    bool good = false;
  } report{copy, ranges};
  std::vector<Segment> parts;
  std::uint64_t length = 0;
  for (const auto& [begin, end] : ranges) {
    parts.push_back({begin, begin, end - begin});
    length += end - begin;
  }
  const EngineRead request{fd,     copy.version(), copy.memory(), parts,
                           length, Route::Auto,    timer,         kNeverCancelled};
  Choice choice{Route::Staged, Why::FillingHbm};
  // Requests that wait for these blocks hold no pass, so this request gets one.
  const Gate::Pass pass(gate);
  if (is_better_direct(fd, copy.version(), parts[0], copy.device())) {
    choice.route = Route::Gds;
  } else {
    // Registering would cost more than it saves: the next read does not need the page cache.
    auto found =
        mapped.find(fd, copy.version(), copy.device(), MappedFiles::Wish::Existing, length);
    if (auto* mapping = std::get_if<MappedFiles::Shared>(&found)) {
      choice = {Route::Mapped, Why::FillingHbm, std::move(*mapping)};
    }
  }
  const auto done = execute(request, choice);
  report.good = done && done->bytes == length && copy.version().is_of(fd);
  if (!report.good) return std::nullopt;
  return Transfer{length, done->route, Why::FillingHbm};
}

bool Engine::Parts::fill(HbmTier::Shared& copy, int fd, std::span<const Segment> segments,
                         Stats::Timer& timer, Transfer& filled) {
  while (!copy->is_filled(segments)) {
    if (copy->is_ended()) return false;
    const auto ranges = copy->claim(segments);
    if (ranges.empty()) {
      copy->wait(segments);
      continue;
    }
    const auto part = fill_ranges(*copy, fd, ranges, timer);
    if (!part) {
      hbm.drop(copy);
      return false;
    }
    filled.add(*part);
  }
  return true;
}

// Whether all segments are filled; false if they can't be, or if the read was cancelled.
bool Engine::Parts::fill_for(const EngineRead& request, HbmTier::Shared& copy, Transfer& filled) {
  if (request.length <= kMostAtOnce)
    return fill(copy, request.fd, request.segments, request.timer, filled);
  for (const Segment& segment : request.segments) {
    for (std::uint64_t at = 0; at < segment.length; at += kMostAtOnce) {
      const Segment part{0, segment.file_offset + at, std::min(kMostAtOnce, segment.length - at)};
      if (!fill(copy, request.fd, {&part, 1}, request.timer, filled)) return false;
      if (request.is_cancelled && request.is_cancelled()) return copy->is_filled(request.segments);
    }
  }
  return true;
}

Result<std::optional<Transfer>> Engine::Parts::read_hbm(const EngineRead& request) {
  using Went = std::optional<Transfer>;
  const bool asked = request.wanted == Route::Hbm;
  if ((!asked && request.wanted != Route::Auto) || !hbm.is_on()) return Went();
  if (request.length == 0 || request.version.id == FileId{}) return Went();
  Device& device = *request.memory.device();
  // A small read is not worth a block.
  const bool large = request.length > kSmall && !request.is_batch() && !asked;
  HbmTier::Shared copy = hbm.find(request.fd, request.version, device, request.segments,
                                  large ? HbmTier::May::Copy : HbmTier::May::Look, request.user);
  if (!copy) return Went();
  Transfer filled;
  if (!fill_for(request, copy, filled)) return Went();
  const auto user = copy->user();
  // It may have been shared with another user since it was found.
  if (!copy->may_serve(request.user) || !may_read(copy, request.segments)) return Went();
  if (filled.bytes == 0) request.timer.take(Route::Hbm);
  Result<void> done = {};
  {
    // Those of batches have slots for the table of small segments, and do not sleep: the copy is
    // over sooner than a thread could wake up.
    LanePool* lanes = &bare;
    if (const auto slots = staging(device)) lanes = &(*slots)->batches();
    const LanePool::Loan lane(*lanes);
    done = HbmTier::read(*copy, *lane, request.memory, request.segments);
  }
  if (!done && device.is_lost()) return done.error();
  if (!done || !request.version.is_of(request.fd)) {
    hbm.drop(copy);
    return Went();
  }
  // It was shared meanwhile, and may have been written to.
  if (copy->user() != user) return Went();
  if (filled.bytes > 0) return Went(Transfer{request.length, filled.route, Why::FillingHbm});
  copy->use().hits += 1;
  copy->use().hit_bytes += request.length;
  return Went(Transfer{request.length, Route::Hbm, asked ? Why::Asked : Why::InHbm});
}

Result<std::optional<Transfer>> Engine::Parts::gather_hbm(const RecordRequest& request) {
  using Went = std::optional<Transfer>;
  if (!hbm.has_copies() || request.records.count == 0) return Went();
  Device& device = *request.memory.device();
  const Segment all{0, request.records.offset, request.records.count * request.records.size};
  HbmTier::Shared copy = hbm.find(request.file.fd, request.version, device, {&all, 1},
                                  HbmTier::May::Look, request.file.user);
  // Which blocks the records are in is known to the GPU only, so a shared copy can't be checked.
  if (!copy || copy->user()) return Went();
  SLUICE_TRY(device.enter());
  const auto lent = staging(device);
  if (!device.kernels() || !lent) return Went();

  request.timer.take(Route::Hbm);
  Result<bool> good = false;
  {
    const LanePool::Loan lane((*lent)->batches());
    SLUICE_TRY(lane->enter(device));
    good =
        gather_by_kernel(*lane, request.memory.address() + request.memory_offset,
                         copy->address() + request.records.offset, request.records, request.index);
  }
  if (!request.version.is_of(request.file.fd)) {
    hbm.drop(copy);
    return Went();
  }
  if (copy->user()) return Went();  // it was shared meanwhile
  if (!good && !device.is_lost()) {
    hbm.drop(copy);
    return Went();
  }
  if (!SLUICE_TRY(std::move(good))) {
    std::vector<std::uint64_t> own;
    // Finding the number costs memory; the caller that asks for this route finds it.
    if (request.wanted != Route::Hbm) SLUICE_TRY(host_index(request, own));
    return Error(ERANGE, "the index changed while it was used");
  }
  const std::uint64_t bytes = request.index.count * request.records.size;
  copy->use().hits += 1;
  copy->use().hit_bytes += bytes;
  return Went(Transfer{bytes, Route::Hbm, Why::InHbm});
}

Result<void> Engine::fill_hbm(const EngineFile& file, Device& device, bool keep,
                              const std::stop_token& stop) {
  struct stat stat {};
  if (::fstat(file.fd, &stat) != 0) return Error::last("stat the file");
  const auto version = FileVersion::of(stat);
  if (version.size == 0) return {};
  auto copy = SLUICE_TRY(parts_->hbm.request(file.fd, version, device, keep));
  Stats::Timer timer(stats_, device.uuid());
  Transfer sum{0, Route::Staged, Why::FillingHbm};
  for (std::uint64_t at = 0; at < version.size; at += kFillPart) {
    if (stop.stop_requested()) return Error(ECANCELED, "copy the file into the GPU's memory");
    const Segment part{0, at, std::min(kFillPart, version.size - at)};
    if (!parts_->fill(copy, file.fd, {&part, 1}, timer, sum)) {
      if (device.is_lost()) return Error(ENODEV, "use a GPU that is lost");
      return Error(EAGAIN, "the file changed while it was copied into the GPU's memory");
    }
  }
  timer.finish(sum);
  return {};
}

}  // namespace sluice
