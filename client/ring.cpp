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
#include "client/stream.hpp"

namespace sluice {
namespace {

using std::chrono::steady_clock;

// How long wait() polls before it sleeps. Small reads take less.
constexpr std::chrono::microseconds kSpin{20};

template <typename Slot>
unsigned free_slot(std::vector<Slot>& slots, bool (*is_free)(const Slot&)) {
  const auto found = std::find_if(slots.begin(), slots.end(), is_free);
  if (found != slots.end()) return static_cast<unsigned>(found - slots.begin());
  slots.emplace_back();
  return static_cast<unsigned>(slots.size() - 1);
}

}  // namespace

Result<std::unique_ptr<Ring>> Ring::create(Library& library, unsigned entries, Servers servers) {
  if (entries == 0 || entries > SLUICE_RING_MAX_ENTRIES) {
    return Error{EINVAL, "a ring must have between 1 and 32,768 entries"};
  }
  const std::uint32_t places = std::bit_ceil(entries);
  auto shared = SLUICE_TRY(RingQueue::create(places));
  auto own = SLUICE_TRY(RingQueue::create(places));
  return std::unique_ptr<Ring>(
      new Ring(library, std::move(shared), std::move(own), places, servers));
}

Ring::Ring(Library& library, std::unique_ptr<RingQueue> shared, std::unique_ptr<RingQueue> own,
           std::uint32_t entries, Servers servers)
    : library_(library),
      entries_(entries),
      shared_(std::move(shared)),
      own_(std::move(own)),
      bell_{&shared_->header().waiting, &shared_->header().bell},
      is_refused_(servers == Servers::Process),
      outstanding_(entries) {}

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
  auto token = token_of(file);
  for (int takeovers = 0; !token; ++takeovers) {
    if (takeovers == kMostTakeovers) return too_many_takeovers();
    SLUICE_TRY(take_over(ring_id_));
    token = token_of(file);
  }
  const unsigned index = free_slot<FileSlot>(
      files_, [](auto& each) { return each.file == nullptr && each.uses.under_way == 0; });
  files_[index].file = &file;
  files_[index].token = *token;
  return index;
}

void Ring::bind(File& file) {
  if (ring_id_ != 0 || is_refused_ || !file.daemon()) return;
  struct stat status {};
  UniqueFd anchor(::fcntl(file.fd(), F_DUPFD_CLOEXEC, 0));
  if (!anchor || ::fstat(anchor.get(), &status) < 0) return;
  mount_ = status.st_dev;
  if (!introduce_again(anchor.get())) {
    // For example an old daemon, another PID namespace or too many rings. This process serves the
    // ring.
    is_refused_ = true;
    ring_id_ = 0;
    return;
  }
  anchor_ = std::move(anchor);
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

std::optional<sluice_ring_entry> Ring::for_daemon(const sluice_ring_entry& entry) {
  const FileSlot* file = slot_with_id(files_, entry.file);
  const BufferSlot* buffer = slot_with_id(buffers_, entry.buffer);
  if (file == nullptr || file->token == 0 || buffer == nullptr || buffer->ids.empty())
    return std::nullopt;
  const auto& pieces = buffer->buffer->pieces();
  // The last piece that begins at or before the request.
  const auto next = std::upper_bound(pieces.begin(), pieces.end(), entry.buffer_offset,
                                     [](auto offset, auto& each) { return offset < each.offset; });
  const auto piece = next - 1;
  sluice_ring_entry out = entry;
  out.buffer_offset -= piece->offset;
  // A request that spans two pieces is executed in this process.
  if (next != pieces.end() && entry.length > piece->length - out.buffer_offset) return std::nullopt;
  out.file = file->token;
  out.buffer = buffer->ids[static_cast<std::size_t>(piece - pieces.begin())];
  return out;
}

void Ring::hand_over(const Pending& request) {
  if (request.is_for_daemon) {
    if (auto entry = for_daemon(request.entry)) {
      entry->user_data = outstanding_.add(request.entry);
      shared_->put(*entry);
      return;
    }
    // Its file or buffer was dropped, or a new daemon does not accept it.
    with_daemon_.fetch_sub(1);
    with_own_.fetch_add(1);
  }
  if (const auto started = start_own(); !started) {
    with_own_.fetch_sub(1);
    early_.push_back(
        {request.entry.user_data, -started.error().code, 0, 0, SLUICE_RING_IN_PROCESS});
    return;
  }
  own_->put(request.entry);
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
  const Segment& segment = request.segment;
  const sluice_ring_entry entry{request.user_data,
                                id_in(files_, request.file),
                                id_in(buffers_, request.buffer),
                                segment.memory_offset,
                                segment.file_offset,
                                segment.length,
                                request.operation,
                                0,
                                0};
  const bool is_for_daemon = for_daemon(entry).has_value();
  if (!is_for_daemon) SLUICE_TRY(start_own());
  pending_.push_back({entry, is_for_daemon});
  (is_for_daemon ? with_daemon_ : with_own_).fetch_add(1);
  return {};
}

Result<void> Ring::wait_for_default_streams(std::span<const Pending> requests) {
  struct Use {
    std::uint32_t slot;
    const Buffer* buffer;
  };
  std::vector<Use> uses;  // a buffer for each default stream
  {
    const MutexLock lock(mutex_);
    for (const Pending& each : requests) {
      BufferSlot* const slot = slot_with_id(buffers_, each.entry.buffer);
      if (slot == nullptr || slot->buffer == nullptr || slot->buffer->device() == nullptr) continue;
      const auto is_known = [&](const Use& use) { return use.buffer->is_like(*slot->buffer); };
      if (std::any_of(uses.begin(), uses.end(), is_known)) continue;
      uses.push_back({static_cast<std::uint32_t>(each.entry.buffer), slot->buffer});
      ++slot->uses.under_way;  // drop_buffer() waits
    }
  }
  if (uses.empty()) return {};
  // Without the lock, because requests in progress need it.
  Result<void> result;
  for (const Use& use : uses) {
    if (result) result = wait_for_default_stream(library_, *use.buffer);
  }
  const MutexLock lock(mutex_);
  for (const Use& use : uses) --buffers_[use.slot].uses.under_way;
  idle_.notify_all();
  return result;
}

Result<unsigned> Ring::submit() {
  SLUICE_TRY(check_servers());
  std::vector<Pending> requests;
  {
    const MutexLock lock(mutex_);
    requests.swap(pending_);
  }
  const auto waited = wait_for_default_streams(requests);
  const MutexLock lock(mutex_);
  if (!waited) {
    pending_.insert(pending_.begin(), requests.begin(), requests.end());
    return waited.error();
  }
  {
    const MutexLock reaping(reaping_);
    for (const Pending& each : requests) hand_over(each);
  }
  const auto count = static_cast<unsigned>(requests.size());
  requests.clear();
  if (pending_.empty()) pending_.swap(requests);  // keeps its memory
  shared_->submit();
  own_->submit();
  return count;
}

unsigned Ring::reap(std::span<sluice_ring_completion> out) {
  const MutexLock lock(reaping_);
  unsigned early = 0;
  for (; early < out.size() && !early_.empty(); early_.pop_front()) out[early++] = early_.front();
  out = out.subspan(early);
  const unsigned daemons = shared_->reap(out);
  for (sluice_ring_completion& each : out.first(daemons)) outstanding_.complete(each);
  const unsigned ours = own_->reap(out.subspan(daemons));
  with_daemon_.fetch_sub(daemons);
  with_own_.fetch_sub(ours);
  if (daemons > 0) {
    silent_since_ = 0;
    takeovers_ = 0;
  }
  return early + daemons + ours;
}

Result<unsigned> Ring::wait(std::span<sluice_ring_completion> out, unsigned least,
                            std::optional<std::chrono::nanoseconds> timeout) {
  least = std::min(least, static_cast<unsigned>(out.size()));
  const auto begin = steady_clock::now();
  unsigned got = reap(out);
  if (got == 0 && least == 0) SLUICE_TRY(check_servers());  // for callers that only poll
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
    const auto alive = check_servers();
    if (is_over || !alive) {
      if (got > 0) break;  // the next call returns the error
      if (!alive) return alive.error();
      return Error{ETIMEDOUT, "no completion arrived before the timeout"};
    }
    if (now - progress <= kSpin) continue;
    const auto limit = timeout ? std::min(kSilence, *timeout - (now - begin)) : kSilence;
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
    int ends_told = 0;  // number of queues whose end was reported, and whether wait() will fail
    while (!stop.stop_requested()) {
      const std::uint32_t bell = std::atomic_ref(*bell_.bell).load();
      std::atomic_ref(*bell_.waiting).store(1);
      const std::uint32_t now = shared_->completed() + own_->completed();
      const int ends = (shared_->ended() != 0 ? 1 : 0) + (own_->ended() != 0 ? 1 : 0) +
                       (check_servers() ? 0 : 1);
      if (now != seen || ends != ends_told) {
        const std::uint64_t one = 1;
        [[maybe_unused]] const ssize_t written = ::write(fd, &one, sizeof one);
        seen = now;
        ends_told = ends;
        continue;
      }
      futex_wait(bell_.bell, bell, kSilence);
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
