// SPDX-License-Identifier: BSD-2-Clause
#include "client/ring_queue.hpp"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <bit>
#include <cstring>

#include "base/check.hpp"
#include "gpu/ring.hpp"

namespace sluice {

Result<std::unique_ptr<RingQueue>> RingQueue::create(std::uint32_t entries) {
  SLUICE_CHECK(std::has_single_bit(entries), "a ring has a power of two of entries");
  const std::size_t size = ring_size(entries, entries);
  UniqueFd fd(::memfd_create("sluice-ring", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  if (!fd || ::ftruncate(fd.get(), static_cast<off_t>(size)) < 0 ||
      ::fcntl(fd.get(), F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW) < 0) {
    return Error::last("create the memory of a ring");
  }
  void* const memory = ::mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_SHARED, fd.get(), 0);
  if (memory == MAP_FAILED) return Error::last("map the memory of a ring");
  // If a child used its parent's ring, both would corrupt it.
  ::madvise(memory, size, MADV_DONTFORK);
  return std::unique_ptr<RingQueue>(
      new RingQueue(std::move(fd), {static_cast<std::byte*>(memory), size}, entries));
}

RingQueue::RingQueue(UniqueFd fd, std::span<std::byte> memory, std::uint32_t entries)
    : fd_(std::move(fd)), memory_(memory), entries_(entries) {
  header().magic = SLUICE_RING_MAGIC;
  header().version = SLUICE_RING_VERSION;
  header().entries = header().completions = entries;
}

RingQueue::~RingQueue() { ::munmap(memory_.data(), memory_.size()); }

void RingQueue::put(const sluice_ring_entry& entry) {
  std::memcpy(memory_.data() + SLUICE_RING_HEADER_SIZE + (put_++ & (entries_ - 1)) * sizeof entry,
              &entry, sizeof entry);
}

unsigned RingQueue::submit() {
  const std::uint32_t count = put_ - submitted_;
  if (count == 0) return 0;
  submitted_ = put_;
  // Sequentially consistent, like the server's store to `sleeping` and its load of `submitted`: at
  // least one side sees the other's store.
  std::atomic_ref(header().submitted).store(submitted_);
  std::atomic_ref sleeping(header().sleeping);
  if (sleeping.load() == 1 && sleeping.exchange(0) == 1) {
    futex_wake(&header().sleeping);
  }
  return count;
}

unsigned RingQueue::reap(std::span<sluice_ring_completion> out) {
  const auto count =
      std::min<std::uint32_t>(completed() - reaped_, static_cast<std::uint32_t>(out.size()));
  const std::byte* const first =
      memory_.data() + SLUICE_RING_HEADER_SIZE + entries_ * sizeof(sluice_ring_entry);
  for (std::uint32_t i = 0; i < count; ++i) {
    std::memcpy(&out[i], first + (reaped_++ & (entries_ - 1)) * sizeof out[i], sizeof out[i]);
  }
  if (count > 0) std::atomic_ref(header().reaped).store(reaped_);
  return count;
}

std::uint32_t RingQueue::completed() const { return std::atomic_ref(header().completed).load(); }

int RingQueue::ended() const { return static_cast<int>(std::atomic_ref(header().ended).load()); }

}  // namespace sluice
