// SPDX-License-Identifier: BSD-2-Clause
#include "base/nesting.hpp"

#include <gtest/gtest.h>
#include <sched.h>
#include <sys/mount.h>
#include <unistd.h>

#include "tests/support/files.hpp"
#include "tests/support/temp_dir.hpp"
#include "tests/support/user.hpp"

namespace sluice {
namespace {

class NestingTest : public testing::Test {
 protected:
  void SetUp() override {
    dir_.make_dir("a/b/c");
    dir_.make_dir("other");
  }
  std::string name(const std::string& inner, const std::string& outer) {
    switch (nesting(dir_ / inner, dir_ / outer)) {
      case Nesting::Apart:
        return "apart";
      case Nesting::Same:
        return "same";
      case Nesting::Inside:
        return "inside";
    }
    return "";
  }
  // Compares with `from` mounted at `to`, in a mount namespace of its own.
  std::string with_bind(const std::string& from, const std::string& to, const std::string& inner,
                        const std::string& outer) {
    return test::in_child([&]() -> std::string {
      if (::unshare(CLONE_NEWNS) < 0 ||
          ::mount(nullptr, "/", nullptr, MS_REC | MS_PRIVATE, nullptr) < 0)
        return "skip";
      if (::mount((dir_ / from).c_str(), (dir_ / to).c_str(), nullptr, MS_BIND, nullptr) < 0)
        return "bind: " + test::errno_name(errno);
      return name(inner, outer);
    });
  }

  test::TempDir dir_;
};

TEST_F(NestingTest, ComparesPaths) {
  dir_.make_dir("ab");
  ASSERT_EQ(::symlink("a/b", (dir_ / "link").c_str()), 0);
  EXPECT_EQ(name("a", "a"), "same");
  EXPECT_EQ(name("link", "a/b"), "same");
  EXPECT_EQ(name("a/b/c", "a"), "inside");
  EXPECT_EQ(name("link/c", "a"), "inside");
  EXPECT_EQ(name("a", "a/b/c"), "apart");
  EXPECT_EQ(name("ab", "a"), "apart");
  EXPECT_EQ(name("a", "other"), "apart");
}

TEST_F(NestingTest, ADirectoryThatDoesNotExistIsInsideTheOnesAboveIt) {
  EXPECT_EQ(name("a/new/state", "a"), "inside");
  EXPECT_EQ(name("a/new", "a/b"), "apart");
  EXPECT_EQ(name("a", "missing"), "apart");
}

TEST_F(NestingTest, SeesThroughBindMounts) {
  const std::string same = with_bind("a", "other", "other", "a");
  if (same == "skip") GTEST_SKIP() << "this user cannot mount";
  EXPECT_EQ(same, "same");
  EXPECT_EQ(with_bind("a", "other", "other/b", "a"), "inside");
  EXPECT_EQ(with_bind("a", "other", "a/b/c", "other"), "inside");
  // The mount shows only a part of the outer directory, and nothing above it.
  EXPECT_EQ(with_bind("a/b", "other", "other", "a"), "inside");
  EXPECT_EQ(with_bind("a/b", "other", "other/c", "a"), "inside");
  EXPECT_EQ(with_bind("a/b", "other", "a", "other"), "apart");
  EXPECT_EQ(with_bind("a/b", "other", "a/b/c", "other"), "inside");
}

TEST_F(NestingTest, SeesThroughAnotherNamespace) {
  const std::string root = "/proc/" + std::to_string(::getpid()) + "/root";
  EXPECT_EQ(nesting(root + (dir_ / "a/b"), dir_ / "a"), Nesting::Inside);
  EXPECT_EQ(nesting(dir_ / "a/b", root + (dir_ / "a")), Nesting::Inside);
  EXPECT_EQ(nesting(root + (dir_ / "a"), dir_ / "a"), Nesting::Same);
}

}  // namespace
}  // namespace sluice
