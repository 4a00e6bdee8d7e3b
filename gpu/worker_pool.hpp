// SPDX-License-Identifier: BSD-2-Clause
// The WorkerPool's threads share the pieces of large requests. When several requests are on their
// way, workers turn from one to the next, so that none waits for the end of another.
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
  // A worker's time with one job. It ends after some pieces, but only where others wait: changing
  // from one job to another interrupts the stream of copies.
  class Turn {
   public:
    explicit Turn(const std::atomic<unsigned>& jobs) : jobs_(jobs) {}
    // To be asked after each piece.
    bool is_over() { return ++pieces_ >= 8 && jobs_.load(std::memory_order_relaxed) > 1; }

   private:
    const std::atomic<unsigned>& jobs_;
    unsigned pieces_ = 0;
  };

  class Job {
   public:
    virtual ~Job() = default;

    // Does pieces of the job, as the worker of that number, until none is left to begin (false) or
    // its turn is over (true); called by several workers at once. Nothing that this call began is
    // under way any more when it returns, also when it returns an error.
    virtual Result<bool> work(unsigned worker, Turn& turn) = 0;

   protected:
    // An error happened elsewhere, or the pool ends: begin no more.
    bool is_stopped() const { return stopped_.load(std::memory_order_relaxed); }

   private:
    friend class WorkerPool;
    std::atomic<bool> stopped_{false};  // only ever turns true
  };

  explicit WorkerPool(unsigned threads);
  ~WorkerPool();  // REQUIRES: nobody is in run().
  WorkerPool(const WorkerPool&) = delete;
  WorkerPool& operator=(const WorkerPool&) = delete;

  // The workers' numbers are below this.
  unsigned size() const { return static_cast<unsigned>(threads_.size()); }

  // Returns when the job is done, or has failed and no worker is at it any more.
  Result<void> run(Job& job);
  // Whether somebody is in run().
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
  std::atomic<unsigned> jobs_{0};      // entries_.size(), for workers that don't hold the lock
  std::vector<std::jthread> threads_;  // last: they use everything above
};

}  // namespace sluice
