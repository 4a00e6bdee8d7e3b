// SPDX-License-Identifier: BSD-2-Clause
#include "gpu/hbm.hpp"

#include <fcntl.h>

#include <algorithm>
#include <cmath>
#include <string>
#include <tuple>

#include "base/log.hpp"
#include "base/thread.hpp"
#include "base/units.hpp"
#include "gpu/cutter.hpp"
#include "gpu/packer.hpp"

namespace sluice {
namespace {

constexpr std::uint64_t kLeastFile = 1 << 20;  // smaller files are copied only on request
constexpr std::size_t kMostFiles = 1024;       // most files remembered
// What is read of larger files, which may be sparse, is not remembered.
constexpr std::uint64_t kLargestFile = 1ULL << 40;
constexpr std::chrono::duration<double> kHalfLife = std::chrono::minutes(10);
// A file must be worth so many times more than one that is dropped for it. Otherwise files that are
// read in turn would replace each other repeatedly.
constexpr double kBetter = 2;
constexpr auto kWatch = std::chrono::milliseconds(50);
constexpr auto kQuiet = std::chrono::seconds(10);        // after release()
constexpr auto kAfterReserve = std::chrono::seconds(5);  // after `reserve` was undercut
constexpr auto kAfterFailure = std::chrono::seconds(1);  // after the GPU refused memory
constexpr double kComplete = 0.9;  // a complete read need not be quite complete

std::int64_t real_now() {
  timespec now{};
  ::clock_gettime(CLOCK_REALTIME, &now);
  return FileVersion::nanoseconds(now);
}

// The kernel grants a read lease only if no mapping and no descriptor can write to the file. The
// descriptor is one of our own: the lease of another one may be in use. Where there are no leases,
// nobody knows, so the answer is no.
bool nobody_writes(int fd) {
  const std::string path = "/proc/self/fd/" + std::to_string(fd);
  const UniqueFd own(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  if (!own || ::fcntl(own.get(), F_SETLEASE, F_RDLCK) < 0) return false;
  ::fcntl(own.get(), F_SETLEASE, F_UNLCK);
  return true;
}

// Whether the file may be copied. In this order: a change after the first check shows in the
// second. Not called with the tier's lock: a disk may take long to answer.
bool is_quiet(int fd, const FileVersion& version) { return nobody_writes(fd) && version.is_of(fd); }

std::uint64_t length_of(std::span<const Segment> segments) {
  std::uint64_t sum = 0;
  for (const Segment& segment : segments) sum += segment.length;
  return sum;
}

}  // namespace

struct HbmTier::OnDevice {
  explicit OnDevice(Device& gpu) : device(gpu) {}
  Device& device;
  const std::shared_ptr<HbmCopy::Use> use = std::make_shared<HbmCopy::Use>();
  std::uint64_t evictions = 0;
  Clock::time_point again = {};  // nothing is copied before
  // Less than `reserve` was free: the next copy needs more than that, or it would soon be dropped
  // again.
  bool is_short = false;
};

void HbmTier::Known::count(std::uint64_t bytes) {
  const auto now = Clock::now();
  heat *= std::exp2(-(now - heat_at) / kHalfLife);
  heat_at = now;
  heat += static_cast<double>(bytes);
}

double HbmTier::Known::value(std::uint64_t more) const {
  const double now = heat * std::exp2(-(Clock::now() - heat_at) / kHalfLife);
  return now / static_cast<double>(std::max((copy ? copy->bytes() : 0) + more, HbmCopy::kBlock));
}

HbmTier::HbmTier(const HbmLimits& limits, std::chrono::nanoseconds min_unchanged)
    : min_unchanged_(min_unchanged), on_(limits.size != GpuShare{}), limits_(limits) {}

HbmTier::~HbmTier() = default;

HbmTier::OnDevice& HbmTier::on(Device& device) {
  for (OnDevice& gpu : gpus_) {
    if (&gpu.device == &device) return gpu;
  }
  return gpus_.emplace_back(device);
}

HbmTier::Known* HbmTier::look_up(const FileVersion& version, Device& device, const Rank& rank,
                                 Dropped& dropped) {
  auto best = files_.end();
  int best_rank = 0;
  for (auto it = files_.begin(); it != files_.end();) {
    const auto file = it++;
    if (file->version.id != version.id || &file->on->device != &device) continue;
    if (file->version != version) {
      take_out(*file, dropped);
      files_.erase(file);
    } else if (const int its = rank(file->copy.get()); its > best_rank) {
      best = file;
      best_rank = its;
    }
  }
  if (best == files_.end()) return nullptr;
  files_.splice(files_.begin(), files_, best);
  return &files_.front();
}

HbmTier::Known& HbmTier::known(const FileVersion& version, Device& device, const Rank& rank,
                               Dropped& dropped) {
  if (Known* file = look_up(version, device, rank, dropped)) return *file;
  if (files_.size() >= kMostFiles) {
    // The least recently used one without a copy, or else one whose copy may go.
    auto last =
        std::find_if(files_.rbegin(), files_.rend(), [](const Known& file) { return !file.copy; });
    if (last == files_.rend()) {
      last = std::find_if(files_.rbegin(), files_.rend(),
                          [](const Known& file) { return !file.kept; });
    }
    if (last == files_.rend()) last = files_.rbegin();
    take_out(*last, dropped);
    files_.erase(std::next(last).base());
  }
  files_.push_front({version, &on(device)});
  return files_.front();
}

void HbmTier::take_out(Known& file, Dropped& dropped) {
  if (!file.copy) return;
  file.copy->end();
  dropped.push_back(std::move(file.copy));
  file.copy = nullptr;
  --copies_;
}

HbmTier::Shared HbmTier::find(int fd, const FileVersion& version, Device& device,
                              std::span<const Segment> segments, May may, uid_t user) {
  // Copies that are not shared need no check.
  const auto rank = [user](const HbmCopy* copy) {
    if (copy == nullptr) return 1;
    if (!copy->may_serve(user)) return 0;
    return copy->user() ? 2 : 3;
  };
  Dropped dropped;
  Due due = Due::No;
  {
    const MutexLock lock(mutex_);
    Known* const found = may == May::Copy ? &known(version, device, rank, dropped)
                                          : look_up(version, device, rank, dropped);
    if (!found) return nullptr;
    found->count(length_of(segments));
    if (found->copy && found->copy->is_filled(segments)) return found->copy;
    if (may == May::Look) return nullptr;
    if (found->copy && found->copy->without_memory(segments).empty()) return found->copy;
    due = what_is_due(*found, segments);
  }
  if (due == Due::No || !is_quiet(fd, version)) return nullptr;
  const MutexLock lock(mutex_);
  Known* const file = look_up(version, device, rank, dropped);
  if (!file || !may_copy(*file)) return nullptr;
  if (file->copy && file->copy->without_memory(segments).empty()) return file->copy;
  const bool whole = due == Due::Whole && !file->copy;
  if (!grow(*file, whole ? std::span<const Segment>() : segments, false, dropped)) return nullptr;
  return file->copy;
}

HbmTier::Due HbmTier::what_is_due(Known& file, std::span<const Segment> segments) {
  const FileVersion& version = file.version;
  if (version.size > kLargestFile) return Due::No;
  // What was read before this request, and is read by it.
  constexpr std::uint64_t kPiece = HbmCopy::kPiece;
  if (file.read.empty()) file.read.resize((version.size + kPiece - 1) / kPiece);
  const auto size_of = [&](std::uint64_t piece) {
    return std::min(kPiece, version.size - piece * kPiece);
  };
  const auto is_complete = [](std::uint64_t read, std::uint64_t size) {
    return static_cast<double>(read) >= kComplete * static_cast<double>(size);
  };
  std::uint64_t before = 0;
  for (std::uint64_t piece = 0; piece < file.read.size(); ++piece) {
    before += std::min(file.read[piece], size_of(piece));
  }
  bool again = true;
  for (const Segment& segment : segments) {
    std::uint64_t at = segment.file_offset;
    for (const std::uint64_t end = at + segment.length; at < end;) {
      const std::uint64_t piece = at / kPiece, next = std::min(end, (piece + 1) * kPiece);
      // Only the number of bytes that were read is known. If it and half of this request are more
      // than the piece has, this request reads bytes again; the last one of a first read does not.
      again = again && is_complete(file.read[piece], size_of(piece)) &&
              file.read[piece] + (next - at + 1) / 2 > size_of(piece);
      file.read[piece] += next - at;
      at = next;
    }
  }
  if (!again || version.size < kLeastFile || !may_copy(file)) return Due::No;
  const bool whole = !file.copy && is_complete(before, version.size) &&
                     version.size <= limits_.size.of(file.on->device.memory_bytes());
  return whole ? Due::Whole : Due::Segments;
}

bool HbmTier::has(const FileVersion& version, const Device& device, const Segment& segment,
                  uid_t user) {
  const MutexLock lock(mutex_);
  return std::any_of(files_.begin(), files_.end(), [&](const Known& file) {
    return file.version == version && &file.on->device == &device && file.copy &&
           file.copy->may_serve(user) && file.copy->is_filled({&segment, 1});
  });
}

Result<HbmTier::Shared> HbmTier::request(int fd, const FileVersion& version, Device& device,
                                         bool keep) {
  // A copy that is shared will do: a second one would take as much memory again.
  const auto rank = [](const HbmCopy* copy) {
    if (copy == nullptr) return 1;
    return copy->user() ? 2 : 3;
  };
  const bool quiet = is_quiet(fd, version);
  Dropped dropped;
  const MutexLock lock(mutex_);
  Known& file = known(version, device, rank, dropped);
  SLUICE_TRY(make_whole(file, quiet, dropped));
  file.kept = file.kept || keep;
  return file.copy;
}

Result<HbmTier::Shared> HbmTier::request_for(int fd, const FileVersion& version, Device& device,
                                             uid_t user) {
  const auto rank = [user](const HbmCopy* copy) {
    if (copy == nullptr) return 1;
    if (!copy->may_serve(user)) return 0;
    return copy->user() ? 3 : 2;
  };
  const bool quiet = is_quiet(fd, version);
  Dropped dropped;
  const MutexLock lock(mutex_);
  Known& file = known(version, device, rank, dropped);
  // Only one allocation can be shared.
  if (file.copy && !file.copy->is_one_piece()) take_out(file, dropped);
  SLUICE_TRY(make_whole(file, quiet, dropped));
  return file.copy;
}

Result<void> HbmTier::make_whole(Known& file, bool quiet, Dropped& dropped) {
  if (!on_) return Error(EOPNOTSUPP, "keep files in GPU memory: set hbm");
  if (file.copy && file.copy->without_memory({}).empty()) return {};
  if (!quiet) return Error(EAGAIN, "copy a file that somebody writes into the GPU's memory");
  if (!may_copy(file)) return Error(EAGAIN, "copy the file into the GPU's memory");
  if (file.version.size > limits_.size.of(file.on->device.memory_bytes()))
    return Error(ENOSPC, "copy a file that is larger than hbm into the GPU's memory");
  file.count(file.version.size);
  return grow(file, {}, true, dropped);
}

void HbmTier::unkeep(const FileId& id) {
  const MutexLock lock(mutex_);
  for (Known& file : files_) {
    if (file.version.id == id) file.kept = false;
  }
}

bool HbmTier::may_copy(const Known& file) const {
  const auto now = Clock::now();
  return on_ && now >= quiet_until_ && now >= file.on->again && !file.on->device.is_lost() &&
         real_now() - file.version.changed >= min_unchanged_.count();
}

Result<void> HbmTier::grow(Known& file, std::span<const Segment> segments, bool asked,
                           Dropped& dropped) {
  const auto grown = [&]() NO_THREAD_SAFETY_ANALYSIS -> Result<void> {
    if (!file.copy) {
      file.copy = SLUICE_TRY(HbmCopy::create(file.on->device, file.version, file.on->use));
      ++copies_;
    }
    const auto ranges = file.copy->without_memory(segments);
    std::uint64_t bytes = 0;
    for (const auto& [begin, end] : ranges) bytes += end - begin;
    if (!make_room(file, bytes, asked, dropped)) return Error(ENOSPC, "find room in GPU memory");
    dropped.clear();  // now, because their memory is needed
    for (const auto& range : ranges) {
      const auto added = file.copy->add_memory(range);
      if (added) continue;
      file.on->again = Clock::now() + kAfterFailure;
      return added.error();
    }
    return {};
  }();
  if (!grown) {
    if (file.copy && file.copy->bytes() == 0) take_out(file, dropped);
    return grown.error();
  }
  if (!watcher_.joinable()) {
    watcher_ = std::jthread([this](const std::stop_token& stop) { watch(stop); });
  }
  changed_.notify_all();
  return {};
}

std::vector<HbmTier::Known*> HbmTier::by_value(const OnDevice& gpu) {
  std::vector<std::tuple<bool, double, Known*>> worth;
  for (Known& file : files_) {
    if (file.copy && file.on == &gpu) worth.emplace_back(file.kept, file.value(), &file);
  }
  std::sort(worth.begin(), worth.end());
  std::vector<Known*> files;
  for (const auto& each : worth) files.push_back(std::get<Known*>(each));
  return files;
}

bool HbmTier::make_room(const Known& wanting, std::uint64_t bytes, bool asked, Dropped& dropped) {
  OnDevice& gpu = *wanting.on;
  Device& device = gpu.device;
  std::size_t free = 0, total = 0;
  if (!device.enter() || device.api().cuMemGetInfo(&free, &total) != CUDA_SUCCESS) return false;
  const std::uint64_t limit = limits_.size.of(device.memory_bytes());
  std::uint64_t reserve = limits_.reserve.of(device.memory_bytes());
  if (gpu.is_short) reserve += reserve / 4;
  const std::uint64_t used = gpu.use->bytes;
  std::uint64_t missing = used + bytes > limit ? used + bytes - limit : 0;
  if (bytes + reserve > free) missing = std::max(missing, bytes + reserve - free);
  if (bytes + reserve <= free) gpu.is_short = false;
  if (missing == 0) return true;
  const double value = wanting.value(bytes);
  std::vector<Known*> going;
  std::uint64_t freed = 0;
  for (Known* file : by_value(gpu)) {
    if (freed >= missing) break;
    if (file == &wanting || file->kept || file->copy.use_count() > 1) continue;
    if (!asked && kBetter * file->value() > value) continue;
    freed += file->copy->bytes();
    going.push_back(file);
  }
  if (freed < missing) return false;
  for (Known* file : going) take_out(*file, dropped);
  gpu.evictions += going.size();
  return true;
}

void HbmTier::shrink(OnDevice& gpu, std::uint64_t bytes, Dropped& dropped) {
  std::uint64_t freed = 0;
  for (Known* file : by_value(gpu)) {
    if (freed >= bytes) break;
    freed += file->copy->bytes();
    take_out(*file, dropped);
    ++gpu.evictions;
  }
}

void HbmTier::set_limits(const HbmLimits& limits) {
  Dropped dropped;
  const MutexLock lock(mutex_);
  if (limits == limits_) return;
  limits_ = limits;
  on_ = limits.size != GpuShare{};
  for (OnDevice& gpu : gpus_) {
    // Whoever gives it more memory need not wait for what the old limits caused.
    gpu.again = {};
    gpu.is_short = false;
    const std::uint64_t limit = limits_.size.of(gpu.device.memory_bytes()), used = gpu.use->bytes;
    if (used > limit) shrink(gpu, used - limit, dropped);
  }
}

void HbmTier::check_reserve(OnDevice& gpu, Dropped& dropped) {
  std::uint64_t held = 0;
  for (const Known* file : by_value(gpu)) held += file->copy->bytes();
  std::size_t free = 0, total = 0;
  if (held == 0 || !gpu.device.enter() ||
      gpu.device.api().cuMemGetInfo(&free, &total) != CUDA_SUCCESS) {
    return;
  }
  // The memory of copies that have ended comes back when their last reader is done.
  const std::uint64_t coming = free + gpu.use->bytes - held;
  const std::uint64_t reserve = limits_.reserve.of(gpu.device.memory_bytes());
  if (coming >= reserve) return;
  shrink(gpu, reserve - coming, dropped);
  gpu.again = Clock::now() + kAfterReserve;
  gpu.is_short = true;
  log::get().info("files leave GPU memory, because other programs need it: gpu={} free={}",
                  to_string(gpu.device.uuid()), format_size(free));
}

void HbmTier::watch(const std::stop_token& stop) {
  begin_thread("sluice-hbm");
  for (;;) {
    Dropped dropped;  // freed without the lock
    const MutexLock lock(mutex_);
    if (!changed_.wait(mutex_, stop, [&] { return copies_ > 0; })) return;
    changed_.sleep(mutex_, stop, kWatch);
    if (stop.stop_requested()) return;
    for (OnDevice& gpu : gpus_) check_reserve(gpu, dropped);
  }
}

Result<void> HbmTier::read(const HbmCopy& copy, Lane& lane, Memory& memory,
                           std::span<const Segment> segments) {
  SLUICE_TRY(lane.enter(copy.device()));
  const bool packs = segments.size() > 1 && lane.slot_size() > 0;
  unsigned slot = 0;
  Packer packer(packs ? lane.whole_slot(slot) : std::span<std::byte>());
  for (const auto& [to, offset, length] : segments) {
    const CUdeviceptr from = copy.address() + offset;
    if (!packs || length > kSmall) {
      SLUICE_TRY(lane.on_device(memory.address() + to, from, length));
      continue;
    }
    // NOLINTNEXTLINE(performance-no-int-to-ptr): the kernel's table contains addresses.
    const auto* bytes = reinterpret_cast<const std::byte*>(from);
    if (packer.add(memory.address() + to, bytes, length)) continue;
    SLUICE_TRY(packer.send(lane, Packer::From::Device));
    SLUICE_TRY(lane.mark(slot));
    slot = (slot + 1) % lane.slots();
    SLUICE_TRY(lane.wait(slot));
    packer = Packer(lane.whole_slot(slot));
    packer.add(memory.address() + to, bytes, length);
  }
  SLUICE_TRY(packer.send(lane, Packer::From::Device));
  return lane.synchronize();
}

void HbmTier::drop(const Shared& copy) {
  Dropped dropped;
  const MutexLock lock(mutex_);
  copy->end();
  for (Known& file : files_) {
    if (file.copy == copy) take_out(file, dropped);
  }
}

void HbmTier::forget(const std::function<bool(const FileId&)>& is_meant) {
  Dropped dropped;
  const MutexLock lock(mutex_);
  for (auto it = files_.begin(); it != files_.end();) {
    const auto file = it++;
    if (!is_meant(file->version.id)) continue;
    take_out(*file, dropped);
    files_.erase(file);
  }
}

std::uint64_t HbmTier::release() {
  Dropped dropped;
  const MutexLock lock(mutex_);
  std::uint64_t bytes = 0;
  for (Known& file : files_) {
    if (file.copy) bytes += file.copy->bytes();
    take_out(file, dropped);
  }
  quiet_until_ = Clock::now() + kQuiet;
  return bytes;
}

std::vector<HbmTier::Held> HbmTier::held(const FileVersion& version) {
  std::vector<Held> all;
  const MutexLock lock(mutex_);
  for (const Known& file : files_) {
    if (file.version == version && file.copy) {
      all.push_back({&file.on->device, file.copy->filled_bytes(), file.kept});
    }
  }
  return all;
}

std::vector<HbmFigures> HbmTier::figures() {
  std::vector<HbmFigures> all;
  const MutexLock lock(mutex_);
  for (OnDevice& gpu : gpus_) {
    const HbmCopy::Use& use = *gpu.use;
    HbmFigures figures{.device = &gpu.device,
                       .limit = limits_.size.of(gpu.device.memory_bytes()),
                       .reserve = limits_.reserve.of(gpu.device.memory_bytes()),
                       .bytes = use.bytes,
                       .hits = use.hits,
                       .hit_bytes = use.hit_bytes,
                       .filled_bytes = use.filled_bytes,
                       .evictions = gpu.evictions};
    for (const Known* file : by_value(gpu)) {
      ++figures.files;
      figures.kept += file->kept ? 1 : 0;
    }
    all.push_back(figures);
  }
  return all;
}

}  // namespace sluice
