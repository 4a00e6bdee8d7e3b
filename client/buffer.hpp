// SPDX-License-Identifier: BSD-2-Clause
// A Buffer is registered memory of the host program. The engine uses it as a whole. The daemon uses
// it in pieces, one for each allocation that it spans.
//
// Threads: thread-safe.
#pragma once

#include <atomic>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "base/mutex.hpp"
#include "base/result.hpp"
#include "client/include/sluice/ioctl.h"
#include "client/library.hpp"
#include "gpu/memory.hpp"

struct sluice_shared_buffer;

namespace sluice {

class Buffer {
 public:
  // Detects the kind of the memory. EINVAL: it is empty or not completely allocated. ENODEV: its
  // GPU can't be used.
  static Result<std::unique_ptr<Buffer>> create(Library& library, void* memory, std::size_t length);

  // Allocates host memory that other processes can use: a memfd.
  static Result<std::unique_ptr<Buffer>> create_shared(std::size_t length);
  // Maps a buffer that another process has exported.
  static Result<std::unique_ptr<Buffer>> import(Library& library,
                                                const struct sluice_shared_buffer& shared);
  // EOPNOTSUPP: this memory can't be shared.
  Result<struct sluice_shared_buffer> share() const;

  Memory& memory() { return *memory_; }
  std::uint64_t length() const { return memory_->length(); }
  Device* device() const { return memory_->device(); }  // null: host memory

  // True if the daemon may be asked to use it: it is GPU memory, and the daemon has not refused it.
  bool is_for_daemon() const { return device() != nullptr && !refused_; }
  // From now on, the daemon is not asked to use it.
  void refuse() { refused_ = true; }

  // Whether requests wait for the default stream (client/stream.hpp).
  bool is_ordered() const { return is_ordered_; }
  void do_not_order() { is_ordered_ = false; }
  // Whether one wait is enough for both.
  bool is_like(const Buffer& other) const {
    return device() == other.device() && context_ == other.context_ &&
           is_ordered() == other.is_ordered();
  }
  // Makes the context of the memory current, whose default stream the host program uses for it.
  Result<void> enter_context() const;

  // A part of the buffer that lies in one allocation.
  struct Piece {
    std::uint64_t offset = 0;  // in the buffer
    std::uint64_t length = 0;
    CUdeviceptr allocation = 0;
    std::uint64_t allocation_length = 0;
  };
  const std::vector<Piece>& pieces() const { return pieces_; }

  // The arguments with which the daemon imports a piece, and the descriptor they refer to, if any.
  // EOPNOTSUPP: the allocation can't be exported. The next export of a piece of cudaMalloc memory
  // makes no CUDA call.
  struct Export {
    struct sluice_buffer_register request {};
    UniqueFd fd;
  };
  Result<Export> export_piece(const Piece& piece) const;
  // Registers all pieces with the daemon on an open file of its mount, and returns the ids of the
  // registrations, which are all of one daemon.
  Result<std::vector<std::uint64_t>> register_with_daemon(int file) const;

 private:
  Buffer(std::unique_ptr<Memory> memory, std::vector<Piece> pieces, CUcontext context = nullptr)
      : memory_(std::move(memory)), pieces_(std::move(pieces)), context_(context) {}
  // A buffer of one piece. Other processes use it by `handle`, and by `fd` if the handle needs a
  // descriptor.
  Buffer(std::unique_ptr<Memory> memory, const struct sluice_buffer_register& handle, UniqueFd fd)
      : memory_(std::move(memory)),
        pieces_{{0, memory_->length(), 0, memory_->length()}},
        handle_(handle),
        fd_(std::move(fd)) {}

  const std::unique_ptr<Memory> memory_;
  const std::vector<Piece> pieces_;  // of memory that can be shared; in order, without gaps
  const std::optional<struct sluice_buffer_register> handle_;  // of shared memory
  const UniqueFd fd_;                   // the descriptor of handle_, if it needs one
  const CUcontext context_ = nullptr;   // in which it was allocated; null: none in particular
  std::atomic<bool> refused_{false};    // never becomes false again
  std::atomic<bool> is_ordered_{true};  // never becomes true again
  mutable Mutex mutex_;
  // By offset: the pieces that were exported by CUDA IPC.
  mutable std::map<std::uint64_t, struct sluice_buffer_register> exported_ GUARDED_BY(mutex_);
};

// A request fails if other daemons take over this often before it is done.
inline constexpr int kMostTakeovers = 16;
Error too_many_takeovers();

// Which daemon of a mount gave out this id of a buffer or a ring; see ioctl.h.
inline std::uint64_t epoch_of(std::uint64_t id) { return id >> SLUICE_EPOCH_SHIFT; }

// Undoes Buffer::register_with_daemon().
void unregister_from_daemon(int file, std::span<const std::uint64_t> ids);

}  // namespace sluice

// The handle that C programs see.
struct sluice_buffer {
  std::unique_ptr<sluice::Buffer> buffer;
};
