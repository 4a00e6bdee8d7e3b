// SPDX-License-Identifier: BSD-2-Clause
// A packet socket takes the place of /dev/fuse: a read returns one request, too.
#include "fs/fuse/device_loop.hpp"

#include <gtest/gtest.h>
#include <sys/socket.h>
#include <unistd.h>

#include <fstream>
#include <latch>
#include <set>
#include <string>
#include <thread>

#include "base/unique_fd.hpp"

namespace sluice {
namespace {

constexpr std::size_t kLargest = 8 << 20;
constexpr std::uint64_t kBusy = 20;

std::uint64_t resident_bytes() {
  std::ifstream status("/proc/self/status");
  std::uint64_t kibibytes = 0;
  for (std::string word; status >> word;) {
    if (word == "RssAnon:") status >> kibibytes;
  }
  return kibibytes << 10;
}

class DeviceLoopTest : public testing::Test {
 protected:
  void SetUp() override {
    int ends[2];
    ASSERT_EQ(::socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends), 0);
    kernel_ = UniqueFd(ends[0]);
    device_ = UniqueFd(ends[1]);
  }
  void send(const std::string& request) const {
    ASSERT_EQ(::write(kernel_.get(), request.data(), request.size()),
              static_cast<ssize_t>(request.size()));
  }
  static std::string text(std::span<const std::byte> request) {
    return {reinterpret_cast<const char*>(request.data()), request.size()};
  }

  UniqueFd kernel_, device_;
};

TEST_F(DeviceLoopTest, ThreadsThatAreBusyWithSmallRequestsShareBuffers) {
  std::latch all_run(kBusy), go(1);
  DeviceLoop loop(device_.get(), kLargest, [&](std::span<std::byte>) {
    all_run.count_down();
    go.wait();
  });
  const std::uint64_t before = resident_bytes();
  std::thread runner([&] { EXPECT_TRUE(loop.run()); });
  for (std::uint64_t i = 0; i < kBusy; ++i) send("request");
  all_run.wait();
  EXPECT_LT(resident_bytes() - before, kBusy / 2 * kLargest);
  go.count_down();
  loop.stop();
  runner.join();
}

TEST_F(DeviceLoopTest, RequestsOfAllSizesArriveAsTheyAre) {
  std::multiset<std::string> sent, got;
  for (const std::size_t size : {1, 40, 8191, 8192, 8193, 100'000}) {
    for (const char letter : {'a', 'b', 'c'}) sent.insert(std::string(size, letter));
  }
  Mutex mutex;
  std::latch arrived(static_cast<std::ptrdiff_t>(sent.size()));
  DeviceLoop loop(device_.get(), kLargest, [&](std::span<std::byte> request) {
    {
      MutexLock lock(mutex);
      got.insert(text(request));
    }
    arrived.count_down();
  });
  std::thread runner([&] { EXPECT_TRUE(loop.run()); });
  for (const std::string& request : sent) send(request);
  arrived.wait();
  loop.stop();
  runner.join();
  EXPECT_EQ(got, sent);
}

}  // namespace
}  // namespace sluice
