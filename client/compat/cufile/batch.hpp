// SPDX-License-Identifier: BSD-2-Clause
// A Batch is cuFile's: requests that are submitted together and asked after later. Those on files
// of Sluice mounts are carried out by libsluice's threads, some at a time; the others go to a batch
// of NVIDIA's library, which exists once one is needed.
//
// Threads: thread-safe, but what NVIDIA's library allows for one batch at once is its affair.
#pragma once

#include <deque>
#include <map>
#include <memory>
#include <vector>

#include "base/mutex.hpp"
#include "client/compat/cufile/handles.hpp"
#include "client/compat/cufile/memory.hpp"

namespace sluice::dropin {

class Batch : public std::enable_shared_from_this<Batch> {
 public:
  Batch(MemoryTable& memory, HandleTable& handles, unsigned limit);
  ~Batch();
  Batch(const Batch&) = delete;
  Batch& operator=(const Batch&) = delete;

  // All of them or, after an error, none. CU_FILE_BATCH_FULL if more would be under way, or done
  // and not asked after, than the batch was made for.
  CUfileError_t submit(CUfileIOParams_t* requests, unsigned count, unsigned flags);
  // Waits until `at_least` are done, or nothing is under way, or the time is over (null: never).
  // `*count` is the room in `events` and then how many there are; each request is told of once.
  // An error of NVIDIA's library comes when there is nothing else to tell.
  CUfileError_t status(unsigned at_least, unsigned* count, CUfileIOEvents_t* events,
                       const timespec* timeout);
  // What has not begun is not done, and says so (CUFILE_CANCELED).
  CUfileError_t cancel();
  // Drops what has not begun, and waits for the rest: its memory may be freed afterwards.
  void end();

 private:
  struct Entry;

  void start();
  void finish(const Entry& entry, ssize_t done);
  static void on_done(void* user, ssize_t done, const struct sluice_result* result) noexcept;
  CUfileError_t submit_to_real(std::vector<CUfileIOParams_t>& requests, unsigned flags);
  CUfileError_t ask_real(unsigned at_least, unsigned* count, CUfileIOEvents_t* events,
                         const timespec* timeout);

  MemoryTable& memory_;
  HandleTable& handles_;
  const unsigned limit_;

  Mutex mutex_;
  CondVar changed_;
  std::deque<std::unique_ptr<Entry>> waiting_ GUARDED_BY(mutex_);
  unsigned running_ GUARDED_BY(mutex_) = 0;
  std::deque<CUfileIOEvents_t> done_ GUARDED_BY(mutex_);
  CUfileBatchHandle_t real_ GUARDED_BY(mutex_) = nullptr;
  unsigned in_real_ GUARDED_BY(mutex_) = 0;  // submitted there and not told of
};

// The batches of the process. Threads: thread-safe.
class BatchTable {
 public:
  CUfileBatchHandle_t add(std::shared_ptr<Batch> batch);
  std::shared_ptr<Batch> find(CUfileBatchHandle_t name);
  std::shared_ptr<Batch> remove(CUfileBatchHandle_t name);

  // Around fork().
  void lock() ACQUIRE(mutex_) { mutex_.lock(); }
  void unlock() RELEASE(mutex_) { mutex_.unlock(); }

 private:
  Mutex mutex_;
  std::map<CUfileBatchHandle_t, std::shared_ptr<Batch>> batches_ GUARDED_BY(mutex_);
};

}  // namespace sluice::dropin
