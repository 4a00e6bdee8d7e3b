// SPDX-License-Identifier: BSD-2-Clause
#include "client/ring.hpp"

#include <fcntl.h>
#include <sys/eventfd.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <bit>
#include <system_error>

#include "base/thread.hpp"
#include "client/request.hpp"
#include "client/signals_blocked.hpp"

namespace sluice {
namespace {

using std::chrono::steady_clock;

// How long wait() polls before it sleeps. Small reads take less.
constexpr std::chrono::microseconds kSpin{20};
// How often a sleeping wait() checks whether the daemon still runs.
constexpr std::chrono::nanoseconds kNap = std::chrono::seconds(1);

template <typename Slot>
unsigned free_slot(std::vector<Slot>& slots, bool (*is_free)(const Slot&)) {
  const auto found = std::find_if(slots.begin(), slots.end(), is_free);
  if (found != slots.end()) return static_cast<unsigned>(found - slots.begin());
  slots.emplace_back();
  return static_cast<unsigned>(slots.size() - 1);
}

}  // namespace

Result<std::unique_ptr<Ring>> Ring::create(Library& library, unsigned entries) {
  if (entries == 0 || entries > SLUICE_RING_MAX_ENTRIES) {
    return Error{EINVAL, "a ring must have between 1 and 32,768 entries"};
  }
  const std::uint32_t places = std::bit_ceil(entries);
  auto shared = SLUICE_TRY(RingQueue::create(places));
  auto own = SLUICE_TRY(RingQueue::create(places));
  return std::unique_ptr<Ring>(new Ring(library, std::move(shared), std::move(own), places));
}

Ring::Ring(Library& library, std::unique_ptr<RingQueue> shared, std::unique_ptr<RingQueue> own,
           std::uint32_t entries)
    : library_(library),
      entries_(entries),
      shared_(std::move(shared)),
      own_(std::move(own)),
      bell_{&shared_->header().waiting, &shared_->header().bell} {}

Ring::~Ring() {
  std::jthread notifier;
  {
    const MutexLock lock(mutex_);
    notifier = std::move(notifier_);
  }
  notifier.request_stop();
  std::atomic_ref(*bell_.bell).fetch_add(1);
  futex_wake(bell_.bell);
  if (notifier.joinable()) notifier.join();

  std::unique_ptr<RingServer> server;
  {
    const MutexLock lock(mutex_);
    server = std::move(server_);
  }
  server.reset();  // without the lock, because the server's thread takes it
  const MutexLock lock(mutex_);
  if (ring_id_ == 0) return;
  struct sluice_ring_destroy request {
    ring_id_
  };
  ::ioctl(anchor_.get(), SLUICE_IOC_RING_DESTROY, &request);
  // The anchor shares the caller's open file, so closing it would not unregister the buffers.
  for (const BufferSlot& slot : buffers_) unregister_from_daemon(anchor_.get(), slot.ids);
}

Result<unsigned> Ring::add(File& file) {
  const MutexLock lock(mutex_);
  bind(file);
  std::uint64_t token = 0;
  struct stat status {};
  // The daemon of another mount may have a ring with the same id.
  if (ring_id_ != 0 && ::fstat(file.fd(), &status) == 0 && status.st_dev == mount_) {
    struct sluice_ring_file request {
      ring_id_, 0
    };
    if (::ioctl(file.fd(), SLUICE_IOC_RING_ADD_FILE, &request) == 0) token = request.file;
  }
  const unsigned index = free_slot<FileSlot>(
      files_, [](auto& each) { return each.file == nullptr && each.uses.under_way == 0; });
  files_[index].file = &file;
  files_[index].token = token;
  return index;
}

void Ring::bind(File& file) {
  if (ring_id_ != 0 || is_refused_ || !file.daemon()) return;
  struct stat status {};
  UniqueFd anchor(::fcntl(file.fd(), F_DUPFD_CLOEXEC, 0));
  if (!anchor || ::fstat(anchor.get(), &status) < 0) return;
  struct sluice_ring_create request {};
  request.fd = shared_->fd().get();
  request.length = shared_->memory().size();
  if (::ioctl(anchor.get(), SLUICE_IOC_RING_CREATE, &request) < 0) {
    // For example an old daemon, another PID namespace or too many rings. This process serves the
    // ring.
    is_refused_ = true;
    return;
  }
  ring_id_ = request.ring;
  mount_ = status.st_dev;
  anchor_ = std::move(anchor);
  const ContextKeeper keeper(library_.cuda());
  for (BufferSlot& slot : buffers_) {
    if (slot.buffer == nullptr) continue;
    if (auto ids = slot.buffer->register_with_daemon(anchor_.get())) slot.ids = *std::move(ids);
  }
}

Result<unsigned> Ring::add(Buffer& buffer) {
  SLUICE_TRY(check(library_, buffer));
  const ContextKeeper keeper(buffer.device() != nullptr ? library_.cuda() : nullptr);
  const MutexLock lock(mutex_);
  std::vector<std::uint64_t> ids;
  // If the daemon refuses the buffer, this process executes its requests.
  if (ring_id_ != 0) {
    if (auto known = buffer.register_with_daemon(anchor_.get())) ids = *std::move(known);
  }
  const unsigned index = free_slot<BufferSlot>(
      buffers_, [](auto& each) { return each.buffer == nullptr && each.uses.under_way == 0; });
  buffers_[index].buffer = &buffer;
  buffers_[index].ids = std::move(ids);
  return index;
}

Result<void> Ring::drop_file(unsigned file) {
  const MutexLock lock(mutex_);
  if (file >= files_.size() || files_[file].file == nullptr) {
    return Error{ENOENT, "the ring has no such file"};
  }
  if (const std::uint64_t token = files_[file].token; token != 0) {
    struct sluice_ring_file request {
      ring_id_, token
    };
    ::ioctl(anchor_.get(), SLUICE_IOC_RING_DROP_FILE, &request);
  }
  files_[file].file = nullptr;
  files_[file].token = 0;
  ++files_[file].uses.tenant;
  while (files_[file].uses.under_way > 0) idle_.wait(mutex_);
  return {};
}

Result<void> Ring::drop_buffer(unsigned buffer) {
  const MutexLock lock(mutex_);
  if (buffer >= buffers_.size() || buffers_[buffer].buffer == nullptr) {
    return Error{ENOENT, "the ring has no such buffer"};
  }
  unregister_from_daemon(anchor_.get(), buffers_[buffer].ids);
  buffers_[buffer].buffer = nullptr;
  buffers_[buffer].ids.clear();
  ++buffers_[buffer].uses.tenant;
  while (buffers_[buffer].uses.under_way > 0) idle_.wait(mutex_);
  return {};
}

std::optional<sluice_ring_entry> Ring::for_daemon(const Request& request) {
  const FileSlot& file = files_[request.file];
  const BufferSlot& buffer = buffers_[request.buffer];
  if (file.token == 0 || buffer.ids.empty()) return std::nullopt;
  const auto& pieces = buffer.buffer->pieces();
  // The last piece that begins at or before the request.
  const auto next = std::upper_bound(pieces.begin(), pieces.end(), request.segment.memory_offset,
                                     [](auto offset, auto& each) { return offset < each.offset; });
  const auto piece = next - 1;
  const std::uint64_t offset = request.segment.memory_offset - piece->offset;
  // A request that spans two pieces is executed in this process.
  if (next != pieces.end() && request.segment.length > piece->length - offset) return std::nullopt;
  const auto id = buffer.ids[static_cast<std::size_t>(piece - pieces.begin())];
  return sluice_ring_entry{
      request.user_data,      file.token,        id, offset, request.segment.file_offset,
      request.segment.length, request.operation, 0,  0};
}

Result<void> Ring::start_own() {
  if (server_) return {};
  auto server = SLUICE_TRY(
      RingServer::create(own_->memory(), *this, bell_, std::uint64_t{SLUICE_RING_IN_PROCESS}));
  const SignalsBlocked blocked;
  SLUICE_TRY(server->start());
  server_ = std::move(server);
  return {};
}

template <typename Slot>
std::uint64_t Ring::id_in(const std::vector<Slot>& slots, unsigned index) {
  return std::uint64_t{slots[index].uses.tenant} << 32 | index;
}

template <typename Slot>
Slot* Ring::slot_with_id(std::vector<Slot>& slots, std::uint64_t id) {
  const auto index = static_cast<std::uint32_t>(id);
  return index < slots.size() && id_in(slots, index) == id ? &slots[index] : nullptr;
}

Result<void> Ring::put(const Request& request) {
  const MutexLock lock(mutex_);
  if (request.file >= files_.size() || files_[request.file].file == nullptr) {
    return Error{ENOENT, "the ring has no such file"};
  }
  if (request.buffer >= buffers_.size() || buffers_[request.buffer].buffer == nullptr) {
    return Error{ENOENT, "the ring has no such buffer"};
  }
  if (with_daemon_.load() + with_own_.load() >= entries_) return Error{EAGAIN, "the ring is full"};
  if (const auto entry = for_daemon(request)) {
    with_daemon_.fetch_add(1);
    shared_->put(*entry);
  } else {
    SLUICE_TRY(start_own());
    const Segment& segment = request.segment;
    own_->put({request.user_data, id_in(files_, request.file), id_in(buffers_, request.buffer),
               segment.memory_offset, segment.file_offset, segment.length, request.operation, 0,
               0});
    with_own_.fetch_add(1);
  }
  return {};
}

Result<unsigned> Ring::submit() {
  SLUICE_TRY(check_servers(false));
  const MutexLock lock(mutex_);
  return shared_->submit() + own_->submit();
}

unsigned Ring::reap(std::span<sluice_ring_completion> out) {
  const MutexLock lock(reaping_);
  const unsigned daemons = shared_->reap(out);
  const unsigned ours = own_->reap(out.subspan(daemons));
  with_daemon_.fetch_sub(daemons);
  with_own_.fetch_sub(ours);
  return daemons + ours;
}

Result<void> Ring::check_servers(bool ask) {
  if (const int why = own_->ended(); why != 0 && with_own_.load() > 0) {
    return Error{why, "this process no longer serves the ring"};
  }
  if (with_daemon_.load() == 0) return {};
  if (const int why = shared_->ended(); why != 0) {
    return Error{why, "the daemon no longer serves the ring"};
  }
  if (!ask) return {};
  // There is no buffer 0, so a running daemon replies ENOENT.
  struct sluice_buffer_unregister request {};
  if (::ioctl(anchor_.get(), SLUICE_IOC_BUFFER_UNREGISTER, &request) < 0 && errno != ENOENT) {
    return Error::last("check that the daemon runs");
  }
  return {};
}

Result<unsigned> Ring::wait(std::span<sluice_ring_completion> out, unsigned least,
                            std::optional<std::chrono::nanoseconds> timeout) {
  least = std::min(least, static_cast<unsigned>(out.size()));
  const auto begin = steady_clock::now();
  unsigned got = reap(out);
  auto progress = begin;
  while (got < least) {
    const std::uint32_t bell = std::atomic_ref(*bell_.bell).load();
    const auto now = steady_clock::now();
    if (now - progress > kSpin) {
      std::atomic_ref(*bell_.waiting).store(1);
    }
    if (const unsigned more = reap(out.subspan(got)); more > 0) {
      got += more;
      progress = now;
      continue;
    }
    const bool is_over = timeout && now - begin >= *timeout;
    const auto alive = check_servers(now - progress > kNap);
    if (is_over || !alive) {
      if (got > 0) break;  // the next call returns the error
      if (!alive) return alive.error();
      return Error{ETIMEDOUT, "no completion arrived before the timeout"};
    }
    if (now - progress <= kSpin) continue;
    const auto limit = timeout ? std::min(kNap, *timeout - (now - begin)) : kNap;
    futex_wait(bell_.bell, bell, limit);
  }
  return got;
}

Result<int> Ring::event_fd() {
  const MutexLock lock(mutex_);
  if (event_) return event_.get();
  UniqueFd event(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  if (!event) return Error::last("eventfd");
  const SignalsBlocked blocked;
  const auto notify = [this, fd = event.get()](const std::stop_token& stop) {
    begin_thread("sluice-ring-evt");
    std::uint32_t seen = 0;
    int ends_told = 0;  // number of queues whose end was reported
    while (!stop.stop_requested()) {
      const std::uint32_t bell = std::atomic_ref(*bell_.bell).load();
      std::atomic_ref(*bell_.waiting).store(1);
      const std::uint32_t now = shared_->completed() + own_->completed();
      const int ends = (shared_->ended() != 0 ? 1 : 0) + (own_->ended() != 0 ? 1 : 0);
      if (now != seen || ends != ends_told) {
        const std::uint64_t one = 1;
        [[maybe_unused]] const ssize_t written = ::write(fd, &one, sizeof one);
        seen = now;
        ends_told = ends;
        continue;
      }
      futex_wait(bell_.bell, bell, kNap);
    }
  };
  try {
    notifier_ = std::jthread(notify);
  } catch (const std::system_error&) {
    return Error{EAGAIN, "start a thread for the eventfd"};
  }
  event_ = std::move(event);
  return event_.get();
}

Result<Transfer> Ring::do_here(std::uint64_t file, std::uint64_t buffer,
                               std::span<const Segment> segments, bool is_read) {
  File* from = nullptr;
  Buffer* to = nullptr;
  {
    const MutexLock lock(mutex_);
    FileSlot* const in_files = slot_with_id(files_, file);
    BufferSlot* const in_buffers = slot_with_id(buffers_, buffer);
    if (in_files == nullptr) return Error{EBADF, "the file was dropped"};
    if (in_buffers == nullptr) return Error{ENOENT, "the buffer was dropped"};
    from = in_files->file;
    to = in_buffers->buffer;
    ++in_files->uses.under_way;
    ++in_buffers->uses.under_way;
  }
  // drop_file() and drop_buffer() wait until this is destroyed.
  struct Use {
    Ring& ring;
    const std::uint32_t file, buffer;
    ~Use() {
      const MutexLock lock(ring.mutex_);
      --ring.files_[file].uses.under_way;
      --ring.buffers_[buffer].uses.under_way;
      ring.idle_.notify_all();
    }
  };
  const Use use{*this, static_cast<std::uint32_t>(file), static_cast<std::uint32_t>(buffer)};
  const auto outcome = SLUICE_TRY(execute(
      library_, {*from, *to, is_read ? Direction::Read : Direction::Write, segments, Route::Auto}));
  return outcome.transfer;
}

Result<Transfer> Ring::read(std::uint64_t file, std::uint64_t buffer,
                            std::span<const Segment> segments) {
  return do_here(file, buffer, segments, true);
}

Result<Transfer> Ring::write(std::uint64_t file, std::uint64_t buffer, const Segment& segment) {
  return do_here(file, buffer, {&segment, 1}, false);
}

}  // namespace sluice
