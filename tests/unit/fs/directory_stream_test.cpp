// SPDX-License-Identifier: BSD-2-Clause
// Listings of a directory on several tiers: in steps, from the middle, and while files move.
#include "fs/core/tree/directory_stream.hpp"

#include <malloc.h>
#include <stdio.h>

#include <filesystem>

#include "base/sanitizers.hpp"
#include "tests/unit/fs/test_filesystem.hpp"

namespace sluice {
namespace {

constexpr TierIndex kSlow = 1;

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

  void TearDown() override {
    detail::listing_hash_bits = all_bits_;
    FilesystemTest::TearDown();
  }
  void prepare() override {
    FilesystemTest::prepare();
    for (const char* name : {"a1", "a2", "a3", "both"})
      dir_.make_file(std::string("a/d/") + name, "1");
    for (const char* name : {"b1", "b2", "b3", "both"})
      dir_.make_file(std::string("b/d/") + name, "2");
    dir_.make_dir("b/d/sub");
  }
  Reader list(const char* path = "d") { return Reader{*fs_->names().open_directory(id_of(path))}; }
  // The same listing in another daemon.
  Reader successor(const Reader& reader) {
    const InodeId directory = reader.stream->directory();
    return Reader{*fs_->names().open_directory(directory), reader.offset, reader.names};
  }
  void move(const char* name, const char* from, const char* to) {
    const std::string path = std::string("d/") + name;
    ASSERT_EQ(::rename(at(from, path).c_str(), at(to, path).c_str()), 0);
  }

  const std::uint64_t all_bits_ = detail::listing_hash_bits;
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

TEST_F(StreamTest, AnotherStreamContinuesThoughNamesCameAndWent) {
  for (std::size_t after = 1; after <= kItems; ++after) {
    Reader reader = list();
    reader.read(after);
    for (int i = 0; i < 50; ++i) dir_.make_file("a/d/new" + std::to_string(i), "");
    ASSERT_EQ(::unlink(at("a", "d/a2").c_str()), 0);
    Reader next = successor(reader);
    NameList listed = next.rest();
    // What changed meanwhile may be listed or not, but not twice.
    ASSERT_EQ(std::ranges::adjacent_find(listed), listed.end()) << after;
    std::erase_if(listed, [](const std::string& n) { return n.starts_with("new") || n == "a2"; });
    NameList expected = all_;
    std::erase(expected, "a2");
    EXPECT_EQ(listed, expected) << after;
    for (int i = 0; i < 50; ++i) ::unlink(at("a", "d/new" + std::to_string(i)).c_str());
    dir_.make_file("a/d/a2", "1");
  }
}

TEST_F(StreamTest, AnotherStreamContinuesThoughFilesMoved) {
  for (std::size_t after = 1; after <= kItems; ++after) {
    Reader reader = list();
    reader.read(after);
    for (const char* name : {"a1", "a2", "a3"}) move(name, "a", "b");
    for (const char* name : {"b1", "b2", "b3"}) move(name, "b", "a");
    Reader next = successor(reader);
    EXPECT_EQ(next.rest(), all_) << after;
    for (const char* name : {"a1", "a2", "a3"}) move(name, "b", "a");
    for (const char* name : {"b1", "b2", "b3"}) move(name, "a", "b");
  }
}

TEST_F(StreamTest, OffsetsArePositiveAndIncrease) {
  Reader reader = list();
  for (off_t before = 0; reader.read(1); before = reader.offset)
    EXPECT_GT(reader.offset, before) << reader.names.back();
  EXPECT_EQ((NameList{reader.names[0], reader.names[1]}), (NameList{".", ".."}));
}

TEST_F(StreamTest, NamesWithTheSameHashAreAllListed) {
  for (const std::uint64_t bits : {0, 1, 3}) {
    detail::listing_hash_bits = bits;
    EXPECT_EQ(list().rest(), all_) << bits;
    Reader slow = list();
    while (slow.read(1)) {
    }
    EXPECT_EQ(slow.sorted(), all_) << "one at a time, bits " << bits;
    for (std::size_t after = 1; after <= kItems; ++after) {
      Reader reader = list();
      reader.read(after);
      NameList listed = successor(reader).rest();
      const auto doubles = std::ranges::unique(listed);
      listed.erase(doubles.begin(), doubles.end());
      EXPECT_EQ(listed, all_) << after << ", bits " << bits;
    }
  }
}

TEST_F(StreamTest, AListingOfOneCopyGoesOnWithTwo) {
  const NameList all{".", "..", "f0", "f1", "f2", "f3", "f4"};
  for (std::size_t after = 1; after <= all.size(); ++after) {
    for (std::size_t i = 2; i < all.size(); ++i) dir_.make_file("b/one/" + all[i], "");
    Reader reader = list("one");
    reader.read(after);
    dir_.make_dir("a/one");
    for (const char* name : {"f1", "f3"}) {
      const std::string path = std::string("one/") + name;
      ASSERT_EQ(::rename(at("b", path).c_str(), at("a", path).c_str()), 0);
    }
    id_of("one");  // the directory is known to have two copies now
    EXPECT_EQ(successor(reader).rest(), all) << after;
    std::filesystem::remove_all(at("a", "one"));
    mount(make_tiers("abc"));
  }
}

TEST_F(StreamTest, AListingOfTwoCopiesGoesOnWithOne) {
  for (std::size_t after = 1; after <= kItems; ++after) {
    Reader reader = list();
    reader.read(after);
    ASSERT_EQ(::unlink(at("a", "d/both").c_str()), 0);
    for (const char* name : {"a1", "a2", "a3"}) move(name, "a", "b");
    ASSERT_EQ(::rmdir(at("a", "d").c_str()), 0);
    reader.stream = nullptr;
    mount(make_tiers("abc"));
    Reader next{*fs_->names().open_directory(id_of("d")), reader.offset, reader.names};
    EXPECT_EQ(next.rest(), all_) << after;
    dir_.make_dir("a/d");
    for (const char* name : {"a1", "a2", "a3"}) move(name, "b", "a");
    dir_.make_file("a/d/both", "1");
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
