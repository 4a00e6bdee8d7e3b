// SPDX-License-Identifier: BSD-2-Clause
#include "base/dirty_pages.hpp"

#include <gtest/gtest.h>

#include <string>

#include "tests/support/files.hpp"

namespace sluice {
namespace {

std::string vmstat(int dirty, int written_back) {
  return "nr_free_pages 900\nnr_dirty " + std::to_string(dirty) + "\nnr_writeback " +
         std::to_string(written_back) +
         "\nnr_dirtied 5000\nnr_dirty_threshold 200\nnr_dirty_background_threshold 100\n";
}

TEST(DirtyPagesTest, AreManyAboveTheLowerThreshold) {
  EXPECT_FALSE(has_many_dirty_pages(vmstat(0, 0)));
  EXPECT_FALSE(has_many_dirty_pages(vmstat(60, 40)));
  EXPECT_TRUE(has_many_dirty_pages(vmstat(60, 41)));
  EXPECT_TRUE(has_many_dirty_pages(vmstat(0, 101)));
}

TEST(DirtyPagesTest, AreNotManyIfTheKernelDoesNotReportThem) {
  EXPECT_FALSE(has_many_dirty_pages(""));
  EXPECT_FALSE(has_many_dirty_pages("\nnr_dirty 100\n"));
}

TEST(DirtyPagesTest, AreReportedByThisKernel) {
  const std::string text = test::read_file("/proc/vmstat");
  EXPECT_NE(text.find("\nnr_dirty "), std::string::npos);
  EXPECT_NE(text.find("\nnr_writeback "), std::string::npos);
  EXPECT_NE(text.find("\nnr_dirty_background_threshold "), std::string::npos);
  EXPECT_LT(text.size(), 16383u) << "more than is read";
}

}  // namespace
}  // namespace sluice
