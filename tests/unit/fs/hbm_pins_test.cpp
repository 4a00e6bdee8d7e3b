// SPDX-License-Identifier: BSD-2-Clause
// How many files can be pinned to GPU memory, by whom. tests/mount has the tests with GPUs.
#include "fs/core/files/hbm_pins.hpp"

#include "fs/core/filesystem.hpp"
#include "tests/support/wait.hpp"
#include "tests/unit/fs/direct_filesystem.hpp"
#include "tests/unit/fs/quiet_kernel.hpp"

namespace sluice {
namespace {

constexpr std::size_t kAll = HbmPins::kMostPins, kOfUser = HbmPins::kMostPinsOfUser;
constexpr Caller kAlice{1001, 1001, 022}, kBob{1002, 1002, 022};

class HbmPinsTest : public DirectFilesystem<QuietKernel> {
 protected:
  void prepare() override {
    pool_ = open(make_tiers("ab"));
    mount();
    for (std::size_t i = 0; i <= kAll; ++i) dir_.make_file("a/" + name(i), "x");
  }
  void mount() {
    fs_.reset();
    fs_ = std::make_unique<Filesystem>(*pool_, store_, kernel_,
                                       Filesystem::Settings{.hbm_list = list_});
  }
  HbmPins& pins() { return fs_->gpu().hbm_pins(); }
  static std::string name(std::size_t i) { return "f" + std::to_string(i); }
  // "ok", or the errno's name.
  std::string pin(std::size_t i, const Caller& by) {
    const auto done = fs_->xattrs().set(id_of(name(i)), "user.sluice.hbm", "1", 1, 0, by);
    return done ? "ok" : ::strerrorname_np(done.error().code);
  }
  // Pins [from, to), which must succeed.
  void pin_all(std::size_t from, std::size_t to, const Caller& by) {
    for (std::size_t i = from; i < to; ++i) ASSERT_EQ(pin(i, by), "ok") << i;
  }
  void unpin(std::size_t i, const Caller& by) {
    ASSERT_TRUE(fs_->xattrs().remove(id_of(name(i)), "user.sluice.hbm", by));
  }

  const std::string list_ = dir_ / "hbm-pins";
};

TEST_F(HbmPinsTest, UserCanHaveAQuarterAndRootAll) {
  pin_all(0, kOfUser, kAlice);
  EXPECT_EQ(pin(kOfUser, kAlice), "EDQUOT");
  EXPECT_EQ(xattr(name(kOfUser), "user.sluice.hbm"), "error: ENODATA") << "refused, but pinned";
  EXPECT_EQ(pin(0, kAlice), "ok") << "a second time";
  EXPECT_EQ(pins().count().all, kOfUser);
  EXPECT_EQ(pins().count().most_of_user, kOfUser);
  EXPECT_EQ(pin(kOfUser, kBob), "ok");
  pin_all(kOfUser + 1, kAll, kRoot);
  EXPECT_EQ(pin(kAll, kRoot), "ENOSPC");
  EXPECT_EQ(pin(kAll, kBob), "ENOSPC");
  EXPECT_EQ(pins().count().all, kAll);
  EXPECT_EQ(pins().count().most_of_user, kOfUser) << "root counts";

  unpin(0, kAlice);
  EXPECT_EQ(pin(kAll, kAlice), "ok");
}

TEST_F(HbmPinsTest, PinCountsForWhoMadeItFirst) {
  pin_all(0, kOfUser, kAlice);
  EXPECT_EQ(pin(0, kBob), "ok");
  EXPECT_EQ(pin(1, kRoot), "ok");
  EXPECT_EQ(pin(kOfUser, kAlice), "EDQUOT");
  unpin(0, kBob);
  EXPECT_EQ(pin(kOfUser, kAlice), "ok");
}

TEST_F(HbmPinsTest, LimitOutlivesTheMount) {
  pin_all(0, kOfUser, kAlice);
  mount();
  pins().start();
  EXPECT_EQ(pins().count().most_of_user, kOfUser);
  EXPECT_EQ(pin(kOfUser, kAlice), "EDQUOT");
  EXPECT_EQ(pin(kOfUser, kBob), "ok");
}

TEST_F(HbmPinsTest, DeletedFilesOfAUserMakeRoomForIt) {
  pin_all(0, kOfUser, kAlice);
  mount();  // so that nobody knows the files
  pins().start();
  ASSERT_EQ(::unlink((dir_ / ("a/" + name(3))).c_str()), 0);
  EXPECT_TRUE(test::eventually([&] { return pin(kOfUser, kAlice) == "ok"; }));
  EXPECT_EQ(pins().count().all, kOfUser);
}

}  // namespace
}  // namespace sluice
