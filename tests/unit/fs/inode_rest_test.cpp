// SPDX-License-Identifier: BSD-2-Clause
// Files that nobody uses rest: InodeTable keeps a short note instead of an Inode.
#include <fcntl.h>
#include <malloc.h>

#include <atomic>
#include <map>
#include <thread>

#include "fs/core/inodes/handover.hpp"
#include "fs/core/inodes/inode_table.hpp"
#include "tests/unit/tiering/pools.hpp"

namespace sluice {
namespace {

constexpr InodeId kFile{1'000'000};
constexpr std::uint64_t kFirst = 2;  // 1 is the root
constexpr std::uint64_t kMany = 20'000;

class InodeRestTest : public test::PoolTest {
 protected:
  void prepare() override {
    pool_ = open(make_tiers("abc"));
    handover_ = *Handover::create(pool_->id());
    table_ = std::make_unique<InodeTable>(*pool_, handover_.get());
  }
  static Located located(InodeId id, mode_t mode = S_IFREG) {
    Located found;
    found.tier = 1;
    found.handle.bytes = "h" + std::to_string(to_number(id));
    found.identity = {id, 7};
    found.st.st_mode = mode | 0644;
    found.st.st_size = static_cast<off_t>(to_number(id));
    found.st.st_mtim = {12, 34};
    return found;
  }
  InodePtr intern(InodeId id, mode_t mode = S_IFREG) {
    return table_->intern({located(id, mode)}, kRootId, "n" + std::to_string(to_number(id)));
  }
  void intern_many() {
    for (std::uint64_t i = 0; i < kMany; ++i) intern(InodeId{kFirst + i});
  }
  // True if the file did not rest although the table let all rest that can.
  bool stays_awake() {
    const std::size_t before = table_->awake();
    table_->rest_unused();
    return before > 0 && table_->awake() == before;
  }

  std::unique_ptr<Pool> pool_;
  std::unique_ptr<Handover> handover_;
  std::unique_ptr<InodeTable> table_;
};

TEST_F(InodeRestTest, AWalkOverManyFilesLeavesFewInodesAwake) {
  intern_many();
  EXPECT_EQ(table_->size(), kMany);
  EXPECT_LT(table_->awake(), kMany / 10);
  table_->rest_unused();
  EXPECT_EQ(table_->awake(), 0u);
  EXPECT_EQ(table_->size(), kMany);
}

TEST_F(InodeRestTest, AFileThatRestsTakesLittleMemory) {
  const std::size_t before = ::mallinfo2().uordblks;
  intern_many();
  table_->rest_unused();
  ::malloc_trim(0);
  EXPECT_LT(::mallinfo2().uordblks - before, kMany * 200) << "bytes for all; an Inode takes 488";
}

TEST_F(InodeRestTest, NothingIsLost) {
  {
    const InodePtr inode = intern(kFile);
    inode->append_only = true;
    inode->accesses.made_until = 5;
    inode->accesses.last_opener = 6;
    Inode::Locked state(*inode);
    state->pages.stale = true;
    state->pins.own = 2;
    state->pins.own_epoch = 8;
    state->xattrs.none = true;
    state->times_known = true;
  }
  const std::int64_t since = table_->find(kFile)->last_name().kernel_knows_since;
  table_->rest_unused();
  ASSERT_EQ(table_->awake(), 0u);
  const InodePtr inode = table_->find(kFile);
  ASSERT_NE(inode, nullptr);
  EXPECT_EQ(inode->identity, (Identity{kFile, 7}));
  EXPECT_EQ(inode->type, mode_t{S_IFREG});
  EXPECT_TRUE(inode->append_only);
  EXPECT_EQ(inode->accesses.made_until, 5u);
  EXPECT_EQ(inode->accesses.last_opener, 6);
  EXPECT_TRUE(inode->has_name(kRootId, "n1000000"));
  EXPECT_EQ(inode->last_name().text, "n1000000");
  EXPECT_EQ(inode->last_name().kernel_knows_since, since);
  EXPECT_EQ(inode->place().tier, 1);
  EXPECT_EQ(inode->place().handle.bytes, "h1000000");
  Inode::Locked state(*inode);
  EXPECT_EQ(state->size_hint, 1'000'000u);
  EXPECT_EQ(state->pages.kernel_mtime, 12'000'000'034);
  EXPECT_TRUE(state->pages.stale);
  EXPECT_EQ(state->pins.own, 2);
  EXPECT_EQ(state->pins.own_epoch, 8u);
  EXPECT_TRUE(state->xattrs.none);
  EXPECT_TRUE(state->times_known);
}

TEST_F(InodeRestTest, AFileThatSomebodyUsesIsTheSameInode) {
  const InodePtr used = intern(kFile);
  intern_many();
  table_->rest_unused();
  EXPECT_EQ(table_->awake(), 1u);
  EXPECT_EQ(table_->find(kFile), used);
  EXPECT_EQ(intern(kFile), used);
}

TEST_F(InodeRestTest, AFileOfWhichMoreIsKnownDoesNotRest) {
  using Change = std::function<void(Inode&, InodeState&)>;
  const std::map<std::string, Change> changes = {
      {"open", [](Inode&, InodeState& s) { s.open = std::make_unique<OpenFile>(); }},
      {"times", [](Inode&, InodeState& s) { s.times = std::make_unique<InodeTimes>(); }},
      {"move",
       [](Inode&, InodeState& s) { s.start_move(std::make_shared<FileMove>(nullptr, false, 2)); }},
      {"changes", [](Inode&, InodeState& s) { s.changes = 1; }},
      {"uses", [](Inode&, InodeState& s) { s.uses = 1; }},
      {"duplicate", [](Inode&, InodeState& s) { s.has_duplicate = true; }},
      {"move waits", [](Inode&, InodeState& s) { s.move_waits = true; }},
      {"doomed", [](Inode&, InodeState& s) { s.is_doomed = true; }},
      {"mapped", [](Inode&, InodeState& s) { s.pages.maybe_mapped = true; }},
      {"watched", [](Inode&, InodeState& s) { s.pages.is_watched = true; }},
      {"descriptor",
       [](Inode&, InodeState& s) { s.copies[0].fd = std::make_shared<const UniqueFd>(); }},
      {"opens", [](Inode& inode, InodeState&) { inode.accesses.new_opens = 1; }},
      {"GPU reads", [](Inode& inode, InodeState&) { inode.accesses.gpu_bytes = 1; }},
  };
  for (const auto& [what, change] : changes) {
    {
      const InodePtr inode = intern(kFile);
      Inode::Locked state(*inode);
      change(*inode, *state);
    }
    EXPECT_TRUE(stays_awake()) << what;
    table_->forget(kFile, 1);
  }
  intern(InodeId{5}, S_IFDIR);
  EXPECT_TRUE(stays_awake()) << "a directory";
}

TEST_F(InodeRestTest, AFileCanBeForgottenWhileItRests) {
  intern(kFile);
  intern(kFile);
  table_->rest_unused();
  table_->forget(kFile, 1);
  EXPECT_EQ(table_->awake(), 0u);
  EXPECT_EQ(table_->size(), 1u);
  table_->forget(kFile, 1);
  EXPECT_EQ(table_->size(), 0u);
  EXPECT_EQ(table_->find(kFile), nullptr);
  // Both of its records are free again.
  intern(kFile);
  EXPECT_EQ(handover_->inodes().at(1), nullptr);
  EXPECT_EQ(handover_->places().at(1), nullptr);
}

TEST_F(InodeRestTest, ReferencesAreCountedOn) {
  intern(kFile);
  table_->rest_unused();
  intern(kFile);
  table_->forget(kFile, 1);
  EXPECT_NE(table_->find(kFile), nullptr);
  table_->rest_unused();
  table_->forget(kFile, 1);
  EXPECT_EQ(table_->find(kFile), nullptr);
}

TEST_F(InodeRestTest, AllAreVisitedOnceAndRestAgain) {
  intern_many();
  std::map<InodeId, int> visits;
  table_->for_each([&](Inode& inode) {
    ++visits[inode.id()];
    Inode::Locked state(inode);
    state->size_hint = 3;
  });
  EXPECT_EQ(visits.size(), kMany);
  for (const auto& [id, count] : visits) ASSERT_EQ(count, 1) << to_number(id);
  EXPECT_LT(table_->awake(), kMany / 10);
  const InodePtr first = table_->find(InodeId{kFirst});
  Inode::Locked state(*first);
  EXPECT_EQ(state->size_hint, 3u) << "changes by a visitor stay";
}

// Threads that need the same files while these are put to rest, are visited and are forgotten.
TEST_F(InodeRestTest, UsersMeetFilesThatAreAboutToRest) {
  constexpr std::uint64_t kFew = 200, kRounds = 200;
  std::atomic<int> running{3};
  const auto use = [&] {
    for (std::uint64_t round = 0; round < kRounds; ++round) {
      for (std::uint64_t i = kFirst; i < kFirst + kFew; ++i) {
        const InodePtr made = intern(InodeId{i});
        const InodePtr found = table_->find(InodeId{i});
        ASSERT_EQ(made, found);
        {
          Inode::Locked state(*found);
          ++state->changes;
        }
        {
          Inode::Locked state(*made);
          ASSERT_GT(state->changes--, 0u);
          ASSERT_EQ(state->size_hint, i);
        }
        table_->forget(InodeId{i}, 1);
      }
    }
    --running;
  };
  std::vector<std::jthread> users;
  for (int i = running; i > 0; --i) users.emplace_back(use);
  while (running > 0) {
    table_->rest_unused();
    table_->for_each([](Inode& inode) { ASSERT_GE(to_number(inode.id()), kFirst); });
  }
  users.clear();
  EXPECT_EQ(table_->size(), 0u);
  // All records are free again.
  EXPECT_EQ(handover_->inodes().at(3 * kFew), nullptr);
}

TEST_F(InodeRestTest, ASuccessorFindsFilesThatRested) {
  intern(kFile);
  table_->rest_unused();
  table_.reset();
  UniqueFd memory(::fcntl(handover_->fd(), F_DUPFD_CLOEXEC, 0));
  handover_ = *Handover::open(std::move(memory), pool_->id());
  table_ = std::make_unique<InodeTable>(*pool_, handover_.get());
  EXPECT_TRUE(table_->inherit().complete);
  for (int times = 0; times < 2; ++times) {
    {
      const InodePtr inode = table_->find(kFile);
      ASSERT_NE(inode, nullptr);
      EXPECT_TRUE(inode->has_name(kRootId, "n1000000"));  // by its hash
      EXPECT_FALSE(inode->has_name(kRootId, "other"));
      EXPECT_EQ(inode->place().handle.bytes, "h1000000");
    }
    table_->rest_unused();
    ASSERT_EQ(table_->awake(), 0u);
  }
}

}  // namespace
}  // namespace sluice
