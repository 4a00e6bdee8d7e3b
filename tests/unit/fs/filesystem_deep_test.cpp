// SPDX-License-Identifier: BSD-2-Clause
// Trees that are too deep for recursion and for paths.
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include "tests/support/chain.hpp"
#include "tests/unit/fs/moving_filesystem.hpp"

namespace sluice {
namespace {

class DeepTest : public FileMoveTest {
 protected:
  void TearDown() override {
    FileMoveTest::TearDown();
    for (const char* tier : {"a", "b", "c"}) test::remove_chain(at(tier, ""));
  }
  // Looks up a chain of directories, as the kernel does.
  InodeId descend(InodeId from, int levels) {
    for (int i = 0; i < levels; ++i) {
      const auto next = fs_->names().lookup(from, "d");
      if (!next || next->id == InodeId{}) throw std::runtime_error("lookup");
      from = next->id;
    }
    return from;
  }
  std::string pin_of(InodeId id) {
    const auto pin = fs_->xattrs().get(id, "user.sluice.pin");
    return pin ? *pin : ::strerrorname_np(pin.error().code);
  }
};

TEST_F(DeepTest, APinIsInheritedByTheDeepestFile) {
  ASSERT_EQ(set_xattr("", "user.sluice.pin", "a"), 0);
  InodeId at = kRootId;
  for (int i = 0; i < test::kDeep; ++i) {
    const auto made = fs_->names().mkdir(at, "d", 0755, kRoot);
    ASSERT_TRUE(made) << i;
    at = made->id;
  }
  EXPECT_EQ(pin_of(at), "a");
  EXPECT_TRUE(fs_->files().create(at, "file", 0644, O_WRONLY, kRoot));

  // After a change, a pin is searched for only a limited number of levels up: see kMostLevelsUp.
  ASSERT_EQ(set_xattr("", "user.sluice.pin", "b"), 0);
  EXPECT_EQ(pin_of(at), "a");
  EXPECT_EQ(pin_of(descend(kRootId, 4000)), "b");
}

TEST_F(DeepTest, ATierWithADeepTreeCanBeEmptied) {
  const UniqueFd bottom = test::make_chain(at("b", ""), test::kDeep);
  ASSERT_EQ(::symlinkat("target", bottom.get(), "link"), 0);
  ASSERT_TRUE((*pool_)[kB].set_draining(true));
  test::on_small_stack([&] {
    const auto left = fs_->relocator().vacate(kB);
    ASSERT_TRUE(left) << left.error().operation;
    EXPECT_EQ(left->files, 0u);
  });
  struct stat st {};
  EXPECT_NE(::fstatat(bottom.get(), "link", &st, AT_SYMLINK_NOFOLLOW), 0);
  EXPECT_EQ(
      ::fstatat(test::open_chain(at("a", ""), test::kDeep).get(), "link", &st, AT_SYMLINK_NOFOLLOW),
      0);
  EXPECT_EQ(fs_->known_inodes(), 1u) << "nothing of it stays in memory";
}

// Inherited pins are cached. These changes must make the cache invalid.
class InheritedPinTest : public DeepTest {
 protected:
  void prepare() override {
    DeepTest::prepare();
    dir_.make_dir("a/p/d/e");
    dir_.make_dir("a/q");
  }
  std::string place_of_new(const std::string& directory) {
    static int count = 0;
    const std::string name = "new" + std::to_string(++count);
    const auto made = fs_->files().create(id_of(directory), name.c_str(), 0644, O_WRONLY, kRoot);
    if (!made) throw std::runtime_error(made.error().operation);
    fs_->files().release(made->first.id, O_WRONLY);
    return where(directory + "/" + name);
  }
};

TEST_F(InheritedPinTest, FollowsThePinOfTheParent) {
  EXPECT_EQ(place_of_new("p/d/e"), "a");
  ASSERT_EQ(set_xattr("p", "user.sluice.pin", "b"), 0);
  EXPECT_EQ(place_of_new("p/d/e"), "b");
  ASSERT_EQ(set_xattr("p/d", "user.sluice.pin", "c"), 0);
  EXPECT_EQ(place_of_new("p/d/e"), "c");
  ASSERT_TRUE(fs_->xattrs().remove(id_of("p/d"), "user.sluice.pin", kRoot));
  EXPECT_EQ(place_of_new("p/d/e"), "b");
  EXPECT_EQ(xattr("p/d/e", "user.sluice.pin"), "b");
}

TEST_F(InheritedPinTest, ChangesAfterARenameToAnotherParent) {
  ASSERT_EQ(set_xattr("p", "user.sluice.pin", "b"), 0);
  EXPECT_EQ(place_of_new("p/d/e"), "b");
  ASSERT_TRUE(fs_->names().rename(id_of("p"), "d", id_of("q"), "d", 0));
  EXPECT_EQ(place_of_new("q/d/e"), "a");
  ASSERT_TRUE(fs_->names().rename(id_of("q"), "d", id_of("q"), "f", 0));
  EXPECT_EQ(place_of_new("q/f/e"), "a");
  ASSERT_TRUE(fs_->names().rename(id_of("q"), "f", id_of("p"), "d", 0));
  EXPECT_EQ(place_of_new("p/d/e"), "b");
}

}  // namespace
}  // namespace sluice
