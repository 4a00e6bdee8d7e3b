// SPDX-License-Identifier: BSD-2-Clause
// A client that uses a ring directly, without a library. Threads: caller locks.
#pragma once

#include <atomic>
#include <cstdint>
#include <optional>
#include <vector>

#include "tests/mount/gpu_client.hpp"

namespace sluice::test {

class BareRing {
 public:
  explicit BareRing(std::uint32_t entries = 64);

  // Creates the ring on the open file. Returns 0 or an errno.
  int create(int anchor);
  std::uint64_t name() const { return name_; }
  // Returns a token for a file. Throws std::system_error.
  std::uint64_t add(int file) const;

  void put(const sluice_ring_entry& entry);
  std::vector<sluice_ring_completion> reap();
  // Puts one entry and waits for its result; empty if none arrives in time.
  std::optional<std::int64_t> result_of(const sluice_ring_entry& entry);

  SharedMemory& memory() { return memory_; }
  sluice_ring_header& header() { return *reinterpret_cast<sluice_ring_header*>(memory_.data()); }
  std::size_t size() const { return size_; }

 private:
  void wake();

  const std::uint32_t entries_;
  const std::size_t size_;
  SharedMemory memory_;
  std::uint64_t name_ = 0;
  std::uint32_t submitted_ = 0, reaped_ = 0;
};

sluice_ring_entry ring_entry(std::uint32_t operation, std::uint64_t file, std::uint64_t buffer,
                             std::uint64_t buffer_offset, std::uint64_t file_offset,
                             std::uint64_t length, std::uint64_t user_data = 0);

}  // namespace sluice::test
