// SPDX-License-Identifier: BSD-2-Clause
#include "fs/core/inodes/inode_table.hpp"

#include <algorithm>
#include <set>
#include <thread>

#include "fs/core/inodes/fd_cache.hpp"
#include "tests/unit/tiering/pools.hpp"

namespace sluice {
namespace {

constexpr InodeId kFile{1000}, kDirectory{2000};

// What a tier reports for a file or directory with these properties.
Located located(TierIndex tier, InodeId id, const std::string& handle, mode_t mode = S_IFREG) {
  Located found;
  found.tier = tier;
  found.handle.bytes = handle;
  found.identity = {id, 1};
  found.st.st_mode = mode | 0644;
  return found;
}

class InodeTableTest : public test::PoolTest {
 protected:
  void prepare() override {
    pool_ = open(make_tiers("abc"));
    table_ = std::make_unique<InodeTable>(*pool_);
  }
  static std::vector<std::string> handles(const InodePtr& inode) {
    Inode::Locked state(*inode);
    std::vector<std::string> out;
    for (const Copy& copy : state->copies) {
      out.push_back(std::to_string(copy.tier) + copy.handle.bytes);
    }
    return out;
  }
  using Handles = std::vector<std::string>;

  std::unique_ptr<Pool> pool_;
  std::unique_ptr<InodeTable> table_;
};

TEST_F(InodeTableTest, OneFileHasOneInode) {
  const InodePtr first = table_->intern({located(1, kFile, "h")}, kRootId, "f");
  ASSERT_NE(first, nullptr);
  EXPECT_EQ(first->id(), kFile);
  EXPECT_EQ(first->identity.generation, 1u);
  EXPECT_FALSE(first->is_directory());
  EXPECT_EQ(table_->intern({located(1, kFile, "h")}, kRootId, "f"), first);
  EXPECT_EQ(table_->find(kFile), first);
  EXPECT_EQ(table_->size(), 1u);
}

TEST_F(InodeTableTest, AnUnknownIdIsNotFound) {
  EXPECT_EQ(table_->find(kFile), nullptr);
  EXPECT_EQ(table_->size(), 0u);
}

TEST_F(InodeTableTest, RemembersTheLastNameAndSize) {
  Located found = located(0, kFile, "h");
  found.st.st_size = 10;
  const InodePtr inode = table_->intern({found}, kRootId, "old");
  found.st.st_size = 20;
  table_->intern({found}, kDirectory, "new");
  Inode::Locked state(*inode);
  EXPECT_EQ(state->name.text, "new");
  EXPECT_EQ(state->name.parent, kDirectory);
  EXPECT_EQ(state->size_hint, 20u);
}

TEST_F(InodeTableTest, TheLastReferenceFreesAnInode) {
  std::weak_ptr<Inode> watched = table_->intern({located(0, kFile, "h")}, kRootId, "f");
  table_->intern({located(0, kFile, "h")}, kRootId, "f");
  table_->intern({located(0, kFile, "h")}, kRootId, "f");
  table_->forget(kFile, 1);
  EXPECT_NE(table_->find(kFile), nullptr);
  table_->forget(kFile, 2);
  EXPECT_EQ(table_->find(kFile), nullptr);
  EXPECT_TRUE(watched.expired());
  EXPECT_EQ(table_->size(), 0u);
}

TEST_F(InodeTableTest, ForgettingTooOftenOrAnUnknownIdIsHarmless) {
  table_->intern({located(0, kFile, "h")}, kRootId, "f");
  table_->forget(kFile, 100);
  EXPECT_EQ(table_->find(kFile), nullptr);
  table_->forget(kFile, 1);
  table_->forget(InodeId{77}, 1);
  EXPECT_EQ(table_->size(), 0u);
}

TEST_F(InodeTableTest, TheRootIsNeverForgotten) {
  const auto root = std::make_shared<Inode>(Identity{kRootId, 0}, S_IFDIR);
  table_->add_root(root);
  table_->forget(kRootId, 1000);
  EXPECT_EQ(table_->find(kRootId), root);
}

TEST_F(InodeTableTest, AForgottenInodeStaysValidForItsUsers) {
  const InodePtr used = table_->intern({located(0, kFile, "h")}, kRootId, "f");
  table_->forget(kFile, 1);
  EXPECT_EQ(used->id(), kFile);
  EXPECT_NE(table_->intern({located(0, kFile, "h")}, kRootId, "f"), used);
}

TEST_F(InodeTableTest, CopiesOfADirectoryAreMergedInTheOrderOfTheTiers) {
  const InodePtr inode = table_->intern({located(1, kDirectory, "b", S_IFDIR)}, kRootId, "d");
  EXPECT_EQ(handles(inode), Handles{"1b"});
  EXPECT_EQ(table_->intern({located(2, kDirectory, "c", S_IFDIR)}, kRootId, "d"), inode);
  EXPECT_EQ(handles(inode), (Handles{"1b", "2c"}));
  table_->intern({located(0, kDirectory, "a", S_IFDIR), located(2, kDirectory, "c", S_IFDIR)},
                 kRootId, "d");
  EXPECT_EQ(handles(inode), (Handles{"0a", "1b", "2c"}));
}

TEST_F(InodeTableTest, ANewCopyReplacesTheOldOneOnItsTier) {
  const InodePtr inode = table_->intern(
      {located(0, kDirectory, "a", S_IFDIR), located(1, kDirectory, "b", S_IFDIR)}, kRootId, "d");
  table_->intern({located(0, kDirectory, "a", S_IFDIR), located(1, kDirectory, "new", S_IFDIR)},
                 kRootId, "d");
  EXPECT_EQ(handles(inode), (Handles{"0a", "1new"}));
}

TEST_F(InodeTableTest, AnotherFileWithTheSameIdentityIsDisplaced) {
  const InodePtr first = table_->intern({located(1, kFile, "moved")}, kRootId, "f");
  const InodePtr other = table_->intern({located(0, kFile, "newcomer")}, kRootId, "g");
  ASSERT_NE(other, nullptr);
  EXPECT_NE(other, first);
  EXPECT_EQ(other->identity, displaced_identity((*pool_)[0].member().slot, FileHandle{"newcomer"}));
  EXPECT_EQ(table_->find(kFile), first);
  EXPECT_EQ(table_->find(other->id()), other);
  EXPECT_EQ(handles(first), Handles{"1moved"});
  EXPECT_EQ(handles(other), Handles{"0newcomer"});
  // and is the same one the next time
  EXPECT_EQ(table_->intern({located(0, kFile, "newcomer")}, kRootId, "g"), other);
  EXPECT_EQ(table_->size(), 2u);
}

TEST_F(InodeTableTest, AFileIsNotADirectoryWithTheSameIdentity) {
  const InodePtr directory = table_->intern({located(0, kFile, "h", S_IFDIR)}, kRootId, "d");
  const InodePtr file = table_->intern({located(0, kFile, "h", S_IFREG)}, kRootId, "f");
  ASSERT_NE(file, nullptr);
  EXPECT_NE(file->id(), directory->id());
  EXPECT_TRUE(directory->is_directory());
  EXPECT_FALSE(file->is_directory());
}

TEST_F(InodeTableTest, VisitsEveryInodeOnce) {
  std::set<std::uint64_t> expected, visited;
  for (std::uint64_t id = 1000; id < 1500; ++id) {
    table_->intern({located(0, InodeId{id << 29 | id}, std::to_string(id))}, kRootId, "f");
    expected.insert(id << 29 | id);
  }
  table_->for_each(
      [&](Inode& inode) { EXPECT_TRUE(visited.insert(to_number(inode.id())).second); });
  EXPECT_EQ(visited, expected);
}

TEST_F(InodeTableTest, ReferencesOfManyThreadsAddUp) {
  constexpr int kThreads = 4, kRounds = 500;
  {
    std::vector<std::jthread> threads;
    for (int t = 0; t < kThreads; ++t) {
      threads.emplace_back([&] {
        for (int i = 0; i < kRounds; ++i) {
          const InodeId id{static_cast<std::uint64_t>(100 + i % 7)};
          const InodePtr inode = table_->intern({located(0, id, "h")}, kRootId, "f");
          ASSERT_NE(inode, nullptr);
          EXPECT_NE(table_->find(id), nullptr);
          table_->intern({located(0, id, "h")}, kRootId, "g");
          table_->forget(id, 1);
        }
      });
    }
  }
  EXPECT_EQ(table_->size(), 7u);
  // Each inode has one reference per intern() without a forget().
  for (int k = 0; k < 7; ++k) {
    const InodeId id{static_cast<std::uint64_t>(100 + k)};
    const int rounds = (kRounds - k + 6) / 7;
    table_->forget(id, static_cast<std::uint64_t>(kThreads * rounds - 1));
    EXPECT_NE(table_->find(id), nullptr);
    table_->forget(id, 1);
    EXPECT_EQ(table_->find(id), nullptr);
  }
}

class FdCacheTest : public testing::Test {
 protected:
  static constexpr std::size_t kLimit = 8;

  // A directory with one cached descriptor.
  InodePtr directory(const std::string& handle) {
    auto inode = std::make_shared<Inode>(Identity{InodeId{next_++}, 0}, S_IFDIR);
    Inode::Locked state(*inode);
    state->copies.push_back(
        {0, {handle}, std::make_shared<UniqueFd>(::open("/", O_RDONLY | O_CLOEXEC))});
    return inode;
  }
  static bool holds(const InodePtr& inode) {
    Inode::Locked state(*inode);
    return state->copies[0].fd != nullptr;
  }
  static void use(const InodePtr& inode) {
    Inode::Locked state(*inode);
    state->directory.fd_used = true;
  }
  std::size_t held() const {
    return static_cast<std::size_t>(std::count_if(all_.begin(), all_.end(), holds));
  }
  InodePtr add(const std::string& handle = "h") {
    all_.push_back(directory(handle));
    cache_.added(all_.back());
    return all_.back();
  }

  FdCache cache_{kLimit};
  std::vector<InodePtr> all_;
  std::uint64_t next_ = 10;
};

TEST_F(FdCacheTest, KeepsDescriptorsUpToItsLimit) {
  for (std::size_t i = 0; i < kLimit; ++i) add();
  EXPECT_EQ(held(), kLimit);
}

TEST_F(FdCacheTest, NeverKeepsMoreThanItsLimit) {
  for (std::size_t i = 0; i < 10 * kLimit; ++i) {
    add();
    EXPECT_LE(held(), kLimit);
  }
  EXPECT_EQ(held(), kLimit);
  EXPECT_TRUE(holds(all_.back()));
  EXPECT_FALSE(holds(all_.front()));
}

TEST_F(FdCacheTest, AUsedDescriptorGetsASecondChance) {
  const InodePtr favourite = add();
  for (std::size_t i = 0; i < 10 * kLimit; ++i) {
    use(favourite);
    add();
    EXPECT_TRUE(holds(favourite)) << i;
    EXPECT_LE(held(), kLimit);
  }
  for (std::size_t i = 0; i < 3 * kLimit; ++i) add();
  EXPECT_FALSE(holds(favourite)) << "once it is no longer used";
}

TEST_F(FdCacheTest, ADescriptorWithoutAHandleIsKept) {
  const InodePtr without_handle = add("");
  const InodePtr removed = add();
  {
    Inode::Locked state(*removed);
    state->directory.removed = true;
  }
  for (std::size_t i = 0; i < 5 * kLimit; ++i) add();
  EXPECT_TRUE(holds(without_handle));
  EXPECT_TRUE(holds(removed));
}

TEST_F(FdCacheTest, ForgottenDirectoriesDoNotCount) {
  for (std::size_t i = 0; i < 5 * kLimit; ++i) {
    const InodePtr forgotten = directory("h");
    cache_.added(forgotten);
  }
  for (std::size_t i = 0; i < kLimit; ++i) add();
  EXPECT_EQ(held(), kLimit);
}

TEST_F(FdCacheTest, ADescriptorInUseStaysOpenForItsUser) {
  const InodePtr evicted = add();
  SharedFd mine;
  {
    Inode::Locked state(*evicted);
    mine = state->copies[0].fd;
  }
  for (std::size_t i = 0; i < 3 * kLimit; ++i) add();
  ASSERT_FALSE(holds(evicted));
  EXPECT_GE(::fcntl(mine->get(), F_GETFD), 0);
}

TEST_F(FdCacheTest, TheSearchEndsEvenIfAllDirectoriesAreInUse) {
  for (std::size_t i = 0; i < 3 * kLimit; ++i) {
    for (const InodePtr& inode : all_) use(inode);
    add();
  }
  for (std::size_t i = 0; i < 2 * kLimit; ++i) add();
  EXPECT_LE(held(), kLimit);
}

}  // namespace
}  // namespace sluice
