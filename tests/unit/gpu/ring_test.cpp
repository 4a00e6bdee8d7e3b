// SPDX-License-Identifier: BSD-2-Clause
#include "gpu/ring.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <functional>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "tests/support/no_threads.hpp"
#include "tests/support/seed.hpp"
#include "tests/support/wait.hpp"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size);

namespace sluice {
namespace {

using test::eventually;

constexpr std::uint64_t kFile = 7, kBuffer = 9, kFileSize = 1 << 20, kBufferSize = 4 << 20;

// One file of 1 MiB and one buffer of 4 MiB. Counts requests and transfers nothing.
class CountingTarget : public RingTarget {
 public:
  Result<Transfer> read(std::uint64_t file, std::uint64_t buffer,
                        std::span<const Segment> segments) override {
    ++calls;
    if (before) before(segments);
    if (file != kFile) return Error(EBADF, "file");
    if (buffer != kBuffer) return Error(ENOENT, "buffer");
    Transfer done{0, Route::Host, Why::HostMemory};
    for (const Segment& segment : segments) {
      if (segment.memory_offset > kBufferSize ||
          segment.length > kBufferSize - segment.memory_offset)
        return Error(ERANGE, "range");
      const std::uint64_t left =
          segment.file_offset < kFileSize ? kFileSize - segment.file_offset : 0;
      done.bytes += std::min(segment.length, left);
    }
    return done;
  }
  Result<Transfer> write(std::uint64_t file, std::uint64_t, const Segment& segment) override {
    if (file != kFile) return Error(EBADF, "file");
    ++writes;
    return Transfer{segment.length, Route::Host, Why::Writing};
  }

  std::function<void(std::span<const Segment>)> before;
  std::atomic<unsigned> calls{0}, writes{0};
};

// The client's side, without a library.
class RingTest : public ::testing::Test {
 protected:
  void make(std::uint32_t entries, std::uint32_t completions) {
    const std::size_t size = ring_size(entries, completions);
    storage_.assign(size / 4096 + 2, {});
    memory_ = {reinterpret_cast<std::byte*>(storage_.data()), size};
    header().magic = SLUICE_RING_MAGIC;
    header().version = SLUICE_RING_VERSION;
    header().entries = entries_ = entries;
    header().completions = completions_ = completions;
  }
  void serve_with(std::uint32_t entries, std::uint32_t completions) {
    make(entries, completions);
    auto server = RingServer::create(memory_, target_);
    ASSERT_TRUE(server) << server.error().operation;
    server_ = *std::move(server);
  }
  sluice_ring_header& header() { return *reinterpret_cast<sluice_ring_header*>(memory_.data()); }
  void put(const sluice_ring_entry& entry) {
    auto* all = reinterpret_cast<sluice_ring_entry*>(memory_.data() + SLUICE_RING_HEADER_SIZE);
    all[submitted_ % entries_] = entry;
    std::atomic_ref(header().submitted).store(++submitted_);
    if (std::atomic_ref(header().sleeping).exchange(0) == 1) futex_wake(&header().sleeping);
  }
  sluice_ring_entry read_of(std::uint64_t user_data, std::uint64_t offset, std::uint64_t length) {
    return {user_data, kFile, kBuffer, 0, offset, length, SLUICE_RING_READ, 0, 0};
  }
  std::vector<sluice_ring_completion> reap() {
    std::vector<sluice_ring_completion> out;
    const auto* all = reinterpret_cast<const sluice_ring_completion*>(
        memory_.data() + SLUICE_RING_HEADER_SIZE + entries_ * sizeof(sluice_ring_entry));
    const std::uint32_t completed = std::atomic_ref(header().completed).load();
    while (reaped_ != completed) out.push_back(all[reaped_++ % completions_]);
    std::atomic_ref(header().reaped).store(reaped_);
    return out;
  }
  std::int64_t result_of(const sluice_ring_entry& entry) {
    put(entry);
    EXPECT_EQ(*server_->serve(), 1u);
    const auto done = reap();
    EXPECT_EQ(done.size(), 1u);
    EXPECT_EQ(done[0].user_data, entry.user_data);
    return done[0].result;
  }

  struct alignas(4096) Page {
    std::byte bytes[4096];
  };
  std::vector<Page> storage_;
  std::span<std::byte> memory_;
  std::uint32_t entries_ = 0, completions_ = 0, submitted_ = 0, reaped_ = 0;
  CountingTarget target_;
  std::unique_ptr<RingServer> server_;  // declared last: it uses everything above
};

TEST_F(RingTest, InvalidHeaderIsRefused) {
  const auto refused = [&](auto change) {
    make(8, 16);
    change(header());
    const auto server = RingServer::create(memory_, target_);
    return failed_with(server, EINVAL);
  };
  EXPECT_FALSE(refused([](auto&) {}));
  EXPECT_TRUE(refused([](auto& h) { h.magic ^= 1; }));
  EXPECT_TRUE(refused([](auto& h) { h.version = 2; }));
  EXPECT_TRUE(refused([](auto& h) { h.entries = 0; }));
  EXPECT_TRUE(refused([](auto& h) { h.entries = 6; }));
  EXPECT_TRUE(refused([](auto& h) { h.entries = h.completions = 16; })) << "beyond the memory";
  EXPECT_TRUE(refused([](auto& h) { h.entries = 0x8000'0000; }));
  EXPECT_TRUE(refused([](auto& h) { h.completions = 4; })) << "fewer than entries";
  EXPECT_TRUE(refused([](auto& h) { h.completions = 0x8000'0000; }));
  make(8, 16);
  EXPECT_TRUE(failed_with(RingServer::create(memory_.first(100), target_), EINVAL));
  EXPECT_TRUE(failed_with(RingServer::create(memory_.first(memory_.size() - 1), target_), EINVAL));
}

TEST_F(RingTest, ReadsOfOneFileAndBufferAreOneCall) {
  serve_with(128, 128);
  for (std::uint64_t i = 0; i < 128; ++i) put(read_of(i, i * 4096, 4096));
  EXPECT_EQ(*server_->serve(), 128u);
  EXPECT_EQ(target_.calls, 1u);
  auto done = reap();
  ASSERT_EQ(done.size(), 128u);
  for (std::uint64_t i = 0; i < 128; ++i) {
    EXPECT_EQ(done[i].user_data, i);
    EXPECT_EQ(done[i].result, 4096);
    EXPECT_EQ(done[i].route, SLUICE_ROUTE_HOST);
  }
}

TEST_F(RingTest, IndexesWrapAround) {
  make(4, 4);
  header().submitted = submitted_ = 0xffff'fff0;
  header().reaped = reaped_ = 0xffff'fffd;
  server_ = *RingServer::create(memory_, target_);
  for (std::uint64_t i = 0; i < 100; ++i) ASSERT_EQ(result_of(read_of(i, 0, 10)), 10) << i;
}

TEST_F(RingTest, EntriesAreTakenOnlyWithRoomForTheirCompletions) {
  serve_with(4, 4);
  for (std::uint64_t i = 0; i < 4; ++i) put(read_of(i, 0, 10));
  EXPECT_EQ(*server_->serve(), 4u);
  for (std::uint64_t i = 4; i < 8; ++i) put(read_of(i, 0, 10));
  EXPECT_EQ(*server_->serve(), 0u) << "the first four were not reaped";
  auto done = reap();
  ASSERT_EQ(done.size(), 4u);
  EXPECT_EQ(done[3].user_data, 3u);
  EXPECT_EQ(*server_->serve(), 4u);
  EXPECT_EQ(reap()[0].user_data, 4u);
}

TEST_F(RingTest, FailedOrShortEntryDoesNotAffectOthers) {
  serve_with(8, 8);
  put(read_of(0, 0, 100));
  put(read_of(1, kFileSize - 10, 100));
  auto beyond = read_of(2, 0, 100);
  beyond.buffer_offset = kBufferSize - 1;
  put(beyond);
  auto no_file = read_of(3, 0, 100);
  no_file.file = 8;
  put(no_file);
  auto no_buffer = read_of(4, 0, 100);
  no_buffer.buffer = 1;
  put(no_buffer);
  put(read_of(5, kFileSize, 100));
  EXPECT_EQ(*server_->serve(), 6u);
  std::array<std::int64_t, 6> results{};
  for (const auto& each : reap()) results.at(each.user_data) = each.result;
  EXPECT_EQ(results, (std::array<std::int64_t, 6>{100, 10, -ERANGE, -EBADF, -ENOENT, 0}));
}

TEST_F(RingTest, InvalidEntriesFailWithEinval) {
  serve_with(8, 8);
  const auto changed = [&](auto change) {
    auto entry = read_of(1, 0, 10);
    change(entry);
    return result_of(entry);
  };
  EXPECT_EQ(changed([](auto& e) { e.flags = 1; }), -EINVAL);
  EXPECT_EQ(changed([](auto& e) { e.reserved = 1; }), -EINVAL);
  EXPECT_EQ(changed([](auto& e) { e.operation = 3; }), -EINVAL);
  EXPECT_EQ(changed([](auto& e) { e.file_offset = UINT64_MAX; }), -EINVAL);
  EXPECT_EQ(changed([](auto& e) { e.file_offset = INT64_MAX - 5; }), -EINVAL);
  EXPECT_EQ(changed([](auto& e) { e.buffer_offset = UINT64_MAX - 5; }), -EINVAL);
  EXPECT_EQ(changed([](auto& e) { e.length = UINT64_MAX; }), -EINVAL);
  EXPECT_EQ(target_.calls, 0u);
  EXPECT_EQ(changed([](auto& e) { e.operation = SLUICE_RING_NOP; }), 0);
  EXPECT_EQ(changed([](auto& e) { e.length = 0; }), 0);
  EXPECT_EQ(changed([](auto& e) { e.operation = SLUICE_RING_WRITE; }), 10);
  EXPECT_EQ(target_.writes, 1u);
}

TEST_F(RingTest, EntryIsReadOnce) {
  serve_with(4, 4);
  // The entry is changed after it was copied and before it is used.
  target_.before = [&](std::span<const Segment>) {
    auto* all = reinterpret_cast<sluice_ring_entry*>(memory_.data() + SLUICE_RING_HEADER_SIZE);
    all[0] = {99, 1, 1, UINT64_MAX, UINT64_MAX, UINT64_MAX, 77, 77, 77};
  };
  EXPECT_EQ(result_of(read_of(5, 0, 123)), 123);
}

TEST_F(RingTest, InvalidIndexesEndOnlyThatRing) {
  serve_with(4, 4);
  header().submitted = 5;
  EXPECT_TRUE(failed_with(server_->serve(), EPROTO));
  header().submitted = 0;
  header().reaped = 1;
  EXPECT_TRUE(failed_with(server_->serve(), EPROTO));
  ASSERT_TRUE(server_->start());
  EXPECT_TRUE(eventually([&] { return std::atomic_ref(header().ended).load() == EPROTO; }));
}

TEST_F(RingTest, LargeRequestDoesNotDelaySmallOnes) {
  serve_with(8, 8);
  std::atomic<bool> go{false};
  target_.before = [&](std::span<const Segment> segments) {
    if (segments[0].length > RingServer::kLarge) {
      while (!go) std::this_thread::yield();
    }
  };
  put(read_of(1, 0, 2 << 20));
  put(read_of(2, 0, 10));
  EXPECT_EQ(*server_->serve(), 2u);
  auto done = reap();
  ASSERT_EQ(done.size(), 1u);
  EXPECT_EQ(done[0].user_data, 2u);
  go = true;
  ASSERT_TRUE(eventually([&] { return !(done = reap()).empty(); }));
  EXPECT_EQ(done[0].user_data, 1u);
  EXPECT_EQ(done[0].result, std::int64_t{kFileSize});
}

TEST_F(RingTest, ThreadSleepsAndIsWoken) {
  serve_with(64, 64);
  ASSERT_TRUE(server_->start());
  for (std::uint64_t i = 0; i < 200; ++i) {
    // From time to time, wait until the server sleeps.
    if (i % 50 == 0) {
      ASSERT_TRUE(eventually([&] { return std::atomic_ref(header().sleeping).load() == 1; }));
    }
    put(read_of(i, 0, 10));
    std::vector<sluice_ring_completion> done;
    ASSERT_TRUE(eventually([&] { return !(done = reap()).empty(); })) << i;
    EXPECT_EQ(done[0].user_data, i);
  }
  server_->stop(ESHUTDOWN);
  EXPECT_EQ(header().ended, static_cast<std::uint32_t>(ESHUTDOWN));
}

TEST_F(RingTest, BellWakesAWaitingClient) {
  serve_with(8, 8);
  const std::uint32_t bell = header().bell;
  put(read_of(1, 0, 10));
  EXPECT_EQ(*server_->serve(), 1u);
  EXPECT_EQ(header().bell, bell) << "no client waits";
  header().waiting = 1;
  put(read_of(2, 0, 10));
  EXPECT_EQ(*server_->serve(), 1u);
  EXPECT_EQ(header().bell, bell + 1);
  EXPECT_EQ(header().waiting, 0u);
}

// The CPU time, in nanoseconds, of all threads with that name.
std::uint64_t time_of_threads(const std::string& name) {
  std::uint64_t sum = 0;
  for (const auto& task : std::filesystem::directory_iterator("/proc/self/task")) {
    std::string comm;
    std::getline(std::ifstream(task.path() / "comm"), comm);
    std::uint64_t ran = 0;
    if (comm == name && std::ifstream(task.path() / "schedstat") >> ran) sum += ran;
  }
  return sum;
}

TEST_F(RingTest, NeedlessWakesDoNotKeepACoreBusy) {
  serve_with(8, 8);
  ASSERT_TRUE(server_->start());
  std::atomic<bool> stop{false};
  std::jthread scribbler([&] {
    while (!stop) {
      std::atomic_ref(header().sleeping).store(0);
      futex_wake(&header().sleeping);
    }
  });
  // That a thread does not run can't be observed as an event; time has to pass.
  std::this_thread::sleep_for(std::chrono::milliseconds(400));
  const std::uint64_t before = time_of_threads("sluice-ring");
  std::this_thread::sleep_for(std::chrono::milliseconds(400));
  const std::uint64_t ran = time_of_threads("sluice-ring") - before;
  stop = true;
  scribbler.join();
  EXPECT_LT(ran, 40'000'000u);
  put(read_of(1, 0, 10));
  EXPECT_TRUE(eventually([&] { return !reap().empty(); })) << "it still serves";
}

TEST_F(RingTest, GarbageInEveryWordDoesNotHarmOthers) {
  std::mt19937_64 random(test::test_seed());
  for (int round = 0; round < 30; ++round) {
    submitted_ = reaped_ = 0;
    serve_with(16, 16);
    ASSERT_TRUE(server_->start());
    for (int i = 0; i < 2000; ++i) {
      const std::size_t words = memory_.size() / 4;
      // Mostly in the header.
      const std::size_t where = random() % 2 == 0 ? random() % 144 : random() % words;
      auto& word = reinterpret_cast<std::uint32_t*>(memory_.data())[where];
      std::atomic_ref(word).store(static_cast<std::uint32_t>(random() >> (random() % 64)));
      if (random() % 8 == 0) futex_wake(&header().sleeping);
    }
    server_.reset();  // hangs if a thread does not end because of what it read
  }
}

TEST_F(RingTest, EndsCleanlyIfTheThreadForLargeRequestsCannotStart) {
  serve_with(8, 8);
  ASSERT_TRUE(server_->start());
  const test::NoThreads none;
  put(read_of(1, 0, RingServer::kLarge + 1));
  EXPECT_TRUE(eventually([&] { return std::atomic_ref(header().ended).load() == EAGAIN; }));
  EXPECT_TRUE(eventually([&] { return server_->is_at_rest(); }));
}

// Runs the corpus of the fuzzer, and mutations of it.
TEST(RingFuzzTest, CorpusAndItsMutationsDoNotCrash) {
  std::mt19937_64 random(test::test_seed());
  std::size_t inputs = 0;
  for (const auto& entry :
       std::filesystem::directory_iterator(SLUICE_SOURCE_DIR "/tests/fuzz/corpus/ring")) {
    std::ifstream file(entry.path(), std::ios::binary);
    const std::vector<char> text((std::istreambuf_iterator<char>(file)), {});
    const std::vector<std::uint8_t> original(text.begin(), text.end());
    ++inputs;
    LLVMFuzzerTestOneInput(original.data(), original.size());
    for (int i = 0; i < 1000 && !original.empty(); ++i) {
      auto input = original;
      for (auto changes = 1 + random() % 4; changes > 0; --changes) {
        input[random() % input.size()] = static_cast<std::uint8_t>(random() >> (random() % 64));
      }
      LLVMFuzzerTestOneInput(input.data(), input.size());
    }
  }
  EXPECT_GE(inputs, 6u);
}

}  // namespace
}  // namespace sluice
