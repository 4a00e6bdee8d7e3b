// SPDX-License-Identifier: BSD-2-Clause
// The functions of sluice.h.
#include "client/include/sluice/sluice.h"

#include <sys/ioctl.h>

#include <climits>
#include <cstring>
#include <memory>
#include <span>
#include <vector>

#include "client/barrier.hpp"
#include "client/buffer.hpp"
#include "client/file.hpp"
#include "client/library.hpp"
#include "client/request.hpp"
#include "client/stream.hpp"

// ABI: grows at the end only.
static_assert(sizeof(struct sluice_result) == 24);

namespace sluice {
namespace {

const File* file_of(const sluice_file* file) {
  return file != nullptr ? file->file.get() : nullptr;
}

// The arguments of a function that transfers bytes.
struct Call {
  sluice_file* file;
  sluice_buffer* buffer;
  Direction direction;
  std::uint32_t route = SLUICE_ROUTE_AUTO;

  const char* name() const { return direction == Direction::Read ? "read" : "write"; }
};

Result<void> check(const Call& call) {
  SLUICE_TRY(need(call.file != nullptr, "file must not be NULL"));
  SLUICE_TRY(need(call.buffer != nullptr, "buffer must not be NULL"));
  return need(call.route < kRoutes, "unknown route");
}

// REQUIRES: check(call).
Result<std::int64_t> execute(const Call& call, std::span<const Segment> segments,
                             struct sluice_result* result) {
  const auto outcome =
      SLUICE_TRY(execute(Library::get(), {*call.file->file, *call.buffer->buffer, call.direction,
                                          segments, static_cast<Route>(call.route)}));
  if (result != nullptr) *result = result_of(outcome);
  return static_cast<std::int64_t>(outcome.transfer.bytes);
}

ssize_t transfer(const Call& call, std::span<const Segment> segments,
                 struct sluice_result* result) noexcept {
  return barrier(call.name(), file_of(call.file), [&]() -> Result<std::int64_t> {
    SLUICE_TRY(check(call));
    SLUICE_TRY(wait_for_default_stream(Library::get(), *call.buffer->buffer));
    return execute(call, segments, result);
  });
}

class CallbackJob final : public IoPool::Job {
 public:
  CallbackJob(const Call& call, const Segment& segment, sluice_callback callback, void* user)
      : call_(call), segment_(segment), callback_(callback), user_(user) {}

  void run() noexcept override {
    const std::unique_ptr<CallbackJob> self(this);
    struct sluice_result result {};
    const ssize_t done = barrier(call_.name(), file_of(call_.file), [&] {
      return execute(call_, {&segment_, 1}, &result);
    });
    callback_(user_, done, &result);
  }

 private:
  const Call call_;
  const Segment segment_;
  const sluice_callback callback_;
  void* const user_;
};

int begin(const Call& call, const Segment& segment, sluice_callback callback, void* user) noexcept {
  return static_cast<int>(barrier(call.name(), file_of(call.file), [&]() -> Result<std::int64_t> {
    SLUICE_TRY(check(call));
    SLUICE_TRY(need(callback != nullptr, "callback must not be NULL"));
    // Here and not in the job: the default stream may be waiting for another job of the pool.
    SLUICE_TRY(wait_for_default_stream(Library::get(), *call.buffer->buffer));
    auto job = std::make_unique<CallbackJob>(call, segment, callback, user);
    IoPool& pool = Library::get().pool();
    SLUICE_TRY(pool.expect());
    pool.submit(*job.release());
    return 0;
  }));
}

int begin_in_stream(const Call& call, const Segment& segment, void* stream,
                    const StreamCalls& calls) noexcept {
  return static_cast<int>(barrier(call.name(), file_of(call.file), [&]() -> Result<std::int64_t> {
    SLUICE_TRY(check(call));
    SLUICE_TRY(need(calls.numbers != nullptr || calls.user != nullptr, "done must not be NULL"));
    SLUICE_TRY(enqueue(Library::get(), *call.file->file, *call.buffer->buffer, call.direction,
                       segment, stream, calls));
    return 0;
  }));
}

// Stores the result in a variable of the caller.
StreamCalls store_to(ssize_t* done) {
  return {nullptr,
          [](void* user, ssize_t result, const struct sluice_result*) {
            *static_cast<ssize_t*>(user) = result;
          },
          done};
}

int begin_late(const Call& call, const StreamCalls& calls, void* stream) noexcept {
  if (calls.numbers == nullptr || calls.callback == nullptr) {
    say(call.name(), {}, Error{EINVAL, "numbers and callback must not be NULL"});
    return -EINVAL;
  }
  return begin_in_stream(call, {}, stream, calls);
}

// Passes ownership of the opened object to the caller.
template <typename Handle, typename Value>
void hand_over(std::unique_ptr<Value> Handle::*member, std::unique_ptr<Value> value,
               Handle** handle) {
  auto made = std::make_unique<Handle>();
  made.get()->*member = std::move(value);
  *handle = made.release();
}

void hand_over(std::unique_ptr<File> file, sluice_file** handle) {
  File& opened = *file;
  hand_over(&sluice_file::file, std::move(file), handle);
  Library::get().add(opened);
}

// What the engine of this process would do, in the form of the daemon's reply.
Result<struct sluice_query> query_engine(Library& library, File& file, Device* device) {
  struct sluice_query query {};
  query.abi_version = SLUICE_ABI_VERSION;
  query.file_size = SLUICE_TRY(file.size());
  query.max_segments = SLUICE_MAX_SEGMENTS;
  const auto preview = library.engine().preview(file.for_engine(), query.file_size, device);
  query.route = static_cast<std::uint32_t>(preview.route);
  query.why = static_cast<std::uint32_t>(preview.why);
  query.alignment = preview.alignment;
  if (device != nullptr) {
    query.gpus = static_cast<__u32>(library.engine().devices().all().size());
    std::memcpy(query.gpu_uuid, device->uuid().data(), sizeof query.gpu_uuid);
  }
  preview.words.copy(query.reason, sizeof query.reason - 1);
  return query;
}

Result<struct sluice_query> query(Library& library, File& file, const Buffer* buffer) {
  if (buffer != nullptr) SLUICE_TRY(check(library, *buffer));
  const bool wants_gpu = buffer == nullptr || buffer->device() != nullptr;
  if (wants_gpu && (buffer == nullptr || buffer->is_for_daemon())) {
    const auto& daemon = file.daemon();
    if (daemon && daemon->gpus > 0) {
      struct sluice_query answer {};
      if (buffer != nullptr) {
        std::memcpy(answer.gpu_uuid, buffer->device()->uuid().data(), sizeof answer.gpu_uuid);
      }
      if (::ioctl(file.fd(), SLUICE_IOC_QUERY, &answer) == 0) return answer;
    }
  }
  const ContextKeeper keeper(library.cuda());
  Device* device = buffer != nullptr ? buffer->device() : nullptr;
  if (buffer == nullptr) {
    device = SLUICE_TRY(library.devices())->all().front().get();
  }
  auto answer = SLUICE_TRY(query_engine(library, file, device));
  if (const auto& daemon = file.daemon())
    std::memcpy(answer.tier, daemon->tier, sizeof answer.tier);
  return answer;
}

Result<void> prefetch(Library& library, File& file, std::uint64_t offset, std::uint64_t length,
                      std::uint32_t flags) {
  constexpr std::uint32_t kKnown =
      SLUICE_PREFETCH_WARM | SLUICE_PREFETCH_PROMOTE | SLUICE_PREFETCH_HBM;
  SLUICE_TRY(need((flags & ~kKnown) == 0, "unknown flag"));
  if (file.daemon()) {
    struct sluice_prefetch request {};
    request.offset = offset;
    request.length = length;
    request.flags = flags;
    if (::ioctl(file.fd(), SLUICE_IOC_PREFETCH, &request) == 0) return {};
    if (errno != ENOTTY && errno != ENOSYS) return Error::last("request to the daemon");
  }
  if ((flags & SLUICE_PREFETCH_PROMOTE) != 0) {
    return Error{EOPNOTSUPP, "the file is not on a Sluice mount: it has no faster tier"};
  }
  if ((flags & SLUICE_PREFETCH_HBM) != 0) {
    return Error{EOPNOTSUPP, "the file is not on a Sluice mount: nobody keeps it in GPU memory"};
  }
  return library.engine().warm(file.for_engine(), offset, length);
}

}  // namespace
}  // namespace sluice

using namespace sluice;  // NOLINT(google-build-using-namespace): C functions have no namespace.

SLUICE_API int sluice_open(const char* path, int flags, mode_t mode, sluice_file** file) {
  const auto code = barrier("open", path, [&]() -> Result<std::int64_t> {
    SLUICE_TRY(need(path != nullptr, "path must not be NULL"));
    SLUICE_TRY(need(file != nullptr, "file must not be NULL"));
    hand_over(SLUICE_TRY(File::open(path, flags, mode)), file);
    return 0;
  });
  return static_cast<int>(code);
}

SLUICE_API int sluice_open_fd(int fd, sluice_file** file) {
  const auto code = barrier("open a descriptor", kNowhere, [&]() -> Result<std::int64_t> {
    SLUICE_TRY(need(file != nullptr, "file must not be NULL"));
    hand_over(SLUICE_TRY(File::borrow(fd)), file);
    return 0;
  });
  return static_cast<int>(code);
}

SLUICE_API void sluice_close(sluice_file* file) {
  if (file == nullptr) return;
  barrier("close", kNowhere, [&]() -> Result<std::int64_t> {
    const std::unique_ptr<sluice_file> owned(file);
    Library& library = Library::get();
    library.remove(*file->file);
    // Registered page cache stays for a while, in case the file is opened again. A deleted file
    // can't be opened again.
    if (file->file->is_deleted()) {
      const ContextKeeper keeper(library.cuda());
      library.engine().forget(file->file->for_engine());
    }
    return 0;
  });
}

SLUICE_API int64_t sluice_size(sluice_file* file) {
  return barrier("stat", file_of(file), [&]() -> Result<std::int64_t> {
    SLUICE_TRY(need(file != nullptr, "file must not be NULL"));
    return static_cast<std::int64_t>(SLUICE_TRY(file->file->size()));
  });
}

SLUICE_API int sluice_buffer_register(void* memory, size_t length, sluice_buffer** buffer) {
  const auto code = barrier("register memory", kNowhere, [&]() -> Result<std::int64_t> {
    SLUICE_TRY(need(buffer != nullptr, "buffer must not be NULL"));
    hand_over(&sluice_buffer::buffer, SLUICE_TRY(Buffer::create(Library::get(), memory, length)),
              buffer);
    return 0;
  });
  return static_cast<int>(code);
}

SLUICE_API void sluice_buffer_unregister(sluice_buffer* buffer) {
  if (buffer == nullptr) return;
  barrier("unregister memory", kNowhere, [&]() -> Result<std::int64_t> {
    const ContextKeeper keeper(buffer->buffer->device() != nullptr ? Library::get().cuda()
                                                                   : nullptr);
    const std::unique_ptr<sluice_buffer> owned(buffer);
    Library::get().forget(*buffer->buffer);
    return 0;
  });
}

SLUICE_API void sluice_buffer_unordered(sluice_buffer* buffer) {
  if (buffer != nullptr) buffer->buffer->do_not_order();
}

SLUICE_API ssize_t sluice_read(sluice_file* file, sluice_buffer* buffer, size_t buffer_offset,
                               size_t length, uint64_t file_offset, struct sluice_result* result) {
  const Segment segment{buffer_offset, file_offset, length};
  return transfer({file, buffer, Direction::Read}, {&segment, 1}, result);
}

SLUICE_API ssize_t sluice_write(sluice_file* file, sluice_buffer* buffer, size_t buffer_offset,
                                size_t length, uint64_t file_offset, struct sluice_result* result) {
  const Segment segment{buffer_offset, file_offset, length};
  return transfer({file, buffer, Direction::Write}, {&segment, 1}, result);
}

SLUICE_API ssize_t sluice_readv(sluice_file* file, sluice_buffer* buffer,
                                const struct sluice_segment* segments, size_t count,
                                struct sluice_result* result) {
  return barrier("read", file_of(file), [&]() -> Result<std::int64_t> {
    SLUICE_TRY(need(segments != nullptr || count == 0, "segments must not be NULL"));
    std::vector<Segment> wanted(count);
    std::uint64_t sum = 0;
    for (size_t i = 0; i < count; ++i) {
      wanted[i] = {segments[i].buffer_offset, segments[i].file_offset, segments[i].length};
      if (__builtin_add_overflow(sum, segments[i].length, &sum) || sum > SSIZE_MAX) {
        return Error{EINVAL, "the segments are too large together"};
      }
    }
    // transfer() has set the text of an error, so this must not return an Error.
    return transfer({file, buffer, Direction::Read}, wanted, result);
  });
}

SLUICE_API ssize_t sluice_read_route(sluice_file* file, sluice_buffer* buffer, size_t buffer_offset,
                                     size_t length, uint64_t file_offset, uint32_t route,
                                     struct sluice_result* result) {
  const Segment segment{buffer_offset, file_offset, length};
  return transfer({file, buffer, Direction::Read, route}, {&segment, 1}, result);
}

SLUICE_API int sluice_read_async(sluice_file* file, sluice_buffer* buffer, size_t buffer_offset,
                                 size_t length, uint64_t file_offset, sluice_callback callback,
                                 void* user) {
  return begin({file, buffer, Direction::Read}, {buffer_offset, file_offset, length}, callback,
               user);
}

SLUICE_API int sluice_write_async(sluice_file* file, sluice_buffer* buffer, size_t buffer_offset,
                                  size_t length, uint64_t file_offset, sluice_callback callback,
                                  void* user) {
  return begin({file, buffer, Direction::Write}, {buffer_offset, file_offset, length}, callback,
               user);
}

SLUICE_API int sluice_read_stream(sluice_file* file, sluice_buffer* buffer, size_t buffer_offset,
                                  size_t length, uint64_t file_offset, void* stream,
                                  ssize_t* done) {
  return begin_in_stream({file, buffer, Direction::Read}, {buffer_offset, file_offset, length},
                         stream, store_to(done));
}

SLUICE_API int sluice_write_stream(sluice_file* file, sluice_buffer* buffer, size_t buffer_offset,
                                   size_t length, uint64_t file_offset, void* stream,
                                   ssize_t* done) {
  return begin_in_stream({file, buffer, Direction::Write}, {buffer_offset, file_offset, length},
                         stream, store_to(done));
}

SLUICE_API int sluice_read_stream_late(sluice_file* file, sluice_buffer* buffer,
                                       sluice_numbers numbers, sluice_callback callback, void* user,
                                       void* stream) {
  return begin_late({file, buffer, Direction::Read}, {numbers, callback, user}, stream);
}

SLUICE_API int sluice_write_stream_late(sluice_file* file, sluice_buffer* buffer,
                                        sluice_numbers numbers, sluice_callback callback,
                                        void* user, void* stream) {
  return begin_late({file, buffer, Direction::Write}, {numbers, callback, user}, stream);
}

SLUICE_API int sluice_prefetch(sluice_file* file, uint64_t offset, uint64_t length,
                               uint32_t flags) {
  const auto code = barrier("prefetch", file_of(file), [&]() -> Result<std::int64_t> {
    SLUICE_TRY(need(file != nullptr, "file must not be NULL"));
    SLUICE_TRY(prefetch(Library::get(), *file->file, offset, length, flags));
    return 0;
  });
  return static_cast<int>(code);
}

SLUICE_API int sluice_query_file(sluice_file* file, sluice_buffer* buffer,
                                 struct sluice_query* answer) {
  const auto code = barrier("query", file_of(file), [&]() -> Result<std::int64_t> {
    SLUICE_TRY(need(file != nullptr, "file must not be NULL"));
    SLUICE_TRY(need(answer != nullptr, "query must not be NULL"));
    *answer = SLUICE_TRY(
        query(Library::get(), *file->file, buffer != nullptr ? buffer->buffer.get() : nullptr));
    return 0;
  });
  return static_cast<int>(code);
}

// The tables contain literals, so the strings are null-terminated.
SLUICE_API const char* sluice_route_name(uint32_t route) {
  return name_of(static_cast<Route>(route)).data();
}

SLUICE_API const char* sluice_why_text(uint32_t why) {
  return text_of(static_cast<Why>(why)).data();
}

SLUICE_API const char* sluice_error(void) { return last_sentence(); }

SLUICE_API const char* sluice_version(void) { return SLUICE_VERSION; }
