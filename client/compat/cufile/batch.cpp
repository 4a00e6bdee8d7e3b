// SPDX-License-Identifier: BSD-2-Clause
#include "client/compat/cufile/batch.hpp"

#include <algorithm>
#include <chrono>
#include <optional>
#include <utility>

#include "client/compat/cufile/errors.hpp"
#include "client/compat/cufile/real.hpp"
#include "client/compat/cufile/requests.hpp"

namespace sluice::dropin {
namespace {

using std::chrono::steady_clock;

// As many as libsluice has threads. Requests that wait here can still be cancelled.
constexpr unsigned kAtOnce = 8;
// It is not possible to wait for two libraries at once. While requests are in progress in both,
// NVIDIA's is polled at this interval.
constexpr std::chrono::microseconds kAskEvery{100};

RealFunction<CUfileError_t(CUfileBatchHandle_t*, unsigned)> g_real_set_up("cuFileBatchIOSetUp");
RealFunction<CUfileError_t(CUfileBatchHandle_t, unsigned, CUfileIOParams_t*, unsigned)>
    g_real_submit("cuFileBatchIOSubmit");
RealFunction<CUfileError_t(CUfileBatchHandle_t, unsigned, unsigned*, CUfileIOEvents_t*, timespec*)>
    g_real_status("cuFileBatchIOGetStatus");
RealFunction<CUfileError_t(CUfileBatchHandle_t)> g_real_cancel("cuFileBatchIOCancel");
RealFunction<void(CUfileBatchHandle_t)> g_real_destroy("cuFileBatchIODestroy");

timespec to_timespec(steady_clock::duration time) {
  const auto ns =
      std::max<std::int64_t>(std::chrono::duration_cast<std::chrono::nanoseconds>(time).count(), 0);
  return {static_cast<time_t>(ns / 1'000'000'000), static_cast<long>(ns % 1'000'000'000)};
}

}  // namespace

// A request on a file of ours, with everything it needs until it is finished.
struct Batch::Entry {
  std::shared_ptr<Batch> batch;
  std::shared_ptr<Handle> handle;
  Lease lease;
  CUfileIOParams_t request{};
};

Batch::Batch(MemoryTable& memory, HandleTable& handles, unsigned limit)
    : memory_(memory), handles_(handles), limit_(limit) {}

Batch::~Batch() = default;

CUfileError_t Batch::submit(CUfileIOParams_t* requests, unsigned count, unsigned flags) {
  if (requests == nullptr && count > 0) return result(CU_FILE_INVALID_VALUE);
  std::vector<std::unique_ptr<Entry>> ours;
  std::vector<CUfileIOParams_t> others;
  for (unsigned i = 0; i < count; ++i) {
    const auto& io = requests[i].u.batch;
    auto handle = handles_.find(requests[i].fh);
    if (handle == nullptr) {
      memory_.announce_to_real(io.devPtr_base);
      others.push_back(requests[i]);
      continue;
    }
    const bool is_right =
        requests[i].mode == CUFILE_BATCH &&
        (requests[i].opcode == CUFILE_READ || requests[i].opcode == CUFILE_WRITE) &&
        check({io.devPtr_base, io.size, io.file_offset, io.devPtr_offset}) == 0;
    if (!is_right) return result(CU_FILE_INVALID_VALUE);
    Lease lease = memory_.lease(static_cast<std::byte*>(io.devPtr_base) + io.devPtr_offset,
                                std::max<std::size_t>(io.size, 1));
    if (!lease) return result(CU_FILE_CUDA_POINTER_INVALID);
    ours.push_back(std::make_unique<Entry>(
        Entry{shared_from_this(), std::move(handle), std::move(lease), requests[i]}));
  }
  const auto n_others = static_cast<unsigned>(others.size());
  {
    const MutexLock lock(mutex_);
    if (waiting_.size() + running_ + done_.size() + in_real_ + count > limit_) {
      return result(CU_FILE_BATCH_FULL);
    }
    in_real_ += n_others;
  }
  if (!others.empty()) {
    if (const CUfileError_t error = submit_to_real(others, flags); error.err != CU_FILE_SUCCESS) {
      const MutexLock lock(mutex_);
      in_real_ -= n_others;
      return error;
    }
  }
  {
    const MutexLock lock(mutex_);
    for (auto& entry : ours) waiting_.push_back(std::move(entry));
  }
  start();
  return result(CU_FILE_SUCCESS);
}

CUfileError_t Batch::submit_to_real(std::vector<CUfileIOParams_t>& requests, unsigned flags) {
  if (!g_real_set_up || !g_real_submit) return result(CU_FILE_HANDLE_NOT_REGISTERED);
  CUfileBatchHandle_t batch = nullptr;
  {
    const MutexLock lock(mutex_);
    batch = real_;
  }
  if (batch == nullptr) {
    if (const auto error = g_real_set_up(&batch, limit_); error.err != CU_FILE_SUCCESS) {
      return error;
    }
    const MutexLock lock(mutex_);
    real_ = batch;
  }
  return g_real_submit(batch, static_cast<unsigned>(requests.size()), requests.data(), flags);
}

void Batch::start() {
  const Libsluice* api = Libsluice::get();
  for (;;) {
    std::unique_ptr<Entry> entry;
    {
      const MutexLock lock(mutex_);
      if (waiting_.empty() || running_ >= kAtOnce) return;
      entry = std::move(waiting_.front());
      waiting_.pop_front();
      ++running_;
    }
    const auto& io = entry->request.u.batch;
    const auto begin = entry->request.opcode == CUFILE_READ ? api->read_async : api->write_async;
    const int code =
        begin(entry->handle->file(), entry->lease.buffer(), entry->lease.offset, io.size,
              static_cast<std::uint64_t>(io.file_offset), &Batch::on_done, entry.get());
    if (code < 0) {
      finish(*entry, code);
    } else {
      static_cast<void>(entry.release());  // on_done() owns it now
    }
  }
}

void Batch::on_done(void* user, ssize_t done, const struct sluice_result*) noexcept {
  std::unique_ptr<Entry> entry(static_cast<Entry*>(user));
  const std::shared_ptr<Batch> batch = entry->batch;
  // Memory and file are released before the result becomes visible.
  const Entry told{nullptr, nullptr, {}, entry->request};
  entry.reset();
  batch->finish(told, done);
  batch->start();
}

void Batch::finish(const Entry& entry, ssize_t done) {
  const MutexLock lock(mutex_);
  --running_;
  done_.push_back({entry.request.cookie, done < 0 ? CUFILE_FAILED : CUFILE_COMPLETE,
                   static_cast<std::size_t>(done)});
  changed_.notify_all();
}

CUfileError_t Batch::ask_real(unsigned at_least, unsigned* count, CUfileIOEvents_t* events,
                              const timespec* timeout) {
  const unsigned room = std::exchange(*count, 0);
  if (!g_real_status) return result(CU_FILE_HANDLE_NOT_REGISTERED);
  CUfileBatchHandle_t batch = nullptr;
  {
    const MutexLock lock(mutex_);
    at_least = std::min(at_least, in_real_);
    batch = real_;
  }
  unsigned got = room;
  timespec time = timeout != nullptr ? *timeout : timespec{};
  const auto error =
      g_real_status(batch, at_least, &got, events, timeout != nullptr ? &time : nullptr);
  if (error.err != CU_FILE_SUCCESS) return error;
  *count = got;
  const MutexLock lock(mutex_);
  in_real_ -= std::min(got, in_real_);
  return error;
}

CUfileError_t Batch::status(unsigned at_least, unsigned* count, CUfileIOEvents_t* events,
                            const timespec* timeout) {
  if (count == nullptr || events == nullptr || at_least > *count) {
    return result(CU_FILE_INVALID_VALUE);
  }
  std::optional<steady_clock::time_point> end;
  if (timeout != nullptr) {
    end = steady_clock::now() + std::chrono::seconds(timeout->tv_sec) +
          std::chrono::nanoseconds(timeout->tv_nsec);
  }
  unsigned got = 0;
  CUfileError_t real = result(CU_FILE_SUCCESS);
  MutexLock lock(mutex_);
  for (;;) {
    while (got < *count && !done_.empty()) {
      events[got++] = done_.front();
      done_.pop_front();
    }
    const bool is_enough = got >= at_least;
    const bool is_over = end && steady_clock::now() >= *end;
    const bool ours_go_on = running_ > 0 || !waiting_.empty();
    if (in_real_ > 0 && got < *count) {
      // Waits in NVIDIA's library only if none of our requests is in progress.
      const bool waits = !is_enough && !is_over && !ours_go_on;
      const timespec left = waits && end ? to_timespec(*end - steady_clock::now()) : timespec{};
      lock.unlock();
      unsigned now = *count - got;
      real =
          ask_real(waits ? at_least - got : 0, &now, events + got, waits && !end ? nullptr : &left);
      lock.lock();
      got += now;
      if (waits && now == 0) break;  // timeout or failure there
      if (waits || now > 0) continue;
    }
    if (is_enough || is_over || (!ours_go_on && in_real_ == 0)) break;
    auto until = end;
    if (in_real_ > 0) until = steady_clock::now() + kAskEvery;
    while (done_.empty()) {
      if (!until) {
        changed_.wait(mutex_);
      } else if (!changed_.wait_until(mutex_, *until)) {
        break;
      }
    }
  }
  *count = got;
  return got > 0 ? result(CU_FILE_SUCCESS) : real;
}

CUfileError_t Batch::cancel() {
  std::deque<std::unique_ptr<Entry>> cancelled;
  CUfileBatchHandle_t real = nullptr;
  {
    const MutexLock lock(mutex_);
    cancelled.swap(waiting_);
    for (const auto& entry : cancelled) {
      done_.push_back(
          {entry->request.cookie, CUFILE_CANCELED, static_cast<std::size_t>(-ECANCELED)});
    }
    if (in_real_ > 0) real = real_;
    changed_.notify_all();
  }
  return real != nullptr && g_real_cancel ? g_real_cancel(real) : result(CU_FILE_SUCCESS);
}

void Batch::end() {
  std::deque<std::unique_ptr<Entry>> dropped;
  CUfileBatchHandle_t real = nullptr;
  {
    const MutexLock lock(mutex_);
    dropped.swap(waiting_);
    while (running_ > 0) changed_.wait(mutex_);
    real = std::exchange(real_, nullptr);
  }
  if (real != nullptr && g_real_destroy) g_real_destroy(real);
}

CUfileBatchHandle_t BatchTable::add(std::shared_ptr<Batch> batch) {
  const MutexLock lock(mutex_);
  CUfileBatchHandle_t name = batch.get();
  batches_[name] = std::move(batch);
  return name;
}

std::shared_ptr<Batch> BatchTable::find(CUfileBatchHandle_t name) {
  const MutexLock lock(mutex_);
  const auto found = batches_.find(name);
  return found != batches_.end() ? found->second : nullptr;
}

std::shared_ptr<Batch> BatchTable::remove(CUfileBatchHandle_t name) {
  const MutexLock lock(mutex_);
  const auto found = batches_.find(name);
  if (found == batches_.end()) return nullptr;
  auto batch = std::move(found->second);
  batches_.erase(found);
  return batch;
}

}  // namespace sluice::dropin
