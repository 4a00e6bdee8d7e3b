// SPDX-License-Identifier: BSD-2-Clause
// What a Ring does when the daemon that serves it has died and another one has taken over the
// mount.
#include <sys/ioctl.h>
#include <sys/stat.h>

#include <array>

#include "client/ring.hpp"

namespace sluice {
namespace {

using std::chrono::steady_clock;

// The kernel answers ECONNABORTED to a request that was under way when its mount ended.
int code_of_ioctl(int error) { return error == ECONNABORTED ? ENOTCONN : error; }

}  // namespace

Result<std::uint64_t> Ring::token_of(const File& file) {
  struct stat status {};
  // The daemon of another mount may have a ring with the same id.
  if (ring_id_ == 0 || ::fstat(file.fd(), &status) < 0 || status.st_dev != mount_) return 0;
  struct sluice_ring_file request {
    ring_id_, 0
  };
  if (::ioctl(file.fd(), SLUICE_IOC_RING_ADD_FILE, &request) == 0) return request.file;
  if (errno == ESTALE) return Error::last("add a file to the ring");
  return 0;  // this process executes the file's requests
}

Result<void> Ring::introduce(int anchor) {
  std::atomic_ref(shared_->header().ended).store(0);
  struct sluice_ring_create request {};
  request.fd = shared_->fd().get();
  request.length = shared_->memory().size();
  if (::ioctl(anchor, SLUICE_IOC_RING_CREATE, &request) < 0)
    return Error{code_of_ioctl(errno), "create the ring"};
  ring_id_ = request.ring;
  const ContextKeeper keeper(library_.cuda());
  for (BufferSlot& slot : buffers_) {
    if (slot.buffer == nullptr) continue;
    unregister_from_daemon(anchor, slot.ids);
    slot.ids.clear();
    if (auto ids = slot.buffer->register_with_daemon(anchor)) slot.ids = *std::move(ids);
    if (!slot.ids.empty() && epoch_of(slot.ids[0]) != epoch_of(ring_id_))
      return Error{ESTALE, "register a buffer of the ring"};
  }
  for (FileSlot& slot : files_) {
    if (slot.file != nullptr) slot.token = SLUICE_TRY(token_of(*slot.file));
  }
  return {};
}

Result<void> Ring::introduce_again(int anchor) {
  for (int takeovers = 0;; ++takeovers) {
    const auto done = introduce(anchor);
    if (!failed_with(done, ESTALE)) return done;
    if (takeovers == kMostTakeovers) return too_many_takeovers();
  }
}

// Completions that the dead daemon had written.
void Ring::salvage() {
  std::array<sluice_ring_completion, 64> some;
  while (const unsigned count = shared_->reap(some)) {
    for (unsigned i = 0; i < count; ++i) {
      outstanding_.complete(some[i]);
      early_.push_back(some[i]);
    }
    with_daemon_.fetch_sub(count);
  }
}

Result<void> Ring::take_over(std::uint64_t stale) {
  if (ring_id_ != stale) return {};  // another thread did it
  {
    const MutexLock lock(reaping_);
    salvage();
    // One of the requests may be what ends the daemons. Without any, nothing is repeated: a ring
    // whose memory the daemon can't use has none, and may see any number of daemons.
    if (!outstanding_.is_empty() && takeovers_.fetch_add(1) >= kMostTakeovers)
      return too_many_takeovers();
  }
  if (const auto done = introduce_again(anchor_.get()); !done) {
    const int code = done.error().code;
    if (code == ENOTCONN || code == ECONNABORTED) return done.error();  // the mount has ended
    // The new daemon does not serve rings: this process executes the requests.
    is_refused_ = true;
    ring_id_ = 0;
    for (FileSlot& slot : files_) slot.token = 0;
  }
  const MutexLock lock(reaping_);
  for (const sluice_ring_entry& entry : outstanding_.take_all()) hand_over({entry, true});
  shared_->submit();
  own_->submit();
  silent_since_ = 0;
  std::atomic_ref(*bell_.bell).fetch_add(1);
  futex_wake(bell_.bell);
  return {};
}

Result<void> Ring::ask_daemon() {
  struct sluice_ring_file request {};  // there is no file 0
  {
    const MutexLock lock(mutex_);
    request.ring = ring_id_;
  }
  if (request.ring == 0) return {};
  const int code =
      ::ioctl(anchor_.get(), SLUICE_IOC_RING_DROP_FILE, &request) < 0 ? code_of_ioctl(errno) : 0;
  if (code == ESTALE) {
    const MutexLock lock(mutex_);
    return take_over(request.ring);
  }
  if (const int why = shared_->ended(); why != 0)
    return Error{why, "the daemon no longer serves the ring"};
  if (code != ENOENT) return Error{code, "check that the daemon runs"};
  return {};
}

Result<void> Ring::check_servers() {
  if (const int why = own_->ended(); why != 0 && with_own_.load() > 0) {
    return Error{why, "this process no longer serves the ring"};
  }
  if (with_daemon_.load() == 0) return {};
  if (shared_->ended() == 0) {
    const std::int64_t now = steady_clock::now().time_since_epoch() / std::chrono::nanoseconds(1);
    std::int64_t since = 0;
    if (silent_since_.compare_exchange_strong(since, now)) return {};
    // Only one thread asks.
    if (now - since < kSilence.count() || !silent_since_.compare_exchange_strong(since, now))
      return {};
  }
  return ask_daemon();
}

}  // namespace sluice
