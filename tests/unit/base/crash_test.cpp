// SPDX-License-Identifier: BSD-2-Clause
#include "base/crash.hpp"

#include <gtest/gtest.h>

#include <array>
#include <csignal>
#include <thread>

#include "base/sanitizers.hpp"
#include "base/thread.hpp"

namespace sluice {
namespace {

// An endless recursion, which the compiler cannot see.
int use_stack(volatile int* more) {
  std::array<volatile char, 4096> frame{};
  frame[0] = static_cast<char>(*more);
  return *more == 0 ? 0 : use_stack(more) + frame[0];
}

void use_all_stack() {
  volatile int more = 1;
  use_stack(&more);
}

class CrashDeathTest : public testing::Test {
 protected:
  void SetUp() override {
    if (kSanitized) GTEST_SKIP() << "a sanitizer reports faults itself";
    GTEST_FLAG_SET(death_test_style, "threadsafe");
  }
};

TEST_F(CrashDeathTest, AStackOverflowOfAThreadIsReported) {
  EXPECT_EXIT(
      {
        report_crashes();
        std::thread([] {
          begin_thread("sluice-test");
          use_all_stack();
        }).join();
      },
      testing::KilledBySignal(SIGSEGV), "the daemon crashed: signal 11");
}

TEST_F(CrashDeathTest, AStackOverflowOfTheMainThreadIsReported) {
  EXPECT_EXIT(
      {
        report_crashes();
        use_all_stack();
      },
      testing::KilledBySignal(SIGSEGV), "the daemon crashed: signal 11");
}

}  // namespace
}  // namespace sluice
