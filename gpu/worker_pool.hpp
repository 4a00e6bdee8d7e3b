// SPDX-License-Identifier: BSD-2-Clause
// The threads of the WorkerPool share the pieces of large requests. If several requests are in
// progress, workers switch between them, so that none waits for the end of another.
//
// Threads: thread-safe.
#pragma once

#include <atomic>
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
  // The time of a worker with one job. It ends after some pieces, but only if other jobs wait:
  // switching interrupts the stream of copies.
  class Turn {
   public:
    explicit Turn(const std::atomic<unsigned>& jobs) : jobs_(jobs) {}
    // To be called after each piece.
    bool is_over() { return ++pieces_ >= 8 && others_wait(); }
    // Whether this worker will go on with another job.
    bool others_wait() const { return jobs_.load(std::memory_order_relaxed) > 1; }

   private:
    const std::atomic<unsigned>& jobs_;
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

  // Returns when the job is done, or when it has failed and no worker uses it any more.
  Result<void> run(Job& job);
  // True if a thread is in run().
  bool is_busy() const { return jobs_.load(std::memory_order_relaxed) > 0; }

 private:
  struct Entry {
    explicit Entry(Job& of) : job(of) {}
    Job& job;
    unsigned at_work = 0;
    bool exhausted = false;
    std::optional<Error> error;
    CondVar done;
  };

  void loop(std::stop_token stop, unsigned worker);
  Entry* next_entry() REQUIRES(mutex_);
  void give_back(Entry& entry, const Result<bool>& result) REQUIRES(mutex_);
  void remove(Entry& entry) REQUIRES(mutex_);

  Mutex mutex_;
  StopCondVar wanted_;
  std::list<Entry> entries_ GUARDED_BY(mutex_);
  std::atomic<unsigned> jobs_{0};      // entries_.size(), for reading without the lock
  std::vector<std::jthread> threads_;  // last: they use everything above
};

}  // namespace sluice
