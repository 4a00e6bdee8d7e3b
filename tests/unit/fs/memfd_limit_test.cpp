// SPDX-License-Identifier: BSD-2-Clause
#include "fs/gpu/memfd_limit.hpp"

#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <vector>

namespace sluice {
namespace {

UniqueFd make_memory(off_t size) {
  UniqueFd memory(::memfd_create("buffer", MFD_CLOEXEC));
  EXPECT_EQ(::ftruncate(memory.get(), size), 0);
  return memory;
}

TEST(MemfdLimitTest, EachUserLeavesAsMuchFreeAsItUses) {
  MemfdLimit limit(1 << 20);
  std::vector<MemfdLimit::Share> held;
  for (uid_t user = 1000; user < 1008; ++user) {
    const std::uint64_t before = limit.used();
    // As much as possible, in smaller and smaller pieces.
    for (std::uint64_t bytes = 1 << 20; bytes >= 64; bytes /= 2) {
      const UniqueFd memory = make_memory(static_cast<off_t>(bytes));
      auto share = limit.take(user, memory, bytes);
      if (share) held.push_back(*std::move(share));
    }
    EXPECT_GT(limit.used(), before) << "something must be left for user " << user;
    EXPECT_LE(limit.used() - before, limit.most() - limit.used()) << "user " << user;
  }
  EXPECT_EQ(limit.largest_share(), 1u << 19);
}

TEST(MemfdLimitTest, RootMayHaveAllOfIt) {
  MemfdLimit limit(8192);
  const UniqueFd memory = make_memory(16384);
  const auto share = limit.take(0, memory, 8192);
  ASSERT_TRUE(share);
  EXPECT_TRUE(failed_with(limit.take(0, memory, 1), ENOSPC));
}

TEST(MemfdLimitTest, ReleasedMemoryCanBeTakenAgain) {
  MemfdLimit limit(8192);
  const UniqueFd memory = make_memory(16384);
  for (int i = 0; i < 3; ++i) {
    const auto share = limit.take(1000, memory, 4096);
    ASSERT_TRUE(share) << i;
    EXPECT_TRUE(failed_with(limit.take(1000, memory, 1), ENOSPC));
    EXPECT_EQ(limit.largest_share(), 4096u);
  }
  EXPECT_EQ(limit.used(), 0u);
  EXPECT_EQ(limit.largest_share(), 0u);
}

TEST(MemfdLimitTest, FullyCountedMemfdCanBeRegisteredAgain) {
  MemfdLimit limit(8192);
  const UniqueFd memory = make_memory(4096);
  const auto once = limit.take(1000, memory, 4096), again = limit.take(1000, memory, 4096);
  EXPECT_TRUE(once);
  EXPECT_TRUE(again);
  EXPECT_EQ(limit.used(), 4096u);
}

}  // namespace
}  // namespace sluice
