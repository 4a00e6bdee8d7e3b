// SPDX-License-Identifier: BSD-2-Clause
#include "gpu/route_mapped.hpp"

#include <sys/mman.h>

#include <algorithm>
#include <atomic>
#include <cstring>

#include "gpu/cutter.hpp"
#include "gpu/packer.hpp"
#include "gpu/residency.hpp"

namespace sluice {
namespace {

constexpr std::uint64_t kLeast = 16 << 20;  // smaller files are as fast without registering
constexpr std::uint64_t kPiece = 64 << 20;  // of one copy; from this size on the bus is fully used
constexpr std::uint64_t kGlance = 4 << 20;  // checking all of a large file takes a while
constexpr std::size_t kFiles = 1024;        // most files remembered
constexpr auto kLookAgain = std::chrono::seconds(1);
constexpr std::uint64_t kLaunch =
    1 << 24;                 // most records per launch, because others use the GPU, too
constexpr auto kSweeps = 6;  // sweeps per idle time of a registration

std::int64_t now_ns() {
  timespec now{};
  ::clock_gettime(CLOCK_REALTIME, &now);
  return FileVersion::nanoseconds(now);
}

bool is_version(int fd, const FileVersion& version) {
  struct stat stat {};
  return ::fstat(fd, &stat) == 0 && FileVersion::of(stat) == version;
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
    if (registered_ && device_.enter()) device_.api().cuMemHostUnregister(base_);
    if (base_) ::munmap(base_, version.size);
    *sum_ -= version.size;
  }
  Registration(const Registration&) = delete;
  Registration& operator=(const Registration&) = delete;

  Result<void> map(int fd) {
    void* at = ::mmap(nullptr, version.size, PROT_READ, MAP_SHARED, fd, 0);
    if (at == MAP_FAILED) return Error::last("map the file");
    base_ = static_cast<std::byte*>(at);
    SLUICE_TRY(device_.enter());
    const CUresult code = device_.api().cuMemHostRegister(
        base_, version.size, kHostRegisterReadOnly | kHostRegisterPortable);
    if (code != CUDA_SUCCESS) return device_.failed(code, "register the page cache");
    registered_ = true;
    return {};
  }
  const std::byte* at(std::uint64_t offset) const { return base_ + offset; }

  const FileVersion version;

 private:
  Device& device_;
  const std::shared_ptr<std::atomic<std::uint64_t>> sum_;
  std::byte* base_ = nullptr;
  bool registered_ = false;
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
      dropped.push_back(std::move(files_.back().registration));
      files_.pop_back();
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
Why MappedFiles::may_register(const Known& file, Wish wish) const {
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
  if (Clock::now() < file.look_again) return Why::NotCached;
  return Why::Registered;
}

// Recently used registrations are kept. Otherwise files that are read in turn would be registered
// again and again, at twice the cost of reading them without.
bool MappedFiles::make_room(std::uint64_t size, Dropped& dropped) {
  const auto deadline = Clock::now() - limits_.idle / kSweeps;
  std::uint64_t freed = 0;
  const auto fits = [&] {
    return size <= limits_.bytes && *bytes_ - freed <= limits_.bytes - size;
  };
  for (auto it = files_.rbegin(); it != files_.rend() && !fits(); ++it) {
    if (!it->registration || it->registration.use_count() > 1 || it->used > deadline) continue;
    freed += it->version.size;
    dropped.push_back(std::move(it->registration));
  }
  return fits();
}

std::variant<MappedFiles::Shared, Why> MappedFiles::find(int fd, const FileVersion& version,
                                                         Device& device, Wish wish) {
  {
    Dropped dropped;
    const MutexLock lock(mutex_);
    if (wish == Wish::Insist) {
      while (known(version, dropped).being_registered) registered_.wait(mutex_);
    }
    Known& file = known(version, dropped);
    if (file.registration) return file.registration;
    const Why why = may_register(file, wish);
    if (why != Why::Registered) return why;
    if (wish != Wish::Look) file.being_registered = true;
  }
  if (wish == Wish::Look) return is_cached(fd, version) ? Why::Registered : Why::NotCached;
  auto answer = try_to_register(fd, version, device, wish);

  Dropped dropped;
  const MutexLock lock(mutex_);
  Known& file = known(version, dropped);
  file.being_registered = false;
  registered_.notify_all();
  if (const Why* why = std::get_if<Why>(&answer)) {
    file.refused = *why == Why::NotPinned;
    if (*why == Why::NotCached) file.look_again = Clock::now() + kLookAgain;
    return answer;
  }
  file.registration = std::get<Shared>(answer);
  sweeper_.start(limits_.idle / kSweeps, [this] { sweep(); });
  return answer;
}

std::variant<MappedFiles::Shared, Why> MappedFiles::try_to_register(int fd,
                                                                    const FileVersion& version,
                                                                    Device& device, Wish wish) {
  if (wish != Wish::Insist && !is_cached(fd, version)) return Why::NotCached;
  std::shared_ptr<Registration> registration;
  {
    Dropped dropped;
    const MutexLock lock(mutex_);
    if (!make_room(version.size, dropped)) return Why::NoMemoryLeft;
    registration = std::make_shared<Registration>(device, version, bytes_);
  }
  const auto mapped = registration->map(fd);
  if (!mapped) return mapped.error().code == ENOMEM ? Why::NoMemoryLeft : Why::NotPinned;
  // Pages are pinned one by one, so the file may have changed between the first and the last.
  if (!is_version(fd, version)) return Why::Changed;
  return Shared(std::move(registration));
}

Result<bool> MappedFiles::read(const Registration& registration, Lane& lane, int fd, Memory& memory,
                               std::span<const Segment> segments) {
  SLUICE_TRY(lane.enter(*memory.device()));
  const bool packs = segments.size() > 1 && lane.slots() > 0;
  unsigned slot = 0;
  Packer packer(packs ? lane.whole_slot(slot) : std::span<std::byte>());
  for (const auto& [to, from, length] : segments) {
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
    for (std::uint64_t at = 0; at < length; at += kPiece) {
      SLUICE_TRY(lane.to_device(memory.address() + to + at, registration.at(from + at),
                                std::min(kPiece, length - at)));
    }
  }
  SLUICE_TRY(packer.send(lane));
  SLUICE_TRY(lane.synchronize());
  return is_version(fd, registration.version);
}

Result<MappedFiles::Gathered> MappedFiles::gather(const Registration& registration, Lane& lane,
                                                  Device& device, int fd, CUdeviceptr to,
                                                  const RecordFile& records,
                                                  const RecordIndex& index) {
  SLUICE_TRY(lane.enter(device));
  // The kernels' error word is behind the part of the index in the first slot.
  const std::uint64_t part = (lane.slot_size() - sizeof(std::uint64_t)) / sizeof(std::uint64_t);
  auto* const bad = reinterpret_cast<std::uint32_t*>(lane.slot(0)) + 2 * part;
  const std::atomic_ref flag(*bad);
  flag = 0;
  Kernels::Gather what{.to = to,
                       .from = reinterpret_cast<CUdeviceptr>(registration.at(records.offset)),
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
  if (!is_version(fd, registration.version)) return Gathered::Changed;
  return flag == 0 ? Gathered::All : Gathered::BadIndex;
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
  Dropped dropped;
  const MutexLock lock(mutex_);
  for (Known& file : files_) {
    if (file.registration && Clock::now() - file.used > limits_.idle) {
      dropped.push_back(std::move(file.registration));
    }
  }
}

}  // namespace sluice
