// SPDX-License-Identifier: BSD-2-Clause
// Pins and requested moves of single files, and who may request them.
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <sys/xattr.h>
#include <unistd.h>

#include <cstring>

#include "base/unique_fd.hpp"
#include "tests/mount/tiering.hpp"
#include "tests/support/tree.hpp"
#include "tests/support/user.hpp"

namespace sluice::test {
namespace {

class PinTest : public TieringTest {
 protected:
  void pin(const std::string& tier, const std::string& name) const {
    const CommandResult result = sluice({"pin", tier, *this / name});
    EXPECT_EQ(result.exit_code, 0) << result.err;
  }
  void unpin(const std::string& name) const {
    const CommandResult result = sluice({"unpin", *this / name});
    EXPECT_EQ(result.exit_code, 0) << result.err;
  }
  std::string pin_of(const std::string& name) const {
    return xattr_of(*this / name, "user.sluice.pin").value_or("");
  }
};

TEST_F(PinTest, PinOverridesHeat) {
  put("hdd", "hot", "h");
  put("nvme", "cold", "c");
  start();
  read_often("hot", 150);
  pin("hdd", "hot");
  pin("nvme", "cold");
  run_pass();
  EXPECT_EQ(tiers_with("hot"), "hdd");
  EXPECT_EQ(tiers_with("cold"), "nvme");
  EXPECT_EQ(pin_of("cold"), "nvme");
}

TEST_F(PinTest, PinMovesTheFileAtTheNextPass) {
  put("hdd", "f", "x");
  start();
  pin("ssd", "f");
  run_pass();
  EXPECT_EQ(tiers_with("f"), "ssd");
}

TEST_F(PinTest, PinMovesTheFileSoonIfMigrationIsAutomatic) {
  put("hdd", "f", "x");
  start({"--interval", "1h"}, Passes::Automatic);
  pin("nvme", "f");
  EXPECT_TRUE(eventually([&] { return tier_of("f") == "nvme"; }));
}

TEST_F(PinTest, DirectoryPinAppliesToEverythingBelowWithoutItsOwnPin) {
  put("hdd", "d/a", "1");
  put("hdd", "d/e/b", "2");
  put("hdd", "d/e/own", "3");
  put("hdd", "d/near/c", "4");
  put("hdd", "beside", "5");
  start();
  pin("nvme", "d");
  pin("hdd", "d/e/own");
  pin("ssd", "d/near");
  EXPECT_EQ(pin_of("d/e/b"), "nvme");
  EXPECT_EQ(pin_of("d/e/own"), "hdd");
  EXPECT_EQ(pin_of("beside"), "");
  run_pass();
  EXPECT_EQ(tiers_with("d/a"), "nvme");
  EXPECT_EQ(tiers_with("d/e/b"), "nvme");
  EXPECT_EQ(tiers_with("d/e/own"), "hdd");
  EXPECT_EQ(tiers_with("d/near/c"), "ssd");
  EXPECT_EQ(tiers_with("beside"), "hdd");
  EXPECT_EQ(explain("d/e/b").at("pin"), (Json{{"tier", "nvme"}, {"from", "/d"}}));
}

TEST_F(PinTest, NewFileIsCreatedOnTheTierItsDirectoryIsPinnedTo) {
  start();
  ASSERT_EQ(::mkdir((*this / "d").c_str(), 0755), 0);
  pin("hdd", "d");
  ASSERT_EQ(::mkdir((*this / "d/e").c_str(), 0755), 0);
  write_file(*this / "d/f", "1");
  write_file(*this / "d/e/f", "2");
  EXPECT_EQ(tiers_with("d/f"), "hdd");
  EXPECT_EQ(tiers_with("d/e/f"), "hdd");
}

TEST_F(PinTest, AfterUnpinHeatDecidesAgain) {
  put("hdd", "d/f", "x");
  start();
  pin("nvme", "d");
  run_pass();
  ASSERT_EQ(tiers_with("d/f"), "nvme");
  unpin("d");
  EXPECT_EQ(pin_of("d/f"), "");
  run_pass();
  EXPECT_EQ(tiers_with("d/f"), "hdd");
}

TEST_F(PinTest, UnpinOfAnInheritedPinReportsWhereItIsSet) {
  put("hdd", "d/f", "x");
  start();
  pin("nvme", "d");
  const CommandResult result = sluice({"unpin", *this / "d/f"});
  EXPECT_EQ(result.exit_code, 1);
  EXPECT_NE(result.err.find("the pin of /d"), std::string::npos) << result.err;
  EXPECT_EQ(pin_of("d/f"), "nvme");
}

TEST_F(PinTest, PinsSurviveARemountAndTheLossOfTheDatabase) {
  put("hdd", "d/f", "x");
  put("nvme", "g", "y");
  start();
  pin("nvme", "d");
  pin("hdd", "g");
  mount().remount();
  EXPECT_EQ(pin_of("d/f"), "nvme");
  EXPECT_EQ(pin_of("g"), "hdd");
  mount().umount();
  remove_tree(base_ / "state");
  ASSERT_FALSE(exists(base_ / "state"));
  mount().mount();
  EXPECT_EQ(pin_of("d/f"), "nvme");
  EXPECT_EQ(pin_of("g"), "hdd");
  run_pass();
  EXPECT_EQ(tiers_with("d/f"), "nvme");
  EXPECT_EQ(tiers_with("g"), "hdd");
}

TEST_F(PinTest, PinMovesWithTheFile) {
  put("hdd", "f", "x");
  start();
  pin("nvme", "f");
  run_pass();
  ASSERT_EQ(::rename((*this / "f").c_str(), (*this / "g").c_str()), 0);
  EXPECT_EQ(pin_of("g"), "nvme");
  move("g", "ssd");
  EXPECT_EQ(pin_of("g"), "nvme");
}

TEST_F(PinTest, PinsAreNotListed) {
  put("hdd", "f", "x");
  start();
  pin("nvme", "f");
  EXPECT_EQ(::listxattr((*this / "f").c_str(), nullptr, 0), 0);
}

TEST_F(PinTest, UnknownTierIsAnErrorThatListsTheTiers) {
  put("hdd", "f", "x");
  start();
  for (const Strings& words : {Strings{"pin", "nvm", *this / "f"},
                               Strings{"move", "--to", "nvm", "--wait", *this / "f"}}) {
    const CommandResult result = sluice(words);
    EXPECT_EQ(result.exit_code, 1) << words[0];
    EXPECT_NE(result.err.find("no tier 'nvm' (it has nvme, ssd, hdd)"), std::string::npos)
        << result.err;
    EXPECT_NE(result.err.find("did you mean 'nvme'?"), std::string::npos) << result.err;
  }
  EXPECT_EQ(::setxattr((*this / "f").c_str(), "user.sluice.tier", "x", 1, 0), -1);
  EXPECT_EQ(errno, EINVAL);
  EXPECT_EQ(::setxattr((*this / "f").c_str(), "user.sluice.heat", "1", 1, 0), -1);
  EXPECT_EQ(errno, EPERM);
  EXPECT_EQ(tiers_with("f"), "hdd");
}

class MoveTest : public TieringTest {};

TEST_F(MoveTest, FileIsOnTheTierWhenMoveWithWaitReturns) {
  const std::string content = pattern(3 * kMiB + 17, 3);
  put("hdd", "f", content);
  start();
  const CommandResult result = sluice({"move", "--to", "nvme", "--wait", *this / "f"});
  EXPECT_EQ(result.exit_code, 0) << result.err;
  EXPECT_NE(result.out.find("moved 1 file"), std::string::npos) << result.out;
  EXPECT_EQ(tiers_with("f"), "nvme");
  EXPECT_EQ(read_file(*this / "f"), content);
  EXPECT_EQ(xattr_of(*this / "f", "user.sluice.location"), on("nvme", "f"));
}

TEST_F(MoveTest, AllFilesOfADirectoryMove) {
  for (int i = 0; i < 30; ++i) {
    put("hdd", "d/" + std::string(i % 2 == 0 ? "e/" : "") + std::to_string(i), std::to_string(i));
  }
  put("hdd", "beside", "x");
  start();
  ASSERT_EQ(::symlink("../beside", (*this / "d/link").c_str()), 0);
  // The links of a directory that has two copies are not counted.
  constexpr DigestOptions kCompared{.directory_links = false};
  const auto before = digest(root(), kCompared);
  const CommandResult result = sluice({"move", "--to", "ssd", "--wait", *this / "d"});
  EXPECT_EQ(result.exit_code, 0) << result.err;
  EXPECT_NE(result.out.find("moved 30 files"), std::string::npos) << result.out;
  for (int i = 0; i < 30; ++i) {
    const std::string name = "d/" + std::string(i % 2 == 0 ? "e/" : "") + std::to_string(i);
    EXPECT_EQ(tiers_with(name), "ssd") << name;
  }
  EXPECT_EQ(tiers_with("beside"), "hdd") << "a link that is met is not followed";
  EXPECT_EQ(difference(before, digest(root(), kCompared)), "");
}

TEST_F(MoveTest, SeveralPathsMoveAndFailuresAreReported) {
  put("hdd", "a", "1");
  put("hdd", "d/b", "2");
  put("nvme", "c", "3");
  start();
  const CommandResult result = sluice(
      {"move", "--to", "ssd", "--wait", *this / "a", *this / "d", *this / "missing", *this / "c"});
  EXPECT_EQ(result.exit_code, 1);
  EXPECT_NE(result.err.find("missing: No such file"), std::string::npos) << result.err;
  EXPECT_EQ(tiers_with("a"), "ssd");
  EXPECT_EQ(tiers_with("d/b"), "ssd");
  EXPECT_EQ(tiers_with("c"), "ssd");
}

TEST_F(MoveTest, MovingAFileToItsOwnTierSucceeds) {
  put("ssd", "f", "1");
  start();
  move("f", "ssd");
  EXPECT_TRUE(receipts().empty());
}

TEST_F(MoveTest, WithoutWaitItMovesInTheBackground) {
  put("hdd", "f", "1");
  start();
  ASSERT_EQ(::setxattr((*this / "f").c_str(), "user.sluice.tier", "nvme", 4, 0), 0);
  EXPECT_TRUE(eventually([&] { return tier_of("f") == "nvme"; }));
}

TEST_F(MoveTest, MoveWithoutRoomIsReportedAsWaiting) {
  put("hdd", "f", pattern(60 * kMiB, 1));
  put("nvme", "filler", pattern(40 * kMiB, 2));
  start();
  const CommandResult result = sluice({"move", "--to", "nvme", "--wait", *this / "f"});
  EXPECT_EQ(result.exit_code, 1);
  EXPECT_NE(result.err.find("room"), std::string::npos) << result.err;
  const Json waiting = pending();
  ASSERT_EQ(waiting.size(), 1u);
  EXPECT_EQ(waiting[0].at("path"), "/f");
  EXPECT_EQ(tiers_with("f"), "hdd");
  EXPECT_EQ(left_overs(), Strings{});
  ASSERT_EQ(::unlink((*this / "filler").c_str()), 0);
  EXPECT_TRUE(eventually([&] { return tier_of("f") == "nvme"; })) << "room made is noticed";
}

// The last request wins, even if the file is being moved elsewhere.
TEST_F(MoveTest, MoveRequestedDuringAnotherIsMadeAfterIt) {
  put("hdd", "f", pattern(24 * kMiB, 1));
  start({"--bandwidth", "16MiB"});
  ASSERT_TRUE(sluice({"move", "--to", "nvme", *this / "f"}).ok());
  ASSERT_TRUE(eventually([&] { return !left_overs().empty(); }));
  ASSERT_TRUE(sluice({"move", "--to", "ssd", *this / "f"}).ok());
  EXPECT_TRUE(eventually([&] { return tier_of("f") == "ssd"; })) << tier_of("f") << receipts();
}

class UserTest : public TieringTest {
 protected:
  // The result of setting an attribute as another user.
  std::string set_as(const User& user, const std::string& name, const std::string& attribute,
                     const std::string& value) const {
    return as_user(user, [&] {
      const int done =
          ::setxattr((*this / name).c_str(), attribute.c_str(), value.data(), value.size(), 0);
      return errno_name(done == 0 ? 0 : errno);
    });
  }
  void give(const std::string& name, const User& user, mode_t mode = 0644) const {
    ASSERT_EQ(::chown((*this / name).c_str(), user.uid, user.gid), 0);
    ASSERT_EQ(::chmod((*this / name).c_str(), mode), 0);
  }
};

TEST_F(UserTest, CanMoveAndPinTheirOwnFiles) {
  put("hdd", "f", "x");
  start();
  give("f", kAlice);
  EXPECT_EQ(set_as(kAlice, "f", "user.sluice.tier", "ssd"), "ok");
  EXPECT_TRUE(eventually([&] { return tier_of("f") == "ssd"; }));
  EXPECT_EQ(set_as(kAlice, "f", "user.sluice.pin", "nvme"), "ok");
  run_pass();
  EXPECT_EQ(tiers_with("f"), "nvme");
  EXPECT_EQ(lstat_of(*this / "f").st_uid, kAlice.uid);
  const std::string removed = as_user(kAlice, [&] {
    return errno_name(::removexattr((*this / "f").c_str(), "user.sluice.pin") == 0 ? 0 : errno);
  });
  EXPECT_EQ(removed, "ok");
  EXPECT_EQ(xattr_of(*this / "f", "user.sluice.pin"), std::nullopt);
}

TEST_F(UserTest, CommandsWorkForTheirOwnFiles) {
  put("hdd", "f", "x");
  start();
  give("f", kAlice);
  const auto result_of = [&](const Strings& words) {
    return as_user(kAlice, [&] {
      const CommandResult result = sluice(words);
      return std::to_string(result.exit_code) + " " + result.err;
    });
  };
  EXPECT_EQ(result_of({"move", "--to", "ssd", "--wait", *this / "f"}), "0 ");
  EXPECT_EQ(tiers_with("f"), "ssd");
  EXPECT_EQ(result_of({"pin", "hdd", *this / "f"}), "0 ");
  EXPECT_EQ(result_of({"unpin", *this / "f"}), "0 ");
  EXPECT_EQ(result_of({"explain", *this / "f"}), "0 ");
}

TEST_F(UserTest, MovingOrPinningNeedsWritePermission) {
  put("hdd", "d/f", "x");
  start();
  give("d/f", kBob);
  EXPECT_EQ(set_as(kAlice, "d/f", "user.sluice.tier", "nvme"), "EACCES");
  EXPECT_EQ(set_as(kAlice, "d/f", "user.sluice.pin", "nvme"), "EACCES");
  EXPECT_EQ(set_as(kAlice, "d", "user.sluice.pin", "nvme"), "EACCES");
  ASSERT_EQ(set_as(kBob, "d/f", "user.sluice.pin", "ssd"), "ok");
  const std::string removed = as_user(kAlice, [&] {
    return errno_name(::removexattr((*this / "d/f").c_str(), "user.sluice.pin") == 0 ? 0 : errno);
  });
  EXPECT_EQ(removed, "EACCES");
  EXPECT_EQ(xattr_of(*this / "d/f", "user.sluice.pin"), "ssd");
  EXPECT_FALSE(
      eventually([&] { return tier_of("d/f") == "nvme"; }, std::chrono::milliseconds(300)));
}

TEST_F(UserTest, ReadingAttributesNeedsReadPermission) {
  put("hdd", "f", "x");
  start();
  give("f", kBob, 0600);
  const std::string read = as_user(kAlice, [&] {
    char text[64];
    const ssize_t got = ::getxattr((*this / "f").c_str(), "user.sluice.explain", text, sizeof text);
    return errno_name(got >= 0 ? 0 : errno);
  });
  EXPECT_EQ(read, "EACCES");
}

TEST_F(UserTest, ControlSocketIsRefused) {
  put("nvme", "cold", "x");
  start();
  // The socket itself refuses, whatever the permissions of its directory.
  ASSERT_EQ(::chmod((base_ / "state").c_str(), 0755), 0);
  const std::string answer = as_user(kAlice, [&]() -> std::string {
    const UniqueFd socket(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
    sockaddr_un address{};
    address.sun_family = AF_UNIX;
    std::snprintf(address.sun_path, sizeof address.sun_path, "%s",
                  (base_ / "state/control.sock").c_str());
    if (::connect(socket.get(), reinterpret_cast<sockaddr*>(&address), sizeof address) < 0) {
      return errno_name(errno);
    }
    const std::string request = "{\"verb\":\"run\"}\n";
    if (::send(socket.get(), request.data(), request.size(), MSG_NOSIGNAL) < 0) return "hung up";
    char reply[64];
    return ::recv(socket.get(), reply, sizeof reply, 0) > 0 ? "answered" : "hung up";
  });
  EXPECT_TRUE(answer == "EACCES" || answer == "hung up") << answer;
  const std::string run = as_user(kAlice, [&] {
    const CommandResult result = tell({"tier", "run"});
    return std::to_string(result.exit_code) + result.err;
  });
  EXPECT_EQ(run.substr(0, 1), "1") << run;
  EXPECT_EQ(tiers_with("cold"), "nvme");
}

}  // namespace
}  // namespace sluice::test
