// SPDX-License-Identifier: BSD-2-Clause
#include "gpu/warmer.hpp"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <string>
#include <system_error>
#include <utility>

#include "base/disk_counters.hpp"
#include "base/thread.hpp"
#include "gpu/residency.hpp"

namespace sluice {
namespace {

using std::chrono::steady_clock;

constexpr std::uint64_t kStep = 4 << 20;  // the kernel reads as much at once (gpu/residency.cpp)
// Without that, the kernel reads at most its read-ahead window at a time, and blocks the caller
// when the disk's queue is full.
constexpr std::uint64_t kAdvice = 128 << 10;
constexpr std::chrono::milliseconds kLookForRoom{2};
// A disk is idle if it transfers less than this for others between two looks.
constexpr std::uint64_t kNextToNothing = 8 << 20;
constexpr std::uint64_t kBytesPerLook = 16 * kStep;
constexpr std::chrono::milliseconds kLookForIdleDisk{100};
constexpr std::size_t kMostWhenIdle = 64;

std::uint64_t half_of_memory() {
  return static_cast<std::uint64_t>(::sysconf(_SC_PHYS_PAGES)) *
         static_cast<std::uint64_t>(::sysconf(_SC_PAGESIZE)) / 2;
}

}  // namespace

std::optional<std::uint64_t> Warmer::disk_bytes(dev_t filesystem) {
  const auto disk = disk_counters(filesystem);
  if (!disk) return std::nullopt;
  return disk->read_bytes + disk->written_bytes;
}

Warmer::~Warmer() {
  std::jthread thread;
  {
    const MutexLock lock(mutex_);
    thread = std::move(thread_);
    for (Job& job : current_) job.stopped = true;
  }
  thread.request_stop();
  wanted_.notify_all();
}

Result<Warmer::Job> Warmer::make_job(int fd, std::uint64_t begin, std::uint64_t end) {
  struct stat stat {};
  if (::fstat(fd, &stat) != 0) return Error::last("stat the file");
  Job job;
  job.file = FileVersion::of(stat).id;
  job.at = begin;
  job.end = end;
  job.left = half_of_memory();
  // Searching for holes changes the position of the descriptor, so the caller's can't be used.
  // O_NONBLOCK: do not wait for a lease to be given up.
  const std::string path = "/proc/self/fd/" + std::to_string(fd);
  job.fd.reset(::open(path.c_str(), O_RDONLY | O_NONBLOCK | O_CLOEXEC));
  job.seeks = static_cast<bool>(job.fd);
  if (!job.fd) job.fd.reset(::fcntl(fd, F_DUPFD_CLOEXEC, 0));
  if (!job.fd) return Error::last("open the file again");
  return job;
}

bool Warmer::start() {
  wanted_.notify_one();
  if (thread_.joinable()) return true;
  try {
    thread_ = std::jthread([this](const std::stop_token& stop) {
      begin_thread("sluice-warm");
      work(stop);
    });
    return true;
  } catch (const std::system_error&) {
    return false;
  }
}

bool Warmer::works_for(uid_t user) const {
  return current_user_ == user && !current_.empty() && !current_.front().when_idle;
}

Result<void> Warmer::add(uid_t user, int fd, std::uint64_t begin, std::uint64_t end) {
  struct stat stat {};
  if (::fstat(fd, &stat) != 0) return Error::last("stat the file");
  const FileId file = FileVersion::of(stat).id;
  {
    const MutexLock lock(mutex_);
    const auto covers = [&](const Job& other) {
      return other.file == file && other.at <= begin && end <= other.end && !other.stopped;
    };
    const auto mine = users_.find(user);
    if (mine != users_.end() && std::any_of(mine->second.begin(), mine->second.end(), covers))
      return {};
    const std::size_t of_user =
        (mine == users_.end() ? 0 : mine->second.size()) + (works_for(user) ? 1 : 0);
    if (count_ >= kMostOfAll || of_user >= kMostOfUser)
      return Error(EAGAIN, "too many prefetches are waiting");
  }
  Job job = SLUICE_TRY(make_job(fd, begin, end));
  const MutexLock lock(mutex_);
  if (!start()) return Error(EAGAIN, "start a thread for prefetches");
  users_[user].push_back(std::move(job));
  ++count_;
  return {};
}

void Warmer::add_when_idle(int fd, const FileVersion& version) {
  auto job = make_job(fd, 0, version.size);
  if (!job) return;
  job->when_idle = version;
  const MutexLock lock(mutex_);
  if (when_idle_.size() < kMostWhenIdle && start()) when_idle_.push_back(*std::move(job));
}

void Warmer::forget(const std::function<bool(const FileId&)>& is_meant) {
  std::list<Job> gone;  // closed without the lock
  const MutexLock lock(mutex_);
  const auto take_from = [&](std::list<Job>& jobs) {
    const std::size_t before = gone.size();
    for (auto job = jobs.begin(); job != jobs.end();) {
      const auto next = std::next(job);
      if (is_meant(job->file)) gone.splice(gone.end(), jobs, job);
      job = next;
    }
    return gone.size() - before;
  };
  for (Job& job : current_) job.stopped = job.stopped || is_meant(job.file);
  take_from(when_idle_);
  for (auto user = users_.begin(); user != users_.end();) {
    count_ -= take_from(user->second);
    user = user->second.empty() ? users_.erase(user) : std::next(user);
  }
}

std::size_t Warmer::jobs() const {
  const MutexLock lock(mutex_);
  return count_;
}

std::size_t Warmer::most_of_user() const {
  const MutexLock lock(mutex_);
  std::size_t most = works_for(current_user_) ? 1 : 0;
  for (const auto& [user, jobs] : users_)
    most = std::max(most, jobs.size() + (works_for(user) ? 1 : 0));
  return most;
}

Warmer::End Warmer::step(Job& job) {
  const int fd = job.fd.get();
  std::uint64_t end = job.end;
  if (job.seeks) {
    // An error means that SEEK_DATA is not supported, or that only a hole follows.
    const off_t data = ::lseek(fd, static_cast<off_t>(job.at), SEEK_DATA);
    if (data < 0 && errno == ENXIO) return End::Done;
    if (data >= 0) job.at = static_cast<std::uint64_t>(data);
    const off_t hole = ::lseek(fd, static_cast<off_t>(job.at), SEEK_HOLE);
    if (hole >= 0) end = std::min(end, static_cast<std::uint64_t>(hole));
  }
  if (job.at >= job.end || job.left == 0) return End::Done;
  end = std::min({end, job.at + kStep, job.at + job.left});
  if (fill_page_cache(fd, job.at, end - job.at)) {
    job.left -= end - job.at;
    job.at = end;
  }
  while (job.at < end) {
    const std::uint64_t length = std::min(kAdvice, end - job.at);
    ::posix_fadvise(fd, static_cast<off_t>(job.at), static_cast<off_t>(length),
                    POSIX_FADV_WILLNEED);
    job.at += length;
    job.left -= length;
  }
  return job.at < job.end && job.left > 0 ? End::GoesOn : End::Done;
}

// Whether the disk has transferred next to nothing for others between the last two looks.
bool Warmer::is_idle(Disk& disk, dev_t filesystem) const {
  const auto now = steady_clock::now();
  if (now < disk.next_look && disk.own < kBytesPerLook) return disk.is_idle;
  const auto bytes = disk_bytes_(filesystem);
  if (!bytes) return true;
  const std::uint64_t all = *bytes - std::exchange(disk.bytes, *bytes);
  disk.is_idle = all < std::exchange(disk.own, 0) + kNextToNothing;
  disk.next_look = now + kLookForIdleDisk;
  return disk.is_idle;
}

// The file is read again if its next version is; a deleted one must not take up room.
Warmer::End Warmer::step_when_idle(Job& job) {
  if (!job.when_idle->is_of(job.fd.get())) return End::Done;
  Disk& disk = disks_[job.file.device];
  if (!is_idle(disk, job.file.device)) return End::Waits;
  if (!has_room_(job.end - job.at)) return End::Done;
  const std::uint64_t before = job.at;
  const End end = step(job);
  disk.own += job.at - before;
  return end;
}

void Warmer::choose() {
  if (users_.empty()) {
    current_.splice(current_.begin(), when_idle_, when_idle_.begin());
    return;
  }
  auto user = users_.upper_bound(current_user_);
  if (user == users_.end()) user = users_.begin();
  current_user_ = user->first;
  current_.splice(current_.begin(), user->second, user->second.begin());
  if (user->second.empty()) users_.erase(user);
}

void Warmer::work(const std::stop_token& stop) {
  MutexLock lock(mutex_);
  const auto has_jobs = [&]() REQUIRES(mutex_) { return !users_.empty() || !when_idle_.empty(); };
  std::size_t waited = 0;  // jobs in a row whose disk is not idle
  while (!stop.stop_requested()) {
    if (!wanted_.wait(mutex_, stop, has_jobs)) return;
    lock.unlock();
    const bool busy = is_busy_();
    lock.lock();
    if (busy) {
      wanted_.sleep(mutex_, stop, kLookForRoom);
      continue;
    }
    if (!has_jobs()) continue;
    choose();
    Job& job = current_.front();
    const bool asked_for = !job.when_idle;
    lock.unlock();
    const End end = asked_for ? step(job) : step_when_idle(job);
    lock.lock();
    waited = end == End::Waits ? waited + 1 : 0;
    if (end != End::Done && !job.stopped) {
      std::list<Job>& jobs = asked_for ? users_[current_user_] : when_idle_;
      jobs.splice(end == End::Waits ? jobs.end() : jobs.begin(), current_);
      if (waited > 0 && waited >= jobs.size()) {
        waited = 0;
        wanted_.sleep(mutex_, stop, kLookForIdleDisk);
      }
      continue;
    }
    std::list<Job> done;
    done.splice(done.begin(), current_);
    if (asked_for) --count_;
    lock.unlock();
    done.clear();  // closes the file
    lock.lock();
  }
}

}  // namespace sluice
