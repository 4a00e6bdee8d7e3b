// SPDX-License-Identifier: BSD-2-Clause
#include "gpu/engine_parts.hpp"

#include <unistd.h>

#include <algorithm>
#include <bit>
#include <thread>

#include "base/log.hpp"
#include "gpu/cutter.hpp"
#include "gpu/residency.hpp"
#include "gpu/route_host.hpp"

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
// The size of one pwrite(2) of a write from host memory; the kernel's limit is 2 GiB.
constexpr std::uint64_t kWritePiece = 64 << 20;

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

ReaderNotes::Range range_of(const EngineRead& request) {
  ReaderNotes::Range out{request.version.id, request.segments[0].file_offset, 0};
  for (const Segment& each : request.segments) {
    out.begin = std::min(out.begin, each.file_offset);
    out.end = std::max(out.end, each.file_offset + each.length);
  }
  return out;
}

Error cannot_take_route() { return Error(EOPNOTSUPP, "take the requested route"); }

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

bool EngineRead::is_batch() const {
  return segments.size() > 1 && length <= kBatch &&
         std::all_of(segments.begin(), segments.end(),
                     [](const Segment& segment) { return segment.length <= kSmall; });
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

// A direct read from the disk is the fastest route, except for bytes that are already in memory.
bool Engine::Parts::is_better_direct(int fd, const FileVersion& version, const Segment& first,
                                     Device& device) {
  const auto glance = std::min(first.length, settings.chunk);
  if (cached_share(fd, first.file_offset, glance).value_or(0) >= 0.9) return false;
  return cufiles.judge(fd, version.id, device).direct;
}

Result<Choice> Engine::Parts::choose(const EngineRead& request) {
  Device& device = *request.memory.device();
  const auto cufile = [&] { return cufiles.judge(request.fd, request.version.id, device); };
  switch (request.wanted) {
    case Route::Host:
    case Route::Hbm:  // or read_hbm() would have done it
      return cannot_take_route();
    case Route::Gds:
      if (!cufile().direct) return cannot_take_route();
      return Choice{Route::Gds, Why::Asked};
    case Route::CuFile:
      if (!cufile().usable) return cannot_take_route();
      return Choice{Route::CuFile, Why::Asked};
    case Route::Staged:
    case Route::Pageable:
      return Choice{request.wanted, Why::Asked};
    case Route::Mapped: {
      auto found = mapped.find(request.fd, request.version, device, MappedFiles::Wish::Insist,
                               request.length);
      if (device.is_lost()) return Error(ENODEV, "use a GPU that is lost");
      if (!std::holds_alternative<MappedFiles::Shared>(found)) return cannot_take_route();
      return Choice{Route::Mapped, Why::Asked, std::get<MappedFiles::Shared>(found)};
    }
    case Route::Auto:
      break;
  }
  if (request.length <= kSmall) return Choice{Route::Staged, Why::Small};
  if (!request.is_batch() &&
      is_better_direct(request.fd, request.version, request.segments[0], device)) {
    return Choice{Route::Gds, Why::Fastest};
  }
  auto found =
      mapped.find(request.fd, request.version, device, MappedFiles::Wish::IfItPays, request.length);
  if (const Why* why = std::get_if<Why>(&found)) return Choice{Route::Staged, *why};
  return Choice{Route::Mapped, Why::Registered, std::get<MappedFiles::Shared>(found)};
}

Choice Engine::Parts::foresee(int fd, const FileVersion& version, std::uint64_t length,
                              Device& device, uid_t user) {
  const Segment all{0, 0, std::min(length, version.size)};
  if (all.length > 0 && hbm.has(version, device, all, user)) return {Route::Hbm, Why::InHbm};
  if (all.length <= kSmall) return {Route::Staged, Why::Small};
  if (is_better_direct(fd, version, all, device)) return {Route::Gds, Why::Fastest};
  auto found = mapped.find(fd, version, device, MappedFiles::Wish::Look, all.length);
  const Why* why = std::get_if<Why>(&found);
  if (!why || *why == Why::Registered) return {Route::Mapped, Why::Registered};
  const bool cold = cached_share(fd, 0, all.length).value_or(1) < 0.5;
  return {Route::Staged, cold ? Why::NotCached : *why};
}

Result<Transfer> Engine::Parts::read_device(const EngineRead& request) {
  if (const auto done = SLUICE_TRY(read_hbm(request))) return *done;
  // Small requests need no pass: they are many and short, and would wait behind large ones.
  std::optional<Gate::Pass> pass;
  if (request.length > kSmall && !request.is_batch()) pass.emplace(gate);
  const Choice choice = SLUICE_TRY(choose(request));
  return execute(request, choice);
}

Result<Transfer> Engine::Parts::execute(const EngineRead& request, const Choice& choice) {
  request.timer.take(choice.route);
  switch (choice.route) {
    case Route::Gds:
    case Route::CuFile:
      return read_cufile(request, choice);
    case Route::Mapped:
      return read_mapped(request, choice);
    case Route::Pageable:
      return read_mmap(request, choice);
    default:
      return read_staged(request, choice);
  }
}

bool Engine::Parts::pays_for_staging(const EngineRead& request) {
  if (staging_ready || request.length > kSmall || request.wanted != Route::Auto) return true;
  return !pinning_ && small_reads_.fetch_add(1, std::memory_order_relaxed) >= kFewReads;
}

Result<Transfer> Engine::Parts::read_staged(const EngineRead& request, const Choice& choice) {
  if (!pays_for_staging(request)) return execute(request, {Route::Pageable, choice.why});
  auto lent = staging(*request.memory.device());
  if (failed_with(lent, EOPNOTSUPP) && request.wanted == Route::Auto) {
    return execute(request, {Route::Pageable, Why::NotPinned});
  }
  Staging& slots = *SLUICE_TRY(std::move(lent));
  if (request.is_batch()) {
    const auto bytes = SLUICE_TRY(slots.read_batch(request.fd, request.memory, request.segments));
    if (request.length > kSmall) mapped.count(request.version, bytes);
    return Transfer{bytes, Route::Staged, choice.why};
  }
  if (request.length <= kSmall) {
    const auto bytes = SLUICE_TRY(slots.read_small(request.fd, request.memory, request.segments));
    return Transfer{bytes, Route::Staged, choice.why};
  }
  FileReader reader(request.fd, range_of(request), notes,
                    [&] { return has_room(request.version.size); });
  Cutter cutter(request.segments, slots.chunk(), workers().size(), request.is_cancelled);
  const auto done = SLUICE_TRY(slots.read(reader, request.memory, cutter, request.user));
  mapped.count(request.version, done.bytes);
  if (reader.left_room()) fill_behind(request, done.bytes);
  const bool say_cold = request.wanted == Route::Auto && reader.was_cold();
  return Transfer{done.bytes, Route::Staged, say_cold ? Why::NotCached : choice.why, done.left};
}

// Puts the file into the page cache when there is nothing else to do, once for each version, unless
// only a small part of it is read.
void Engine::Parts::fill_behind(const EngineRead& request, std::uint64_t bytes) {
  if (mapped.claim_fill(request.version, bytes)) warmer.add_when_idle(request.fd, request.version);
}

Result<Transfer> Engine::Parts::read_mapped(const EngineRead& request, const Choice& choice) {
  {
    // Many small segments need slots for the kernel's table, if there are any.
    LanePool* lanes = &bare;
    if (request.segments.size() > 1) {
      if (const auto slots = staging(*request.memory.device())) lanes = &(*slots)->batches();
    }
    const LanePool::Loan lane(*lanes);
    const auto bytes =
        SLUICE_TRY(MappedFiles::read(*choice.mapping, *lane, request.fd, request.memory,
                                     request.segments, request.is_cancelled));
    if (bytes) return Transfer{*bytes, Route::Mapped, choice.why};
  }
  mapped.forget([&](const FileId& id) { return id == request.version.id; });
  if (request.wanted != Route::Auto) return cannot_take_route();
  return execute(request, {Route::Staged, Why::Changed});
}

Result<Transfer> Engine::Parts::read_cufile(const EngineRead& request, const Choice& choice) {
  Cutter cutter(request.segments, settings.chunk, workers().size(), request.is_cancelled);
  const auto read =
      cufiles.read(workers(), request.fd, request.version.id, request.memory, cutter, request.user);
  if (failed_with(read, EOPNOTSUPP) && request.wanted == Route::Auto) {
    return execute(request, {Route::Staged, Why::CuFileRefused});
  }
  const auto done = SLUICE_TRY(read);
  return Transfer{done.bytes, choice.route, choice.why, done.left};
}

Result<Transfer> Engine::Parts::read_mmap(const EngineRead& request, const Choice& choice) {
  const LanePool::Loan lane(bare);
  const auto done = SLUICE_TRY(
      read_pageable(*lane, request.fd, request.memory, request.segments, request.is_cancelled));
  return Transfer{done.bytes, Route::Pageable, choice.why, done.left};
}

Result<Transfer> Engine::Parts::read_host(const EngineRead& request) {
  if (request.wanted != Route::Auto && request.wanted != Route::Host) return cannot_take_route();
  request.timer.take(Route::Host);
  const Why why = request.wanted == Route::Auto ? Why::HostMemory : Why::Asked;
  std::byte* const memory = request.memory.host();
  if (request.length <= kSmall || request.is_batch()) {
    const auto bytes = SLUICE_TRY(read_host_small(request.fd, memory, request.segments));
    return Transfer{bytes, Route::Host, why};
  }
  const Gate::Pass pass(gate);
  FileReader reader(request.fd, range_of(request), notes,
                    [&] { return has_room(request.version.size); });
  Cutter cutter(request.segments, settings.chunk, workers().size(), request.is_cancelled);
  const auto done = SLUICE_TRY(sluice::read_host(workers(), reader, memory, cutter, request.user));
  if (reader.left_room()) fill_behind(request, done.bytes);
  return Transfer{done.bytes, Route::Host, why, done.left};
}

Result<Transfer> Engine::Parts::write(const EngineFile& file, Memory& memory,
                                      const Segment& segment, Route wanted, Stats::Timer& timer) {
  const bool automatic = wanted == Route::Auto;
  std::optional<Gate::Pass> pass;
  if (segment.length > kSmall) pass.emplace(gate);
  if (!memory.device()) {
    if (!automatic && wanted != Route::Host) return cannot_take_route();
    timer.take(Route::Host);
    for (std::uint64_t at = 0; at < segment.length; at += kWritePiece) {
      SLUICE_TRY(write_out(file, memory.host() + segment.memory_offset + at,
                           std::min(kWritePiece, segment.length - at), segment.file_offset + at));
    }
    return Transfer{segment.length, Route::Host, automatic ? Why::HostMemory : Why::Asked};
  }
  if (!automatic && wanted != Route::Staged && wanted != Route::Pageable)
    return cannot_take_route();
  if (wanted != Route::Pageable) {
    timer.take(Route::Staged);
    auto lent = staging(*memory.device());
    if (!failed_with(lent, EOPNOTSUPP) || !automatic) {
      Staging& slots = *SLUICE_TRY(std::move(lent));
      SLUICE_TRY(slots.write(file, memory, segment));
      return Transfer{segment.length, Route::Staged, automatic ? Why::Writing : Why::Asked};
    }
  }
  timer.take(Route::Pageable);
  const LanePool::Loan lane(bare);
  SLUICE_TRY(write_pageable(*lane, file, memory, segment));
  return Transfer{segment.length, Route::Pageable, automatic ? Why::NotPinned : Why::Asked};
}

}  // namespace sluice
