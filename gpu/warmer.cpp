// SPDX-License-Identifier: BSD-2-Clause
#include "gpu/warmer.hpp"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <string>

#include "base/thread.hpp"

namespace sluice {
namespace {

constexpr std::uint64_t kStep = 1 << 20;
// The kernel reads at most its read-ahead window at a time, and blocks the caller when the disk's
// queue is full.
constexpr std::uint64_t kAdvice = 128 << 10;
constexpr std::chrono::milliseconds kLookForRoom{2};

std::uint64_t half_of_memory() {
  return static_cast<std::uint64_t>(::sysconf(_SC_PHYS_PAGES)) *
         static_cast<std::uint64_t>(::sysconf(_SC_PAGESIZE)) / 2;
}

}  // namespace

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

Result<void> Warmer::add(uid_t user, int fd, std::uint64_t begin, std::uint64_t end) {
  struct stat stat {};
  if (::fstat(fd, &stat) != 0) return Error::last("stat the file");
  Job job;
  job.file = FileVersion::of(stat).id;
  job.at = begin;
  job.end = end;
  job.left = half_of_memory();
  {
    const MutexLock lock(mutex_);
    const auto covers = [&](const Job& other) {
      return other.file == job.file && other.at <= begin && end <= other.end && !other.stopped;
    };
    const auto mine = users_.find(user);
    if (mine != users_.end() && std::any_of(mine->second.begin(), mine->second.end(), covers))
      return {};
    const bool at_work = !current_.empty() && current_user_ == user;
    const std::size_t of_user =
        (mine == users_.end() ? 0 : mine->second.size()) + (at_work ? 1 : 0);
    if (count_ >= kMostOfAll || of_user >= kMostOfUser)
      return Error(EAGAIN, "too many prefetches are waiting");
  }
  // Searching for holes changes the position of the descriptor, so the caller's can't be used.
  // O_NONBLOCK: do not wait for a lease to be given up.
  const std::string path = "/proc/self/fd/" + std::to_string(fd);
  job.fd.reset(::open(path.c_str(), O_RDONLY | O_NONBLOCK | O_CLOEXEC));
  job.seeks = static_cast<bool>(job.fd);
  if (!job.fd) job.fd.reset(::fcntl(fd, F_DUPFD_CLOEXEC, 0));
  if (!job.fd) return Error::last("open the file again");
  const MutexLock lock(mutex_);
  if (!thread_.joinable()) {
    thread_ = std::jthread([this](const std::stop_token& stop) {
      begin_thread("sluice-warm");
      work(stop);
    });
  }
  users_[user].push_back(std::move(job));
  ++count_;
  wanted_.notify_one();
  return {};
}

void Warmer::forget(const std::function<bool(const FileId&)>& is_meant) {
  std::list<Job> gone;  // closed without the lock
  const MutexLock lock(mutex_);
  for (Job& job : current_) job.stopped = job.stopped || is_meant(job.file);
  for (auto user = users_.begin(); user != users_.end();) {
    std::list<Job>& jobs = user->second;
    for (auto job = jobs.begin(); job != jobs.end();) {
      const auto next = std::next(job);
      if (is_meant(job->file)) {
        gone.splice(gone.end(), jobs, job);
        --count_;
      }
      job = next;
    }
    user = jobs.empty() ? users_.erase(user) : std::next(user);
  }
}

std::size_t Warmer::jobs() const {
  const MutexLock lock(mutex_);
  return count_;
}

std::size_t Warmer::most_of_user() const {
  const MutexLock lock(mutex_);
  std::size_t most = current_.size();
  for (const auto& [user, jobs] : users_)
    most = std::max(most, jobs.size() + (user == current_user_ ? current_.size() : 0));
  return most;
}

bool Warmer::step(Job& job) {
  const int fd = job.fd.get();
  std::uint64_t end = job.end;
  if (job.seeks) {
    // An error means that SEEK_DATA is not supported, or that only a hole follows.
    const off_t data = ::lseek(fd, static_cast<off_t>(job.at), SEEK_DATA);
    if (data < 0 && errno == ENXIO) return false;
    if (data >= 0) job.at = static_cast<std::uint64_t>(data);
    const off_t hole = ::lseek(fd, static_cast<off_t>(job.at), SEEK_HOLE);
    if (hole >= 0) end = std::min(end, static_cast<std::uint64_t>(hole));
  }
  if (job.at >= job.end || job.left == 0) return false;
  end = std::min({end, job.at + kStep, job.at + job.left});
  while (job.at < end) {
    const std::uint64_t length = std::min(kAdvice, end - job.at);
    ::posix_fadvise(fd, static_cast<off_t>(job.at), static_cast<off_t>(length),
                    POSIX_FADV_WILLNEED);
    job.at += length;
    job.left -= length;
  }
  return job.at < job.end && job.left > 0;
}

void Warmer::work(const std::stop_token& stop) {
  MutexLock lock(mutex_);
  while (!stop.stop_requested()) {
    if (!wanted_.wait(mutex_, stop, [&]() REQUIRES(mutex_) { return !users_.empty(); })) return;
    lock.unlock();
    const bool busy = is_busy_();
    lock.lock();
    if (busy) {
      wanted_.sleep(mutex_, stop, kLookForRoom);
      continue;
    }
    if (users_.empty()) continue;
    auto user = users_.upper_bound(current_user_);
    if (user == users_.end()) user = users_.begin();
    current_user_ = user->first;
    current_.splice(current_.begin(), user->second, user->second.begin());
    if (user->second.empty()) users_.erase(user);
    Job& job = current_.front();
    lock.unlock();
    const bool goes_on = step(job);
    lock.lock();
    if (goes_on && !job.stopped) {
      std::list<Job>& jobs = users_[current_user_];
      jobs.splice(jobs.begin(), current_);
      continue;
    }
    std::list<Job> done;
    done.splice(done.begin(), current_);
    --count_;
    lock.unlock();
    done.clear();  // closes the file
    lock.lock();
  }
}

}  // namespace sluice
