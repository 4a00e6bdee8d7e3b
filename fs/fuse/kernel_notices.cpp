// SPDX-License-Identifier: BSD-2-Clause
#include "fs/fuse/kernel_notices.hpp"

#include <sched.h>

#include "base/log.hpp"
#include "base/process.hpp"
#include "base/thread.hpp"

namespace sluice {

KernelNotices::KernelNotices(int device) : thread_([this, device] { work(device); }) {}

KernelNotices::~KernelNotices() {
  {
    const MutexLock lock(mutex_);
    ends_ = true;
  }
  changed_.notify_all();
  thread_.join();
}

void KernelNotices::send(const std::function<void()>& notice) {
  const MutexLock turn(sender_);
  const MutexLock lock(mutex_);
  notice_ = &notice;
  changed_.notify_all();
  while (notice_ != nullptr) changed_.wait(mutex_);
}

void KernelNotices::work(int device) {
  begin_thread(kNoticeThread);
  if (::unshare(CLONE_FILES) == 0) {
    close_all_but(device);
  } else {
    log::get().warn("if the daemon crashes, its process may hang until a successor starts: why={}",
                    Error::last("unshare").text());
  }
  MutexLock lock(mutex_);
  for (;;) {
    while (notice_ == nullptr && !ends_) changed_.wait(mutex_);
    if (notice_ == nullptr) return;
    const auto& notice = *notice_;
    lock.unlock();
    notice();
    lock.lock();
    notice_ = nullptr;
    changed_.notify_all();
  }
}

}  // namespace sluice
