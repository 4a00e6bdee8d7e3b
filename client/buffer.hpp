// SPDX-License-Identifier: BSD-2-Clause
// A Buffer is memory of the host program that was made known: the engine can use it as it is, and
// the daemon in pieces, one for each allocation that it lies in.
//
// Threads: thread-safe.
#pragma once

#include <atomic>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "base/mutex.hpp"
#include "base/result.hpp"
#include "client/library.hpp"
#include "gpu/memory.hpp"

struct sluice_shared_buffer;

namespace sluice {

class Buffer {
 public:
  // Finds out by itself what kind of memory it is. EINVAL for none, and for memory that is not all
  // allocated; ENODEV if its GPU can't be used.
  static Result<std::unique_ptr<Buffer>> create(Library& library, void* memory, std::size_t length);

  // Host memory that others can use: a memfd.
  static Result<std::unique_ptr<Buffer>> create_shared(std::size_t length);
  // What another process has exported.
  static Result<std::unique_ptr<Buffer>> import(Library& library,
                                                const struct sluice_shared_buffer& shared);
  // EOPNOTSUPP if it can't be shared.
  Result<struct sluice_shared_buffer> share() const;

  Memory& memory() { return *memory_; }
  std::uint64_t length() const { return memory_->length(); }
  Device* device() const { return memory_->device(); }  // null: host memory

  // The daemon may be asked about it: it is a GPU's, and the daemon has not refused it.
  bool is_for_daemon() const { return device() != nullptr && !refused_; }
  // The daemon can't use it, now and later.
  void refuse() { refused_ = true; }

  // A part of the buffer that lies in one allocation.
  struct Piece {
    std::uint64_t offset = 0;  // in the buffer
    std::uint64_t length = 0;
    CUdeviceptr allocation = 0;
    std::uint64_t allocation_length = 0;
  };
  const std::vector<Piece>& pieces() const { return pieces_; }

  // What the daemon needs to know to use a piece. The descriptor, if there is one, is the caller's
  // to close. EOPNOTSUPP if the allocation can't be exported.
  struct Export {
    struct sluice_buffer_register request {};
    UniqueFd fd;
  };
  Result<Export> export_piece(const Piece& piece) const;
  // Makes all pieces known to the daemon on an open file of its mount; returns its names for them.
  Result<std::vector<std::uint64_t>> make_known(int file) const;

 private:
  Buffer(std::unique_ptr<Memory> memory, std::vector<Piece> pieces)
      : memory_(std::move(memory)), pieces_(std::move(pieces)) {}
  // Of one piece that `handle` tells others of; `fd` is what its descriptor stands for.
  Buffer(std::unique_ptr<Memory> memory, const struct sluice_buffer_register& handle, UniqueFd fd)
      : memory_(std::move(memory)),
        pieces_{{0, memory_->length(), 0, memory_->length()}},
        handle_(handle),
        fd_(std::move(fd)) {}

  const std::unique_ptr<Memory> memory_;
  const std::vector<Piece> pieces_;  // of memory that can be shared; in order, without gaps
  const std::optional<struct sluice_buffer_register> handle_;  // of memory that came with one
  const UniqueFd fd_;                                          // of that, if it has one
  std::atomic<bool> refused_{false};                           // only ever turns true
};

// Takes back what Buffer::make_known() made known.
void make_unknown(int file, std::span<const std::uint64_t> names);

}  // namespace sluice

// The C name of it.
struct sluice_buffer {
  std::unique_ptr<sluice::Buffer> buffer;
};
