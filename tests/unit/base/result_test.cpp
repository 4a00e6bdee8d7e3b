// SPDX-License-Identifier: BSD-2-Clause
#include "base/result.hpp"

#include <gtest/gtest.h>

#include <cstring>
#include <memory>
#include <string>

namespace sluice {
namespace {

Result<int> half(int number) {
  if (number % 2 != 0) return Error(EDOM, "halve");
  return number / 2;
}

Result<int> quarter(int number, int& evaluations) {
  const int once = SLUICE_TRY((++evaluations, half(number)));
  return half(once);
}

Result<void> check_even(int number, bool& went_on) {
  SLUICE_TRY(half(number));
  went_on = true;
  return {};
}

Result<void> check_both(int first, int second) {
  bool unused = false;
  SLUICE_TRY(check_even(first, unused));
  return check_even(second, unused);
}

TEST(ResultTest, HoldsAValue) {
  const Result<std::string> result(std::string("text"));
  EXPECT_TRUE(result);
  EXPECT_TRUE(result.has_value());
  EXPECT_EQ(*result, "text");
  EXPECT_EQ(result->size(), 4u);
}

TEST(ResultTest, HoldsAnErrorWithItsErrnoAndOperation) {
  const Result<std::string> result(Error(ENOENT, "open tier"));
  EXPECT_FALSE(result);
  EXPECT_FALSE(result.has_value());
  EXPECT_EQ(result.error().code, ENOENT);
  EXPECT_STREQ(result.error().operation, "open tier");
}

TEST(ErrorTest, TextIsTheDetailOrElseTheOperationAndItsErrno) {
  EXPECT_EQ(Error(ENOENT, "open tier").text(), "open tier: No such file or directory");
  EXPECT_EQ(Error(ENOENT, "open tier", "tier a: /a is gone; mount its disk").text(),
            "tier a: /a is gone; mount its disk");
}

TEST(ErrorTest, CopiesShareTheirDetail) {
  const Error error(EIO, "read", std::string(100, 'x'));
  const Result<int> result(error);
  EXPECT_EQ(result.error().detail, error.detail);
  EXPECT_EQ(Error(EIO, "read").detail, nullptr);
}

TEST(ErrorTest, AtPutsThePlaceInFrontOfTheText) {
  const Error placed = Error(EINVAL, "parse", "unknown key").at("/etc/sluice.toml:3");
  EXPECT_EQ(placed.text(), "/etc/sluice.toml:3: unknown key");
  EXPECT_EQ(placed.code, EINVAL);
  EXPECT_EQ(Error(EIO, "read").at("disk").text(), "disk: read: Input/output error");
}

TEST(ResultTest, AnErrorTypeOfErrnoIsNotTakenForAValue) {
  // An int is a value, not an error, although ENOENT is 2.
  const Result<int> result(ENOENT);
  ASSERT_TRUE(result);
  EXPECT_EQ(*result, 2);
}

TEST(ResultTest, AVoidResultIsSuccessUnlessGivenAnError) {
  EXPECT_TRUE(Result<void>());
  const Result<void> failed(Error(EIO, "sync"));
  EXPECT_FALSE(failed);
  EXPECT_FALSE(failed.has_value());
  EXPECT_EQ(failed.error().code, EIO);
}

TEST(ResultTest, AMoveOnlyValueCanBeTakenOut) {
  Result<std::unique_ptr<int>> result(std::make_unique<int>(7));
  const std::unique_ptr<int> taken = *std::move(result);
  EXPECT_EQ(*taken, 7);
}

TEST(ResultTest, LastTakesErrno) {
  errno = EXDEV;
  const Error error = Error::last("rename");
  EXPECT_EQ(error.code, EXDEV);
  EXPECT_STREQ(error.operation, "rename");
}

TEST(ResultTest, FailedWithMatchesExactlyThatError) {
  EXPECT_TRUE(failed_with(half(1), EDOM));
  EXPECT_FALSE(failed_with(half(1), EIO));
  EXPECT_FALSE(failed_with(half(2), EDOM));
  EXPECT_TRUE(failed_with(Result<void>(Error(EIO, "x")), EIO));
  EXPECT_FALSE(failed_with(Result<void>(), 0));
}

TEST(TryTest, YieldsTheValueAndEvaluatesOnce) {
  int evaluations = 0;
  const auto result = quarter(12, evaluations);
  ASSERT_TRUE(result);
  EXPECT_EQ(*result, 3);
  EXPECT_EQ(evaluations, 1);
}

TEST(TryTest, ReturnsTheErrorAsItWas) {
  int evaluations = 0;
  const auto result = quarter(3, evaluations);
  ASSERT_FALSE(result);
  EXPECT_EQ(result.error().code, EDOM);
  EXPECT_STREQ(result.error().operation, "halve");
}

TEST(TryTest, LeavesTheFunctionAtOnce) {
  bool went_on = false;
  EXPECT_FALSE(check_even(1, went_on));
  EXPECT_FALSE(went_on);
  EXPECT_TRUE(check_even(2, went_on));
  EXPECT_TRUE(went_on);
}

TEST(TryTest, WorksWithResultsWithoutValue) {
  EXPECT_TRUE(check_both(2, 4));
  EXPECT_FALSE(check_both(1, 4));
  EXPECT_FALSE(check_both(2, 5));
}

TEST(TryTest, MovesTheValueOut) {
  const auto give = []() -> Result<std::unique_ptr<int>> { return std::make_unique<int>(5); };
  const auto take = [&]() -> Result<int> {
    const std::unique_ptr<int> owned = SLUICE_TRY(give());
    return *owned;
  };
  EXPECT_EQ(*take(), 5);
}

TEST(ErrorTest, TextSaysWhatFailedAndWhy) {
  EXPECT_EQ(Error(ENOENT, "open directory").text(), "open directory: No such file or directory");
}

}  // namespace
}  // namespace sluice
