// SPDX-License-Identifier: BSD-2-Clause
#include "gpu/engine_parts.hpp"

#include <unistd.h>

#include <algorithm>
#include <bit>
#include <thread>

#include "base/log.hpp"
#include "gpu/cutter.hpp"

namespace sluice {
namespace {

constexpr unsigned kBareLanes = 16;
// A file that is read from the disk goes into the page cache if it takes at most this part of the
// memory that is available.
constexpr std::uint64_t kRoom = 4;
// A process that makes no more small reads than this does without pinned memory, which takes longer
// than all of them.
constexpr unsigned kFewReads = 8;
constexpr auto kPinAgain = std::chrono::seconds(10);

Engine::Settings filled_in(Engine::Settings settings) {
  // Copying from the page cache takes 0.15 to 0.25 core seconds per GB, and the bus of an H200
  // transfers 55 GB/s. With 12 of 16 cores, both the daemon (48.7 GB/s) and a program (44 to 49)
  // came near to it. With 8, the daemon reached 42 to 50 in three runs, a program 22. For reads
  // from a disk the number does not matter.
  if (settings.threads == 0) {
    settings.threads = std::clamp(std::thread::hardware_concurrency() * 3 / 4, 4u, 12u);
  }
  settings.slots = std::clamp(settings.slots, 2u, 16u);
  settings.chunk = std::bit_ceil(std::clamp<std::uint64_t>(settings.chunk, kGrain, 64 << 20));
  settings.max_concurrent_ops = std::max(settings.max_concurrent_ops, 1u);
  if (settings.mapped_bytes == 0) {
    settings.mapped_bytes = static_cast<std::uint64_t>(::sysconf(_SC_PHYS_PAGES)) *
                            static_cast<std::uint64_t>(::sysconf(_SC_PAGESIZE)) / 4;
  }
  return settings;
}

}  // namespace

Gate::Pass::Pass(Gate& gate) : gate_(gate) {
  const MutexLock lock(gate_.mutex_);
  while (gate_.free_ == 0) gate_.left_.wait(gate_.mutex_);
  --gate_.free_;
}

Gate::Pass::~Pass() {
  const MutexLock lock(gate_.mutex_);
  ++gate_.free_;
  gate_.left_.notify_one();
}

std::uint64_t RouteQuery::length_of(std::span<const Segment> segments) {
  std::uint64_t sum = 0;
  for (const Segment& each : segments) sum += each.length;
  return sum;
}

Work::Kind RouteQuery::work_of(std::span<const Segment> segments, std::uint64_t length,
                               Purpose purpose) {
  if (purpose == Purpose::Write) return Work::Write;
  if (length <= kSmall) return Work::Small;
  const auto is_small = [](const Segment& segment) { return segment.length <= kSmall; };
  const bool is_batch = segments.size() > 1 && length <= kBatch &&
                        std::all_of(segments.begin(), segments.end(), is_small);
  return is_batch ? Work::Batch : Work::Large;
}

Engine::Parts::Parts(const Settings& wanted)
    : settings(filled_in(wanted)),
      gate(settings.max_concurrent_ops),
      bare({}, kBareLanes, MappedFiles::kUnderWay, Lane::Wait::Block),
      cufiles(settings.enabled && settings.cufile, settings.cufile_idle),
      hbm(settings.enabled ? settings.hbm : HbmLimits{}, settings.mapped_after),
      mapped({settings.mapped_bytes, settings.mapped_idle, settings.mapped_half_life,
              settings.mapped_after, settings.mapped_background, settings.memory,
              [this] { return is_busy(); }}),
      warmer([this] { return is_busy(); }, Warmer::disk_bytes,
             [this](std::uint64_t bytes) { return has_room(bytes); }) {}

bool Engine::Parts::is_busy() {
  const MutexLock lock(mutex_);
  return workers_ && workers_->jobs() > 0;
}

bool Engine::Parts::has_room(std::uint64_t size) const {
  const std::uint64_t available = settings.memory().available;
  return size <= (available - std::min(available, mapped.bytes())) / kRoom;
}

WorkerPool& Engine::Parts::workers() {
  const MutexLock lock(mutex_);
  if (!workers_) workers_ = std::make_unique<WorkerPool>(settings.threads);
  return *workers_;
}

Result<Staging*> Engine::Parts::staging(Device& device) {
  if (device.is_lost()) return Error(ENODEV, "use a GPU that is lost");
  if (Staging* ready = staging_ready.load(std::memory_order_acquire)) return ready;
  WorkerPool& pool = workers();
  const MutexLock lock(mutex_);
  if (staging_) return staging_.get();
  const auto now = std::chrono::steady_clock::now();
  if (now < try_again_) return Error(EOPNOTSUPP, "pin staging memory");
  pinning_ = true;
  auto made = Staging::create(device, pool, settings.chunk, settings.slots);
  pinning_ = false;
  if (!made) {
    if (device.is_lost()) return Error(ENODEV, "use a GPU that is lost");
    log::get().warn("cannot pin host memory, GPU transfers will be slow: {} errno={}",
                    made.error().operation, made.error().code);
    try_again_ = now + kPinAgain;
    return Error(EOPNOTSUPP, "pin staging memory");
  }
  staging_ = *std::move(made);
  staging_ready.store(staging_.get(), std::memory_order_release);
  return staging_.get();
}

RouteChoice Engine::Parts::choose(RouteQuery& query) {
  for (;;) {
    const RouteChoice choice = choose_route(query.facts);
    if (choice.is_final) return choice;
    const RouteRow& row = *choice.row;
    // Small requests need no pass: they are many and short, and would wait behind large ones. Nor
    // do readers of copies in GPU memory: they may wait until others, with a pass, have filled it.
    const bool needs_pass = query.length > kSmall && query.work != Work::Batch &&
                            query.purpose != Purpose::Preview && row.route != Route::Hbm;
    if (needs_pass && !query.pass) query.pass.emplace(gate);
    query.facts[row.route] = row.way->offer ? row.way->offer(*this, query) : RouteOffer::yes();
  }
}

Result<Transfer> Engine::Parts::transfer(EngineRequest& request) {
  for (;;) {
    const auto [row, is_final, why] = choose(request);
    if (!row && request.device && request.device->is_lost())
      return Error(ENODEV, "use a GPU that is lost");
    if (!row) return Error(EOPNOTSUPP, "take the requested route");
    request.timer.take(row->route);
    const auto act = request.purpose == Purpose::Write ? row->way->write : row->way->read;
    auto went = SLUICE_TRY(act(*this, request));
    if (auto* done = std::get_if<Transfer>(&went)) {
      if (done->route == Route::Auto) *done = {done->bytes, row->route, why, done->left};
      return *done;
    }
    const RouteOffer refusal = request.facts[row->route] = std::get<RouteOffer>(went);
    if (refusal.why) request.facts.work = Work::Again;
    request.found.reset();
  }
}

bool Engine::Parts::pays_for_staging(const RouteQuery& query) {
  if (staging_ready || query.work != Work::Small || query.wanted != Route::Auto) return true;
  return !pinning_ && small_reads_.fetch_add(1, std::memory_order_relaxed) >= kFewReads;
}

FileReader Engine::Parts::reader_for(const EngineRequest& request) {
  ReaderNotes::Range range{request.version.id, request.segments[0].file_offset, 0};
  for (const Segment& each : request.segments) {
    range.begin = std::min(range.begin, each.file_offset);
    range.end = std::max(range.end, each.file_offset + each.length);
  }
  return FileReader(request.file.fd, range, notes, [&] { return has_room(request.version.size); });
}

void Engine::Parts::fill_behind(const EngineRequest& request, std::uint64_t bytes) {
  if (mapped.claim_fill(request.version, bytes))
    warmer.add_when_idle(request.file.fd, request.version);
}

}  // namespace sluice
