// SPDX-License-Identifier: BSD-2-Clause
#include "tiering/pool/speed_probe.hpp"

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <thread>

#include "tests/support/files.hpp"
#include "tests/unit/tiering/pools.hpp"

namespace sluice {
namespace {

// Whether the filesystem of the tests can bypass the page cache.
bool has_direct_io(const std::string& directory) {
  return UniqueFd(::open(directory.c_str(), O_TMPFILE | O_RDWR | O_DIRECT, 0600)).get() >= 0;
}

class SpeedProbeTest : public testing::Test {
 protected:
  void SetUp() override {
    if (!test::require("unit", has_direct_io(dir_.path()), "no O_DIRECT in the directory of tests"))
      return;
  }
  test::TempDir dir_;
  const UniqueFd fd_ = test::open_directory(dir_.path());
};

TEST_F(SpeedProbeTest, MeasuresAndLeavesNothing) {
  const auto speed = probe_speed(fd_.get(), {});
  ASSERT_TRUE(speed) << speed.error().text();
  EXPECT_GT(speed->latency, 1e-6);
  EXPECT_LT(speed->latency, 1);
  EXPECT_GT(speed->bandwidth, 1e5);
  EXPECT_LT(speed->bandwidth, 1e12);
  EXPECT_TRUE(test::names_in(dir_.path()).empty());
}

TEST_F(SpeedProbeTest, LeavesNothingBehindWhenItsProcessIsKilled) {
  for (int i = 1; i <= 10; ++i) {
    const pid_t child = ::fork();
    if (child == 0) {
      for (;;) [[maybe_unused]] const auto speed = probe_speed(fd_.get(), {});
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(3 * i));
    ::kill(child, SIGKILL);
    int status = 0;
    ASSERT_EQ(::waitpid(child, &status, 0), child);
    ASSERT_TRUE(WIFSIGNALED(status));
    EXPECT_TRUE(test::names_in(dir_.path()).empty());
  }
}

TEST_F(SpeedProbeTest, StopsOnRequest) {
  std::stop_source stop;
  stop.request_stop();
  const auto speed = probe_speed(fd_.get(), stop.get_token());
  ASSERT_FALSE(speed);
  EXPECT_EQ(speed.error().code, ECANCELED);
}

TEST(SpeedProbeErrorTest, SaysWhyADirectoryCannotBeMeasured) {
  const UniqueFd proc = test::open_directory("/proc/self");
  EXPECT_FALSE(probe_speed(proc.get(), {}));
}

}  // namespace
}  // namespace sluice
