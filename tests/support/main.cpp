// SPDX-License-Identifier: BSD-2-Clause
// main() of the tests that mount something: gtest's main with a janitor. A program all of whose
// tests were skipped exits with 77, so that CTest counts it as skipped.
#include <gtest/gtest.h>

#include <string>

#include "tests/support/janitor.hpp"

namespace {

constexpr int kSkipped = 77;

class Watchdog : public testing::EmptyTestEventListener {
  void OnTestStart(const testing::TestInfo& test) override {
    sluice::test::janitor::test_begins(std::string(test.test_suite_name()) + "." + test.name());
  }
  void OnTestEnd(const testing::TestInfo&) override { sluice::test::janitor::test_begins(""); }
};

}  // namespace

int main(int argc, char** argv) {
  testing::InitGoogleTest(&argc, argv);
  sluice::test::janitor::start();
  testing::UnitTest::GetInstance()->listeners().Append(new Watchdog);  // gtest owns it
  const int failed = RUN_ALL_TESTS();
  const auto& unit = *testing::UnitTest::GetInstance();
  const bool all_skipped = unit.skipped_test_count() > 0 && unit.successful_test_count() == 0;
  return failed == 0 && all_skipped ? kSkipped : failed;
}
