// SPDX-License-Identifier: BSD-2-Clause
// Tests only what MemoryStore adds to Store: failing on command. store_test.cpp tests the rest.
#include "tests/support/memory_store.hpp"

#include <gtest/gtest.h>

namespace sluice {
namespace {

using Failure = test::MemoryStore::Failure;

constexpr InodeId kAnyFile{7};

TEST(MemoryStoreTest, OnlyTheNthCallFailsAndChangesNothing) {
  test::MemoryStore store;
  store.fail_call(2, ENOSPC);
  EXPECT_TRUE(store.begin_intents({"a"}));
  EXPECT_FALSE(store.has_failed());
  EXPECT_TRUE(failed_with(store.begin_intents({"b"}), ENOSPC));
  EXPECT_TRUE(store.has_failed());
  EXPECT_TRUE(store.begin_intents({"c"}));
  EXPECT_EQ(store.calls(), 3u);
  EXPECT_EQ(store.intents()->size(), 2u);
}

TEST(MemoryStoreTest, APermanentFailureLastsUntilItIsCleared) {
  test::MemoryStore store;
  store.fail_call(1, EIO, Failure::ForGood);
  EXPECT_TRUE(failed_with(store.heat(kAnyFile), EIO));
  EXPECT_TRUE(failed_with(store.add_heat({{kAnyFile, {1, 1, 1, 1}}}), EIO));
  EXPECT_TRUE(failed_with(store.forget_heat({kAnyFile}), EIO));
  EXPECT_TRUE(failed_with(store.each_heat([](InodeId, const Heat&) { return true; }), EIO));
  EXPECT_TRUE(failed_with(store.add_receipts({{}}), EIO));
  EXPECT_TRUE(failed_with(store.receipts(1), EIO));
  EXPECT_TRUE(failed_with(store.add_ghosts({{kAnyFile, {}}}), EIO));
  EXPECT_TRUE(failed_with(store.each_ghost([](InodeId, const Ghost&) { return true; }), EIO));
  EXPECT_TRUE(failed_with(store.forget_ghosts({kAnyFile}), EIO));
  EXPECT_TRUE(failed_with(store.keep_times({{kAnyFile, {}}}), EIO));
  EXPECT_TRUE(failed_with(store.times(kAnyFile), EIO));
  EXPECT_TRUE(failed_with(store.each_times([](InodeId, const KeptTimes&) { return true; }), EIO));
  EXPECT_TRUE(failed_with(store.forget_times({kAnyFile}), EIO));
  EXPECT_TRUE(failed_with(store.clear_intents({1}), EIO));
  EXPECT_TRUE(failed_with(store.intents(), EIO));
  store.fail_call(0);
  EXPECT_EQ(*store.heat(kAnyFile), Heat{});
  EXPECT_TRUE(store.receipts(1)->empty());
}

}  // namespace
}  // namespace sluice
