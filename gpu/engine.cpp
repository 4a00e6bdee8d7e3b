// SPDX-License-Identifier: BSD-2-Clause
#include "gpu/engine.hpp"

#include <sys/stat.h>

#include <algorithm>
#include <limits>

#include "base/log.hpp"
#include "base/thread.hpp"
#include "base/units.hpp"
#include "gpu/cutter.hpp"
#include "gpu/engine_parts.hpp"

namespace sluice {
namespace {

bool is_within(const Segment& segment, std::uint64_t length) {
  return segment.memory_offset <= length && segment.length <= length - segment.memory_offset;
}

bool is_small(std::span<const Segment> segments) {
  std::uint64_t left = kSmall;
  return std::all_of(segments.begin(), segments.end(), [&](const Segment& segment) {
    const bool fits = segment.length <= left;
    left -= fits ? segment.length : 0;
    return fits;
  });
}

// True if a small request by this route needs only a descriptor.
bool can_be_small(Route wanted) {
  return wanted == Route::Auto || wanted == Route::Staged || wanted == Route::Host;
}

bool is_empty(const Segment& segment, std::uint64_t file_size) {
  return segment.file_offset >= file_size || segment.length == 0;
}

// The number of segments at the end among which are `left` that are not empty.
std::size_t with_empty_ones(std::span<const Segment> segments, std::uint64_t file_size,
                            std::size_t left) {
  std::size_t count = 0;
  for (; left > 0; ++count) {
    if (!is_empty(segments[segments.size() - 1 - count], file_size)) --left;
  }
  return count;
}

GpuUuid uuid_of(const Memory& memory) {
  return memory.device() ? memory.device()->uuid() : GpuUuid{};
}

}  // namespace

Engine::Engine(Settings settings)
    : settings_(settings), parts_(std::make_unique<Parts>(settings)) {}

Engine::~Engine() = default;

Result<Transfer> Engine::read(const EngineFile& file, Memory& memory,
                              std::span<const Segment> segments, Route wanted) {
  for (const Segment& segment : segments) {
    if (!is_within(segment, memory.length()))
      return Error(ERANGE, "read beyond the end of the buffer");
  }
  if (!memory.device() && !memory.is_writable())
    return Error(EACCES, "read into a buffer that is mapped read-only");
  if (memory.device() && !settings_.enabled) return Error(EOPNOTSUPP, "read to a GPU");

  Stats::Timer timer(stats_, uuid_of(memory));
  FileVersion version;
  const bool in_hbm = memory.device() && wanted == Route::Auto && parts_->hbm.has_copies();
  if (is_small(segments) && can_be_small(wanted) && !in_hbm) {
    // Reading finds the end of the file itself; on a mount, fstat() would be another request.
    version.size = kLargestOffset;
  } else {
    struct stat stat {};
    if (::fstat(file.fd, &stat) != 0) return Error::last("stat the file");
    version = FileVersion::of(stat);
  }
  // A single segment, the usual case, needs no memory from the heap.
  Segment one[1];
  std::vector<Segment> many;
  std::size_t count = 0;
  if (segments.size() > 1) many.resize(segments.size());
  Segment* const cut = segments.size() > 1 ? many.data() : one;
  for (const Segment& segment : segments) {
    if (is_empty(segment, version.size)) continue;
    cut[count] = segment;
    cut[count++].length = std::min(segment.length, version.size - segment.file_offset);
  }
  EngineRequest request{
      {file, version, memory.device(), {cut, count}, wanted, Purpose::Read}, memory, timer};
  const CallersContext context(memory);
  auto transfer = parts_->transfer(request);
  if (!transfer) return transfer;
  timer.finish(*transfer);
  transfer->left = with_empty_ones(segments, version.size, transfer->left);
  return transfer;
}

Result<Transfer> Engine::write(const EngineFile& file, Memory& memory, const Segment& segment,
                               Route wanted) {
  if (!is_within(segment, memory.length()))
    return Error(ERANGE, "write beyond the end of the buffer");
  if (segment.file_offset > kLargestOffset ||
      segment.length > kLargestOffset - segment.file_offset) {
    return Error(EFBIG, "write beyond the largest file size");
  }
  if (memory.device() && !settings_.enabled) return Error(EOPNOTSUPP, "write from a GPU");

  Stats::Timer timer(stats_, uuid_of(memory));
  EngineRequest request{
      {file, {}, memory.device(), {&segment, 1}, wanted, Purpose::Write}, memory, timer};
  const CallersContext context(memory);
  auto transfer = parts_->transfer(request);
  if (transfer) timer.finish(*transfer);
  return transfer;
}

Result<void> Engine::prepare(Device& device) {
  SLUICE_TRY(device.enter());
  SLUICE_TRY(parts_->staging(device));
  const Kernels* const kernels = device.kernels();  // it works without them, too
  // Otherwise the first program that shares a file waits until they are compiled.
  if (kernels != nullptr && parts_->hbm.is_on()) kernels->prepare_checksums();
  return {};
}

// It has the usual priority: a request that comes meanwhile would otherwise wait for a slow thread,
// and the threads that CUDA and we start here would stay slow.
void Engine::prepare_in_background() {
  if (!settings_.enabled) return;
  preparing_ = std::jthread([this](const std::stop_token& stop) {
    begin_thread("sluice-gpu");
    const auto began = std::chrono::steady_clock::now();
    std::size_t ready = 0;
    for (const auto& device : devices_.all()) {
      if (stop.stop_requested()) return;
      if (device->is_shared() && prepare(*device)) ++ready;
    }
    if (ready == 0) return;  // each request will say why
    // Takes 0.4 s. The first large request needs it to choose its route.
    for (const auto& device : devices_.all()) {
      if (stop.stop_requested()) return;
      if (device->is_shared()) parts_->cufiles.prepare(*device);
    }
    const auto took = std::chrono::steady_clock::now() - began;
    log::get().info("GPUs are ready: count={} pinned={} ms={}", ready, format_size(pinned_bytes()),
                    std::chrono::duration_cast<std::chrono::milliseconds>(took).count());
  });
}

Result<void> Engine::warm(const EngineFile& file, std::uint64_t offset, std::uint64_t length,
                          uid_t user) {
  struct stat stat {};
  if (::fstat(file.fd, &stat) != 0) return Error::last("stat the file");
  const auto size = static_cast<std::uint64_t>(stat.st_size);
  if (offset >= size) return {};
  const std::uint64_t end = length == 0 ? size : offset + std::min(length, size - offset);
  return parts_->warmer.add(user, file.fd, offset, end);
}

void Engine::forget(const EngineFile& file) {
  struct stat stat {};
  if (::fstat(file.fd, &stat) != 0) return;
  forget_file(FileVersion::of(stat).id);
}

void Engine::forget_file(const FileId& file) {
  parts_->forget([&](const FileId& id) { return id == file; });
}

void Engine::forget_filesystem(dev_t device) {
  parts_->forget([&](const FileId& id) { return id.device == device; });
}

std::uint64_t Engine::pinned_bytes() const {
  const Staging* staging = parts_->staging_ready;
  return staging ? staging->pinned_bytes() : 0;
}

HbmTier& Engine::hbm() { return parts_->hbm; }

const Warmer& Engine::warmer() const { return parts_->warmer; }

std::uint64_t Engine::mapped_bytes() const { return parts_->mapped.bytes(); }

}  // namespace sluice
