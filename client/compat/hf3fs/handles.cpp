// SPDX-License-Identifier: BSD-2-Clause
#include "client/compat/hf3fs/handles.hpp"

#include <pthread.h>
#include <time.h>
#include <unistd.h>

#include <array>
#include <atomic>

namespace sluice::hf3fs {

namespace {

// Null: not yet created in this process. Never destroyed: programs end while rings are open.
std::atomic<Registry*> g_registry{nullptr};

void forget_parent() { g_registry = nullptr; }
// When the library is loaded, because a lock that is held during fork() would block the child.
[[maybe_unused]] const int g_watches_forks = ::pthread_atfork(nullptr, nullptr, forget_parent);

}  // namespace

Registry& Registry::get() {
  Registry* known = g_registry;
  if (known != nullptr) return *known;
  auto made = std::make_unique<Registry>();
  // Another thread may have been first.
  if (!g_registry.compare_exchange_strong(known, made.get())) return *known;
  return *made.release();
}

Iov::~Iov() {
  Registry& ours = Registry::get();
  {
    const MutexLock lock(ours.mutex);
    for (Ior* ior : ours.iors) ior->forget(*this);
  }
  // After the rings: their requests register the memory on the files. The files keep the daemon's
  // ids by the address of the buffer, which the next buffer may get.
  if (buffer) Library::get().forget(*buffer);
  if (&registry != &ours) {
    // The parent still uses the name and the memory, and CUDA does not work in a child.
    static_cast<void>(buffer.release());
    return;
  }
  if (!name.empty()) ::unlink(name.c_str());
  Device* const device = buffer ? buffer->device() : nullptr;
  if (device == nullptr) return;
  const ContextKeeper keeper(Library::get().cuda());
  buffer.reset();  // unmaps memory of another process
  if (owned != 0 && device->enter()) device->api().cuMemFree(owned);
}

Registered::Registered(UniqueFd opened, std::unique_ptr<File> made)
    : fd(std::move(opened)), file(std::move(made)) {
  Library::get().add(*file);
}

Registered::~Registered() { Library::get().remove(*file); }

Result<std::unique_ptr<Ior>> Ior::create(int entries) {
  if (entries <= 0) return Error{EINVAL, "a ring must have at least one entry"};
  auto ring = SLUICE_TRY(Ring::create(Library::get(), static_cast<unsigned>(entries),
                                      Ring::Servers::DaemonAndProcess));
  auto ior = std::unique_ptr<Ior>(new Ior(std::move(ring), entries));
  const MutexLock lock(ior->registry_.mutex);
  ior->registry_.iors.insert(ior.get());
  return ior;
}

Ior::Ior(std::unique_ptr<Ring> ring, int entries)
    : ring_(std::move(ring)), entries_(entries), userdata_(static_cast<std::size_t>(entries)) {
  for (int i = entries; i > 0; --i) free_.push_back(i - 1);
}

Ior::~Ior() {
  {
    // The ring's destructor waits for requests in progress, which use the files and the memory and
    // take none of our locks. Until it has returned, the registry knows this object, so forget()
    // makes those wait who want to free a file or memory. Then it finds nothing.
    const MutexLock lock(mutex_);
    ring_.reset();
    files_.clear();
    iovs_.clear();
  }
  const MutexLock lock(registry_.mutex);
  registry_.iors.erase(this);
}

Result<int> Ior::put(std::uint32_t operation, const std::shared_ptr<Registered>& file, Iov& iov,
                     const Segment& segment, const void* userdata) {
  const MutexLock lock(mutex_);
  auto in_file = files_.find(file.get());
  if (in_file == files_.end()) {
    const unsigned number = SLUICE_TRY(ring_->add(*file->file));
    in_file = files_.emplace(file.get(), FileUse{file, number}).first;
  }
  auto in_memory = iovs_.find(&iov);
  if (in_memory == iovs_.end()) {
    const unsigned number = SLUICE_TRY(ring_->add(*iov.buffer));
    in_memory = iovs_.emplace(&iov, number).first;
  }
  if (free_.empty()) return Error{EAGAIN, "the ring is full"};
  const int index = free_.back();
  SLUICE_TRY(ring_->put({operation, in_file->second.number, in_memory->second, segment,
                         static_cast<std::uint64_t>(index)}));
  free_.pop_back();
  userdata_[static_cast<std::size_t>(index)] = userdata;
  return index;
}

Result<int> Ior::wait(hf3fs_cqe* cqes, int most, int least, const timespec* abs_timeout) {
  least = std::min(least, most);
  int got = 0;
  do {
    std::optional<std::chrono::nanoseconds> left;
    if (abs_timeout != nullptr) {
      timespec now{};
      ::clock_gettime(CLOCK_REALTIME, &now);
      left = std::chrono::seconds(abs_timeout->tv_sec - now.tv_sec) +
             std::chrono::nanoseconds(abs_timeout->tv_nsec - now.tv_nsec);
    }
    std::array<sluice_ring_completion, 256> done;
    const auto room = std::min<std::size_t>(done.size(), static_cast<std::size_t>(most - got));
    const auto need = static_cast<unsigned>(std::max(least - got, 0));
    const auto count = ring_->wait({done.data(), room}, need, left);
    if (failed_with(count, ETIMEDOUT)) break;
    if (!count && got > 0) break;  // the next call returns the error
    if (!count) return count.error();
    const MutexLock lock(mutex_);
    for (unsigned i = 0; i < *count; ++i) {
      const auto index = static_cast<int>(done[i].user_data);
      cqes[got++] = {index, 0, done[i].result, userdata_[done[i].user_data]};
      free_.push_back(index);
    }
    if (*count < need && *count < room) break;  // the timeout has passed
    if (*count == 0) break;
  } while (got < least);
  return got;
}

void Ior::forget(const Registered& file) {
  const MutexLock lock(mutex_);
  const auto found = files_.find(&file);
  if (found == files_.end()) return;
  static_cast<void>(ring_->drop_file(found->second.number));
  files_.erase(found);
}

void Ior::forget(const Iov& iov) {
  const MutexLock lock(mutex_);
  const auto found = iovs_.find(&iov);
  if (found == iovs_.end()) return;
  static_cast<void>(ring_->drop_buffer(found->second));
  iovs_.erase(found);
}

}  // namespace sluice::hf3fs
