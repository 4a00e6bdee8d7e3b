// SPDX-License-Identifier: BSD-2-Clause
// The threads of the WorkerPool share the pieces of large requests. If requests of several users
// are in progress, each user has the same number of workers, and each request of a user the same
// share of these. So none waits for the end of another, and those that wait for a slow disk do not
// hold up others, however many they are.
//
// Threads: thread-safe.
#pragma once

#include <sys/types.h>

#include <atomic>
#include <chrono>
#include <list>
#include <memory>
#include <optional>
#include <thread>
#include <vector>

#include "base/mutex.hpp"
#include "base/result.hpp"

namespace sluice {

class WorkerPool {
 public:
  // The time of a worker with one job. It ends after some pieces or milliseconds, but only if other
  // jobs wait: switching interrupts the stream of copies.
  class Turn {
   public:
    explicit Turn(const std::atomic<unsigned>& jobs) : jobs_(jobs) {}
    // To be called after each piece.
    bool is_over() {
      return others_wait() &&
             (++pieces_ >= 8 || std::chrono::steady_clock::now() - begun_ >= kLongest);
    }
    // Whether this worker will go on with another job.
    bool others_wait() const { return jobs_.load(std::memory_order_relaxed) > 1; }

   private:
    static constexpr std::chrono::milliseconds kLongest{5};
    const std::atomic<unsigned>& jobs_;
    const std::chrono::steady_clock::time_point begun_ = std::chrono::steady_clock::now();
    unsigned pieces_ = 0;
  };

  class Job {
   public:
    virtual ~Job() = default;

    // Executes pieces of the job as worker number `worker`, until none is left (false) or the turn
    // is over (true). Several workers call it at once.
    virtual Result<bool> work(unsigned worker, Turn& turn) = 0;

   protected:
    // True after an error in another worker, or if the pool ends: start nothing more.
    bool is_stopped() const { return stopped_.load(std::memory_order_relaxed); }

   private:
    friend class WorkerPool;
    std::atomic<bool> stopped_{false};  // never becomes false again
  };

  explicit WorkerPool(unsigned threads);
  ~WorkerPool();  // REQUIRES: no thread is in run().
  WorkerPool(const WorkerPool&) = delete;
  WorkerPool& operator=(const WorkerPool&) = delete;

  // The number of workers; worker numbers are below it.
  unsigned size() const { return static_cast<unsigned>(threads_.size()); }

  // Returns when the job of `user` is done, or when it has failed and no worker uses it any more.
  Result<void> run(Job& job, uid_t user);
  // The number of threads in run().
  unsigned jobs() const { return jobs_.load(std::memory_order_relaxed); }

 private:
  struct Entry {
    Entry(Job& of, uid_t by) : job(of), user(by) {}
    Job& job;
    const uid_t user;
    unsigned at_work = 0;
    bool exhausted = false;
    std::optional<Error> error;
    CondVar done;
  };

  void loop(std::stop_token stop, unsigned worker);
  Entry* next_entry() REQUIRES(mutex_);
  unsigned at_work_for(uid_t user) const REQUIRES(mutex_);
  void give_back(Entry& entry, const Result<bool>& result) REQUIRES(mutex_);
  void remove(Entry& entry) REQUIRES(mutex_);

  Mutex mutex_;
  StopCondVar wanted_;
  std::list<Entry> entries_ GUARDED_BY(mutex_);
  std::atomic<unsigned> jobs_{0};      // entries_.size(), for reading without the lock
  std::vector<std::jthread> threads_;  // last: they use everything above
};

}  // namespace sluice
