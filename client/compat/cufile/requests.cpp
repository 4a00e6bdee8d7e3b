// SPDX-License-Identifier: BSD-2-Clause
#include "client/compat/cufile/requests.hpp"

#include <algorithm>
#include <climits>
#include <utility>
#include <vector>

#include "client/compat/cufile/errors.hpp"

namespace sluice::dropin {
namespace {

const std::byte* at(const void* base, off_t offset) {
  return static_cast<const std::byte*>(base) + offset;
}

// Transfers vectors of memory that are adjacent in the file. Adjacent vectors in one registration
// become one request. Everything after a short or failed part is skipped.
class VectoredTransfer {
 public:
  VectoredTransfer(const Handle& handle, CUfileOpcode_t operation, off_t file_offset)
      : handle_(handle), operation_(operation), file_offset_(file_offset) {}

  // False if the transfer has ended.
  bool add(MemoryTable& memory, const IoVector& vector) {
    const off_t end = file_offset_ + wanted_;
    const bool is_right = vector.base != nullptr && vector.length <= SSIZE_MAX &&
                          static_cast<off_t>(vector.length) <= SSIZE_MAX - end;
    if (!is_right) return fail(-CU_FILE_INVALID_VALUE);
    Lease lease = memory.lease(vector.base, vector.length);
    if (!lease) return fail(-CU_FILE_CUDA_POINTER_INVALID);
    const bool goes_on = operation_ == CUFILE_READ && lease.registration == lease_.registration;
    if (!goes_on && !execute()) return false;
    segments_.push_back({lease.offset, static_cast<std::uint64_t>(end), vector.length});
    wanted_ += static_cast<ssize_t>(vector.length);
    lease_ = std::move(lease);
    return true;
  }

  // The number of bytes, or a failure if there are none.
  ssize_t finish() {
    if (!has_ended_) execute();
    return done_ > 0 ? done_ : failure_;
  }

 private:
  bool fail(ssize_t failure) {
    if (execute()) failure_ = failure;
    has_ended_ = true;
    return false;
  }

  // Executes the segments that were added since the last call.
  bool execute() {
    if (segments_.empty()) return true;
    const Libsluice& api = *Libsluice::get();
    const auto& first = segments_.front();
    const ssize_t now = operation_ == CUFILE_READ
                            ? api.readv(handle_.file(), lease_.buffer(), segments_.data(),
                                        segments_.size(), nullptr)
                            : api.write(handle_.file(), lease_.buffer(), first.buffer_offset,
                                        first.length, first.file_offset, nullptr);
    segments_.clear();
    if (now < 0) failure_ = now;
    if (now > 0) done_ += now;
    has_ended_ = done_ < wanted_;
    return !has_ended_;
  }

  const Handle& handle_;
  const CUfileOpcode_t operation_;
  const off_t file_offset_;
  Lease lease_;  // of all segments
  std::vector<struct sluice_segment> segments_;
  ssize_t wanted_ = 0, done_ = 0;
  ssize_t failure_ = 0;
  bool has_ended_ = false;
};

// A request that waits in a stream. It owns itself and everything it needs until it is finished.
class StreamRequest {
 public:
  StreamRequest(std::shared_ptr<Handle> handle, Lease lease, const StreamArguments& arguments,
                unsigned flags)
      : handle_(std::move(handle)),
        lease_(std::move(lease)),
        arguments_(arguments),
        size_(*arguments.size),
        file_offset_(*arguments.file_offset),
        base_offset_(*arguments.base_offset) {
    if ((flags & kFixedSize) != 0) arguments_.size = &size_;
    if ((flags & kFixedFileOffset) != 0) arguments_.file_offset = &file_offset_;
    if ((flags & kFixedBaseOffset) != 0) arguments_.base_offset = &base_offset_;
  }

  const Handle& handle() const { return *handle_; }
  const Lease& lease() const { return lease_; }

  static void tell_numbers(void* user, std::size_t* buffer_offset, std::size_t* length,
                           std::uint64_t* file_offset) {
    const auto& self = *static_cast<StreamRequest*>(user);
    // Negative offsets become offsets beyond every limit, which libsluice refuses.
    *buffer_offset = self.lease_.offset + static_cast<std::size_t>(*self.arguments_.base_offset);
    if (*self.arguments_.base_offset < 0) *buffer_offset = SIZE_MAX;
    *length = *self.arguments_.size;
    *file_offset = static_cast<std::uint64_t>(*self.arguments_.file_offset);
  }
  static void finish(void* user, ssize_t done, const struct sluice_result*) {
    const std::unique_ptr<StreamRequest> self(static_cast<StreamRequest*>(user));
    // This thread's errno is not visible to the program.
    if (self->arguments_.done != nullptr) *self->arguments_.done = answer(done);
  }

 private:
  const std::shared_ptr<Handle> handle_;
  const Lease lease_;
  StreamArguments arguments_;
  const std::size_t size_;
  const off_t file_offset_, base_offset_;
};

}  // namespace

ssize_t check(const Range& range) {
  const bool is_right = range.base != nullptr && range.size <= SSIZE_MAX &&
                        range.file_offset >= 0 && range.base_offset >= 0;
  return is_right ? 0 : -CU_FILE_INVALID_VALUE;
}

ssize_t transfer(MemoryTable& memory, const Handle& handle, CUfileOpcode_t operation,
                 const Range& range) {
  if (const ssize_t failure = check(range); failure < 0) return failure;
  if (range.size == 0) return 0;
  const Lease lease = memory.lease(at(range.base, range.base_offset), range.size);
  if (!lease) return -CU_FILE_CUDA_POINTER_INVALID;
  const Libsluice& api = *Libsluice::get();
  const auto function = operation == CUFILE_READ ? api.read : api.write;
  return function(handle.file(), lease.buffer(), lease.offset, range.size,
                  static_cast<std::uint64_t>(range.file_offset), nullptr);
}

ssize_t transfer(MemoryTable& memory, const Handle& handle, CUfileOpcode_t operation,
                 const IoVector* vectors, std::size_t count, off_t file_offset) {
  if ((vectors == nullptr && count > 0) || file_offset < 0) return -CU_FILE_INVALID_VALUE;
  VectoredTransfer transfer(handle, operation, file_offset);
  for (std::size_t i = 0; i < count; ++i) {
    if (vectors[i].length == 0) continue;
    if (!transfer.add(memory, vectors[i])) break;
  }
  return transfer.finish();
}

CUfileError_t put_into_stream(MemoryTable& memory, std::shared_ptr<Handle> handle,
                              CUfileOpcode_t operation, const StreamArguments& arguments,
                              CUstream stream, unsigned flags) {
  if (arguments.size == nullptr || arguments.file_offset == nullptr ||
      arguments.base_offset == nullptr) {
    return result(CU_FILE_INVALID_VALUE);
  }
  // Offsets may still change. The size is the largest possible one.
  const Range range{arguments.base, *arguments.size, *arguments.file_offset,
                    *arguments.base_offset};
  if (const ssize_t failure = check(range); failure < 0) return result_of(failure);
  const std::size_t length = range.size + static_cast<std::size_t>(range.base_offset);
  Lease lease = memory.lease(range.base, std::max<std::size_t>(length, 1));
  if (!lease) return result(CU_FILE_CUDA_POINTER_INVALID);
  auto request =
      std::make_unique<StreamRequest>(std::move(handle), std::move(lease), arguments, flags);
  const Libsluice& api = *Libsluice::get();
  const auto function = operation == CUFILE_READ ? api.read_stream : api.write_stream;
  const int code =
      function(request->handle().file(), request->lease().buffer(), &StreamRequest::tell_numbers,
               &StreamRequest::finish, request.get(), static_cast<void*>(stream));
  if (code < 0) return result_of(code);
  static_cast<void>(request.release());  // the stream owns it now
  return result(CU_FILE_SUCCESS);
}

}  // namespace sluice::dropin
