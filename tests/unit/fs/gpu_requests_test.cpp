// SPDX-License-Identifier: BSD-2-Clause
#include "fs/gpu/gpu_requests.hpp"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <iterator>
#include <random>
#include <span>
#include <vector>

#include "tests/support/seed.hpp"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size);

namespace sluice {
namespace {

using Bytes = std::vector<std::byte>;

template <typename Structure>
Bytes bytes_of(const Structure& structure, std::size_t size = sizeof(Structure)) {
  const auto bytes = std::as_bytes(std::span(&structure, 1));
  Bytes out(bytes.begin(), bytes.begin() + std::min(size, bytes.size()));
  out.resize(size);
  return out;
}

int code_of(unsigned command, const Bytes& in) {
  const auto request = decode_gpu_request(command, in, in.size());
  return request ? 0 : request.error().code;
}

template <typename Structure>
int code_of(unsigned command, const Structure& structure) {
  return code_of(command, bytes_of(structure));
}

sluice_transfer good_transfer() {
  sluice_transfer out{};
  out.buffer = 7;
  out.buffer_offset = 1;
  out.file_offset = 2;
  out.length = 3;
  out.route = SLUICE_ROUTE_STAGED;
  return out;
}

sluice_buffer_register good_register() {
  sluice_buffer_register out{};
  out.kind = SLUICE_BUFFER_CUDA_FD;
  out.offset = 4096;
  out.length = 4096;
  out.allocation_length = 8192;
  out.fd = 5;
  out.gpu_uuid[15] = 9;
  out.ipc_handle[63] = 8;
  return out;
}

TEST(GpuRequestsTest, ReadIsDecoded) {
  const auto request =
      decode_gpu_request(SLUICE_IOC_READ, bytes_of(good_transfer()), sizeof(sluice_transfer));
  ASSERT_TRUE(request);
  const auto& read = std::get<ReadRequest>(*request);
  EXPECT_EQ(read.buffer, 7u);
  EXPECT_EQ(read.segment.memory_offset, 1u);
  EXPECT_EQ(read.segment.file_offset, 2u);
  EXPECT_EQ(read.segment.length, 3u);
  EXPECT_EQ(read.route, Route::Staged);
  const auto write =
      decode_gpu_request(SLUICE_IOC_WRITE, bytes_of(good_transfer()), sizeof(sluice_transfer));
  ASSERT_TRUE(write);
  EXPECT_EQ(std::get<WriteRequest>(*write).buffer, 7u);
}

TEST(GpuRequestsTest, RegistrationIsDecoded) {
  const auto request = decode_gpu_request(SLUICE_IOC_BUFFER_REGISTER, bytes_of(good_register()),
                                          sizeof(sluice_buffer_register));
  ASSERT_TRUE(request);
  const auto& made = std::get<RegisterRequest>(*request);
  EXPECT_EQ(made.kind, static_cast<std::uint32_t>(SLUICE_BUFFER_CUDA_FD));
  EXPECT_EQ(made.offset, 4096u);
  EXPECT_EQ(made.length, 4096u);
  EXPECT_EQ(made.allocation, 8192u);
  EXPECT_EQ(made.fd, 5);
  EXPECT_EQ(made.gpu[15], 9);
  EXPECT_EQ(made.handle[63], 8);
}

TEST(GpuRequestsTest, OnlyTheNumberSelectsTheIoctl) {
  const unsigned other_size = _IOC(_IOC_NONE, SLUICE_IOC_TYPE, _IOC_NR(SLUICE_IOC_READ), 1);
  EXPECT_EQ(code_of(other_size, good_transfer()), 0);
  EXPECT_EQ(code_of(_IOC(_IOC_READ, SLUICE_IOC_TYPE, 0, 56), good_transfer()), ENOTTY);
  EXPECT_EQ(code_of(_IOC(_IOC_READ, SLUICE_IOC_TYPE, 200, 56), good_transfer()), ENOTTY);
  EXPECT_EQ(code_of(_IOC(_IOC_READ, 'f', 4, 56), good_transfer()), ENOTTY);
}

TEST(GpuRequestsTest, StructureMayHaveExtraZeros) {
  Bytes longer = bytes_of(good_transfer(), sizeof(sluice_transfer) + 8);
  EXPECT_EQ(code_of(SLUICE_IOC_READ, longer), 0);
  longer.back() = std::byte{1};
  EXPECT_EQ(code_of(SLUICE_IOC_READ, longer), E2BIG);
}

TEST(GpuRequestsTest, StructureShorterThanTheFirstVersionIsRefused) {
  struct Case {
    unsigned command;
    std::size_t size;
  };
  for (const auto& [command, size] :
       {Case{SLUICE_IOC_QUERY, sizeof(sluice_query)},
        Case{SLUICE_IOC_BUFFER_REGISTER, sizeof(sluice_buffer_register)},
        Case{SLUICE_IOC_BUFFER_UNREGISTER, sizeof(sluice_buffer_unregister)},
        Case{SLUICE_IOC_READ, sizeof(sluice_transfer)},
        Case{SLUICE_IOC_WRITE, sizeof(sluice_transfer)}, Case{SLUICE_IOC_READV, 32},
        Case{SLUICE_IOC_PREFETCH, sizeof(sluice_prefetch)},
        Case{SLUICE_IOC_STATS, sizeof(sluice_stats)},
        Case{SLUICE_IOC_RING_CREATE, sizeof(sluice_ring_create)},
        Case{SLUICE_IOC_RING_DESTROY, sizeof(sluice_ring_destroy)},
        Case{SLUICE_IOC_RING_ADD_FILE, sizeof(sluice_ring_file)},
        Case{SLUICE_IOC_RING_DROP_FILE, sizeof(sluice_ring_file)},
        Case{SLUICE_IOC_SHARE, sizeof(sluice_share)},
        Case{SLUICE_IOC_GATHER, sizeof(sluice_records)}}) {
    const Bytes whole(size);
    EXPECT_EQ(code_of(command, Bytes(size - 1)), EINVAL) << _IOC_NR(command);
    EXPECT_EQ(code_of(command, Bytes()), EINVAL) << _IOC_NR(command);
    const auto unanswerable = decode_gpu_request(command, whole, size - 1);
    EXPECT_TRUE(failed_with(unanswerable, EINVAL)) << _IOC_NR(command);
  }
}

TEST(GpuRequestsTest, ImpossibleRangesAreRefused) {
  const auto with = [](std::uint64_t buffer, std::uint64_t file, std::uint64_t length) {
    auto out = good_transfer();
    out.buffer_offset = buffer;
    out.file_offset = file;
    out.length = length;
    return code_of(SLUICE_IOC_READ, out);
  };
  constexpr std::uint64_t kMost = std::numeric_limits<std::int64_t>::max();
  EXPECT_EQ(with(0, 0, kMost), 0);
  EXPECT_EQ(with(0, kMost, 0), 0);
  EXPECT_EQ(with(0, 1, kMost), EINVAL);
  EXPECT_EQ(with(0, kMost + 1, 0), EINVAL);
  EXPECT_EQ(with(~0ull - 4, 0, 5), EINVAL);
  EXPECT_EQ(with(~0ull - 5, 0, 5), 0);
  EXPECT_EQ(with(0, 0, ~0ull), EINVAL);
}

TEST(GpuRequestsTest, ReservedOrUnknownValuesAreRefused) {
  auto transfer = good_transfer();
  transfer.reserved = 1;
  EXPECT_EQ(code_of(SLUICE_IOC_READ, transfer), EINVAL);
  transfer = good_transfer();
  transfer.route = SLUICE_ROUTE_HBM + 1;
  EXPECT_EQ(code_of(SLUICE_IOC_WRITE, transfer), EINVAL);
  sluice_query query{};
  EXPECT_EQ(code_of(SLUICE_IOC_QUERY, query), 0);
  query.kind = 4;
  EXPECT_EQ(code_of(SLUICE_IOC_QUERY, query), EINVAL);
  query = {};
  query.epoch = 1;
  EXPECT_EQ(code_of(SLUICE_IOC_QUERY, query), 0) << "the reply of an earlier request";
  sluice_stats stats{};
  stats.flags = SLUICE_STATS_RESET;
  EXPECT_EQ(code_of(SLUICE_IOC_STATS, stats), 0);
  stats.flags = 2;
  EXPECT_EQ(code_of(SLUICE_IOC_STATS, stats), EINVAL);
}

TEST(GpuRequestsTest, ImpossibleRegistrationsAreRefused) {
  const auto code = [](auto change) {
    auto out = good_register();
    change(out);
    return code_of(SLUICE_IOC_BUFFER_REGISTER, out);
  };
  using Registration = sluice_buffer_register;
  EXPECT_EQ(code([](Registration&) {}), 0);
  EXPECT_EQ(code([](Registration& r) { r.kind = 0; }), EINVAL);
  EXPECT_EQ(code([](Registration& r) { r.kind = 4; }), EINVAL);
  EXPECT_EQ(code([](Registration& r) { r.reserved = 1; }), EINVAL);
  EXPECT_EQ(code([](Registration& r) { r.reserved2 = 1; }), EINVAL);
  EXPECT_EQ(code([](Registration& r) { r.length = 0; }), EINVAL);
  EXPECT_EQ(code([](Registration& r) { r.allocation_length = 8191; }), EINVAL);
  EXPECT_EQ(code([](Registration& r) { r.offset = ~0ull; }), EINVAL);
  EXPECT_EQ(code([](Registration& r) { r.fd = -1; }), EBADF);
  EXPECT_EQ(code([](Registration& r) { r.kind = SLUICE_BUFFER_MEMFD; }), EINVAL);
  EXPECT_EQ(code([](Registration& r) {
              r.kind = SLUICE_BUFFER_CUDA_IPC;
              r.fd = -1;
              r.allocation_length = 0;
            }),
            0);
}

TEST(GpuRequestsTest, PrefetchWarmsUnlessToldOtherwise) {
  const auto decode = [](std::uint32_t flags) {
    sluice_prefetch from{};
    from.flags = flags;
    const auto request = decode_gpu_request(SLUICE_IOC_PREFETCH, bytes_of(from), sizeof from);
    const auto& out = std::get<PrefetchRequest>(*request);
    return std::pair(out.warm, out.promote);
  };
  EXPECT_EQ(decode(0), std::pair(true, false));
  EXPECT_EQ(decode(SLUICE_PREFETCH_WARM), std::pair(true, false));
  EXPECT_EQ(decode(SLUICE_PREFETCH_PROMOTE), std::pair(false, true));
  EXPECT_EQ(decode(3), std::pair(true, true));
}

TEST(GpuRequestsTest, ReadvTakesTheStatedNumberOfSegments) {
  auto from = std::make_unique<sluice_readv>();
  std::memset(from.get(), 0xff, sizeof *from);  // bytes after the last segment are ignored
  from->buffer = 3;
  from->count = 2;
  from->route = 0;
  from->reserved = 0;
  from->segments[0] = {1, 2, 3};
  from->segments[1] = {4, 5, 6};
  for (const std::size_t size : {std::size_t{32 + 48}, std::size_t{32 + 60}, sizeof *from}) {
    const auto request = decode_gpu_request(SLUICE_IOC_READV, bytes_of(*from, size), 32);
    ASSERT_TRUE(request) << size;
    const auto& readv = std::get<ReadvRequest>(*request);
    ASSERT_EQ(readv.segments.size(), 2u);
    EXPECT_EQ(readv.segments[1].memory_offset, 4u);
    EXPECT_EQ(readv.segments[1].file_offset, 5u);
    EXPECT_EQ(readv.segments[1].length, 6u);
  }
  EXPECT_EQ(code_of(SLUICE_IOC_READV, bytes_of(*from, 32 + 47)), EINVAL);
  from->count = SLUICE_MAX_SEGMENTS + 1;
  EXPECT_EQ(code_of(SLUICE_IOC_READV, bytes_of(*from, 16383)), EINVAL);
  from->count = 1;
  Bytes longer = bytes_of(*from, 16383);
  EXPECT_EQ(code_of(SLUICE_IOC_READV, longer), 0);
  longer.back() = std::byte{1};
  EXPECT_EQ(code_of(SLUICE_IOC_READV, longer), E2BIG);
  from->segments[0] = {~0ull, 0, 1};
  EXPECT_EQ(code_of(SLUICE_IOC_READV, bytes_of(*from)), EINVAL);
  from->segments[0] = {0, 0, SLUICE_MAX_SEGMENT};
  EXPECT_EQ(code_of(SLUICE_IOC_READV, bytes_of(*from)), 0);
  from->segments[0] = {0, 0, SLUICE_MAX_SEGMENT + 1};
  EXPECT_EQ(code_of(SLUICE_IOC_READV, bytes_of(*from)), E2BIG);
}

// A long transfer gets a thread of its own; for a short one that would take longer than itself.
TEST(GpuRequestsTest, TransferIsLongByTheBytesThatItAsksFor) {
  auto read = good_transfer();
  read.length = kLongTransfer;
  EXPECT_FALSE(is_long(SLUICE_IOC_READ, bytes_of(read)));
  read.length += 1;
  EXPECT_TRUE(is_long(SLUICE_IOC_READ, bytes_of(read)));
  EXPECT_TRUE(is_long(SLUICE_IOC_WRITE, bytes_of(read)));
  EXPECT_FALSE(is_long(SLUICE_IOC_PREFETCH, bytes_of(read)));
  sluice_readv many{};
  for (auto& segment : many.segments) segment = {0, 0, kLongTransfer / 2};
  many.count = 2;
  EXPECT_FALSE(is_long(SLUICE_IOC_READV, bytes_of(many))) << "the rest does not count";
  many.count = 3;
  EXPECT_TRUE(is_long(SLUICE_IOC_READV, bytes_of(many)));
  many.count = ~0u;
  for (auto& segment : many.segments) segment.length = ~0ull;
  EXPECT_TRUE(is_long(SLUICE_IOC_READV, bytes_of(many)));
  for (const std::size_t size : {0, 7, 20}) {
    EXPECT_FALSE(is_long(SLUICE_IOC_READV, bytes_of(many, size))) << size;
    EXPECT_FALSE(is_long(SLUICE_IOC_READ, bytes_of(read, size))) << size;
  }
}

TEST(GpuRequestsTest, ARingNeedsADescriptorAndRoomForItsHeader) {
  const auto with = [](int fd, std::uint32_t reserved, std::uint64_t length) {
    return code_of(SLUICE_IOC_RING_CREATE, sluice_ring_create{fd, reserved, length, 0});
  };
  EXPECT_EQ(with(3, 0, SLUICE_RING_HEADER_SIZE), 0);
  EXPECT_EQ(with(-1, 0, SLUICE_RING_HEADER_SIZE), EBADF);
  EXPECT_EQ(with(3, 1, SLUICE_RING_HEADER_SIZE), EINVAL);
  EXPECT_EQ(with(3, 0, SLUICE_RING_HEADER_SIZE - 1), EINVAL);
  EXPECT_EQ(with(3, 0, std::uint64_t{1} << 40), EINVAL);
}

// Runs the corpus of the fuzzer, and mutations of it.
TEST(GpuRequestsTest, CorpusAndItsMutationsDoNotCrash) {
  std::mt19937_64 random(test::test_seed());
  std::size_t inputs = 0;
  for (const auto& entry :
       std::filesystem::directory_iterator(SLUICE_SOURCE_DIR "/tests/fuzz/corpus/ioctl")) {
    std::ifstream file(entry.path(), std::ios::binary);
    const std::vector<char> text((std::istreambuf_iterator<char>(file)), {});
    const std::vector<std::uint8_t> original(text.begin(), text.end());
    ++inputs;
    LLVMFuzzerTestOneInput(original.data(), original.size());
    for (int i = 0; i < 2000; ++i) {
      auto input = original;
      for (auto changes = random() % 4; !input.empty() && changes > 0; --changes) {
        constexpr std::uint8_t kEdges[] = {0, 1, 0x7f, 0x80, 0xff};
        const auto kind = random() % 3;
        std::uint8_t& byte = input[random() % input.size()];
        if (kind == 0) byte = static_cast<std::uint8_t>(random());
        if (kind == 1) byte = kEdges[random() % std::size(kEdges)];
        if (kind == 2) input.resize(random() % (2 * input.size() + 1));
      }
      LLVMFuzzerTestOneInput(input.data(), input.size());
    }
  }
  EXPECT_GE(inputs, 8u);
}

TEST(GpuRequestsTest, AGatherIsChecked) {
  const auto code = [](const auto& change) {
    sluice_records request{};
    request.count = 3;
    request.record_bytes = 8;
    change(request);
    return code_of(SLUICE_IOC_GATHER, bytes_of(request));
  };
  EXPECT_EQ(code([](auto&) {}), 0);
  EXPECT_EQ(code([](auto& request) { request.record_bytes = 0; }), EINVAL);
  EXPECT_EQ(code([](auto& request) { request.reserved = 1; }), EINVAL);
  EXPECT_EQ(code([](auto& request) { request.index_offset = 4; }), EINVAL);
  EXPECT_EQ(code([](auto& request) { request.count = SLUICE_MAX_RECORDS + 1; }), E2BIG);
  EXPECT_EQ(code([](auto& request) { request.buffer_offset = ~0ULL - 8; }), EINVAL);
  EXPECT_EQ(code([](auto& request) { request.index_offset = ~0ULL - 7; }), EINVAL);
  EXPECT_EQ(code([](auto& request) { request.file_offset = 1ULL << 63; }), EINVAL);
}

}  // namespace
}  // namespace sluice
