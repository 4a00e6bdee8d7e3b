// SPDX-License-Identifier: BSD-2-Clause
// The IoPool has the threads that carry out what was begun asynchronously: a few, started as they
// are needed. A thread is called "sluice-io" and takes no signals of the host program.
//
// Threads: thread-safe.
#pragma once

#include "base/mutex.hpp"
#include "base/result.hpp"

namespace sluice {

class IoPool {
 public:
  // Something to do, in a list of its own: handing it over allocates nothing and can't fail, for
  // CUDA calls us where nobody can be told.
  class Job {
   public:
    virtual ~Job() = default;
    // The job belongs to itself from here on.
    virtual void run() noexcept = 0;

   private:
    friend class IoPool;
    Job* next_ = nullptr;
  };

  // Never destroyed: its threads run until the process ends.
  IoPool() = default;
  ~IoPool() = delete;

  // Announces a job: there is a thread for it afterwards, if not at once. EAGAIN if there is none
  // and none could be started.
  Result<void> expect();
  // One that was announced.
  void submit(Job& job) noexcept;
  // One that was announced does not come.
  void cancel() noexcept;

 private:
  void work() noexcept;

  Mutex mutex_;
  CondVar came_;
  Job* first_ GUARDED_BY(mutex_) = nullptr;
  Job** last_ GUARDED_BY(mutex_) PT_GUARDED_BY(mutex_) = &first_;
  unsigned expected_ GUARDED_BY(mutex_) = 0;  // announced and not done
  unsigned threads_ GUARDED_BY(mutex_) = 0;
};

}  // namespace sluice
