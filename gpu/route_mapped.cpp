// SPDX-License-Identifier: BSD-2-Clause
#include "gpu/route_mapped.hpp"

#include <fcntl.h>
#include <sys/mman.h>

#include <algorithm>
#include <atomic>
#include <string>
#include <system_error>
#include <utility>

#include "base/thread.hpp"
#include "base/unique_fd.hpp"
#include "base/units.hpp"
#include "gpu/cutter.hpp"
#include "gpu/engine_parts.hpp"
#include "gpu/packer.hpp"
#include "gpu/residency.hpp"
#include "gpu/route_gather.hpp"

namespace sluice {
namespace {

constexpr std::uint64_t kLeast = 16 << 20;  // smaller files are as fast without registering
// Of one copy, and of one registration: a copy must not touch two. From this size on the bus is
// fully used. Registering takes 1.6 ms, in which the driver begins no copies.
constexpr std::uint64_t kPiece = 64 << 20;
// While requests read files, the background registers for one part of the time in so many. The
// first portion is the worst: if requests read meanwhile, they were held up for 46 and 78 ms. So it
// waits until none has read for a while.
constexpr int kPause = 16;
constexpr auto kQuiet = std::chrono::milliseconds(100);
constexpr std::chrono::nanoseconds kLongestWait = std::chrono::seconds(10);
constexpr auto kLookForPause = std::chrono::milliseconds(1);
constexpr std::uint64_t kGlance = 4 << 20;  // checking all of a large file takes a while
constexpr std::size_t kFiles = 1024;        // most files remembered
constexpr auto kLookAgain = std::chrono::seconds(1);

// How often registrations are checked, and how soon the space of a deleted file is free.
constexpr std::chrono::nanoseconds kSweep = std::chrono::seconds(2);
constexpr auto kNameless = std::chrono::seconds(10);  // how long deleted files are kept after use
constexpr auto kSweeps = 6;                           // sweeps per idle time of a registration
constexpr unsigned kReserve = 16;  // this part of memory stays available for programs
constexpr double kWorthMore = 2;   // so many times the value is needed to replace a registration

std::int64_t now_ns() {
  timespec now{};
  ::clock_gettime(CLOCK_REALTIME, &now);
  return FileVersion::nanoseconds(now);
}

bool is_cached(int fd, const FileVersion& version) {
  const auto share = [&](std::uint64_t length) { return cached_share(fd, 0, length).value_or(0); };
  return share(std::min(kGlance, version.size)) == 1 && share(version.size) == 1;
}

}  // namespace

class MappedFiles::Registration {
 public:
  Registration(Device& device, const FileVersion& file,
               std::shared_ptr<std::atomic<std::uint64_t>> sum)
      : version(file), device_(device), sum_(std::move(sum)) {
    *sum_ += version.size;
  }
  ~Registration() {
    if (registered_ > 0 && device_.enter()) {
      for (std::uint64_t at = 0; at < registered_; at += kPiece)
        device_.api().cuMemHostUnregister(base_ + at);
    }
    if (base_) ::munmap(base_, version.size);
    *sum_ -= version.size;
  }
  Registration(const Registration&) = delete;
  Registration& operator=(const Registration&) = delete;

  // ECANCELED: `pace` returned false.
  Result<void> map(int fd, const Pace& pace) {
    // Unlike a copy of the descriptor, this does not count as an open file.
    const std::string path = "/proc/self/fd/" + std::to_string(fd);
    watched_.reset(::open(path.c_str(), O_PATH | O_CLOEXEC));
    if (!watched_) return Error::last("watch the file");
    void* at = ::mmap(nullptr, version.size, PROT_READ, MAP_SHARED, fd, 0);
    if (at == MAP_FAILED) return Error::last("map the file");
    base_ = static_cast<std::byte*>(at);
    SLUICE_TRY(device_.enter());
    std::chrono::nanoseconds took{0};  // of the last portion
    while (registered_ < version.size) {
      if (pace && !pace(took)) return Error(ECANCELED, "register the page cache");
      const auto began = Clock::now();
      const std::uint64_t size = std::min(kPiece, version.size - registered_);
      const CUresult code = device_.api().cuMemHostRegister(
          base_ + registered_, size, kHostRegisterReadOnly | kHostRegisterPortable);
      if (code != CUDA_SUCCESS) return device_.failed(code, "register the page cache");
      registered_ += size;
      took = Clock::now() - began;
    }
    return {};
  }
  const std::byte* at(std::uint64_t offset) const { return base_ + offset; }
  enum class State { Current, Deleted, Changed };
  State state() const {
    struct stat stat {};
    if (::fstat(watched_.get(), &stat) != 0 || FileVersion::of(stat) != version)
      return State::Changed;
    return stat.st_nlink == 0 ? State::Deleted : State::Current;
  }

  const FileVersion version;

 private:
  Device& device_;
  const std::shared_ptr<std::atomic<std::uint64_t>> sum_;
  UniqueFd watched_;
  std::byte* base_ = nullptr;
  std::uint64_t registered_ = 0;  // bytes, in portions of kPiece
};

MappedFiles::MappedFiles(Limits limits)
    : limits_(limits), bytes_(std::make_shared<std::atomic<std::uint64_t>>(0)) {}

MappedFiles::~MappedFiles() = default;

// The entry of the file, moved to the front. If the file has changed, the entry is reset and its
// registration dropped.
MappedFiles::Known& MappedFiles::known(const FileVersion& version, Dropped& dropped) {
  auto found = std::find_if(files_.begin(), files_.end(),
                            [&](const Known& file) { return file.version.id == version.id; });
  if (found == files_.end()) {
    if (files_.size() >= kFiles) {
      const auto plain = std::find_if(files_.rbegin(), files_.rend(),
                                      [](const Known& file) { return !file.registration; });
      const auto oldest =
          plain == files_.rend() ? std::prev(files_.end()) : std::prev(plain.base());
      dropped.push_back(std::move(oldest->registration));
      files_.erase(oldest);
    }
    files_.push_front({version});
    return files_.front();
  }
  files_.splice(files_.begin(), files_, found);
  Known& file = files_.front();
  file.used = Clock::now();
  if (file.version != version) {
    dropped.push_back(std::move(file.registration));
    file = {version};
  }
  return file;
}

void MappedFiles::count(const FileVersion& version, std::uint64_t bytes) {
  Dropped dropped;
  const MutexLock lock(mutex_);
  known(version, dropped).read += bytes;
}

// Why::Registered if it may be registered, otherwise the reason against it.
Why MappedFiles::may_register(const Known& file, Wish wish, std::uint64_t length) const {
  const FileVersion& version = file.version;
  if (version.size == 0) return Why::Small;
  if (now_ns() - version.changed < limits_.min_unchanged.count()) return Why::Changed;
  if (file.being_registered) return Why::ReadOnce;
  if (wish == Wish::Insist) return Why::Registered;
  if (file.refused) return Why::NotPinned;
  // Checked first, because checking whether a large file is cached takes long.
  if (version.size > limits_.bytes) return Why::NoMemoryLeft;
  if (version.size < kLeast && wish != Wish::ToGather) return Why::Cached;
  // One complete read may consist of many requests, and need not be quite complete.
  if (file.read < version.size - version.size / 10) return Why::ReadOnce;
  // The last requests of a first read do not register: that takes as long as the read itself. Only
  // the number of bytes that were read is known. If it and half of this request are more than the
  // file has, this request reads bytes again.
  if (wish != Wish::ToGather && file.read + length / 2 <= version.size) return Why::ReadOnce;
  if (Clock::now() < file.look_again) return Why::NotCached;
  return Why::Registered;
}

double MappedFiles::value(const Known& file, Clock::time_point now) const {
  return file.wanted.at(now, limits_.half_life) /
         static_cast<double>(std::max<std::uint64_t>(file.version.size, 1));
}

std::vector<MappedFiles::Known*> MappedFiles::by_value() {
  std::vector<Known*> out;
  for (Known& file : files_) {
    if (file.registration) out.push_back(&file);
  }
  const auto now = Clock::now();
  std::sort(out.begin(), out.end(),
            [&](const Known* a, const Known* b) { return value(*a, now) < value(*b, now); });
  return out;
}

std::uint64_t MappedFiles::limit(unsigned reserves) const {
  const MachineMemory memory = limits_.memory();
  const std::uint64_t reserved = memory.total / kReserve * reserves;
  return std::min(limits_.bytes, memory.available - std::min(memory.available, reserved));
}

// Registrations that are worth about as much are kept. Otherwise files that are read in turn would
// be registered again and again, at twice the cost of reading them without.
bool MappedFiles::make_room(const Known& file, std::uint64_t limit, Dropped& dropped) {
  const std::uint64_t size = file.version.size;
  std::uint64_t freed = 0;
  const auto fits = [&] { return size <= limit && *bytes_ - freed <= limit - size; };
  const auto now = Clock::now();
  std::vector<Known*> victims;
  for (Known* each : by_value()) {
    if (fits() || kWorthMore * value(*each, now) >= value(file, now)) break;
    if (each->registration.use_count() > 1) continue;
    freed += each->version.size;
    victims.push_back(each);
  }
  if (!fits()) return false;
  for (Known* each : victims) dropped.push_back(std::move(each->registration));
  return true;
}

std::variant<MappedFiles::Shared, Why> MappedFiles::find(int fd, const FileVersion& version,
                                                         Device& device, Wish wish,
                                                         std::uint64_t length) {
  {
    Dropped dropped;
    const MutexLock lock(mutex_);
    if (wish == Wish::Insist) {
      while (known(version, dropped).being_registered) registered_.wait(mutex_);
    }
    Known& file = known(version, dropped);
    if (wish != Wish::Look)
      file.wanted.add(static_cast<double>(length), Clock::now(), limits_.half_life);
    if (file.registration) return file.registration;
    if (wish == Wish::Existing) return Why::ReadOnce;
    const Why why = may_register(file, wish, length);
    if (why != Why::Registered) return why;
    // Registering takes as long as reading by another route. This reader does not wait for it.
    if (wish == Wish::IfItPays && version.size >= limits_.background) {
      file.being_registered = register_in_background(fd, version, device);
      return Why::ReadOnce;
    }
    if (wish != Wish::Look) file.being_registered = true;
  }
  if (wish == Wish::Look) return is_cached(fd, version) ? Why::Registered : Why::NotCached;
  return register_file(fd, version, device, wish, {});
}

bool MappedFiles::register_in_background(int fd, const FileVersion& version, Device& device) {
  if (in_background_) return false;
  UniqueFd own(::fcntl(fd, F_DUPFD_CLOEXEC, 0));
  if (!own) return false;
  try {
    // This waits for the end of the thread before, which takes no lock any more.
    background_ =
        std::jthread([this, own = std::move(own), version, &device](const std::stop_token& stop) {
          begin_thread("sluice-gpu");
          const Pace pace = [&](auto took) { return let_others_read(version, took, stop); };
          static_cast<void>(register_file(own.get(), version, device, Wish::IfItPays, pace));
          const MutexLock lock(mutex_);
          in_background_ = false;
        });
  } catch (const std::system_error&) {
    return false;
  }
  in_background_ = true;
  return true;
}

// Waits for a moment in which no request reads. False: the thread must end, or the file was
// forgotten or has changed; then it must not be held open any longer.
bool MappedFiles::let_others_read(const FileVersion& version, std::chrono::nanoseconds took,
                                  const std::stop_token& stop) {
  const bool is_first = took == took.zero();
  const auto until = Clock::now() + (is_first ? kLongestWait : kPause * took);
  auto quiet_since = Clock::now();
  for (;;) {
    const bool busy = limits_.is_busy && limits_.is_busy();
    const MutexLock lock(mutex_);
    const auto is_wanted = [&](const Known& file) {
      return file.version == version && file.being_registered;
    };
    if (stop.stop_requested() || std::none_of(files_.begin(), files_.end(), is_wanted))
      return false;
    const auto now = Clock::now();
    if (busy) quiet_since = now;
    const bool is_quiet = !busy && (!is_first || now - quiet_since >= kQuiet);
    if (is_quiet || now >= until) return true;
    paused_.sleep(mutex_, stop, kLookForPause);
  }
}

std::variant<MappedFiles::Shared, Why> MappedFiles::register_file(int fd,
                                                                  const FileVersion& version,
                                                                  Device& device, Wish wish,
                                                                  const Pace& pace) {
  auto answer = try_to_register(fd, version, device, wish, pace);

  const MutexLock lock(mutex_);
  registered_.notify_all();
  const auto found = std::find_if(files_.begin(), files_.end(), [&](const Known& file) {
    return file.version == version && file.being_registered;
  });
  // The file was forgotten meanwhile, or has changed. Nobody may keep its disk busy from now on.
  if (found == files_.end()) return answer;
  Known& file = *found;
  file.being_registered = false;
  if (const Why* why = std::get_if<Why>(&answer)) {
    file.refused = *why == Why::NotPinned;
    if (*why == Why::NotCached) file.look_again = Clock::now() + kLookAgain;
    return answer;
  }
  file.registration = std::get<Shared>(answer);
  const bool ends = limits_.idle > limits_.idle.zero();
  sweeper_.start(ends ? std::min(kSweep, limits_.idle / kSweeps) : kSweep, [this] { sweep(); });
  return answer;
}

std::variant<MappedFiles::Shared, Why> MappedFiles::try_to_register(int fd,
                                                                    const FileVersion& version,
                                                                    Device& device, Wish wish,
                                                                    const Pace& pace) {
  if (wish != Wish::Insist && !is_cached(fd, version)) return Why::NotCached;
  std::shared_ptr<Registration> registration;
  // Twice the reserve, so that it is not released at once.
  const std::uint64_t most = limit(2);
  {
    Dropped dropped;
    const MutexLock lock(mutex_);
    if (!make_room(known(version, dropped), most, dropped)) return Why::NoMemoryLeft;
    registration = std::make_shared<Registration>(device, version, bytes_);
  }
  const auto mapped = registration->map(fd, pace);
  if (failed_with(mapped, ECANCELED)) return Why::Changed;
  if (!mapped) return mapped.error().code == ENOMEM ? Why::NoMemoryLeft : Why::NotPinned;
  // Pages are pinned one by one, so the file may have changed between the first and the last.
  if (!version.is_of(fd)) return Why::Changed;
  return Shared(std::move(registration));
}

// Copies one segment. A few copies are under way at once, so that the bus is never idle and the
// rest can be cancelled.
Result<std::uint64_t> MappedFiles::stream(const Registration& registration, Lane& lane,
                                          Memory& memory, const Segment& segment,
                                          const std::function<bool()>& is_cancelled) {
  const auto& [to, from, length] = segment;
  std::uint64_t at = 0;
  while (at < length && (at == 0 || !is_cancelled || !is_cancelled())) {
    const std::uint64_t size = std::min(kPiece - (from + at) % kPiece, length - at);
    const unsigned slot = lane.next_slot(lane.slots());
    SLUICE_TRY(lane.wait(slot));
    SLUICE_TRY(lane.to_device(memory.address() + to + at, registration.at(from + at), size));
    SLUICE_TRY(lane.mark(slot));
    at += size;
  }
  SLUICE_TRY(lane.synchronize());
  return at;
}

Result<std::uint64_t> MappedFiles::copy_all(const Registration& registration, Lane& lane,
                                            Memory& memory, std::span<const Segment> segments) {
  const bool packs = lane.slot_size() > 0;
  std::uint64_t all = 0;
  unsigned slot = 0;
  Packer packer(packs ? lane.whole_slot(slot) : std::span<std::byte>());
  for (const auto& [to, from, length] : segments) {
    all += length;
    if (packs && length <= kSmall) {
      if (packer.add(memory.address() + to, registration.at(from), length)) continue;
      SLUICE_TRY(packer.send(lane));
      SLUICE_TRY(lane.mark(slot));
      slot = (slot + 1) % lane.slots();
      SLUICE_TRY(lane.wait(slot));
      packer = Packer(lane.whole_slot(slot));
      packer.add(memory.address() + to, registration.at(from), length);
      continue;
    }
    for (std::uint64_t at = 0; at < length;) {
      const std::uint64_t size = std::min(kPiece - (from + at) % kPiece, length - at);
      SLUICE_TRY(lane.to_device(memory.address() + to + at, registration.at(from + at), size));
      at += size;
    }
  }
  SLUICE_TRY(packer.send(lane));
  SLUICE_TRY(lane.synchronize());
  return all;
}

Result<std::optional<std::uint64_t>> MappedFiles::read(const Registration& registration, Lane& lane,
                                                       int fd, Memory& memory,
                                                       std::span<const Segment> segments,
                                                       const std::function<bool()>& is_cancelled) {
  SLUICE_TRY(lane.enter(*memory.device()));
  const std::uint64_t bytes = SLUICE_TRY(
      segments.size() == 1 ? stream(registration, lane, memory, segments[0], is_cancelled)
                           : copy_all(registration, lane, memory, segments));
  if (!registration.version.is_of(fd)) return std::optional<std::uint64_t>();
  return std::optional(bytes);
}

Result<MappedFiles::Gathered> MappedFiles::gather(const Registration& registration, Lane& lane,
                                                  Device& device, int fd, CUdeviceptr to,
                                                  const RecordFile& records,
                                                  const RecordIndex& index) {
  SLUICE_TRY(lane.enter(device));
  const bool good = SLUICE_TRY(gather_by_kernel(
      lane, to, reinterpret_cast<CUdeviceptr>(registration.at(records.offset)), records, index));
  if (!registration.version.is_of(fd)) return Gathered::Changed;
  return good ? Gathered::All : Gathered::BadIndex;
}

bool MappedFiles::claim_fill(const FileVersion& version, std::uint64_t bytes) {
  Dropped dropped;
  const MutexLock lock(mutex_);
  Known& file = known(version, dropped);
  file.read_past_cache += bytes;
  if (file.read_past_cache < version.size / 2) return false;
  return !std::exchange(file.fill_claimed, true);
}

void MappedFiles::forget(const std::function<bool(const FileId&)>& is_meant) {
  std::list<Known> dropped;
  const MutexLock lock(mutex_);
  for (auto it = files_.begin(); it != files_.end();) {
    const auto next = std::next(it);
    if (is_meant(it->version.id)) dropped.splice(dropped.end(), files_, it);
    it = next;
  }
}

void MappedFiles::sweep() {
  if (bytes() == 0) return;
  release_outdated();
  release_for_others();
}

// The files are asked without the lock: a disk may take long to answer.
void MappedFiles::release_outdated() {
  struct Checked {
    Shared registration;
    Clock::time_point used;
  };
  std::vector<Checked> all;
  {
    const MutexLock lock(mutex_);
    for (const Known& file : files_) {
      if (file.registration) all.push_back({file.registration, file.used});
    }
  }
  std::erase_if(all, [&](const Checked& each) {
    const auto unused = Clock::now() - each.used;
    if (limits_.idle > limits_.idle.zero() && unused > limits_.idle) return false;
    const auto state = each.registration->state();
    return state == Registration::State::Current ||
           (state == Registration::State::Deleted && unused < kNameless);
  });
  const MutexLock lock(mutex_);
  for (Known& file : files_) {
    const auto is_this = [&](const Checked& each) {
      return each.registration == file.registration && each.used == file.used;
    };
    // `all` keeps the registration until the lock is released.
    if (std::any_of(all.begin(), all.end(), is_this)) file.registration = nullptr;
  }
}

// The kernel can't take registered pages back, so they are given back before programs miss them.
void MappedFiles::release_for_others() {
  const std::uint64_t most = limit(1);
  Dropped dropped;
  const MutexLock lock(mutex_);
  std::uint64_t left = bytes();
  for (Known* each : by_value()) {
    if (left <= most) return;
    left -= each->version.size;
    dropped.push_back(std::move(each->registration));
  }
}

namespace {

RouteOffer offer_mapped(Engine::Parts& parts, RouteQuery& query) {
  using Wish = MappedFiles::Wish;
  // A copy in GPU memory is filled once. Registering would cost more than it saves.
  const Wish wish = query.purpose == Purpose::Preview ? Wish::Look
                    : query.purpose == Purpose::Fill  ? Wish::Existing
                    : query.wanted == Route::Mapped   ? Wish::Insist
                                                      : Wish::IfItPays;
  const auto found =
      parts.mapped.find(query.file.fd, query.version, *query.device, wish, query.length);
  if (const Why* why = std::get_if<Why>(&found)) {
    if (*why != Why::Registered) return RouteOffer::no(*why);
  } else {
    query.found =
        std::const_pointer_cast<MappedFiles::Registration>(std::get<MappedFiles::Shared>(found));
  }
  return RouteOffer::yes(Why::Registered);
}

Result<RouteWent> read_mapped(Engine::Parts& parts, EngineRequest& request) {
  {
    // Many small segments need slots for the kernel's table, if there are any.
    LanePool* lanes = &parts.bare;
    if (request.segments.size() > 1) {
      if (const auto slots = parts.staging(*request.device)) lanes = &(*slots)->batches();
    }
    const LanePool::Loan lane(*lanes);
    const auto& mapping = *static_cast<const MappedFiles::Registration*>(request.found.get());
    const auto bytes = SLUICE_TRY(MappedFiles::read(mapping, *lane, request.file.fd, request.memory,
                                                    request.segments, request.file.is_cancelled));
    if (bytes) return RouteWent(Transfer{*bytes});
  }
  parts.mapped.forget([&](const FileId& id) { return id == request.version.id; });
  return RouteWent(RouteOffer::no(Why::Changed));
}

std::string words_for(Why why, const Engine::Settings& settings) {
  switch (why) {
    case Why::Registered:
      return "the next large read registers the page cache";
    case Why::ReadOnce:
      return "when the file is read a second time";
    case Why::Cached:
      return "for files from 16 MiB on; smaller ones are as fast without it";
    case Why::NotCached:
      return "once the whole file is in the page cache: read it, or prefetch it";
    case Why::Changed:
      return "once the file has not been changed for " +
             std::to_string(settings.mapped_after.count()) + " ms";
    case Why::NoMemoryLeft:
      return "not more than " + format_size(settings.mapped_bytes) +
             " of page cache may be registered at once: raise gpu_mapped_memory";
    default:
      return std::string(text_of(why));
  }
}

Engine::Possibility describe_mapped(Engine::Parts& parts, const RouteQuery& query) {
  if (!parts.staging(*query.device)) return {Route::Mapped, false, why_not_pinned(*query.device)};
  const auto found = parts.mapped.find(query.file.fd, query.version, *query.device,
                                       MappedFiles::Wish::Look, query.version.size);
  const Why* const why = std::get_if<Why>(&found);
  return {Route::Mapped, true, why ? words_for(*why, parts.settings) : "registered now"};
}

}  // namespace

extern const RouteWay kMappedWay = {offer_mapped, read_mapped, nullptr, describe_mapped};

}  // namespace sluice
