// SPDX-License-Identifier: BSD-2-Clause
#include "tiering/move/kept_requests.hpp"

#include <gtest/gtest.h>

#include <cstdio>
#include <filesystem>

#include "tests/unit/tiering/movers.hpp"

namespace sluice::test {
namespace {

class KeptRequestsTest : public MoverTest {
 protected:
  // A request that waits, because the file is in use.
  Move request(const std::string& path, const char* to = "b") {
    dir_.make_file("a" + path, path);
    Move asked = move(path, "a", to);
    asked.reason = Reason::Requested;
    asked.user = 1000;
    host_->refuse(path, EBUSY);
    EXPECT_TRUE(mover_->request(asked));
    finish();
    return asked;
  }
  std::vector<std::string> stored() const {
    std::vector<std::string> out;
    EXPECT_TRUE(store_.each_request([&](InodeId, const MoveRequest& each) {
      out.push_back(each.path + " " + each.to + " " + std::to_string(each.user));
      return true;
    }));
    std::sort(out.begin(), out.end());
    return out;
  }
  // As after a crash: nothing but the store is left.
  void start_again() {
    mover_.reset();
    host_ = std::make_unique<FakeHost>(*pool_, store_);
    start();
  }
  std::size_t resume() {
    const auto resumed = mover_->resume_requests({});
    EXPECT_TRUE(resumed);
    finish();
    return resumed ? *resumed : 0;
  }
  using Strings = std::vector<std::string>;
};

TEST_F(KeptRequestsTest, ARequestIsStoredUntilItIsMade) {
  start();
  const Move f = request("/f");
  EXPECT_EQ(stored(), Strings{"/f b 1000"});
  host_->refuse("/f", 0);
  mover_->file_closed(f.id);
  finish();
  EXPECT_TRUE(is_on("b", f));
  EXPECT_TRUE(stored().empty());
}

TEST_F(KeptRequestsTest, RequestsGoOnInTheirOrder) {
  start();
  const Move second = request("/z"), first = request("/y"), third = request("/x");
  start_again();
  EXPECT_EQ(resume(), 3u);
  EXPECT_EQ(host_->begun(), (Strings{"/z", "/y", "/x"}));
  EXPECT_TRUE(is_on("b", first) && is_on("b", second) && is_on("b", third));
  EXPECT_TRUE(stored().empty());
  EXPECT_EQ(resume(), 0u);
}

TEST_F(KeptRequestsTest, RenamedFilesAreFound) {
  start();
  dir_.make_dir("a/d");
  dir_.make_dir("b/d");
  request("/d/f");
  request("/g");
  std::filesystem::rename(dir_ / "a/d", dir_ / "a/e");
  std::filesystem::rename(dir_ / "b/d", dir_ / "b/e");
  std::filesystem::rename(dir_ / "a/g", dir_ / "a/e/g");
  dir_.make_file("a/g", "another file with its name");
  start_again();
  EXPECT_EQ(resume(), 2u);
  EXPECT_TRUE(exists(dir_ / "b/e/f"));
  EXPECT_TRUE(exists(dir_ / "b/e/g"));
  EXPECT_TRUE(exists(dir_ / "a/g"));
  EXPECT_TRUE(stored().empty());
}

TEST_F(KeptRequestsTest, AFileThatIsRenamedWhileItsMoveIsQueuedIsSearchedFor) {
  start();
  const Move f = request("/f");
  std::filesystem::rename(dir_ / "a/f", dir_ / "a/h");
  host_->refuse("/f", 0);
  EXPECT_FALSE(mover_->must_search());
  mover_->file_closed(f.id);
  finish();
  EXPECT_TRUE(mover_->must_search());
  EXPECT_EQ(stored(), Strings{"/f b 1000"});
  EXPECT_EQ(resume(), 1u);
  EXPECT_TRUE(exists(dir_ / "b/h"));
  EXPECT_FALSE(mover_->must_search());
  EXPECT_TRUE(stored().empty());
}

TEST_F(KeptRequestsTest, WhatIsGoneOrDoneIsDropped) {
  start();
  request("/gone");
  request("/done");
  std::filesystem::remove(dir_ / "a/gone");
  const Move done = move("/done");
  start_again();
  run_all({done});  // by a pass: another daemon's request is not known to this one yet
  ASSERT_TRUE(is_on("b", done));
  EXPECT_EQ(stored().size(), 2u);
  EXPECT_EQ(resume(), 0u);
  EXPECT_TRUE(stored().empty());
}

TEST_F(KeptRequestsTest, ARequestCanBeWithdrawn) {
  start();
  const Move f = request("/f");
  mover_->cancel(f.id);
  EXPECT_TRUE(stored().empty());
  start_again();
  EXPECT_EQ(resume(), 0u);
  EXPECT_TRUE(is_on("a", f));
}

TEST_F(KeptRequestsTest, ALaterRequestReplacesTheEarlier) {
  start();
  Move f = request("/f");
  f.to = pool_->by_name("c")->index();
  ASSERT_TRUE(mover_->request(f));
  finish();
  EXPECT_EQ(stored(), Strings{"/f c 1000"});
  start_again();
  EXPECT_EQ(resume(), 1u);
  EXPECT_TRUE(is_on("c", f));
}

TEST_F(KeptRequestsTest, APlanDoesNotReplaceARequestThatIsAboutToRun) {
  start({.bandwidth = 1});
  const Move slow = make("/slow", "keeps the tier busy");
  ASSERT_TRUE(mover_->request(slow));
  Move asked = make("/f", "content");
  asked.reason = Reason::Requested;
  ASSERT_TRUE(mover_->request(asked));
  add({move("/f", "a", "c")});
  EXPECT_EQ(mover_->destination(asked.id), asked.to);
  mover_->change({});
  finish();
  EXPECT_TRUE(is_on("b", asked));
}

TEST_F(KeptRequestsTest, MovesOfAPassAreNotStored) {
  start();
  const Move f = make("/f", "x");
  host_->refuse("/f", EBUSY);
  run_all({f});
  EXPECT_TRUE(stored().empty());
}

TEST_F(KeptRequestsTest, ARequestThatCannotBeStoredIsMadeAnyway) {
  start();
  const Move f = make("/f", "x");
  Move asked = f;
  asked.reason = Reason::Requested;
  store_.fail_call(1, ENOSPC);
  EXPECT_TRUE(mover_->request(asked));
  finish();
  EXPECT_TRUE(is_on("b", f));
}

TEST_F(KeptRequestsTest, RequestsForAnUnknownTierAreDropped) {
  ASSERT_TRUE(store_.keep_requests({{InodeId{5}, {1, 0, "gone", "/f"}}}));
  start();
  EXPECT_EQ(resume(), 0u);
  EXPECT_TRUE(stored().empty());
}

}  // namespace
}  // namespace sluice::test
