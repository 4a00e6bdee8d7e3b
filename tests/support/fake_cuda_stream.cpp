// SPDX-License-Identifier: BSD-2-Clause
// The fake libcuda.so.1: streams, events and copies.
#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <vector>

#include "tests/support/fake_cuda.hpp"

namespace sluice {

using test::FakeCount;

namespace {

// A contiguous part of one end of a copy, kept alive while it is used.
struct Piece {
  std::byte* bytes = nullptr;
  std::size_t size = 0;
  bool of_file = false;
  std::shared_ptr<FakeAllocation> allocation;
};

// The bytes at `address`, up to the end of the range that contains it.
Piece piece_at(CUdeviceptr address, std::size_t size, bool plain_host) REQUIRES(fake().mutex) {
  const auto found = fake().find(address);
  if (found == fake().ranges.end()) {
    return plain_host ? Piece{reinterpret_cast<std::byte*>(address), size, false, nullptr}
                      : Piece{};
  }
  const FakeRange& range = found->second;
  const std::uint64_t skip = address - found->first;
  return {range.bytes + skip, std::min<std::size_t>(size, range.size - skip), range.of_file,
          range.allocation};
}

// A real GPU keeps the pages of a registered file even if the file was truncated; here, reading
// them would raise SIGBUS.
void copy_from_file(std::byte* to, const std::byte* from, std::size_t size) {
  iovec local{to, size};
  iovec remote{const_cast<std::byte*>(from), size};
  const ssize_t got = ::process_vm_readv(::getpid(), &local, 1, &remote, 1, 0);
  const std::size_t done = got > 0 ? static_cast<std::size_t>(got) : 0;
  std::memset(to + done, 0, size - done);
}

bool is_readable_host(const void* address, std::size_t size) {
  char probe[2];
  iovec local{probe, 2};
  auto* first = const_cast<char*>(static_cast<const char*>(address));
  iovec remote[2] = {{first, 1}, {first + size - 1, 1}};
  return ::process_vm_readv(::getpid(), &local, 1, remote, 2, 0) == 2;
}

bool is_plain_host(CUdeviceptr address) {
  const MutexLock lock(fake().mutex);
  return fake().find(address) == fake().ranges.end();
}

// A copy in a stream. If its memory is gone or it must fail, the GPU is lost.
void do_copy(int device, CUdeviceptr to, CUdeviceptr from, std::size_t size, bool to_host,
             bool from_host) {
  int code = fake().faults.next("async");
  if (code == 0 && !fake().copy(to, from, size, to_host, from_host)) {
    code = CUDA_ERROR_ILLEGAL_ADDRESS;
  }
  if (code != 0) fake().lose(device, static_cast<CUresult>(code));
}

CUresult lost(int device) {
  const MutexLock lock(fake().mutex);
  return fake().state[device].lost;
}

}  // namespace

bool FakeCuda::is_valid(CUdeviceptr address, std::size_t size, bool writing) {
  for (std::size_t done = 0; done < size;) {
    const auto found = find(address + done);
    if (found == ranges.end() || !found->second.accessible) return false;
    if (writing && !found->second.writable) return false;
    done += found->second.size - (address + done - found->first);
  }
  return true;
}

bool FakeCuda::move(CUdeviceptr to, CUdeviceptr from, std::size_t size, bool to_host,
                    bool from_host) {
  for (std::size_t done = 0; done < size;) {
    Piece target, source;
    {
      const MutexLock lock(fake().mutex);
      target = piece_at(to + done, size - done, to_host);
      source = piece_at(from + done, size - done, from_host);
    }
    const std::size_t count = std::min(target.size, source.size);
    if (count == 0) return false;
    if (source.of_file) {
      copy_from_file(target.bytes, source.bytes, count);
    } else {
      std::memmove(target.bytes, source.bytes, count);
    }
    done += count;
  }
  return true;
}

bool FakeCuda::copy(CUdeviceptr to, CUdeviceptr from, std::size_t size, bool to_host,
                    bool from_host) {
  if (!move(to, from, size, to_host, from_host)) return false;
  faults.control().add(FakeCount::Copies, 1);
  faults.control().add(FakeCount::CopiedBytes, static_cast<std::int64_t>(size));
  return true;
}

namespace {

enum class Way { ToDevice, ToHost, OnDevice };

CUresult put_copy(int device, Way way, CUdeviceptr to, CUdeviceptr from, std::size_t size,
                  CUstream handle) {
  FakeStream* stream = fake().stream_of(handle, device);
  if (stream == nullptr) return CUDA_ERROR_INVALID_HANDLE;
  if (size == 0) return CUDA_SUCCESS;
  const bool from_host = way == Way::ToDevice && is_plain_host(from);
  const bool to_host = way == Way::ToHost && is_plain_host(to);
  {
    const MutexLock lock(fake().mutex);
    if (!from_host && !fake().is_valid(from, size, false)) return CUDA_ERROR_INVALID_VALUE;
    if (!to_host && !fake().is_valid(to, size, true)) return CUDA_ERROR_INVALID_VALUE;
  }
  if ((from_host && !is_readable_host(reinterpret_cast<void*>(from), size)) ||
      (to_host && !is_readable_host(reinterpret_cast<void*>(to), size))) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  if (from_host) {
    // Pageable memory is read before the call returns.
    auto staged = std::make_shared<std::vector<std::byte>>(size);
    std::memcpy(staged->data(), reinterpret_cast<void*>(from), size);
    stream->put([=] {
      do_copy(device, to, reinterpret_cast<CUdeviceptr>(staged->data()), size, false, true);
    });
    return CUDA_SUCCESS;
  }
  stream->put([=] { do_copy(device, to, from, size, to_host, false); });
  // Pageable memory is written before the call returns, too.
  if (to_host) stream->wait_idle();
  return to_host ? lost(device) : CUDA_SUCCESS;
}

CUresult copy_and_wait(int device, Way way, CUdeviceptr to, CUdeviceptr from, std::size_t size) {
  const CUresult code = put_copy(device, way, to, from, size, nullptr);
  if (code != CUDA_SUCCESS) return code;
  // As with a real GPU, the bytes of pageable memory may arrive after the call.
  if (way == Way::ToDevice && is_plain_host(from)) return CUDA_SUCCESS;
  fake().stream_of(nullptr, device)->wait_idle();
  return lost(device);
}

template <typename Pointer>
CUdeviceptr address_of(Pointer pointer) {
  return reinterpret_cast<CUdeviceptr>(pointer);
}

std::shared_ptr<FakeEvent> event_of(CUevent event) {
  const MutexLock lock(fake().mutex);
  const auto found = fake().events.find(event);
  return found == fake().events.end() ? nullptr : found->second;
}

void wait_for(FakeEvent& event, std::uint64_t number) {
  const MutexLock lock(event.mutex);
  while (event.reached < number) event.changed.wait(event.mutex);
}

}  // namespace

extern "C" {

CUresult cuMemcpyHtoD_v2(CUdeviceptr to, const void* from, std::size_t size) {
  int device = 0;
  FAKE_CUDA_BEGIN("cuMemcpyHtoD", &device);
  return copy_and_wait(device, Way::ToDevice, to, address_of(from), size);
}

CUresult cuMemcpyDtoH_v2(void* to, CUdeviceptr from, std::size_t size) {
  int device = 0;
  FAKE_CUDA_BEGIN("cuMemcpyDtoH", &device);
  return copy_and_wait(device, Way::ToHost, address_of(to), from, size);
}

CUresult cuMemcpyHtoDAsync_v2(CUdeviceptr to, const void* from, std::size_t size, CUstream stream) {
  int device = 0;
  FAKE_CUDA_BEGIN("cuMemcpyHtoDAsync", &device);
  return put_copy(device, Way::ToDevice, to, address_of(from), size, stream);
}

CUresult cuMemcpyDtoHAsync_v2(void* to, CUdeviceptr from, std::size_t size, CUstream stream) {
  int device = 0;
  FAKE_CUDA_BEGIN("cuMemcpyDtoHAsync", &device);
  return put_copy(device, Way::ToHost, address_of(to), from, size, stream);
}

CUresult cuMemcpyDtoDAsync_v2(CUdeviceptr to, CUdeviceptr from, std::size_t size, CUstream stream) {
  int device = 0;
  FAKE_CUDA_BEGIN("cuMemcpyDtoDAsync", &device);
  return put_copy(device, Way::OnDevice, to, from, size, stream);
}

CUresult cuMemsetD8Async(CUdeviceptr to, unsigned char value, std::size_t size, CUstream handle) {
  int device = 0;
  FAKE_CUDA_BEGIN("cuMemsetD8Async", &device);
  FakeStream* stream = fake().stream_of(handle, device);
  if (stream == nullptr) return CUDA_ERROR_INVALID_HANDLE;
  {
    const MutexLock lock(fake().mutex);
    if (!fake().is_valid(to, size, true)) return CUDA_ERROR_INVALID_VALUE;
  }
  const auto bytes = std::make_shared<std::vector<std::byte>>(size, std::byte{value});
  stream->put([=] { do_copy(device, to, address_of(bytes->data()), size, false, true); });
  return CUDA_SUCCESS;
}

CUresult cuCtxSynchronize() {
  int device = 0;
  FAKE_CUDA_BEGIN("cuCtxSynchronize", &device);
  fake().synchronize(device);
  return lost(device);
}

CUresult cuStreamCreate(CUstream* handle, unsigned flags) {
  int device = 0;
  FAKE_CUDA_BEGIN("cuStreamCreate", &device);
  const auto kind =
      flags == kStreamNonBlocking ? FakeStream::Kind::NonBlocking : FakeStream::Kind::Blocking;
  auto stream = std::make_unique<FakeStream>(device, kind);
  const MutexLock lock(fake().mutex);
  *handle = reinterpret_cast<CUstream>(stream.get());
  fake().streams[*handle] = std::move(stream);
  return CUDA_SUCCESS;
}

CUresult cuStreamDestroy_v2(CUstream handle) {
  int device = 0;
  FAKE_CUDA_BEGIN("cuStreamDestroy", &device);
  std::unique_ptr<FakeStream> stream;
  const MutexLock lock(fake().mutex);
  const auto found = fake().streams.find(handle);
  if (found == fake().streams.end()) return CUDA_ERROR_INVALID_HANDLE;
  stream = std::move(found->second);
  fake().streams.erase(found);
  return CUDA_SUCCESS;
}

CUresult cuStreamSynchronize(CUstream handle) {
  int device = 0;
  FAKE_CUDA_BEGIN("cuStreamSynchronize", &device);
  FakeStream* stream = fake().stream_of(handle, device);
  if (stream == nullptr) return CUDA_ERROR_INVALID_HANDLE;
  stream->wait_idle();
  return lost(device);
}

CUresult cuStreamQuery(CUstream handle) {
  int device = 0;
  FAKE_CUDA_BEGIN("cuStreamQuery", &device);
  FakeStream* stream = fake().stream_of(handle, device);
  if (stream == nullptr) return CUDA_ERROR_INVALID_HANDLE;
  return stream->is_idle() ? lost(device) : CUDA_ERROR_NOT_READY;
}

CUresult cuEventCreate(CUevent* handle, unsigned) {
  int device = 0;
  FAKE_CUDA_BEGIN("cuEventCreate", &device);
  auto event = std::make_shared<FakeEvent>();
  const MutexLock lock(fake().mutex);
  *handle = reinterpret_cast<CUevent>(event.get());
  fake().events[*handle] = std::move(event);
  fake().faults.control().add(FakeCount::Events, 1);
  return CUDA_SUCCESS;
}

CUresult cuEventDestroy_v2(CUevent handle) {
  int device = 0;
  FAKE_CUDA_BEGIN("cuEventDestroy", &device);
  const MutexLock lock(fake().mutex);
  if (fake().events.erase(handle) == 0) return CUDA_ERROR_INVALID_HANDLE;
  fake().faults.control().add(FakeCount::Events, -1);
  return CUDA_SUCCESS;
}

CUresult cuEventRecord(CUevent event_handle, CUstream handle) {
  int device = 0;
  FAKE_CUDA_BEGIN("cuEventRecord", &device);
  FakeStream* stream = fake().stream_of(handle, device);
  const auto event = event_of(event_handle);
  if (stream == nullptr || !event) return CUDA_ERROR_INVALID_HANDLE;
  std::uint64_t number = 0;
  {
    const MutexLock lock(event->mutex);
    number = ++event->recorded;
  }
  stream->put([=] {
    const MutexLock lock(event->mutex);
    event->reached = std::max(event->reached, number);
    event->changed.notify_all();
  });
  return CUDA_SUCCESS;
}

CUresult cuEventSynchronize(CUevent handle) {
  int device = 0;
  FAKE_CUDA_BEGIN("cuEventSynchronize", &device);
  const auto event = event_of(handle);
  if (!event) return CUDA_ERROR_INVALID_HANDLE;
  std::uint64_t number = 0;
  {
    const MutexLock lock(event->mutex);
    number = event->recorded;
  }
  wait_for(*event, number);
  return lost(device);
}

CUresult cuEventQuery(CUevent handle) {
  int device = 0;
  FAKE_CUDA_BEGIN("cuEventQuery", &device);
  const auto event = event_of(handle);
  if (!event) return CUDA_ERROR_INVALID_HANDLE;
  const MutexLock lock(event->mutex);
  return event->reached >= event->recorded ? lost(device) : CUDA_ERROR_NOT_READY;
}

CUresult cuLaunchHostFunc(CUstream handle, CUhostFn function, void* user) {
  int device = 0;
  FAKE_CUDA_BEGIN("cuLaunchHostFunc", &device);
  FakeStream* stream = fake().stream_of(handle, device);
  if (stream == nullptr || function == nullptr) return CUDA_ERROR_INVALID_HANDLE;
  stream->put([=] {
    if (lost(device) == CUDA_SUCCESS) function(user);
  });
  return CUDA_SUCCESS;
}

CUresult cuStreamWaitValue32_v2(CUstream handle, CUdeviceptr address, std::uint32_t value,
                                unsigned flags) {
  int device = 0;
  FAKE_CUDA_BEGIN("cuStreamWaitValue32", &device);
  FakeStream* stream = fake().stream_of(handle, device);
  if (stream == nullptr) return CUDA_ERROR_INVALID_HANDLE;
  Piece word;
  {
    const MutexLock lock(fake().mutex);
    word = piece_at(address, sizeof value, false);
  }
  if (word.size != sizeof value || address % sizeof value != 0 || flags > kWaitValueEq) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  stream->put([=] {
    for (;;) {
      const std::uint32_t now =
          __atomic_load_n(reinterpret_cast<std::uint32_t*>(word.bytes), __ATOMIC_ACQUIRE);
      const bool done =
          flags == kWaitValueEq ? now == value : static_cast<std::int32_t>(now - value) >= 0;
      if (done) return;
      ::usleep(20);
    }
  });
  return CUDA_SUCCESS;
}

}  // extern "C"
}  // namespace sluice
