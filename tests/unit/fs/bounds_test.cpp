// SPDX-License-Identifier: BSD-2-Clause
// What users name and remove again leaves no trace in memory, also before any timer has come.
#include <fcntl.h>
#include <malloc.h>

#include <string>

#include "tests/support/wait.hpp"
#include "tests/unit/fs/test_filesystem.hpp"

namespace sluice {
namespace {

Located file_number(std::uint64_t number) {
  Located found;
  found.tier = 0;
  found.handle.bytes = "h" + std::to_string(number);
  found.identity = {InodeId{number}, 1};
  found.st.st_mode = S_IFREG | 0644;
  return found;
}

class BoundsTest : public DirectFilesystem<FakeKernel> {
 protected:
  void prepare() override { pool_ = open(make_tiers("ab")); }
  void TearDown() override { fs_.reset(); }
  void mount() {
    fs_ = std::make_unique<Filesystem>(*pool_, store_, kernel_, Filesystem::Settings{});
    fs_->keep_budgets();
  }
  // As a program makes and removes a file.
  InodeId make_and_remove(InodeId parent, const std::string& name) {
    const auto file = fs_->files().create(parent, name.c_str(), 0644, O_RDWR | O_CREAT, kRoot);
    EXPECT_TRUE(file);
    fs_->files().release(file->first.id, O_RDWR);
    EXPECT_TRUE(fs_->names().unlink(parent, name.c_str()));
    fs_->names().forget(file->first.id, 1);
    return file->first.id;
  }
};

TEST_F(BoundsTest, AMillionInodesAreForgotten) {
  InodeTable table(*pool_);
  for (std::uint64_t i = 1; i <= 1'000'000; ++i) {
    const Located found = file_number(i + 1000);
    table.intern({found}, kRootId, "f");
    table.forget(found.identity.id, 1);
  }
  EXPECT_EQ(table.size(), 0u);
}

TEST_F(BoundsTest, NamesMadeAndRemovedLeaveNoTrace) {
  constexpr int kNames = 4000;
  mount();
  const InodeId top = fs_->names().mkdir(kRootId, "d", 0755, kRoot)->id;
  ASSERT_TRUE(fs_->xattrs().set(top, "user.sluice.budget", "1GiB", 4, 0, kRoot));
  ASSERT_TRUE(test::eventually([&] {
    const auto all = fs_->budgets().trees().reports();
    return !all.empty() && all[0].is_known;
  }));
  const std::string long_name(200, 'x');
  const std::size_t inodes = fs_->known_inodes();
  for (int i = 0; i < 1100; ++i) make_and_remove(top, "w" + std::to_string(i) + long_name);
  const std::size_t before = ::mallinfo2().uordblks;
  InodeId last{};
  for (int i = 0; i < kNames; ++i) last = make_and_remove(top, "d" + std::to_string(i) + long_name);
  const std::size_t after = ::mallinfo2().uordblks;
  EXPECT_LT(after, before + kNames * 300) << "something of each stays";
  EXPECT_EQ(fs_->known_inodes(), inodes);
  EXPECT_EQ(fs_->budgets().trees().reports().at(0).files, 0u);
  ASSERT_TRUE(fs_->flush());
  EXPECT_EQ(store_.heat(last)->opens, 0u);
}

}  // namespace
}  // namespace sluice
