// SPDX-License-Identifier: BSD-2-Clause
#include "tiering/pool/marker.hpp"

#include <gtest/gtest.h>

#include <set>

#include "tests/support/files.hpp"
#include "tests/support/temp_dir.hpp"
#include "tests/unit/tiering/pools.hpp"

namespace sluice {
namespace {

class MarkerTest : public testing::Test {
 protected:
  Result<std::optional<Marker>> read() const { return read_marker(root_.get()); }
  int code_for(const std::string& text) const {
    dir_.make_file(".sluice/tier.json", text);
    const auto marker = read();
    return marker ? 0 : marker.error().code;
  }

  const test::TempDir dir_;
  const UniqueFd root_ = test::open_directory(dir_.path());
  const Marker marker_{
      "pool-uuid", {"nvme", "u1", 1}, {{"nvme", "u1", 1}, {"ssd \"x\"", "u2", 30}}};
};

TEST_F(MarkerTest, ReadsWhatWasWritten) {
  ASSERT_TRUE(write_marker(root_.get(), marker_));
  const auto back = read();
  ASSERT_TRUE(back && *back);
  EXPECT_EQ((*back)->pool, marker_.pool);
  EXPECT_EQ((*back)->self, marker_.self);
  EXPECT_EQ((*back)->members, marker_.members);
}

TEST_F(MarkerTest, ReplacesTheOldMarker) {
  ASSERT_TRUE(write_marker(root_.get(), {"old", {"a", "u", 1}, {}}));
  ASSERT_TRUE(write_marker(root_.get(), marker_));
  EXPECT_EQ((**read()).pool, "pool-uuid");
  EXPECT_EQ(test::names_in(dir_ / ".sluice"), std::vector<std::string>{"tier.json"});
}

TEST_F(MarkerTest, IsReadableByRootOnly) {
  ASSERT_TRUE(write_marker(root_.get(), marker_));
  EXPECT_EQ(test::lstat_of(dir_ / ".sluice").st_mode & 07777, 0700u);
}

TEST_F(MarkerTest, IsAbsentFromAnEmptyDirectory) {
  ASSERT_TRUE(read());
  EXPECT_FALSE(*read());
  dir_.make_dir(".sluice");
  ASSERT_TRUE(read());
  EXPECT_FALSE(*read());
}

TEST_F(MarkerTest, WithInvalidTextIsDamaged) {
  for (const char* text :
       {"", "{", "garbage", "[]", "{}", "null", "\"x\"", "{\"version\": 1}",
        "{\"version\": \"1\", \"pool\": \"p\"}",
        "{\"version\":1,\"pool\":7,\"tier\":{\"name\":\"a\",\"uuid\":\"u\",\"slot\":1},"
        "\"members\":[]}",
        "{\"version\":1,\"pool\":\"p\",\"tier\":{\"name\":\"a\",\"slot\":1},\"members\":[]}",
        "{\"version\":1,\"pool\":\"p\",\"tier\":{\"name\":\"a\",\"uuid\":\"u\",\"slot\":1}}",
        "{\"version\":1,\"pool\":\"p\",\"tier\":{\"name\":\"a\",\"uuid\":\"u\",\"slot\":1},"
        "\"members\":[7]}",
        "{\"version\":1,\"pool\":\"\xff\"}"}) {
    EXPECT_EQ(code_for(text), EUCLEAN) << text;
  }
}

TEST_F(MarkerTest, ThatIsTruncatedIsDamaged) {
  ASSERT_TRUE(write_marker(root_.get(), marker_));
  const std::string whole = test::read_file(dir_ / ".sluice/tier.json");
  for (std::size_t size = 0; size + 2 < whole.size(); ++size) {
    EXPECT_EQ(code_for(whole.substr(0, size)), EUCLEAN) << size;
  }
}

TEST_F(MarkerTest, WithAnInvalidSlotIsDamaged) {
  for (const char* slot : {"-1", "0", "31", "99", "4294967297", "1.5", "\"1\""}) {
    EXPECT_EQ(code_for(std::string("{\"version\":1,\"pool\":\"p\",\"tier\":{\"name\":\"a\","
                                   "\"uuid\":\"u\",\"slot\":") +
                       slot + "},\"members\":[]}"),
              EUCLEAN)
        << slot;
  }
}

TEST_F(MarkerTest, OfANewerVersionIsNotSupported) {
  EXPECT_EQ(code_for("{\"version\": 2}"), EPROTONOSUPPORT);
  EXPECT_EQ(code_for("{\"version\": 1000, \"anything\": [1, 2]}"), EPROTONOSUPPORT);
}

TEST_F(MarkerTest, IsNotReadThroughASymlink) {
  dir_.make_file("elsewhere", "{}");
  dir_.make_dir(".sluice");
  ASSERT_EQ(::symlink("../elsewhere", (dir_ / ".sluice/tier.json").c_str()), 0);
  EXPECT_TRUE(failed_with(read(), ELOOP));
}

TEST(NewUuidTest, IsRandomAndWellFormed) {
  std::set<std::string> seen;
  for (int i = 0; i < 100; ++i) {
    const std::string uuid = new_uuid();
    ASSERT_EQ(uuid.size(), 36u);
    EXPECT_EQ(uuid[8], '-');
    EXPECT_EQ(uuid[14], '4') << uuid;
    EXPECT_NE(std::string("89ab").find(uuid[19]), std::string::npos) << uuid;
    EXPECT_TRUE(seen.insert(uuid).second);
  }
}

}  // namespace
}  // namespace sluice
