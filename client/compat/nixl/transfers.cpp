// SPDX-License-Identifier: BSD-2-Clause
#include "client/compat/nixl/transfers.hpp"

#include <unistd.h>

#include <array>
#include <cerrno>
#include <climits>
#include <cstdio>
#include <cstring>
#include <utility>

namespace sluice::plugin {
namespace {

// Blocks in the ring at once. Transfers with more of them continue when completions are taken.
constexpr unsigned kEntries = 4096;

std::string path_of(const Region& file) {
  std::array<char, PATH_MAX> name{};
  const std::string link = "/proc/self/fd/" + std::to_string(file.fd.get());
  const ssize_t length = ::readlink(link.c_str(), name.data(), name.size());
  return length > 0 ? std::string(name.data(), static_cast<std::size_t>(length)) : "a file";
}

void complain_of(const Block& block, int error) {
  complain((block.transfer->is_read ? "read " : "write ") + std::to_string(block.length) +
           " bytes at " + std::to_string(block.file_offset) + " of " + path_of(*block.file) + ": " +
           reason_of(error));
}

}  // namespace

std::string reason_of(int error) {
  if (error == -ENOENT) return "the file or the memory was deregistered";
  if (error == -EBADF) return "the file is not open for this";
  if (error == -ENODATA) return "the file ends before";
  return std::strerror(-error);
}

void complain(const std::string& what) {
  std::fprintf(stderr, "sluice: NIXL backend: %s\n", what.c_str());
}

void Region::close() {
  if (file != nullptr) sluice_close(std::exchange(file, nullptr));
  if (buffer != nullptr) sluice_buffer_unregister(std::exchange(buffer, nullptr));
  fd.reset();
}

Queue::~Queue() {
  const MutexLock lock(mutex_);
  end_ring();
}

void Queue::end_ring() {
  if (ring_ != nullptr) sluice_ring_destroy(ring_);
  ring_ = nullptr;
  files_ = 0;
  in_ring_ = 0;
}

int Queue::add(Region& region) {
  const MutexLock lock(mutex_);
  return add_locked(region);
}

int Queue::add_locked(Region& region) {
  auto& state = region.in_queue;
  if (state.is_closed) return -ENOENT;
  if (ring_ == nullptr) {
    if (const int error = sluice_ring_create(kEntries, &ring_); error < 0) return error;
    ++ring_id_;
  }
  if (state.ring == ring_id_) return 0;
  const int number = region.file != nullptr ? sluice_ring_add_file(ring_, region.file)
                                            : sluice_ring_add_buffer(ring_, region.buffer);
  if (number < 0) return number;
  state.ring = ring_id_;
  state.number = number;
  if (region.file != nullptr) ++files_;
  return 0;
}

void Queue::close(Region& region) {
  MutexLock lock(mutex_);
  auto& state = region.in_queue;
  state.is_closed = true;
  while (state.uses > 0) {
    reap(true);
    lock.unlock();  // other threads get their turn
    lock.lock();
  }
  if (ring_ != nullptr && state.ring == ring_id_) drop(region);
  region.close();
}

void Queue::drop(Region& region) {
  if (region.file == nullptr) {
    sluice_ring_drop_buffer(ring_, region.in_queue.number);
    return;
  }
  sluice_ring_drop_file(ring_, region.in_queue.number);
  // A ring keeps its mount busy.
  if (--files_ == 0) end_ring();
}

int Queue::post(Transfer& transfer) {
  const MutexLock lock(mutex_);
  auto& state = transfer.in_queue;
  if (state.left > 0) return -EBUSY;
  for (const Block& block : transfer.blocks) {
    if (block.file->in_queue.is_closed || block.memory->in_queue.is_closed) return -ENOENT;
  }
  if (transfer.blocks.empty()) return 0;
  posted_.insert(&transfer);
  waiting_.push_back(&transfer);
  state = {0, transfer.blocks.size(), 0};
  for (Block& block : transfer.blocks) {
    block.is_done = false;
    ++block.file->in_queue.uses;
    ++block.memory->in_queue.uses;
  }
  fill();
  return 0;
}

std::optional<int> Queue::poll(Transfer& transfer) {
  const MutexLock lock(mutex_);
  const auto& state = transfer.in_queue;
  if (state.left > 0) reap(false);
  if (state.left > 0) return std::nullopt;
  return state.error;
}

void Queue::cancel(Transfer& transfer) {
  MutexLock lock(mutex_);
  drop_rest(transfer, -ECANCELED);
  while (transfer.in_queue.left > 0) {
    reap(true);
    lock.unlock();  // other threads get their turn
    lock.lock();
  }
}

int Queue::put(Block& block) {
  if (const int error = add_locked(*block.file); error < 0) return error;
  if (const int error = add_locked(*block.memory); error < 0) return error;
  const auto request = block.transfer->is_read ? sluice_ring_read : sluice_ring_write;
  return request(ring_, block.file->in_queue.number, block.memory->in_queue.number,
                 block.memory_offset, block.length, block.file_offset,
                 reinterpret_cast<std::uintptr_t>(&block));
}

void Queue::fill() {
  bool is_full = false;
  std::size_t count = 0;
  while (!is_full && !waiting_.empty()) {
    Transfer& transfer = *waiting_.front();
    auto& state = transfer.in_queue;
    while (!is_full && state.error == 0 && state.next < transfer.blocks.size()) {
      Block& block = transfer.blocks[state.next];
      const int error = put(block);
      // With an empty ring, it means that libsluice can't start a thread.
      is_full = error == -EAGAIN && in_ring_ > 0;
      if (is_full) break;
      ++state.next;
      if (error < 0) {
        finish(block, error);
      } else {
        ++in_ring_;
        ++count;
      }
    }
    if (is_full) break;
    drop_rest(transfer, state.error);  // removes it from waiting_
  }
  if (count == 0) return;
  if (const int submitted = sluice_ring_submit(ring_); submitted < 0) abandon(submitted);
}

void Queue::reap(bool must_wait) {
  if (ring_ == nullptr) return;
  std::array<sluice_ring_completion, 256> done;
  const timespec millisecond{0, 1'000'000};
  const int count =
      sluice_ring_wait(ring_, done.data(), done.size(), must_wait ? 1 : 0, &millisecond);
  if (count == -ETIMEDOUT) return;
  if (count < 0) return abandon(count);
  in_ring_ -= static_cast<std::size_t>(count);
  for (int i = 0; i < count; ++i) {
    const auto& each = done[static_cast<std::size_t>(i)];
    // NOLINTNEXTLINE(performance-no-int-to-ptr): put() made the number of a pointer.
    finish(*reinterpret_cast<Block*>(static_cast<std::uintptr_t>(each.user_data)), each.result);
  }
  if (count > 0 && !waiting_.empty()) fill();
}

void Queue::finish(Block& block, std::int64_t result) {
  auto& state = block.transfer->in_queue;
  block.is_done = true;
  --block.file->in_queue.uses;
  --block.memory->in_queue.uses;
  if (--state.left == 0) posted_.erase(block.transfer);
  if (result == static_cast<std::int64_t>(block.length) || state.error != 0) return;
  const int at_the_end = block.transfer->is_read ? -ENODATA : -EIO;
  state.error = result < 0 ? static_cast<int>(result) : at_the_end;
  if (state.error != -ECANCELED) complain_of(block, state.error);
}

void Queue::drop_rest(Transfer& transfer, int error) {
  std::erase(waiting_, &transfer);
  auto& state = transfer.in_queue;
  while (state.left > 0 && state.next < transfer.blocks.size()) {
    finish(transfer.blocks[state.next++], error);
  }
}

void Queue::abandon(int error) {
  complain(std::string("transfers in progress are given up: ") + sluice_error());
  end_ring();  // from here on, nobody writes to the memory
  waiting_.clear();
  std::unordered_set<Transfer*> posted;
  posted.swap(posted_);  // finish() erases from it
  for (Transfer* transfer : posted) {
    for (Block& block : transfer->blocks) {
      if (!block.is_done) finish(block, error);
    }
  }
}

}  // namespace sluice::plugin
