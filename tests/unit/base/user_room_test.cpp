// SPDX-License-Identifier: BSD-2-Clause
#include "base/user_room.hpp"

#include <gtest/gtest.h>
#include <linux/capability.h>
#include <sched.h>
#include <sys/fsuid.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <array>
#include <string>
#include <thread>

#include "base/thread.hpp"
#include "tests/support/user.hpp"

namespace sluice {
namespace {

constexpr uid_t kUser = 12001;

// What filesystems look at. setfsuid(-1) returns the fsuid and sets nothing.
uid_t current_fsuid() { return static_cast<uid_t>(::setfsuid(static_cast<uid_t>(-1))); }

std::array<__user_cap_data_struct, 2> capabilities() {
  __user_cap_header_struct header{_LINUX_CAPABILITY_VERSION_3, 0};
  std::array<__user_cap_data_struct, 2> sets{};
  EXPECT_EQ(::syscall(SYS_capget, &header, sets.data()), 0);
  return sets;
}

bool has_capability(unsigned number) {
  return (capabilities()[number / 32].effective >> (number % 32) & 1) != 0;
}

bool has_rights_of_root() { return current_fsuid() == 0 || has_capability(CAP_SYS_RESOURCE); }

class UserRoomTest : public testing::Test {
 protected:
  void SetUp() override {
    if (::geteuid() != 0) GTEST_SKIP() << "only root can become another user";
  }
  // Each in a thread of its own, because a thread's rights are what is tested.
  template <typename Work>
  static void in_thread(Work work) {
    std::thread([&] {
      begin_thread("sluice-test");
      work();
    }).join();
  }
};

TEST_F(UserRoomTest, AUserHasNoRightsOfRootAndTheThreadHasThemAfterwards) {
  in_thread([] {
    {
      const UserRoom room(kUser, kUser);
      EXPECT_EQ(current_fsuid(), kUser);
      EXPECT_FALSE(has_capability(CAP_SYS_RESOURCE));
      // Permissions were checked for the caller; the thread must get by without them.
      EXPECT_TRUE(has_capability(CAP_DAC_OVERRIDE));
      EXPECT_TRUE(has_capability(CAP_CHOWN));
    }
    EXPECT_TRUE(has_rights_of_root());
  });
}

TEST_F(UserRoomTest, WithItsOwnFsuidAThreadGivesUpTheCapabilityOnly) {
  in_thread([] {
    { const UserRoom before(kUser, kUser); }
    {
      const UserRoom room(kUser, kUser, Fsuid::Own);
      EXPECT_EQ(current_fsuid(), 0U);
      EXPECT_FALSE(has_capability(CAP_SYS_RESOURCE));
    }
    EXPECT_TRUE(has_rights_of_root());
  });
}

// Root of a container may lack the capability, but has it in a user namespace of its own.
TEST_F(UserRoomTest, TheCapabilityIsGivenUpAndTakenBack) {
  const std::string seen = test::in_child([]() -> std::string {
    if (!has_capability(CAP_SYS_RESOURCE) && ::unshare(CLONE_NEWUSER) < 0) return "skip";
    std::string out;
    const auto note = [&out](const char* when) {
      out += std::string(when) + (has_capability(CAP_SYS_RESOURCE) ? " yes, " : " no, ");
    };
    note("before");
    {
      UserRoom room(kUser, kUser);
      note("user");
      room.keep();
    }
    note("kept");
    {
      const UserRoom room(0, 0);
      note("root");
    }
    {
      const UserRoom room(kUser, kUser, Fsuid::Own);
      note("user");
    }
    note("after");
    return out;
  });
  if (seen == "skip") GTEST_SKIP() << "this user cannot have a user namespace";
  EXPECT_EQ(seen, "before yes, user no, kept no, root yes, user no, after yes, ");
}

TEST_F(UserRoomTest, RootKeepsItsRights) {
  in_thread([] {
    { const UserRoom room(kUser, kUser); }
    const UserRoom room(0, 0);
    EXPECT_TRUE(has_rights_of_root());
  });
}

TEST_F(UserRoomTest, WhatIsKeptEndsWhenTold) {
  in_thread([] {
    {
      UserRoom room(kUser, kUser);
      room.keep();
    }
    EXPECT_FALSE(has_rights_of_root());
    {
      UserRoom room(kUser, kUser);
      room.keep();
    }
    EXPECT_FALSE(has_rights_of_root());
    end_user_room();
    EXPECT_TRUE(has_rights_of_root());
  });
}

// A write that fails after one that succeeded.
TEST_F(UserRoomTest, TheNextRoomEndsWhatIsKept) {
  in_thread([] {
    {
      UserRoom room(kUser, kUser);
      room.keep();
    }
    { const UserRoom room(kUser, kUser); }
    EXPECT_TRUE(has_rights_of_root());
  });
}

TEST_F(UserRoomTest, AThreadDoesNotInheritTheUserOfItsStarter) {
  in_thread([] {
    UserRoom room(kUser, kUser);
    room.keep();
    std::thread([] {
      begin_thread("sluice-test");
      EXPECT_EQ(current_fsuid(), 0U);
      EXPECT_TRUE(has_rights_of_root());
      const UserRoom other(kUser + 1, kUser + 1);
      EXPECT_EQ(current_fsuid(), kUser + 1);
      EXPECT_FALSE(has_rights_of_root());
    }).join();
  });
}

TEST_F(UserRoomTest, NobodysRoomLeavesTheUserOfTheProcess) {
  in_thread([] {
    {
      const NobodysRoom room(Fsuid::Users);
      EXPECT_FALSE(has_rights_of_root());
    }
    EXPECT_EQ(current_fsuid(), 0U);
    EXPECT_TRUE(has_rights_of_root());
  });
}

}  // namespace
}  // namespace sluice
