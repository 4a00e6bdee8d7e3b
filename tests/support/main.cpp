// SPDX-License-Identifier: BSD-2-Clause
// main() of the tests that mount something: gtest's main with a janitor.
#include <gtest/gtest.h>

#include <string>

#include "tests/support/janitor.hpp"

namespace {

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
  return RUN_ALL_TESTS();
}
