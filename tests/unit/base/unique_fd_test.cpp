// SPDX-License-Identifier: BSD-2-Clause
#include "base/unique_fd.hpp"

#include <fcntl.h>
#include <gtest/gtest.h>

#include <type_traits>

namespace sluice {
namespace {

bool is_open(int fd) { return ::fcntl(fd, F_GETFD) >= 0; }

int open_null() { return ::open("/dev/null", O_RDONLY | O_CLOEXEC); }

static_assert(!std::is_copy_constructible_v<UniqueFd> && !std::is_copy_assignable_v<UniqueFd>);
static_assert(!std::is_convertible_v<UniqueFd, int> && !std::is_convertible_v<int, UniqueFd>);

TEST(UniqueFdTest, ClosesWhatItOwns) {
  int raw = -1;
  {
    const UniqueFd fd(open_null());
    raw = fd.get();
    ASSERT_TRUE(fd);
    ASSERT_TRUE(is_open(raw));
  }
  EXPECT_FALSE(is_open(raw));
}

TEST(UniqueFdTest, EveryNegativeNumberMeansEmpty) {
  for (const int none : {-1, -2, -100}) {
    const UniqueFd fd(none);
    EXPECT_FALSE(fd);
    EXPECT_EQ(fd.get(), -1);
  }
  EXPECT_FALSE(UniqueFd());
}

TEST(UniqueFdTest, MovingTransfersTheDescriptor) {
  UniqueFd first(open_null());
  const int raw = first.get();
  const UniqueFd second(std::move(first));
  EXPECT_EQ(second.get(), raw);
  EXPECT_FALSE(first);  // NOLINT(bugprone-use-after-move): empty is what is promised
  EXPECT_TRUE(is_open(raw));
}

TEST(UniqueFdTest, AssigningClosesThePreviousDescriptor) {
  UniqueFd first(open_null());
  UniqueFd second(open_null());
  const int old = first.get(), kept = second.get();
  first = std::move(second);
  EXPECT_FALSE(is_open(old));
  EXPECT_EQ(first.get(), kept);
  EXPECT_TRUE(is_open(kept));
}

TEST(UniqueFdTest, AssigningToItselfKeepsTheDescriptor) {
  UniqueFd fd(open_null());
  const int raw = fd.get();
  UniqueFd& same = fd;
  fd = std::move(same);
  EXPECT_EQ(fd.get(), raw);
  EXPECT_TRUE(is_open(raw));
}

TEST(UniqueFdTest, ReleaseGivesUpOwnership) {
  UniqueFd fd(open_null());
  const int raw = fd.release();
  EXPECT_FALSE(fd);
  EXPECT_TRUE(is_open(raw));
  ::close(raw);
}

TEST(UniqueFdTest, ResetReplacesAndCloses) {
  UniqueFd fd(open_null());
  const int old = fd.get();
  const int next = open_null();
  fd.reset(next);
  EXPECT_FALSE(is_open(old));
  EXPECT_EQ(fd.get(), next);
  fd.reset();
  EXPECT_FALSE(fd);
  EXPECT_FALSE(is_open(next));
}

}  // namespace
}  // namespace sluice
