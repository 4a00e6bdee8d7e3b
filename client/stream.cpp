// SPDX-License-Identifier: BSD-2-Clause
#include "client/stream.hpp"

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <vector>

#include "base/mutex.hpp"
#include "client/barrier.hpp"

namespace sluice {
namespace {

// Words that the GPU can wait for. The value of a word only grows, and the GPU waits for "at
// least", so a word can be reused at once, even before the GPU has read it.
class Words {
 public:
  struct Word {
    std::uint32_t* host = nullptr;
    CUdeviceptr device = 0;
    std::uint32_t value = 0;  // the next value
  };

  // Null if none is free or the GPU can't wait for memory; a thread of CUDA then waits instead.
  Word* take(const CudaApi& api) {
    const MutexLock lock(mutex_);
    if (!made_) make(api);
    if (free_.empty()) return nullptr;
    Word* word = free_.back();
    free_.pop_back();
    ++word->value;
    return word;
  }

  void give_back(Word& word) noexcept {
    const MutexLock lock(mutex_);
    free_.push_back(&word);  // never allocates: make() has reserved
  }

 private:
  static constexpr std::size_t kPage = 4096;

  void make(const CudaApi& api) REQUIRES(mutex_) {
    made_ = true;
    if (api.cuStreamWaitValue32 == nullptr) return;
    void* page = std::aligned_alloc(kPage, kPage);
    if (page == nullptr) return;
    auto* host = static_cast<std::uint32_t*>(page);
    std::fill_n(host, kPage / sizeof *host, 0);
    CUdeviceptr device = 0;
    if (api.cuMemHostRegister(page, kPage, kHostRegisterPortable | kHostRegisterDeviceMap) !=
            CUDA_SUCCESS ||
        api.cuMemHostGetDevicePointer(&device, page, 0) != CUDA_SUCCESS) {
      return;  // the page is leaked: CUDA may still use it
    }
    words_.resize(kPage / sizeof *host);
    free_.reserve(words_.size());
    for (std::size_t i = 0; i < words_.size(); ++i) {
      words_[i].host = host + i;
      words_[i].device = device + i * sizeof *host;
      free_.push_back(&words_[i]);
    }
  }

  Mutex mutex_;
  bool made_ GUARDED_BY(mutex_) = false;
  std::vector<Word> words_ GUARDED_BY(mutex_);
  std::vector<Word*> free_ GUARDED_BY(mutex_);
};

Words& words() {
  static Words& all = *new Words();  // never destroyed, like the Library
  return all;
}

class StreamJob final : public IoPool::Job {
 public:
  StreamJob(Library& library, File& file, Buffer& buffer, Direction direction,
            const Segment& segment, Route route, const StreamCalls& calls, Words::Word* word)
      : library_(library),
        segment_(segment),
        request_{file, buffer, direction, {&segment_, 1}, route},
        calls_(calls),
        word_(word) {}

  // Called on a thread of CUDA, which must not call CUDA.
  static void begin(void* user) noexcept {
    auto& self = *static_cast<StreamJob*>(user);
    auto expected = State::Waiting;
    if (self.state_.compare_exchange_strong(expected, State::Begun)) {
      self.library_.pool().submit(self);
    } else {
      self.abandon();
    }
  }
  static void wait(void* user) noexcept {
    auto& self = *static_cast<StreamJob*>(user);
    {
      const MutexLock lock(self.mutex_);
      while (!self.is_done_) self.changed_.wait(self.mutex_);
    }
    self.release();
  }

  // False if the job has already begun.
  bool cancel() {
    auto expected = State::Waiting;
    return state_.compare_exchange_strong(expected, State::Cancelled);
  }
  // The job will not run.
  void abandon() noexcept {
    library_.pool().cancel();
    if (word_ != nullptr) words().give_back(*word_);
    release();
  }

  void run() noexcept override {
    if (calls_.numbers != nullptr) {
      calls_.numbers(calls_.user, &segment_.memory_offset, &segment_.length, &segment_.file_offset);
    }
    struct sluice_result result {};
    const ssize_t done =
        barrier("read or write in a stream", &request_.file, [&]() -> Result<std::int64_t> {
          const auto outcome = SLUICE_TRY(execute(library_, request_));
          result = result_of(outcome);
          return static_cast<std::int64_t>(outcome.transfer.bytes);
        });
    calls_.callback(calls_.user, done, &result);
    if (word_ != nullptr) {
      std::atomic_ref(*word_->host).store(word_->value, std::memory_order_release);
      words().give_back(*word_);
    }
    {
      // Notified under the lock, because the thread that is woken may delete this object.
      const MutexLock lock(mutex_);
      is_done_ = true;
      changed_.notify_all();
    }
    release();
  }

  // For one more call of wait().
  void add_reference() { ++references_; }
  void release() noexcept {
    if (--references_ == 0) delete this;
  }

 private:
  enum class State { Waiting, Begun, Cancelled };

  Library& library_;
  Segment segment_;
  const Request request_;
  const StreamCalls calls_;
  Words::Word* const word_;         // null: wait() is called instead
  std::atomic<int> references_{1};  // initially of begin(), then of run()
  std::atomic<State> state_{State::Waiting};
  Mutex mutex_;
  CondVar changed_;
  bool is_done_ GUARDED_BY(mutex_) = false;
};

// Makes later work in the stream wait for the job.
bool make_stream_wait(const CudaApi& api, CUstream stream, StreamJob& job, const Words::Word* word,
                      std::uint32_t value) {
  if (word != nullptr &&
      api.cuStreamWaitValue32(stream, word->device, value, kWaitValueGeq) == CUDA_SUCCESS) {
    return true;
  }
  job.add_reference();
  if (api.cuLaunchHostFunc(stream, &StreamJob::wait, &job) == CUDA_SUCCESS) return true;
  job.release();
  return false;
}

enum class Capture {
  None,
  Active,
  Forbids,  // it is the default stream, and a stream that waits for it is captured
};

Capture capture_of(const CudaApi& api, CUstream stream) {
  if (api.cuStreamIsCapturing == nullptr) return Capture::None;
  int status = 0;
  const CUresult code = api.cuStreamIsCapturing(stream, &status);
  if (code == CUDA_ERROR_STREAM_CAPTURE_IMPLICIT) return Capture::Forbids;
  return code == CUDA_SUCCESS && status != 0 ? Capture::Active : Capture::None;
}

}  // namespace

Result<void> wait_for_default_stream(Library& library, const Buffer& buffer) {
  Device* const device = buffer.device();
  if (device == nullptr || !buffer.is_ordered()) return {};
  SLUICE_TRY(check(library, buffer));
  const CudaApi& api = device->api();
  const ContextKeeper keeper(&api);
  SLUICE_TRY(buffer.enter_context());
  // Asked first, because the query itself would spoil the graph.
  if (capture_of(api, nullptr) == Capture::Forbids) {
    return Error{EBUSY,
                 "CUDA can't wait for the default stream while a stream without "
                 "cudaStreamNonBlocking is captured into a graph"};
  }
  CUresult code = api.cuStreamQuery(nullptr);  // cheaper than a synchronization
  if (code == CUDA_ERROR_NOT_READY) code = api.cuStreamSynchronize(nullptr);
  if (code != CUDA_SUCCESS) return device->failed(code, "wait for the default stream");
  return {};
}

Result<void> check_stream(const CudaApi& api, CUstream stream) {
  if (capture_of(api, stream) == Capture::None) return {};
  return Error{EOPNOTSUPP, "put a request into a stream",
               "the stream is being captured into a graph, which can't contain requests for files; "
               "make this call before or after the capture"};
}

Result<void> enqueue(Library& library, File& file, Buffer& buffer, Direction direction,
                     const Segment& segment, void* stream_handle, const StreamCalls& calls) {
  Devices* devices = library.devices_in_use();
  if (devices == nullptr || devices->all().empty()) {
    return Error{ENODEV, "this process does not use CUDA"};
  }
  Device& device = buffer.device() != nullptr ? *buffer.device() : *devices->all().front();
  library.note(device);
  const CudaApi& api = device.api();
  auto* stream = static_cast<CUstream>(stream_handle);

  const ContextKeeper keeper(&api);
  CUcontext current = nullptr;
  if (api.cuCtxGetCurrent(&current) != CUDA_SUCCESS || current == nullptr) {
    SLUICE_TRY(device.enter());
  }
  SLUICE_TRY(check_stream(api, stream));
  const Route route = SLUICE_TRY(prepare(library, {file, buffer, direction, {&segment, 1}}));
  SLUICE_TRY(library.pool().expect());
  Words::Word* word = words().take(api);
  const std::uint32_t value = word != nullptr ? word->value : 0;
  auto& job = *new StreamJob(library, file, buffer, direction, segment, route, calls, word);
  job.add_reference();  // the job may finish before this function does
  if (const auto code = api.cuLaunchHostFunc(stream, &StreamJob::begin, &job);
      code != CUDA_SUCCESS) {
    job.abandon();
    job.release();
    return device.failed(code, "put the request into the stream");
  }
  if (!make_stream_wait(api, stream, job, word, value)) {
    if (job.cancel()) {
      job.release();
      return Error{EIO, "make the stream wait for the request"};
    }
    StreamJob::wait(&job);  // the stream has already reached the job, so wait here
    return {};
  }
  job.release();
  return {};
}

}  // namespace sluice
