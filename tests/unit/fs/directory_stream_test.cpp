// SPDX-License-Identifier: BSD-2-Clause
// Listings of a directory on several tiers: in steps, from the middle, and while files move.
#include "fs/core/directory_stream.hpp"

#include <malloc.h>
#include <stdio.h>

#include "base/sanitizers.hpp"
#include "tests/unit/fs/test_filesystem.hpp"

namespace sluice {
namespace {

constexpr TierIndex kFast = 0, kSlow = 1;

class StreamTest : public FilesystemTest {
 protected:
  // One listing, in steps.
  struct Reader {
    std::unique_ptr<DirectoryStream> stream;
    off_t offset = 0;
    NameList names = {};

    // Reads `most` items; false at the end.
    bool read(std::size_t most) {
      std::size_t taken = 0;
      const auto take = [&](const DirectoryStream::Item& item) {
        if (taken == most) return false;
        ++taken;
        names.push_back(item.name);
        offset = item.next;
        return true;
      };
      const auto done = stream->read(offset, DirectoryStream::Numbers::Wanted, take);
      if (!done) throw std::runtime_error(done.error().operation);
      return taken > 0;
    }
    NameList rest() {
      while (read(2)) {
      }
      return sorted();
    }
    NameList sorted() const {
      NameList out = names;
      std::ranges::sort(out);
      return out;
    }
  };

  void prepare() override {
    FilesystemTest::prepare();
    for (const char* name : {"a1", "a2", "a3", "both"})
      dir_.make_file(std::string("a/d/") + name, "1");
    for (const char* name : {"b1", "b2", "b3", "both"})
      dir_.make_file(std::string("b/d/") + name, "2");
    dir_.make_dir("b/d/sub");
  }
  Reader list() { return Reader{*fs_->names().open_directory(id_of("d"))}; }
  void move(const char* name, const char* from, const char* to) {
    const std::string path = std::string("d/") + name;
    ASSERT_EQ(::rename(at(from, path).c_str(), at(to, path).c_str()), 0);
  }

  static constexpr std::size_t kItems = 10;
  const NameList all_{".", "..", "a1", "a2", "a3", "b1", "b2", "b3", "both", "sub"};
};

TEST_F(StreamTest, ASmallDirectoryDoesNotTakeLong) { EXPECT_FALSE(list().stream->may_take_long()); }

TEST_F(StreamTest, ContinuesAtAnyOffset) {
  Reader whole = list();
  std::vector<off_t> offsets{0};
  while (whole.read(1)) offsets.push_back(whole.offset);
  ASSERT_EQ(whole.sorted(), all_);
  for (std::size_t i = offsets.size(); i-- > 0;) {
    // One stream that has read everything goes back; a new one begins at that offset, as the kernel
    // may do.
    Reader back{std::move(whole.stream), offsets[i]};
    Reader other = list();
    other.offset = offsets[i];
    const NameList expected(whole.names.begin() + static_cast<std::ptrdiff_t>(i),
                            whole.names.end());
    back.rest();
    other.rest();
    EXPECT_EQ(back.names, expected) << i;
    EXPECT_EQ(other.names, expected) << i;
    whole.stream = std::move(back.stream);
  }
}

TEST_F(StreamTest, ADirectoryThatGetsAFasterCopyIsListedOnce) {
  for (std::size_t after = 1; after <= kItems; ++after) {
    Reader reader = list();
    reader.read(after);
    dir_.make_dir("a/d/sub");
    EXPECT_EQ(reader.rest(), all_) << after;
    ASSERT_EQ(::rmdir(at("a", "d/sub").c_str()), 0);
  }
}

TEST_F(StreamTest, TheNextListingShowsAChangeEvenIfOtherStreamsAreOpen) {
  Reader first = list();
  first.read(3);
  for (int i = 0; i < 30; ++i) {
    const std::string name = "new" + std::to_string(i);
    dir_.make_file("b/d/" + name, "");
    Reader next = list();
    EXPECT_EQ(std::ranges::count(next.rest(), name), 1) << name;
  }
  EXPECT_EQ(first.rest(), all_);
}

TEST_F(StreamTest, ManyOpenListingsOfALargeDirectoryNeedLittleMemory) {
  if (kSanitized) GTEST_SKIP() << "a sanitizer has an allocator of its own";
  constexpr int kNames = 20'000;
  for (int i = 0; i < kNames; ++i) {
    const std::string name = "d/a-name-of-some-length-" + std::to_string(i);
    const UniqueFd fd(::open(at("a", name).c_str(), O_WRONLY | O_CREAT | O_CLOEXEC, 0644));
    ASSERT_TRUE(fd);
  }
  EXPECT_TRUE(list().stream->may_take_long());
  const std::size_t before = ::mallinfo2().uordblks;
  std::vector<Reader> readers;
  for (int i = 0; i < 60; ++i) {
    readers.push_back(list());
    readers.back().read(3);
  }
  EXPECT_LT(::mallinfo2().uordblks - before, 60 * (200U << 10));
  EXPECT_EQ(readers[30].rest().size(), kItems + kNames);
}

}  // namespace
}  // namespace sluice
