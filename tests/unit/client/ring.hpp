// SPDX-License-Identifier: BSD-2-Clause
// A handle for a ring, and helpers of the tests.
#pragma once

#include <map>
#include <memory>

#include "client/include/sluice/ring.h"
#include "tests/unit/client/client.hpp"

namespace sluice::test {

struct RingCloser {
  void operator()(sluice_ring* ring) const { sluice_ring_destroy(ring); }
};
using RingHandle = std::unique_ptr<sluice_ring, RingCloser>;

inline RingHandle make_ring(unsigned entries) {
  sluice_ring* ring = nullptr;
  EXPECT_EQ(sluice_ring_create(entries, &ring), 0) << sluice_error();
  return RingHandle(ring);
}

inline BufferHandle make_buffer(std::size_t length) {
  sluice_buffer* buffer = nullptr;
  EXPECT_EQ(sluice_buffer_create(length, &buffer), 0) << sluice_error();
  return BufferHandle(buffer);
}

inline std::string_view text_of(const BufferHandle& buffer, std::size_t offset, std::size_t size) {
  return {static_cast<const char*>(sluice_buffer_memory(buffer.get())) + offset, size};
}

// Waits at most a minute for `count` completions. Returns them by user_data.
inline std::map<std::uint64_t, sluice_ring_completion> wait_for(const RingHandle& ring,
                                                                unsigned count) {
  std::map<std::uint64_t, sluice_ring_completion> out;
  std::vector<sluice_ring_completion> done(count);
  const timespec limit{60, 0};
  const int got = sluice_ring_wait(ring.get(), done.data(), count, count, &limit);
  EXPECT_EQ(got, static_cast<int>(count)) << sluice_error();
  for (int i = 0; i < got; ++i)
    out[done[static_cast<std::size_t>(i)].user_data] = done[static_cast<std::size_t>(i)];
  return out;
}

}  // namespace sluice::test
