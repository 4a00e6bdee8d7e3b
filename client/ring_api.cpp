// SPDX-License-Identifier: BSD-2-Clause
// The functions of ring.h.
#include <climits>

#include "client/barrier.hpp"
#include "client/include/sluice/ring.h"
#include "client/ring.hpp"

namespace sluice {
namespace {

template <typename Work>
int call(const char* what, Work work) noexcept {
  return static_cast<int>(barrier(what, kNowhere, work));
}

// The same for functions with a ring.
template <typename Work>
int call(const char* what, sluice_ring* ring, Work work) noexcept {
  return call(what, [&]() -> Result<std::int64_t> {
    SLUICE_TRY(need(ring != nullptr, "ring must not be NULL"));
    return work(*ring->ring);
  });
}

int create(unsigned entries, Ring::Servers servers, sluice_ring** ring) noexcept {
  return call("create a ring", [&]() -> Result<std::int64_t> {
    SLUICE_TRY(need(ring != nullptr, "ring must not be NULL"));
    auto made = std::make_unique<sluice_ring>();
    made->ring = SLUICE_TRY(Ring::create(Library::get(), entries, servers));
    *ring = made.release();
    return 0;
  });
}

int put(sluice_ring* ring, std::uint32_t operation, int file, int buffer, const Segment& segment,
        std::uint64_t user_data) noexcept {
  return call("put a request into a ring", ring, [&](Ring& to) -> Result<std::int64_t> {
    SLUICE_TRY(need(file >= 0 && buffer >= 0, "unknown file or buffer"));
    SLUICE_TRY(to.put({operation, static_cast<unsigned>(file), static_cast<unsigned>(buffer),
                       segment, user_data}));
    return 0;
  });
}

void hand_over(std::unique_ptr<Buffer> made, sluice_buffer** buffer) {
  auto handle = std::make_unique<sluice_buffer>();
  handle->buffer = std::move(made);
  *buffer = handle.release();
}

}  // namespace
}  // namespace sluice

using namespace sluice;  // NOLINT(google-build-using-namespace): C functions have no namespace.

SLUICE_API int sluice_ring_create(unsigned entries, sluice_ring** ring) {
  return create(entries, Ring::Servers::DaemonAndProcess, ring);
}

SLUICE_API int sluice_ring_create_in_process(unsigned entries, sluice_ring** ring) {
  return create(entries, Ring::Servers::Process, ring);
}

SLUICE_API void sluice_ring_destroy(sluice_ring* ring) {
  if (ring == nullptr) return;
  call("destroy a ring", [&]() -> Result<std::int64_t> {
    const std::unique_ptr<sluice_ring> owned(ring);
    return 0;
  });
}

SLUICE_API int sluice_ring_add_file(sluice_ring* ring, sluice_file* file) {
  return call("add a file to a ring", ring, [&](Ring& to) -> Result<std::int64_t> {
    SLUICE_TRY(need(file != nullptr, "file must not be NULL"));
    return std::int64_t{SLUICE_TRY(to.add(*file->file))};
  });
}

SLUICE_API int sluice_ring_drop_file(sluice_ring* ring, int file) {
  return call("drop a file of a ring", ring, [&](Ring& from) -> Result<std::int64_t> {
    SLUICE_TRY(from.drop_file(static_cast<unsigned>(file)));
    return 0;
  });
}

SLUICE_API int sluice_ring_add_buffer(sluice_ring* ring, sluice_buffer* buffer) {
  return call("add a buffer to a ring", ring, [&](Ring& to) -> Result<std::int64_t> {
    SLUICE_TRY(need(buffer != nullptr, "buffer must not be NULL"));
    return std::int64_t{SLUICE_TRY(to.add(*buffer->buffer))};
  });
}

SLUICE_API int sluice_ring_drop_buffer(sluice_ring* ring, int buffer) {
  return call("drop a buffer of a ring", ring, [&](Ring& from) -> Result<std::int64_t> {
    SLUICE_TRY(from.drop_buffer(static_cast<unsigned>(buffer)));
    return 0;
  });
}

SLUICE_API int sluice_ring_read(sluice_ring* ring, int file, int buffer, uint64_t buffer_offset,
                                uint64_t length, uint64_t file_offset, uint64_t user_data) {
  return put(ring, SLUICE_RING_READ, file, buffer, {buffer_offset, file_offset, length}, user_data);
}

SLUICE_API int sluice_ring_write(sluice_ring* ring, int file, int buffer, uint64_t buffer_offset,
                                 uint64_t length, uint64_t file_offset, uint64_t user_data) {
  return put(ring, SLUICE_RING_WRITE, file, buffer, {buffer_offset, file_offset, length},
             user_data);
}

SLUICE_API int sluice_ring_submit(sluice_ring* ring) {
  return call("submit", ring, [&](Ring& to) -> Result<std::int64_t> {
    return std::int64_t{SLUICE_TRY(to.submit())};
  });
}

SLUICE_API int sluice_ring_wait(sluice_ring* ring, struct sluice_ring_completion* completions,
                                unsigned most, unsigned least, const struct timespec* timeout) {
  return call("wait for a ring", ring, [&](Ring& from) -> Result<std::int64_t> {
    SLUICE_TRY(need(completions != nullptr || most == 0, "completions must not be NULL"));
    std::optional<std::chrono::nanoseconds> limit;
    if (timeout != nullptr) {
      limit = std::chrono::seconds(timeout->tv_sec) + std::chrono::nanoseconds(timeout->tv_nsec);
    }
    return std::int64_t{
        SLUICE_TRY(from.wait({completions, std::min<unsigned>(most, INT_MAX)}, least, limit))};
  });
}

SLUICE_API int sluice_ring_eventfd(sluice_ring* ring) {
  return call("make an eventfd for a ring", ring, [&](Ring& of) -> Result<std::int64_t> {
    return std::int64_t{SLUICE_TRY(of.event_fd())};
  });
}

SLUICE_API int sluice_buffer_create(size_t length, sluice_buffer** buffer) {
  return call("create a buffer", [&]() -> Result<std::int64_t> {
    SLUICE_TRY(need(buffer != nullptr, "buffer must not be NULL"));
    hand_over(SLUICE_TRY(Buffer::create_shared(length)), buffer);
    return 0;
  });
}

SLUICE_API void* sluice_buffer_memory(sluice_buffer* buffer) {
  if (buffer == nullptr) return nullptr;
  Memory& memory = buffer->buffer->memory();
  if (memory.device() == nullptr) return memory.host();
  // NOLINTNEXTLINE(performance-no-int-to-ptr): CUDA programs use such addresses as pointers.
  return reinterpret_cast<void*>(memory.address());
}

SLUICE_API int sluice_buffer_export(sluice_buffer* buffer, struct sluice_shared_buffer* shared) {
  return call("export a buffer", [&]() -> Result<std::int64_t> {
    SLUICE_TRY(need(buffer != nullptr, "buffer must not be NULL"));
    SLUICE_TRY(need(shared != nullptr, "shared must not be NULL"));
    const ContextKeeper keeper(Library::get().cuda());
    *shared = SLUICE_TRY(buffer->buffer->share());
    return 0;
  });
}

SLUICE_API int sluice_buffer_import(const struct sluice_shared_buffer* shared,
                                    sluice_buffer** buffer) {
  return call("import a buffer", [&]() -> Result<std::int64_t> {
    SLUICE_TRY(need(shared != nullptr, "shared must not be NULL"));
    SLUICE_TRY(need(buffer != nullptr, "buffer must not be NULL"));
    hand_over(SLUICE_TRY(Buffer::import(Library::get(), *shared)), buffer);
    return 0;
  });
}
