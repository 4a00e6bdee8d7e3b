// SPDX-License-Identifier: BSD-2-Clause
#include "gpu/worker_pool.hpp"

#include <new>
#include <utility>

#include "base/log.hpp"
#include "base/thread.hpp"

namespace sluice {
namespace {

// An exception must not leave this function: it would end the process.
Result<bool> attempt(WorkerPool::Job& job, unsigned worker, WorkerPool::Turn turn) noexcept {
  try {
    return job.work(worker, turn);
  } catch (const std::bad_alloc&) {
    return Error(ENOMEM, "transfer a piece");
  } catch (const std::exception& error) {
    log::get().critical("a transfer failed unexpectedly: what={}", error.what());
    return Error(EIO, "transfer a piece");
  }
}

}  // namespace

WorkerPool::WorkerPool(unsigned threads) {
  threads_.reserve(threads);
  for (unsigned i = 0; i < threads; ++i) {
    threads_.emplace_back([this, i](std::stop_token stop) { loop(std::move(stop), i); });
  }
}

WorkerPool::~WorkerPool() {
  {
    const MutexLock lock(mutex_);
    for (Entry& entry : entries_) entry.job.stopped_ = true;
  }
  threads_.clear();
}

Result<void> WorkerPool::run(Job& job, uid_t user) {
  const MutexLock lock(mutex_);
  Entry& entry = entries_.emplace_back(job, user);
  ++jobs_;
  wanted_.notify_all();
  while (!entry.exhausted || entry.at_work > 0) entry.done.wait(mutex_);
  const auto error = entry.error;
  remove(entry);
  if (error) return *error;
  return {};
}

unsigned WorkerPool::at_work_for(uid_t user) const {
  unsigned sum = 0;
  for (const Entry& entry : entries_) sum += entry.user == user ? entry.at_work : 0;
  return sum;
}

// The entry with work that has the fewest workers, of the user who has the fewest; of several such,
// the one that was least recently chosen, because chosen ones are moved to the end of the list.
WorkerPool::Entry* WorkerPool::next_entry() {
  auto best = entries_.end();
  std::pair<unsigned, unsigned> fewest;
  for (auto it = entries_.begin(); it != entries_.end(); ++it) {
    if (it->exhausted) continue;
    const std::pair workers(at_work_for(it->user), it->at_work);
    if (best != entries_.end() && workers >= fewest) continue;
    best = it;
    fewest = workers;
  }
  if (best == entries_.end()) return nullptr;
  entries_.splice(entries_.end(), entries_, best);
  return &*best;
}

void WorkerPool::loop(std::stop_token stop, unsigned worker) {
  begin_thread("sluice-gpu", ThreadKind::Serving);
  MutexLock lock(mutex_);
  while (!stop.stop_requested()) {
    Entry* entry = nullptr;
    const auto found = [&]() REQUIRES(mutex_) { return (entry = next_entry()) != nullptr; };
    if (!wanted_.wait(mutex_, stop, found)) return;
    ++entry->at_work;
    lock.unlock();
    const Result<bool> result = attempt(entry->job, worker, Turn(jobs_));
    lock.lock();
    give_back(*entry, result);
  }
}

void WorkerPool::give_back(Entry& entry, const Result<bool>& result) {
  --entry.at_work;
  if (!result || !*result) entry.exhausted = true;
  if (!result) {
    entry.job.stopped_ = true;
    if (!entry.error) entry.error = result.error();
  }
  if (entry.exhausted && entry.at_work == 0) entry.done.notify_one();
}

void WorkerPool::remove(Entry& entry) {
  entries_.remove_if([&](const Entry& other) { return &other == &entry; });
  --jobs_;
}

}  // namespace sluice
