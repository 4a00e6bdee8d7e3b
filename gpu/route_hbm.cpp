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
  for (const auto& [begin, end] : ranges) parts.push_back({begin, begin, end - begin});
  const EngineFile file{.fd = fd};
  EngineRequest request{{file, copy.version(), &copy.device(), parts, Route::Auto, Purpose::Fill},
                        copy.memory(),
                        timer};
  const auto done = transfer(request);
  report.good = done && done->bytes == request.length && copy.version().is_of(fd);
  if (!report.good) return std::nullopt;
  return Transfer{request.length, done->route, Why::FillingHbm};
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
bool Engine::Parts::fill_for(EngineRequest& request, HbmTier::Shared& copy, Transfer& filled) {
  if (request.length <= kMostAtOnce)
    return fill(copy, request.file.fd, request.segments, request.timer, filled);
  for (const Segment& segment : request.segments) {
    for (std::uint64_t at = 0; at < segment.length; at += kMostAtOnce) {
      const Segment part{0, segment.file_offset + at, std::min(kMostAtOnce, segment.length - at)};
      if (!fill(copy, request.file.fd, {&part, 1}, request.timer, filled)) return false;
      if (request.file.is_cancelled && request.file.is_cancelled())
        return copy->is_filled(request.segments);
    }
  }
  return true;
}

namespace {

RouteOffer offer_hbm(Engine::Parts& parts, RouteQuery& query) {
  if (query.length == 0 || query.purpose == Purpose::Fill) return RouteOffer::no();
  HbmTier& hbm = parts.hbm;
  Device& device = *query.device;
  const uid_t user = query.file.user;
  if (query.purpose == Purpose::Preview)
    return hbm.has(query.version, device, query.segments[0], user) ? RouteOffer::yes(Why::InHbm)
                                                                   : RouteOffer::no();
  if (!hbm.is_on() || query.version.id == FileId{}) return RouteOffer::no();
  // A smaller read is not worth a block.
  const auto may = query.work == Work::Large && query.wanted == Route::Auto ? HbmTier::May::Copy
                                                                            : HbmTier::May::Look;
  query.found = hbm.find(query.file.fd, query.version, device, query.segments, may, user);
  return query.found ? RouteOffer::yes(Why::InHbm) : RouteOffer::no();
}

Result<RouteWent> read_hbm(Engine::Parts& parts, EngineRequest& request) {
  const RouteWent cannot = RouteOffer::no();
  auto copy = std::static_pointer_cast<HbmCopy>(request.found);
  Transfer filled;
  if (!parts.fill_for(request, copy, filled)) return cannot;
  const auto user = copy->user();
  // It may have been shared with another user since it was found.
  if (!copy->may_serve(request.file.user) || !parts.may_read(copy, request.segments)) return cannot;
  Result<void> done = {};
  {
    // Those of batches have slots for the table of small segments, and do not sleep: the copy is
    // over sooner than a thread could wake up.
    LanePool* lanes = &parts.bare;
    if (const auto slots = parts.staging(*request.device)) lanes = &(*slots)->batches();
    const LanePool::Loan lane(*lanes);
    done = HbmTier::read(*copy, *lane, request.memory, request.segments);
  }
  if (!done && request.device->is_lost()) return done.error();
  if (!done || !request.version.is_of(request.file.fd)) {
    parts.hbm.drop(copy);
    return cannot;
  }
  // It was shared meanwhile, and may have been written to.
  if (copy->user() != user) return cannot;
  if (filled.bytes > 0) return RouteWent(Transfer{request.length, filled.route, Why::FillingHbm});
  copy->use().hits += 1;
  copy->use().hit_bytes += request.length;
  return RouteWent(Transfer{request.length});
}

Engine::Possibility describe_hbm(Engine::Parts& parts, const RouteQuery&) {
  const bool on = parts.hbm.is_on();
  return {Route::Hbm, on,
          on ? "for files that are read a second time"
             : "off: set hbm to keep files in the memory of the GPU"};
}

}  // namespace

extern const RouteWay kHbmWay = {offer_hbm, read_hbm, nullptr, describe_hbm};

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
