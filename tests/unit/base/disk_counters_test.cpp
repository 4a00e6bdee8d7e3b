// SPDX-License-Identifier: BSD-2-Clause
#include "base/disk_counters.hpp"

#include <gtest/gtest.h>
#include <sys/sysmacros.h>

namespace sluice {
namespace {

TEST(DiskCountersTest, AreInBytesWhateverTheSectorSizeIs) {
  const auto disk = parse_disk_counters(
      "    7541      120   603280     1204     5512      301   440960     9321        2     5400 "
      "   10525        0        0        0        0        0        0\n");
  ASSERT_TRUE(disk);
  EXPECT_EQ(disk->reads, 7541u);
  EXPECT_EQ(disk->read_bytes, 603280u * 512);
  EXPECT_EQ(disk->read_ms, 1204u);
  EXPECT_EQ(disk->writes, 5512u);
  EXPECT_EQ(disk->written_bytes, 440960u * 512);
  EXPECT_EQ(disk->write_ms, 9321u);
  EXPECT_EQ(disk->busy_ms, 5400u);
}

TEST(DiskCountersTest, AreReadFromOlderKernelsToo) {
  EXPECT_TRUE(parse_disk_counters("1 2 3 4 5 6 7 8 9 10 11\n"));
}

TEST(DiskCountersTest, InvalidTextIsRejected) {
  for (const char* text : {"", "\n", "1 2 3", "1 2 3 4 5 6 7 8 9", "1 2 x 4 5 6 7 8 9 10 11", "-1"})
    EXPECT_FALSE(parse_disk_counters(text)) << text;
}

TEST(DiskCountersTest, AFilesystemWithoutADiskHasNoCounters) {
  EXPECT_FALSE(disk_counters(makedev(0, 42)));
}

}  // namespace
}  // namespace sluice
