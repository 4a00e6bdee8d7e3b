// SPDX-License-Identifier: BSD-2-Clause
#include "tools/lab/simulator/trace.hpp"

#include <gtest/gtest.h>

#include "tests/support/temp_dir.hpp"

namespace sluice::tools::lab {
namespace {

struct Reading {
  Trace trace;
  std::string error;
};

Reading read(std::string_view content, std::string_view name = "t.csv",
             std::optional<TraceFormat> forced = {}) {
  const test::TempDir dir;
  Reading reading;
  const auto path = dir.make_file(name, content);
  if (const auto read = read_trace(path, forced, reading.trace); !read) {
    reading.error = read.error().text();
    if (reading.error.starts_with(dir.path())) reading.error.erase(0, dir.path().size() + 1);
  }
  return reading;
}

std::string oracle_record(std::uint32_t time, std::uint64_t id, std::uint32_t size) {
  std::string record;
  const auto append = [&](std::uint64_t value, int bytes) {
    for (int i = 0; i < bytes; ++i) record += static_cast<char>(value >> 8 * i & 0xff);
  };
  append(time, 4);
  append(id, 8);
  append(size, 4);
  append(~std::uint64_t{0}, 8);
  return record;
}

TEST(TraceTest, ReadsOurOwnFormat) {
  const auto [trace, error] = read(
      "time,id,size,path\n"
      "1700000000.25,7,4096,/a, b.bin\n"
      "1700000001,8,100,\"/with \"\"quotes\"\", commas\nand a line end\"\n"
      "1700000002.5,7,8192,/a, b.bin\n");
  ASSERT_EQ(error, "");
  EXPECT_EQ(trace.times,
            (std::vector<std::int64_t>{1700000000250000, 1700000001000000, 1700000002500000}));
  EXPECT_EQ(trace.objects, (std::vector<std::uint32_t>{0, 1, 0}));
  EXPECT_EQ(trace.sizes, (std::vector<std::uint64_t>{8192, 100}));
  EXPECT_EQ(trace.total_bytes(), 8292u);
}

TEST(TraceTest, ReadsRecordsWithoutAHeader) {
  const auto [trace, error] = read("0,5,10\n1.5,6,20\r\n\n# a remark\n2,5,10");
  ASSERT_EQ(error, "");
  EXPECT_EQ(trace.times, (std::vector<std::int64_t>{0, 1'500'000, 2'000'000}));
  EXPECT_EQ(trace.objects, (std::vector<std::uint32_t>{0, 1, 0}));
}

TEST(TraceTest, AHeaderNamesTheColumnsInAnyOrder) {
  const auto [trace, error] = read("\xef\xbb\xbfobj_id, op, obj_size, timestamp\nkey1,get,10,3\n");
  ASSERT_EQ(error, "");
  EXPECT_EQ(trace.times.front(), 3'000'000);
  EXPECT_EQ(trace.sizes.front(), 10u);
}

TEST(TraceTest, IdsMayBeWords) {
  const auto [trace, error] = read("0,one,1\n1,two,1\n2,one,1\n");
  ASSERT_EQ(error, "");
  EXPECT_EQ(trace.objects, (std::vector<std::uint32_t>{0, 1, 0}));
}

TEST(TraceTest, RecordsOutOfOrderAreSortedByTime) {
  const auto [trace, error] = read("5,a,1\n3,b,1\n4,c,1\n5,d,1\n");
  ASSERT_EQ(error, "");
  EXPECT_EQ(trace.out_of_order, 1u);
  EXPECT_EQ(trace.objects, (std::vector<std::uint32_t>{1, 2, 0, 3}));
}

TEST(TraceTest, ReadsOracleGeneral) {
  const auto content = oracle_record(1, 1ull << 40, 512) + oracle_record(1, 2, 0xffffffff) +
                       oracle_record(4, 1ull << 40, 512);
  for (const auto* const name : {"w.oracleGeneral", "anything"}) {
    const auto [trace, error] = read(content, name);
    ASSERT_EQ(error, "");
    EXPECT_EQ(trace.times, (std::vector<std::int64_t>{1'000'000, 1'000'000, 4'000'000}));
    EXPECT_EQ(trace.objects, (std::vector<std::uint32_t>{0, 1, 0}));
    EXPECT_EQ(trace.sizes, (std::vector<std::uint64_t>{512, 0xffffffff}));
  }
}

TEST(TraceTest, MistakesAreReportedWithTheirLine) {
  EXPECT_EQ(read("0,a,1\nnow,a,1\n").error,
            "t.csv:2: time is 'now'; expected seconds, such as 1700000000.25");
  EXPECT_EQ(read("0,a,1\n-1,a,1\n").error,
            "t.csv:2: time is '-1'; expected seconds, such as 1700000000.25");
  EXPECT_EQ(read("0,a,1\n1,a\n").error, "t.csv:2: 2 fields; expected time,id,size");
  EXPECT_EQ(read("time,id,size,path\n1,a\n").error,
            "t.csv:2: 2 fields; expected the columns of the header");
  EXPECT_EQ(read("0,a,big\n").error, "t.csv:1: size is 'big'; expected a number of bytes");
  EXPECT_EQ(read("0,a,-5\n").error, "t.csv:1: size is '-5'; expected a number of bytes");
  EXPECT_EQ(read("0,,5\n").error, "t.csv:1: the id is empty; expected a number or a word");
  EXPECT_EQ(read("when,what\n0,a\n").error,
            "t.csv:1: begins with 'when'; expected a header that names time, id and size, or a "
            "record of these three");
  EXPECT_EQ(read("time,id,size,path\n1,2,3,/a\n2,3,4,\"/b\n3,4,5,/c\n").error,
            "t.csv:3: a quote is not closed");
  EXPECT_EQ(read("time,id,size,path\n1,2,3,\"/two\nlines\"\nx,2,3,/a\n").error,
            "t.csv:4: time is 'x'; expected seconds, such as 1700000000.25");
}

TEST(TraceTest, MistakesAreReportedWithTheirRecord) {
  const auto first = oracle_record(100, 1, 1);
  EXPECT_EQ(read(first + first.substr(0, 10), "t.bin").error,
            "t.bin: record 2 (byte 24): the file ends after 10 of its bytes; expected records of "
            "24 bytes");
  const auto back = read(first + oracle_record(99, 1, 1), "t.bin").error;
  EXPECT_TRUE(back.starts_with("t.bin: record 2 (byte 24): time 99 is before 100")) << back;
}

TEST(TraceTest, CompressedTracesAreRefusedWithAdvice) {
  const auto error = read("\x28\xb5\x2f\xfd rest", "t.oracleGeneral.zst").error;
  EXPECT_NE(error.find("zstd -dc FILE | sluice-lab simulate --trace -"), std::string::npos)
      << error;
  EXPECT_NE(read("\x1f\x8b rest").error.find("gzip -dc"), std::string::npos);
}

TEST(TraceTest, EmptyOrMissingFileIsReported) {
  EXPECT_TRUE(read("").error.starts_with("t.csv: no records"));
  EXPECT_TRUE(read("time,id,size,path\n").error.starts_with("t.csv: no records"));
  Trace trace;
  EXPECT_EQ(read_trace("/no/such/trace", {}, trace).error().text(),
            "/no/such/trace: No such file or directory");
  EXPECT_EQ(read_trace("/", {}, trace).error().text(), "/: Is a directory");
}

TEST(TraceTest, GivenFormatOverridesDetection) {
  EXPECT_NE(read("0,a,1\n", "t.csv", TraceFormat::Oracle).error.find("records of 24 bytes"),
            std::string::npos);
  EXPECT_NE(read(oracle_record(1, 2, 3), "t.bin", TraceFormat::Csv).error, "");
}

TEST(TraceTest, DamagedFilesAreReadOrRefused) {
  // Tries every truncation and every damaged byte of a small file: it must not crash, and a failure
  // must have a message.
  const std::string good = "time,id,size,path\n1,2,3,\"/a\"\n2.5,word,4,/b\n";
  for (std::size_t at = 0; at < good.size(); ++at) {
    for (const char byte : {'\0', '"', ',', '\n', '\xff', '9'}) {
      auto bad = good;
      bad[at] = byte;
      const auto damaged = read(bad);
      EXPECT_TRUE(!damaged.error.empty() || damaged.trace.records() > 0);
    }
    const auto cut = read(good.substr(0, at));
    EXPECT_TRUE(!cut.error.empty() || cut.trace.records() > 0);
  }
}

TEST(TraceTest, NextUsesAreRecordNumbers) {
  Trace trace;
  trace.objects = {0, 1, 0, 0};
  trace.times = {0, 1, 2, 3};
  trace.sizes = {1, 1};
  EXPECT_EQ(next_uses(trace), (std::vector<std::uint32_t>{2, kNeverAgain, 3, kNeverAgain}));
}

}  // namespace
}  // namespace sluice::tools::lab
