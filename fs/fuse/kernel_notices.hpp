// SPDX-License-Identifier: BSD-2-Clause
// KernelNotices sends the kernel notices that may have to wait: dropping pages waits for a reader
// who has locked one, and dropping a name waits for whoever changes the directory. They in turn
// wait for an answer of the daemon. If the daemon is killed now, only a successor can answer them,
// and until then the thread that sends the notice can't end, because the kernel does not let such
// waits be interrupted. So one thread sends them all, and it shares no descriptors with the others:
// the locks of tiers and database are gone when the other threads are, and the keeper starts the
// successor without waiting for this one (has_only_blocked_threads()).
//
// Threads: thread-safe. It has a thread of its own ("sluice-notice").
#pragma once

#include <functional>
#include <thread>

#include "base/mutex.hpp"

namespace sluice {

class KernelNotices {
 public:
  // `device` is the descriptor of /dev/fuse that the notices are written to.
  explicit KernelNotices(int device);
  ~KernelNotices();

  // Calls `notice`, which may use no descriptor but the device, in that thread, and waits for it.
  void send(const std::function<void()>& notice);

 private:
  void work(int device);

  Mutex sender_ ACQUIRED_BEFORE(mutex_);  // held by the caller that is served
  Mutex mutex_;
  CondVar changed_;
  const std::function<void()>* notice_ GUARDED_BY(mutex_) = nullptr;
  bool ends_ GUARDED_BY(mutex_) = false;
  std::thread thread_;
};

}  // namespace sluice
