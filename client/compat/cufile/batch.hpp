// SPDX-License-Identifier: BSD-2-Clause
// A Batch implements a batch of cuFile: requests that are submitted together, whose status is
// queried later. Threads of libsluice execute the requests on files of Sluice mounts, a few at a
// time. The others go to a batch of NVIDIA's library, which is created when first needed.
//
// Threads: thread-safe, as far as NVIDIA's library allows concurrent calls for one batch.
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

  // Submits all requests or, after an error, none. CU_FILE_BATCH_FULL: more requests than the batch
  // was created for would be in progress, or finished but not yet reported.
  CUfileError_t submit(CUfileIOParams_t* requests, unsigned count, unsigned flags);
  // Waits until `at_least` requests are finished, none is in progress, or the timeout has passed
  // (null: no timeout). `*count` is the size of `events`, and then the number of events. Each
  // request is reported once. An error of NVIDIA's library is returned only if there is nothing
  // else to report.
  CUfileError_t status(unsigned at_least, unsigned* count, CUfileIOEvents_t* events,
                       const timespec* timeout);
  // Drops requests that have not begun; they are reported as CUFILE_CANCELED.
  CUfileError_t cancel();
  // Drops requests that have not begun and waits for the rest. Afterwards their memory may be
  // freed.
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
  unsigned in_real_ GUARDED_BY(mutex_) = 0;  // submitted there and not yet reported
};

// The batches of the process. Threads: thread-safe.
class BatchTable {
 public:
  CUfileBatchHandle_t add(std::shared_ptr<Batch> batch);
  std::shared_ptr<Batch> find(CUfileBatchHandle_t name);
  std::shared_ptr<Batch> remove(CUfileBatchHandle_t name);

  // For fork().
  void lock() ACQUIRE(mutex_) { mutex_.lock(); }
  void unlock() RELEASE(mutex_) { mutex_.unlock(); }

 private:
  Mutex mutex_;
  std::map<CUfileBatchHandle_t, std::shared_ptr<Batch>> batches_ GUARDED_BY(mutex_);
};

}  // namespace sluice::dropin
