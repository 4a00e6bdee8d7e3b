// SPDX-License-Identifier: BSD-2-Clause
#include "tiering/move/mover.hpp"

#include <xxhash.h>

#include <atomic>
#include <chrono>
#include <future>

#include "tests/support/wait.hpp"
#include "tests/unit/tiering/movers.hpp"

namespace sluice {
namespace {

using std::chrono::milliseconds;
using std::chrono::steady_clock;
using test::eventually;
using test::MemoryStore;
using Paths = std::vector<std::string>;
using Sizes = std::vector<std::size_t>;

using test::kMiB;
using test::MoverTest;

TEST_F(MoverTest, MovesAFile) {
  const Move f = make("/f", "content");
  start();
  run_all({f});
  EXPECT_FALSE(is_on("a", f));
  EXPECT_EQ(test::read_file(at("b", "f")), "content");
  EXPECT_EQ(identity_of((*pool_)[1], at("b", "f")).id, f.id);
  EXPECT_TRUE(temporaries().empty());
}

TEST_F(MoverTest, LeavesAReceipt) {
  const std::string content = test::pattern(3 * kMiB + 17, 1);
  const Move f = make("/f", content);
  const std::int64_t before = clock_.seconds();
  start();
  run_all({f});
  ASSERT_EQ(receipts().size(), 1u);
  const Receipt receipt = receipts()[0];
  EXPECT_EQ(receipt.id, f.id);
  EXPECT_EQ(receipt.path, "/f");
  EXPECT_EQ(receipt.from, "a");
  EXPECT_EQ(receipt.to, "b");
  EXPECT_EQ(receipt.bytes, content.size());
  EXPECT_EQ(receipt.code, 0);
  EXPECT_EQ(receipt.reason, "the test");
  EXPECT_GE(receipt.time, before);
}

TEST_F(MoverTest, TheHashInAReceiptIsXxh3OfTheContent) {
  const std::string content = test::pattern(3 * kMiB + 17, 1);
  const Move f = make("/f", content);
  start();
  run_all({f});
  ASSERT_EQ(receipts().size(), 1u);
  EXPECT_EQ(receipts()[0].hash, XXH3_64bits(content.data(), content.size()));
}

TEST_F(MoverTest, CountsWhatItMoved) {
  const Move f = make("/f", std::string(10'000, 'x')), g = make("/g", std::string(5'000, 'y'));
  start();
  run_all({f, g});
  const Mover::Progress progress = mover_->progress();
  EXPECT_EQ(progress.moved, 2u);
  EXPECT_EQ(progress.moved_bytes, 15'000u);
  EXPECT_EQ(progress.copied_bytes, 15'000u);
  EXPECT_EQ(progress.failed, 0u);
  EXPECT_EQ(progress.queued, 0u);
  EXPECT_EQ(progress.queued_bytes, 0u);
  EXPECT_EQ(progress.active, 0u);
}

TEST_F(MoverTest, ReportsTheProgressOfEachMove) {
  const Move big = make("/big", std::string(3 * kMiB, 'x'));
  const Move other = make("/other", "y");
  Mover* mover = nullptr;
  // No lock: only the mover's single thread uses it before the mover is idle.
  std::vector<Mover::Active> seen;
  host_->on_piece = [&](const std::string& path) {
    if (path == "/big") seen = mover->active(10);
  };
  mover = &start();
  const std::int64_t before = clock_.seconds();
  run_all({big, other});
  // Both files are in one batch, which starts with the first.
  ASSERT_EQ(seen.size(), 2u);
  EXPECT_EQ(seen[0].path, "/big");
  EXPECT_EQ(seen[0].from, big.from);
  EXPECT_EQ(seen[0].to, big.to);
  EXPECT_EQ(seen[0].bytes, big.bytes);
  EXPECT_EQ(seen[0].copied, 3 * kMiB);
  EXPECT_GE(seen[0].since, before);
  EXPECT_EQ(seen[1].path, "/other");
  EXPECT_EQ(seen[1].since, 0);
  EXPECT_TRUE(mover->active(10).empty());
  EXPECT_EQ((*pool_)[big.from].traffic().read, 3 * kMiB + 1);
  EXPECT_EQ((*pool_)[big.to].traffic().written, 3 * kMiB + 1);
}

TEST_F(MoverTest, SmallFilesShareOneReplacement) {
  std::vector<Move> moves;
  for (int i = 0; i < 20; ++i) moves.push_back(make("/f" + std::to_string(i), "x"));
  start();
  run_all(moves);
  EXPECT_EQ(host_->batches(), Sizes{20});
}

TEST_F(MoverTest, TheSizeOfABatchIsLimited) {
  std::vector<Move> moves;
  for (int i = 0; i < 70; ++i) moves.push_back(make("/f" + std::to_string(i), ""));
  start();
  run_all(moves);
  EXPECT_EQ(host_->batches(), (Sizes{64, 6}));
}

TEST_F(MoverTest, LargeFilesMoveAlone) {
  const std::vector<Move> moves{make("/small1", "x"), make("/small2", "x"), make_large("/large1"),
                                make_large("/large2"), make("/small3", "x")};
  start();
  run_all(moves);
  EXPECT_EQ(host_->batches(), (Sizes{2, 1, 1, 1}));
}

TEST_F(MoverTest, OnlyMovesBetweenTheSameTiersShareABatch) {
  const Move f = make("/f", "x");
  dir_.make_file("a/g", "x");
  start();
  run_all({f, move("/g", "a", "c")});
  EXPECT_EQ(host_->batches(), (Sizes{1, 1}));
  EXPECT_TRUE(test::exists(at("c", "g")));
}

TEST_F(MoverTest, KeepsTheOrder) {
  const std::vector<Move> moves{make_large("/c"), make_large("/a"), make("/d", ""),
                                make_large("/b")};
  start();
  run_all(moves);
  EXPECT_EQ(host_->begun(), (Paths{"/c", "/a", "/d", "/b"}));
}

TEST_F(MoverTest, AMoveAddedAtTheFrontGoesFirst) {
  const Move f = make_large("/f"), g = make_large("/g");
  start().pause();
  add({f});
  add({g}, Mover::Where::Front);
  mover_->resume();
  finish();
  EXPECT_EQ(host_->begun(), (Paths{"/g", "/f"}));
}

TEST_F(MoverTest, ALaterMoveOfAFileReplacesTheOneInTheQueue) {
  const Move to_b = make("/f", "x"), to_c = move("/f", "a", "c");
  start().pause();
  add({to_b});
  add({to_c});
  EXPECT_EQ(mover_->progress().queued, 1u);
  EXPECT_EQ(mover_->progress().queued_bytes, to_c.bytes);
  EXPECT_EQ(mover_->destination(to_b.id), to_c.to);
  mover_->resume();
  finish();
  EXPECT_EQ(host_->begun(), Paths{"/f"});
  EXPECT_TRUE(is_on("c", to_c));
}

TEST_F(MoverTest, TheNumberOfMovesPerTierIsLimited) {
  auto settings = make_tiers("abc");
  settings[0].moves = 4;
  settings[1].moves = 1;
  pool_.reset();
  use(settings);
  std::vector<Move> moves;
  for (int i = 0; i < 6; ++i) moves.push_back(make_large("/f" + std::to_string(i)));
  start();
  run_all(moves);
  EXPECT_EQ(mover_->progress().moved, 6u);
  EXPECT_EQ(host_->most_at_once(), 1u);
}

TEST_F(MoverTest, ObeysTheBandwidthLimit) {
  const Move f = make("/f", test::pattern(kMiB, 1)), g = make("/g", test::pattern(kMiB, 2));
  start({.bandwidth = 8 * kMiB});
  const auto begun = steady_clock::now();
  run_all({f, g});
  EXPECT_GE(steady_clock::now() - begun, milliseconds(250));
}

TEST_F(MoverTest, StartsNothingWhilePaused) {
  const Move f = make("/f", "x");
  start().pause();
  add({f});
  mover_->tick();
  EXPECT_TRUE(mover_->is_paused());
  EXPECT_EQ(mover_->progress().queued, 1u);
  EXPECT_TRUE(host_->begun().empty());
  mover_->resume();
  finish();
  EXPECT_TRUE(is_on("b", f));
}

TEST_F(MoverTest, APauseStopsACopyInProgress) {
  const Move f = make("/f", "x");
  bool done = false;  // no lock: only the mover's single thread uses it
  host_->on_piece = [&](const std::string&) {
    if (!std::exchange(done, true)) mover_->pause();
  };
  start();
  add({f});
  ASSERT_TRUE(eventually([&] { return mover_->is_paused(); }));
  EXPECT_EQ(mover_->progress().active, 1u);
  EXPECT_TRUE(host_->batches().empty());
  mover_->resume();
  finish();
  EXPECT_TRUE(is_on("b", f));
}

TEST_F(MoverTest, ACancelledCopyLeavesNothing) {
  const Move f = make("/f", "content");
  start({.bandwidth = 1});
  add({f});
  ASSERT_TRUE(eventually([&] { return mover_->progress().copied_bytes > 0; }));
  EXPECT_EQ(temporaries().size(), 1u);
  host_->cancel = true;
  finish();
  EXPECT_EQ(code_of(f), ECANCELED);
  EXPECT_TRUE(temporaries().empty());
  EXPECT_TRUE(host_->batches().empty());
  EXPECT_EQ(test::read_file(at("a", "f")), "content");
}

TEST_F(MoverTest, CanBeDestroyedQuicklyDuringALongCopy) {
  const std::string content(10'000, 'x');  // the copy would take hours
  const Move f = make("/f", content), g = make("/g", content);
  start({.bandwidth = 1});
  add({f, g});
  ASSERT_TRUE(eventually([&] { return mover_->progress().copied_bytes > 0; }));
  mover_.reset();
  EXPECT_TRUE(temporaries().empty());
  EXPECT_EQ(shown(), "a/f 644 \"" + content + "\"\na/g 644 \"" + content + "\"\n");
  EXPECT_TRUE(receipts().empty());
}

TEST_F(MoverTest, CanBeDestroyedWhilePaused) {
  const Move f = make("/f", "x");
  start().pause();
  add({f});
  mover_.reset();
  EXPECT_TRUE(is_on("a", f));
}

TEST_F(MoverTest, VerificationDetectsADifferentCopy) {
  const Move f = make("/f", "content");
  bool done = false;  // no lock: only the mover's single thread uses it
  host_->on_piece = [&](const std::string&) {
    if (std::exchange(done, true)) return;
    const auto copy = test::open_file(at("b", ".sluice/tmp/" + temporaries().at(0)));
    EXPECT_EQ(::pwrite(copy.get(), "C", 1, 0), 1);
  };
  start({.verify = true});
  run_all({f});
  EXPECT_EQ(code_of(f), EIO);
  EXPECT_EQ(shown(), "a/f 644 \"content\"\n");
  EXPECT_TRUE(temporaries().empty());
}

TEST_F(MoverTest, VerificationAcceptsGoodCopies) {
  const Move f = make("/f", test::pattern(3 * kMiB + 17, 1)), g = make("/g", "");
  dir_.make_file("a/sparse", "begin");
  ASSERT_EQ(::truncate(at("a", "sparse").c_str(), 100 << 20), 0);
  start({.verify = true});
  run_all({f, g, move("/sparse")});
  EXPECT_TRUE(mover_->pending().empty());
  EXPECT_EQ(mover_->progress().moved, 3u);
}

TEST_F(MoverTest, EvictedFilesBecomeGhosts) {
  std::vector<Move> moves;
  for (const Reason reason : {Reason::Crowded, Reason::Outranked, Reason::Cold, Reason::Hot,
                              Reason::Pinned, Reason::Requested}) {
    moves.push_back(make(std::string("/") + name_of(reason), "x"));
    moves.back().reason = reason;
  }
  start();
  run_all(moves);
  std::map<InodeId, Ghost> ghosts;
  ASSERT_TRUE(store_.each_ghost([&](InodeId id, const Ghost& ghost) {
    ghosts[id] = ghost;
    return true;
  }));
  ASSERT_EQ(ghosts.size(), 2u);
  EXPECT_TRUE(ghosts.contains(moves[0].id) && ghosts.contains(moves[1].id));
  EXPECT_EQ(ghosts[moves[0].id].slot, (*pool_)[0].member().slot);
  EXPECT_GT(ghosts[moves[0].id].left_at, 0);
}

TEST_F(MoverTest, AFileThatCouldNotLeaveIsNotAGhost) {
  Move f = make("/f", "x");
  f.reason = Reason::Crowded;
  host_->refuse_copy("/f", EIO);
  start();
  run_all({f});
  ASSERT_TRUE(store_.each_ghost([&](InodeId, const Ghost&) {
    ADD_FAILURE();
    return true;
  }));
}

TEST_F(MoverTest, ReportsTheEndOfEachMoveToItsListener) {
  const Move f = make("/f", "x"), g = make("/g", "x");
  host_->refuse("/g", EBUSY);
  start();
  // No lock: only the mover's single thread adds to it.
  std::map<std::string, std::pair<int, bool>> told;
  mover_->add({f, g}, Mover::Where::Back, [&](const Receipt& receipt, bool pending) {
    told[receipt.path] = {receipt.code, pending};
  });
  finish();
  EXPECT_EQ(told["/f"], std::pair(0, false));
  EXPECT_EQ(told["/g"], std::pair(EBUSY, true));
}

TEST_F(MoverTest, ATallyHasNoMovesOfOthers) {
  const Move f = make("/f", "x"), g = make("/g", std::string(3 * kMiB, 'x')), h = make("/h", "x");
  host_->refuse("/h", EIO);
  start().pause();
  const auto number = mover_->add({f, h}, Mover::Where::Back, [](const Receipt&, bool) {});
  add({g});
  EXPECT_EQ(mover_->tally(number).bytes, f.size() + h.size());
  mover_->resume();
  finish();
  const Mover::Tally tally = mover_->tally(number);
  EXPECT_EQ(tally.files, 2u);
  EXPECT_EQ(tally.moved, 1u);
  EXPECT_EQ(tally.failed, 1u);
  EXPECT_EQ(tally.done_bytes, f.size());
  EXPECT_EQ(tally.moved_bytes, 1u);
}

TEST_F(MoverTest, NoMoreIsCopiedThanThereIsIfAFileHasGrown) {
  Move f = make("/f", std::string(9 * kMiB, 'x'));
  f.bytes = 8;
  f.slack = 0;
  bool is_right = true;
  host_->on_piece = [&](const std::string&) {
    const auto tally = mover_->tally(1);
    const auto running = mover_->running(f.id);
    is_right = is_right && tally.done_bytes <= tally.bytes && running->copied <= running->bytes;
  };
  start();
  const auto number = mover_->add({f}, Mover::Where::Back, [](const Receipt&, bool) {});
  ASSERT_EQ(number, 1u);
  finish();
  EXPECT_TRUE(is_right);
  EXPECT_EQ(mover_->tally(number).bytes, 9 * kMiB);
  EXPECT_EQ(mover_->tally(number).done_bytes, 9 * kMiB);
}

TEST_F(MoverTest, WithdrawingWaitsForAReportInProgress) {
  std::promise<void> begun, go_on;
  std::atomic<bool> over{false};
  start();
  mover_->add({make("/f", "x")}, Mover::Where::Back, [&](const Receipt&, bool) {
    begun.set_value();
    go_on.get_future().wait();
    over = true;
  });
  begun.get_future().wait();
  auto withdrawn = std::async(std::launch::async, [&] {
    mover_->withdraw_reported();
    return over.load();
  });
  EXPECT_EQ(withdrawn.wait_for(milliseconds(50)), std::future_status::timeout);
  go_on.set_value();
  EXPECT_TRUE(withdrawn.get());
}

TEST_F(MoverTest, WithdrawingRemovesOnlyMovesWithAListener) {
  const Move f = make("/f", "x"), g = make("/g", "x");
  start().pause();
  bool told = false;
  mover_->add({f}, Mover::Where::Back, [&](const Receipt&, bool) { told = true; });
  add({g});
  mover_->withdraw_reported();
  EXPECT_EQ(mover_->progress().queued_bytes, g.bytes);
  mover_->resume();
  finish();
  EXPECT_TRUE(is_on("a", f));
  EXPECT_TRUE(is_on("b", g));
  EXPECT_FALSE(told);
}

TEST_F(MoverTest, MovesEvenIfTheReceiptCannotBeStored) {
  const Move f = make("/f", "x");
  start();
  store_.fail_call(3, EIO, MemoryStore::Failure::ForGood);  // calls 1 and 2 are for the intent
  run_all({f});
  EXPECT_TRUE(is_on("b", f));
  EXPECT_EQ(mover_->progress().moved, 1u);
}

TEST_F(MoverTest, TheNumberOfRequestsPerUserIsLimited) {
  const Move first = make_large("/first");
  Move request = make("/f", "x");
  request.reason = Reason::Requested;
  request.user = 1000;
  // The mover's single thread stays with the first move, so every request stays in the queue.
  std::promise<void> begun, go_on;
  host_->on_piece = [&, done = false](const std::string&) mutable {
    if (std::exchange(done, true)) return;
    begun.set_value();
    go_on.get_future().wait();
  };
  start();
  add({first});
  begun.get_future().wait();
  std::size_t accepted = 0;
  Result<void> last;
  while (last && accepted <= Mover::kMostOfUser) {
    request.id = InodeId{1000 + accepted};
    last = mover_->request(request);
    if (last) ++accepted;
  }
  EXPECT_EQ(accepted, Mover::kMostOfUser);
  EXPECT_TRUE(!last && last.error().code == EAGAIN);
  EXPECT_EQ(mover_->most_requested(), Mover::kMostOfUser);
  request.user = 1001;
  EXPECT_TRUE(mover_->request(request)) << "another user's";
  request.id = InodeId{1};
  request.user = 0;
  EXPECT_TRUE(mover_->request(request)) << "root's";
  mover_->stop(milliseconds(0));  // first, so that it does not begin with the requests
  go_on.set_value();
  mover_.reset();
}

}  // namespace
}  // namespace sluice
