// SPDX-License-Identifier: BSD-2-Clause
#include "fs/core/budget/budget_files.hpp"

#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace sluice {
namespace {

using Names = std::vector<std::string>;

class BudgetFilesTest : public testing::Test {
 protected:
  void add(std::uint64_t id, const Names& directory, const std::string& name,
           std::uint64_t bytes = 0) {
    files_.set_bytes(files_.add_name(InodeId{id}, directory, name, 0), bytes);
  }
  Names paths(std::uint64_t id) const { return files_.paths(InodeId{id}); }

  BudgetFiles files_;
};

TEST_F(BudgetFilesTest, AMillionNamesMadeAndRemovedLeaveNoTrace) {
  const std::string name(200, 'x');
  for (std::uint64_t i = 0; i < 1'000'000; ++i) {
    const Names directory{"d" + std::to_string(i) + name, name, name};
    add(i, directory, "f", 1);
    EXPECT_EQ(files_.directories(), 3u);
    files_.remove_name(InodeId{i}, directory, "f");
  }
  EXPECT_EQ(files_.directories(), 0u);
  EXPECT_EQ(files_.all().size(), 0u);
  EXPECT_EQ(files_.used(), 0u);
}

TEST_F(BudgetFilesTest, ADirectoryIsRememberedAsLongAsAFileBelowItIs) {
  add(1, {"b", "a"}, "f");
  add(2, {"a"}, "g");
  EXPECT_EQ(files_.directories(), 2u);
  files_.erase(InodeId{2});
  EXPECT_EQ(files_.directories(), 2u);
  files_.erase(InodeId{1});
  EXPECT_EQ(files_.directories(), 0u);
  // What was forgotten can come again.
  add(3, {"b", "a"}, "h");
  EXPECT_EQ(paths(3), Names{"/a/b/h"});
}

TEST_F(BudgetFilesTest, AFileWithSeveralNamesCountsOnceUntilTheLastIsGone) {
  add(1, {"a"}, "f", 10);
  add(1, {"b"}, "g", 10);
  add(1, {"b"}, "g", 10);
  EXPECT_EQ(files_.used(), 10u);
  EXPECT_EQ(paths(1), (Names{"/a/f", "/b/g"}));
  files_.remove_name(InodeId{1}, Names{"a"}, "f");
  files_.remove_name(InodeId{1}, Names{"a"}, "f");
  EXPECT_EQ(paths(1), Names{"/b/g"});
  EXPECT_EQ(files_.directories(), 1u);
  files_.remove_name(InodeId{1}, Names{"b"}, "g");
  EXPECT_EQ(files_.directories(), 0u);
  EXPECT_EQ(files_.used(), 0u);
}

TEST_F(BudgetFilesTest, RenamedDirectoriesTakeWhatIsBelowThemWithThem) {
  add(1, {"b", "a"}, "f", 1);
  add(2, {"c", "b", "a"}, "g", 1);
  add(3, {"target"}, "removed past the mount", 1);
  files_.directory_renamed(Names{"b", "a"}, Names{"target"});
  EXPECT_EQ(paths(1), Names{"/target/f"});
  EXPECT_EQ(paths(2), Names{"/target/c/g"});
  EXPECT_EQ(files_.used(), 2u);
  EXPECT_EQ(files_.directories(), 2u);
  files_.directory_renamed(Names{"target"}, Names{"new", "x", "y"});
  EXPECT_EQ(paths(2), Names{"/y/x/new/c/g"});
  EXPECT_EQ(files_.directories(), 4u);
  files_.directory_renamed(Names{"nothing"}, Names{"there"});
  EXPECT_EQ(files_.directories(), 4u);
}

TEST_F(BudgetFilesTest, WhatLeavesIsForgottenUnlessItHasANameThatStays) {
  add(1, {"c", "a"}, "f", 1);
  add(1, {"b"}, "stays", 1);
  add(2, {"a"}, "g", 1);
  files_.directory_left(Names{"a"});
  EXPECT_EQ(paths(1), Names{"/b/stays"});
  EXPECT_FALSE(files_.contains(InodeId{2}));
  EXPECT_EQ(files_.directories(), 1u);
  EXPECT_EQ(files_.used(), 1u);
}

// What is known may be out of date, so names can contradict each other.
TEST_F(BudgetFilesTest, ADirectoryThatSeemsToMoveIntoItselfIsForgotten) {
  add(1, {"b", "a"}, "f", 1);
  files_.directory_renamed(Names{"a"}, Names{"x", "b", "a"});
  files_.directory_renamed(Names{"b", "a"}, Names{"a"});
  EXPECT_EQ(files_.directories(), 0u);
  EXPECT_EQ(files_.used(), 0u);
}

}  // namespace
}  // namespace sluice
