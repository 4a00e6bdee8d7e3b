// SPDX-License-Identifier: BSD-2-Clause
// The IoPool has the threads that execute asynchronous requests: a few, started when needed. The
// threads are named "sluice-io" and receive no signals of the host program.
//
// Threads: thread-safe.
#pragma once

#include "base/mutex.hpp"
#include "base/result.hpp"

namespace sluice {

class IoPool {
 public:
  // A job contains its own list link, so submitting one allocates nothing and can't fail. CUDA
  // calls submit() from where no error could be reported.
  class Job {
   public:
    virtual ~Job() = default;
    // From this call on, the job owns itself.
    virtual void run() noexcept = 0;

   private:
    friend class IoPool;
    Job* next_ = nullptr;
  };

  // Never destroyed: its threads run until the process ends.
  IoPool() = default;
  ~IoPool() = delete;

  // Announces a job. Afterwards at least one thread exists for it. EAGAIN: there is no thread, and
  // none could be started.
  Result<void> expect();
  // Submits a job that was announced.
  void submit(Job& job) noexcept;
  // An announced job will not be submitted.
  void cancel() noexcept;

 private:
  void work() noexcept;

  Mutex mutex_;
  CondVar came_;
  Job* first_ GUARDED_BY(mutex_) = nullptr;
  Job** last_ GUARDED_BY(mutex_) PT_GUARDED_BY(mutex_) = &first_;
  unsigned expected_ GUARDED_BY(mutex_) = 0;  // announced and not finished
  unsigned threads_ GUARDED_BY(mutex_) = 0;
};

}  // namespace sluice
