// SPDX-License-Identifier: BSD-2-Clause
#include "tiering/move/switcher.hpp"

#include "tests/unit/tiering/pools.hpp"

namespace sluice {
namespace {

using test::MemoryStore;
using Calls = std::vector<std::string>;

std::string in_words(Holder holder) { return holder == Holder::Copy ? "copy" : "original"; }

// The file d/f of tier a, to be moved to tier b; a core that notes what it is asked, and fails when
// the test wants that.
class SwitcherTest : public test::PoolTest {
 protected:
  void prepare() override {
    pool_ = open(make_tiers("ab"));
    dir_.make_file("a/d/f", "content");
    dir_.make_dir("b/d");
    switcher_ = std::make_unique<Switcher>(*pool_, store_);
    auto source = std::make_shared<UniqueFd>(test::open_file(at("a", "d/f"), O_RDONLY));
    file_ = std::make_unique<File>(*this, std::move(source));
    auto copy = make_hidden_copy(file_->source(), file_->identity(), (*pool_)[1]);
    ASSERT_TRUE(copy);
    copy_ = *std::move(copy);
  }

  // An interrupted switch, and what both kinds of files have in common.
  class Doubled : public SwitchedFile {
   public:
    explicit Doubled(SwitcherTest& test) : test_(test) {}
    Result<void> change_hidden(std::size_t, unsigned slot,
                               const std::function<Result<void>()>& act) override {
      return test_.execute(slot, act);
    }
    void release(Holder holder) override { test_.calls_.push_back("end " + in_words(holder)); }

   private:
    SwitcherTest& test_;
  };

  class File final : public HeldFile {
   public:
    File(SwitcherTest& test, SharedFd source) : test_(test) {
      tier_ = 0;
      identity_ = test.identity_of((*test.pool_)[0], test.at("a", "d/f"));
      EXPECT_EQ(::fstat(source->get(), &before_), 0);
      move_ = std::make_shared<FileMove>(std::move(source), false, 1);
    }
    Result<Names> open_names() override {
      test_.calls_.push_back("open_names");
      from_ = test::open_directory(test_.at("a", "d"));
      to_ = test::open_directory(test_.at("b", "d"));
      return Names{{{from_.get(), to_.get(), "f"}}, {}};
    }
    Result<void> begin_switch(const HiddenCopy&) override {
      test_.calls_.push_back("begin_switch");
      if (test_.is_cancelled_) return Error(ECANCELED, "a user changed the file");
      return {};
    }
    Result<void> change_hidden(std::size_t, unsigned slot,
                               const std::function<Result<void>()>& act) override {
      return test_.execute(slot, act);
    }
    KeptTimes place_changed(const HiddenCopy&) override {
      test_.calls_.push_back("place_changed");
      return {};
    }
    std::unique_ptr<SwitchedFile> keep_both(Holder holder) override {
      test_.calls_.push_back("keep_both " + in_words(holder));
      return std::make_unique<Doubled>(test_);
    }
    void release(Holder holder) override { test_.calls_.push_back("release " + in_words(holder)); }

   private:
    SwitcherTest& test_;
    UniqueFd from_, to_;
  };

  Result<void> execute(unsigned slot, const std::function<Result<void>()>& act) {
    const bool is_new = slot == (*pool_)[1].member().slot;
    calls_.push_back(is_new ? "make name" : "remove name");
    if (is_new && fails_after_making_) {
      EXPECT_TRUE(act());
      if (cannot_be_undone_) prevent_undoing();
      return Error(EIO, "told to fail");
    }
    if (!is_new && fails_at_removal_) {
      if (cannot_be_undone_) prevent_undoing();
      return Error(EIO, "told to fail");
    }
    return act();
  }
  Result<void> switch_it() { return switcher_->switch_file({file_.get(), &copy_, 1}); }
  // The copy cannot return to where it was hidden.
  void prevent_undoing() { test::write_file(in_the_way(), ""); }
  std::string in_the_way() const { return at("b", ".sluice/tmp/" + copy_.name); }
  std::string where() const {
    return std::string(test::exists(at("a", "d/f")) ? "a" : "") +
           (test::exists(at("b", "d/f")) ? "b" : "");
  }

  MemoryStore store_;
  std::unique_ptr<Pool> pool_;
  std::unique_ptr<Switcher> switcher_;
  std::unique_ptr<File> file_;
  HiddenCopy copy_;
  Calls calls_;
  bool is_cancelled_ = false, fails_after_making_ = false, fails_at_removal_ = false;
  bool cannot_be_undone_ = false;
};

TEST_F(SwitcherTest, CallsTheCoreInThisOrder) {
  EXPECT_TRUE(switch_it());
  EXPECT_EQ(calls_, (Calls{"open_names", "begin_switch", "make name", "place_changed",
                           "remove name", "release copy"}));
  EXPECT_EQ(where(), "b");
  EXPECT_TRUE(store_.intents()->empty());
}

TEST_F(SwitcherTest, AFileThatAUserChangedStaysAndItsCopyGoes) {
  is_cancelled_ = true;
  EXPECT_TRUE(failed_with(switch_it(), ECANCELED));
  EXPECT_EQ(calls_, (Calls{"open_names", "begin_switch", "release original"}));
  EXPECT_EQ(where(), "a");
  EXPECT_TRUE(test::names_in(at("b", ".sluice/tmp")).empty());
}

TEST_F(SwitcherTest, ASwitchThatFailsIsUndone) {
  fails_at_removal_ = true;
  EXPECT_TRUE(failed_with(switch_it(), EIO));
  EXPECT_EQ(calls_.back(), "release original");
  EXPECT_EQ(where(), "a");
  EXPECT_FALSE(switcher_->has_unfinished());
  EXPECT_TRUE(store_.intents()->empty());
}

TEST_F(SwitcherTest, ASwitchThatCannotBeUndoneIsFinishedLater) {
  fails_at_removal_ = true;
  cannot_be_undone_ = true;
  EXPECT_TRUE(switch_it());
  EXPECT_EQ(where(), "ab");
  EXPECT_TRUE(switcher_->has_unfinished());
  EXPECT_EQ((Calls{calls_.end() - 2, calls_.end()}), (Calls{"keep_both copy", "release copy"}));
  switcher_->finish();
  EXPECT_TRUE(switcher_->has_unfinished()) << "the error is still there";
  fails_at_removal_ = false;
  switcher_->finish();
  EXPECT_FALSE(switcher_->has_unfinished());
  EXPECT_EQ(calls_.back(), "end copy");
  EXPECT_EQ(where(), "b");
  EXPECT_TRUE(store_.intents()->empty());
}

TEST_F(SwitcherTest, ACopyThatIsNotTheFileAndCannotBeRemovedIsRemovedLater) {
  fails_after_making_ = true;
  cannot_be_undone_ = true;
  EXPECT_TRUE(failed_with(switch_it(), EIO));
  EXPECT_EQ(where(), "ab");
  EXPECT_EQ((Calls{calls_.end() - 2, calls_.end()}),
            (Calls{"keep_both original", "release original"}));
  ASSERT_TRUE(switcher_->has_unfinished());
  EXPECT_FALSE(test::exists(in_the_way())) << "discard() means the hidden name";
  switcher_->finish();
  EXPECT_FALSE(switcher_->has_unfinished());
  EXPECT_EQ(calls_.back(), "end original");
  EXPECT_EQ(where(), "a");
}

}  // namespace
}  // namespace sluice
