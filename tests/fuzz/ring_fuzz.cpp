// SPDX-License-Identifier: BSD-2-Clause
// Serves arbitrary bytes as the memory of a ring, with arbitrary stores into it meanwhile. The
// requests of the server must be consistent. A libFuzzer target (SLUICE_FUZZ=ON, clang);
// gpu_ring_test runs the corpus and mutations of it through the same function.
//
// An input is two bytes for the sizes of the queues (powers of two, up to 2^6; 255 leaves the
// header as it is), then steps of seven bytes: operation, offset (two bytes) and value (four).
#include <array>
#include <atomic>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <vector>

#include "gpu/ring.hpp"

namespace sluice {
namespace {

void check(bool holds) {
  if (!holds) std::abort();
}

class CheckingTarget : public RingTarget {
 public:
  Result<Transfer> read(std::uint64_t file, std::uint64_t, std::span<const Segment> all) override {
    check(!all.empty() && all.size() <= RingServer::kBatch);
    Transfer sum;
    for (const Segment& each : all) {
      check_one(each);
      sum.bytes += each.length;
    }
    // All possible results of a read.
    if (file % 4 == 1) return Error(EIO, "read");
    if (file % 4 == 2) sum.bytes /= 2;
    return sum;
  }
  Result<Transfer> write(std::uint64_t file, std::uint64_t, const Segment& segment) override {
    check_one(segment);
    if (file % 4 == 1) return Error(ENOSPC, "write");
    return Transfer{segment.length, Route::Host, Why::Writing};
  }

 private:
  static void check_one(const Segment& segment) {
    check(segment.length > 0);
    check(segment.memory_offset + segment.length >= segment.length);
    check(segment.file_offset + segment.length >= segment.length);
    check(segment.file_offset + segment.length <=
          static_cast<std::uint64_t>(std::numeric_limits<std::int64_t>::max()));
    check(segment.length <= RingServer::kSlice);
  }
};

struct alignas(4096) Page {
  std::array<std::uint32_t, 1024> words;
};

}  // namespace
}  // namespace sluice

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace sluice;
  if (size < 2) return 0;
  // Large enough for a ring of 64 and 64 entries. The server must detect any other header.
  static thread_local std::vector<Page> pages(3);
  std::memset(pages.data(), 0, pages.size() * sizeof(Page));
  const std::span memory(reinterpret_cast<std::byte*>(pages.data()), ring_size(64, 64));
  auto* const words = pages[0].words.data();
  auto& header = *reinterpret_cast<sluice_ring_header*>(words);
  if (data[0] != 255) {
    header.magic = SLUICE_RING_MAGIC;
    header.version = SLUICE_RING_VERSION;
    header.entries = 1u << (data[0] & 31);
    header.completions = 1u << (data[1] & 31);
  }
  CheckingTarget target;
  std::unique_ptr<RingServer> server;
  for (data += 2, size -= 2; size >= 7; data += 7, size -= 7) {
    std::uint16_t where = 0;
    std::uint32_t value = 0;
    std::memcpy(&where, data + 1, 2);
    std::memcpy(&value, data + 3, 4);
    switch (data[0] % 8) {
      case 0:
        if (!server) {
          auto made = RingServer::create(memory, target);
          if (!made) {
            check(made.error().code == EINVAL);
            return 0;
          }
          server = *std::move(made);
        }
        break;
      case 1:
        if (server) {
          const auto served = server->serve();
          if (!served) {
            check(served.error().code == EPROTO);
            return 0;
          }
          check(*served <= 64);
        }
        break;
      case 2:
        std::atomic_ref(header.submitted).fetch_add(value % 80);
        break;
      case 3:
        std::atomic_ref(header.reaped).store(std::atomic_ref(header.completed).load() - value % 4);
        break;
      default:  // a store anywhere
        std::atomic_ref(words[where % (memory.size() / 4)]).store(value);
    }
  }
  return 0;
}
