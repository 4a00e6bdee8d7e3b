// SPDX-License-Identifier: BSD-2-Clause
#include "fs/fuse/slow_requests.hpp"

#include <algorithm>
#include <system_error>

#include "base/thread.hpp"

namespace sluice {

SlowRequests::~SlowRequests() {
  std::vector<std::thread> threads;
  {
    MutexLock lock(mutex_);
    ends_ = true;
    threads.swap(threads_);
  }
  wake_.notify_all();
  for (std::thread& thread : threads) thread.join();
}

void SlowRequests::add(uid_t user, std::function<void()> work) {
  {
    MutexLock lock(mutex_);
    if (waiting_ >= idle_ && threads_.size() < most_threads_) {
      try {
        threads_.emplace_back([this] { this->work(); });
      } catch (const std::system_error&) {
        if (threads_.empty()) throw;  // otherwise the existing threads do the work
      }
    }
    users_[user].waiting.push_back(std::move(work));
    ++waiting_;
  }
  wake_.notify_one();
}

std::map<uid_t, SlowRequests::User>::iterator SlowRequests::next_user() {
  const unsigned most = std::max(most_threads_ / 2, 1U);
  const auto may_run = [most](const auto& each) {
    return !each.second.waiting.empty() && each.second.running < most;
  };
  const auto after = users_.upper_bound(last_);
  auto found = std::find_if(after, users_.end(), may_run);
  if (found == users_.end()) {
    found = std::find_if(users_.begin(), after, may_run);
    if (found == after) return users_.end();
  }
  return found;
}

void SlowRequests::work() {
  begin_thread("sluice-slow", ThreadKind::Serving);
  MutexLock lock(mutex_);
  for (;;) {
    auto user = users_.end();
    ++idle_;
    while (!ends_ && (user = next_user()) == users_.end()) wake_.wait(mutex_);
    --idle_;
    if (ends_) return;
    const uid_t uid = last_ = user->first;
    const auto work = std::move(user->second.waiting.front());
    user->second.waiting.pop_front();
    --waiting_;
    ++user->second.running;
    lock.unlock();
    work();
    lock.lock();
    user = users_.find(uid);
    if (--user->second.running == 0 && user->second.waiting.empty()) users_.erase(user);
    // A user who had the most threads allowed may start the next one.
    wake_.notify_one();
  }
}

}  // namespace sluice
