// SPDX-License-Identifier: BSD-2-Clause
// The fake libcuda.so.1: the order of streams, and what is forbidden while a graph is captured.
#include <unistd.h>

#include <algorithm>
#include <array>
#include <string_view>
#include <vector>

#include "tests/support/fake_cuda.hpp"

namespace sluice {

using test::FakeCount;

FakeStream::FakeStream(int device, Kind kind)
    : device_(device), kind_(kind), thread_([this] { run(); }) {
  FakeCuda::get().faults.control().add(FakeCount::Streams, 1);
}

FakeStream::~FakeStream() {
  {
    const MutexLock lock(mutex_);
    ending_ = true;
  }
  changed_.notify_all();
  thread_.join();
  FakeCuda::get().faults.control().add(FakeCount::Streams, -1);
}

std::function<void()> FakeStream::waiter() {
  const auto event = std::make_shared<FakeEvent>();
  {
    const MutexLock lock(mutex_);
    if (queue_.empty() && !busy_) return {};
    queue_.push_back([event] {
      const MutexLock inner(event->mutex);
      event->reached = 1;
      event->changed.notify_all();
    });
  }
  changed_.notify_all();
  return [event] {
    const MutexLock lock(event->mutex);
    while (event->reached == 0) event->changed.wait(event->mutex);
  };
}

void FakeStream::put(std::function<void()> work) {
  std::vector<std::function<void()>> waiters;
  for (FakeStream* other : fake().bound_to(*this)) {
    if (auto waiter = other->waiter()) waiters.push_back(std::move(waiter));
  }
  {
    const MutexLock lock(mutex_);
    for (auto& waiter : waiters) queue_.push_back(std::move(waiter));
    queue_.push_back(std::move(work));
  }
  changed_.notify_all();
}

void FakeStream::wait_idle() {
  if (kind_ == Kind::Default) {
    for (FakeStream* other : fake().bound_to(*this)) other->wait_idle();
  }
  const MutexLock lock(mutex_);
  while (!queue_.empty() || busy_) changed_.wait(mutex_);
}

bool FakeStream::is_idle() {
  if (kind_ == Kind::Default) {
    for (FakeStream* other : fake().bound_to(*this)) {
      if (!other->is_idle()) return false;
    }
  }
  const MutexLock lock(mutex_);
  return queue_.empty() && !busy_;
}

void FakeStream::run() {
  MutexLock lock(mutex_);
  for (;;) {
    while (queue_.empty() && !ending_) changed_.wait(mutex_);
    if (queue_.empty()) return;
    {
      const std::function<void()> work = std::move(queue_.front());
      queue_.pop_front();
      busy_ = true;
      lock.unlock();
      if (const unsigned delay = FakeCuda::get().delay_us; delay > 0) ::usleep(delay);
      work();
    }
    lock.lock();
    busy_ = false;
    changed_.notify_all();
  }
}

std::vector<FakeStream*> FakeCuda::bound_to(const FakeStream& stream) {
  if (stream.kind() == FakeStream::Kind::NonBlocking) return {};
  const MutexLock lock(mutex);
  if (stream.kind() == FakeStream::Kind::Blocking) return {state[stream.device()].stream.get()};
  std::vector<FakeStream*> bound;
  for (const auto& [key, other] : streams) {
    const bool is_bound = other->kind() == FakeStream::Kind::Blocking;
    if (is_bound && other->device() == stream.device()) bound.push_back(other.get());
  }
  return bound;
}

FakeStream* FakeCuda::stream_of(CUstream handle, int device) {
  const MutexLock lock(mutex);
  bool is_forbidden = false;
  for (auto& [captured, capture] : captures) {
    const auto found = streams.find(captured);
    const bool is_blocking =
        found != streams.end() && found->second->kind() == FakeStream::Kind::Blocking;
    if (handle == nullptr ? !is_blocking : handle != captured) continue;
    capture.is_valid = false;
    is_forbidden = true;
  }
  if (is_forbidden) return nullptr;
  if (handle == nullptr) return state[device].stream.get();
  const auto found = streams.find(handle);
  return found == streams.end() ? nullptr : found->second.get();
}

void FakeCuda::synchronize(int device) {
  std::vector<FakeStream*> all;
  {
    const MutexLock lock(mutex);
    all.push_back(state[device].stream.get());
    for (const auto& [key, stream] : streams) {
      if (stream->device() == device) all.push_back(stream.get());
    }
  }
  for (FakeStream* stream : all) stream->wait_idle();
}

namespace {

// Those of the calls that CUDA calls potentially unsafe which we use.
constexpr std::array<std::string_view, 13> kUnsafe = {
    "cuMemAlloc",      "cuMemFree",          "cuMemHostRegister", "cuMemHostUnregister",
    "cuMemcpyHtoD",    "cuMemcpyDtoH",       "cuStreamQuery",     "cuStreamSynchronize",
    "cuEventQuery",    "cuEventSynchronize", "cuCtxSynchronize",  "cuModuleLoadData",
    "cuStreamDestroy",
};

thread_local CUstreamCaptureMode t_mode = CU_STREAM_CAPTURE_MODE_GLOBAL;

}  // namespace

CUresult FakeCuda::check_captures(const char* call) {
  if (captures.empty() || t_mode == CU_STREAM_CAPTURE_MODE_RELAXED) return CUDA_SUCCESS;
  if (std::find(kUnsafe.begin(), kUnsafe.end(), call) == kUnsafe.end()) return CUDA_SUCCESS;
  CUresult code = CUDA_SUCCESS;
  for (auto& [stream, capture] : captures) {
    if (capture.mode != CU_STREAM_CAPTURE_MODE_GLOBAL) continue;
    capture.is_valid = false;
    code = CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
  }
  return code;
}

extern "C" {

CUresult cuThreadExchangeStreamCaptureMode(CUstreamCaptureMode* mode) {
  std::swap(*mode, t_mode);
  return CUDA_SUCCESS;
}

CUresult cuStreamBeginCapture_v2(CUstream stream, CUstreamCaptureMode mode) {
  int device = 0;
  FAKE_CUDA_BEGIN("cuStreamBeginCapture", &device);
  const MutexLock lock(fake().mutex);
  // The default stream can't be captured.
  if (!fake().streams.contains(stream)) return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
  const bool is_new = fake().captures.try_emplace(stream, FakeCapture{mode}).second;
  return is_new ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

CUresult cuStreamEndCapture(CUstream stream, void** graph) {
  int device = 0;
  FAKE_CUDA_BEGIN("cuStreamEndCapture", &device);
  const MutexLock lock(fake().mutex);
  const auto found = fake().captures.find(stream);
  if (found == fake().captures.end()) return CUDA_ERROR_INVALID_VALUE;
  const bool is_valid = found->second.is_valid;
  fake().captures.erase(found);
  *graph = nullptr;
  return is_valid ? CUDA_SUCCESS : CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
}

// A fault of this call means that the stream is being captured.
CUresult cuStreamIsCapturing(CUstream stream, int* status) {
  *status = fake().faults.next("cuStreamIsCapturing") != 0 ? 1 : 0;
  const MutexLock lock(fake().mutex);
  for (const auto& [captured, capture] : fake().captures) {
    const auto found = fake().streams.find(captured);
    if (captured == stream) *status = 1;
    if (stream == nullptr && found != fake().streams.end() &&
        found->second->kind() == FakeStream::Kind::Blocking) {
      return CUDA_ERROR_STREAM_CAPTURE_IMPLICIT;
    }
  }
  return CUDA_SUCCESS;
}

}  // extern "C"
}  // namespace sluice
