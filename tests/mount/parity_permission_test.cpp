// SPDX-License-Identifier: BSD-2-Clause
// Permissions, and the owners of new files.
#include <fcntl.h>
#include <unistd.h>

#include "tests/mount/parity.hpp"
#include "tests/support/files.hpp"

namespace sluice::test {
namespace {

class PermissionParityTest : public ParityTest {};

TEST_F(PermissionParityTest, ChmodSetsEveryBit) {
  same([](Side& side) {
    side.write("f", "x");
    side.mkdir("d");
    for (const mode_t mode : {0, 0777, 0644, 01777, 02755, 04755, 06755, 07777}) {
      side.chmod("f", mode);
      side.look("f");
      side.chmod("d", mode);
      side.look("d");
    }
    side.symlink("f", "s");
    side.done("fchmodat of a symlink",
              ::fchmodat(AT_FDCWD, (side / "s").c_str(), 0600, AT_SYMLINK_NOFOLLOW));
    side.chmod("s", 0601);
    side.look("f");
    side.chmod("missing", 0600);
    side.chmod("f/x", 0600);
    side.moves_times("chmod", {"f"}, [&] { side.chmod("f", 0640); });
  });
}

TEST_F(PermissionParityTest, OnlyTheOwnerChangesAMode) {
  same([](Side& side) {
    side.write("f", "x");
    side.chown("f", kAlice.uid, kAlice.gid);
    side.as(kAlice, [](Side& alice) {
      alice.chmod("f", 0600);
      alice.chmod("f", 0666);
    });
    side.as(kBob, [](Side& bob) {
      bob.chmod("f", 0777);
      const UniqueFd fd = bob.open("f", O_RDWR);
      bob.done("fchmod", ::fchmod(fd.get(), 0777));
    });
    side.look("f");
  });
}

TEST_F(PermissionParityTest, OnlyGroupMembersCanSetTheSetgidBit) {
  same([](Side& side) {
    side.write("f", "x");
    side.chown("f", kAlice.uid, 555);
    side.as({kAlice.uid, kAlice.gid, {}}, [](Side& alice) { alice.chmod("f", 02755); });
    side.look("f");
    side.as({kAlice.uid, kAlice.gid, {555}}, [](Side& alice) { alice.chmod("f", 02755); });
    side.look("f");
  });
}

TEST_F(PermissionParityTest, ChownByRootAndByOwner) {
  same([](Side& side) {
    side.write("f", "x");
    side.chown("f", 100, 200);
    side.look("f");
    side.chown("f", static_cast<uid_t>(-1), 201);
    side.chown("f", 101, static_cast<gid_t>(-1));
    side.look("f");
    side.symlink("f", "s");
    side.chown("s", 7, 8);
    side.look("s");
    side.look("f");
    side.chown("f", kAlice.uid, kAlice.gid);
    side.as({kAlice.uid, kAlice.gid, {555}}, [](Side& alice) {
      alice.chown("f", kBob.uid, kBob.gid);
      alice.chown("f", kAlice.uid, 555);
      alice.chown("f", static_cast<uid_t>(-1), 556);
      alice.chown("f", kBob.uid, static_cast<gid_t>(-1));
      alice.chown("f", static_cast<uid_t>(-1), static_cast<gid_t>(-1));
    });
    side.look("f");
    side.as(kBob, [](Side& bob) {
      bob.chown("f", static_cast<uid_t>(-1), kBob.gid);
      bob.chown("f", static_cast<uid_t>(-1), static_cast<gid_t>(-1));
    });
    side.moves_times("chown", {"f"}, [&] { side.chown("f", 1, 1); });
  });
}

TEST_F(PermissionParityTest, ChownDropsSetIdBits) {
  same([](Side& side) {
    for (const mode_t mode : {04755, 02755, 06755, 02644, 06777}) {
      const std::string name = "f" + std::to_string(mode);
      side.write(name, "x");
      side.chown(name, kAlice.uid, kAlice.gid);
      side.chmod(name, mode);
      side.chown(name, kAlice.uid, 600);
      side.look(name);
      side.chown(name, kAlice.uid, kAlice.gid);
      side.chmod(name, mode);
      side.as({kAlice.uid, kAlice.gid, {555}},
              [&](Side& alice) { alice.chown(name, static_cast<uid_t>(-1), 555); });
      side.look(name);
    }
    side.mkdir("d");
    side.chmod("d", 06755);
    side.chown("d", kAlice.uid, kAlice.gid);
    side.look("d");
  });
}

// The result must not depend on how the write is made: tested in every mode, with each way to
// write.
class SetIdParityTest : public DataParityTest {};
SLUICE_IN_EVERY_MODE(SetIdParityTest);

void make_setid_files(Side& side, const std::string& prefix) {
  for (const mode_t mode : {04777, 02777, 06777, 02767}) {
    const std::string name = prefix + std::to_string(mode);
    side.write(name, pattern(200'000, mode));
    side.chown(name, kAlice.uid, kAlice.gid);
    side.chmod(name, mode);
  }
}

void for_each_setid(const std::string& prefix,
                    const std::function<void(const std::string&)>& work) {
  for (const mode_t mode : {04777, 02777, 06777, 02767}) work(prefix + std::to_string(mode));
}

TEST_P(SetIdParityTest, WriteByAnotherUserDropsSetIdBits) {
  same([](Side& side) {
    make_setid_files(side, "f");
    for_each_setid("f", [&](const std::string& name) {
      side.as(kBob, [&](Side& bob) {
        const UniqueFd fd = bob.open(name, O_WRONLY);
        bob.call("write", ::write(fd.get(), "x", 1));
        struct stat st {};
        bob.done("fstat", ::fstat(fd.get(), &st));
        bob.look(name, st);
      });
      side.look(name);
    });
  });
}

TEST_P(SetIdParityTest, WriteByTheOwnerDropsSetIdBits) {
  same([](Side& side) {
    make_setid_files(side, "f");
    for_each_setid("f", [&](const std::string& name) {
      side.as(kAlice, [&](Side& alice) {
        const UniqueFd fd = alice.open(name, O_RDWR);
        alice.call("pwrite", ::pwrite(fd.get(), "x", 1, 150'000));
      });
      side.look(name);
    });
  });
}

TEST_P(SetIdParityTest, WriteByRootKeepsSetIdBits) {
  same([](Side& side) {
    make_setid_files(side, "f");
    for_each_setid("f", [&](const std::string& name) {
      const UniqueFd fd = side.open(name, O_WRONLY);
      side.call("write", ::write(fd.get(), "x", 1));
      side.look(name);
    });
  });
}

TEST_P(SetIdParityTest, TruncationDropsSetIdBits) {
  same([](Side& side) {
    make_setid_files(side, "truncate");
    make_setid_files(side, "open");
    make_setid_files(side, "root");
    for_each_setid("truncate", [&](const std::string& name) {
      side.as(kBob, [&](Side& bob) { bob.truncate(name, 5); });
      side.look(name);
    });
    for_each_setid("open", [&](const std::string& name) {
      side.as(kBob, [&](Side& bob) { bob.open(name, O_WRONLY | O_TRUNC); });
      side.look(name);
    });
    for_each_setid("root", [&](const std::string& name) {
      side.truncate(name, 5);
      side.look(name);
    });
  });
}

TEST_P(SetIdParityTest, FallocateDropsSetIdBits) {
  same([](Side& side) {
    make_setid_files(side, "f");
    for_each_setid("f", [&](const std::string& name) {
      side.as(kBob, [&](Side& bob) {
        const UniqueFd fd = bob.open(name, O_WRONLY);
        bob.call("fallocate", ::fallocate(fd.get(), 0, 0, 1 << 20));
      });
      side.look(name);
    });
  });
}

TEST_F(PermissionParityTest, UmaskAppliesToNewFiles) {
  same([](Side& side) {
    for (const mode_t mask : {0, 022, 027, 077, 0777}) {
      ::umask(mask);
      const std::string suffix = std::to_string(mask);
      side.open("f" + suffix, O_CREAT | O_WRONLY, 0666);
      side.mkdir("d" + suffix, 0777);
      side.mknod("p" + suffix, S_IFIFO | 0666);
      side.symlink("x", "s" + suffix);
      for (const char* kind : {"f", "d", "p", "s"}) side.look(kind + suffix);
    }
    ::umask(022);
  });
}

TEST_F(PermissionParityTest, UserOwnsNewFiles) {
  same([](Side& side) {
    side.as({kAlice.uid, kAlice.gid, {555, 556}}, [](Side& alice) {
      alice.write("f", "x");
      alice.mkdir("d");
      alice.symlink("f", "s");
      alice.mknod("p", S_IFIFO | 0600);
      alice.link("f", "g");
      for (const char* name : {"f", "d", "s", "p", "g"}) alice.look(name);
    });
  });
}

TEST_F(PermissionParityTest, SetgidDirectoryPassesOnItsGroup) {
  same([](Side& side) {
    side.mkdir("d");
    side.chown("d", 0, 555);
    side.chmod("d", 02777);
    side.as(kAlice, [](Side& alice) {
      alice.write("d/f", "x");
      alice.mkdir("d/e", 0755);
      alice.mkdir("d/e/inner", 0700);
      alice.write("d/e/f", "x");
      alice.symlink("x", "d/s");
      alice.mknod("d/p", S_IFIFO | 0600);
      alice.open("d/setgid-not-member", O_CREAT | O_WRONLY, 02755);
    });
    side.as({kAlice.uid, kAlice.gid, {555}},
            [](Side& alice) { alice.open("d/setgid-member", O_CREAT | O_WRONLY, 02755); });
    side.mkdir("d/by-root", 0755);
    for (const char* name : {"d/f", "d/e", "d/e/inner", "d/e/f", "d/s", "d/p",
                             "d/setgid-not-member", "d/setgid-member", "d/by-root"}) {
      side.look(name);
    }
  });
}

TEST_F(PermissionParityTest, ModeBitsApplyToOwnerGroupAndOthers) {
  same([](Side& side) {
    for (int bits = 0; bits < 8; ++bits) {
      for (const int shift : {6, 3, 0}) {
        const std::string name = "f" + std::to_string(bits) + std::to_string(shift);
        side.write(name, "#!/bin/true\n");
        side.chown(name, kAlice.uid, 555);
        side.chmod(name, static_cast<mode_t>(bits << shift));
        for (const User& user : {User{kAlice.uid, kAlice.gid}, User{kBob.uid, 555},
                                 User{kBob.uid, kBob.gid, {555}}, User{kBob.uid, kBob.gid}}) {
          side.as(user, [&](Side& other) {
            for (const int mode : {R_OK, W_OK, X_OK}) other.access(name, mode);
            other.open(name, O_RDONLY);
            other.open(name, O_WRONLY);
            other.open(name, O_RDWR);
          });
        }
      }
    }
  });
}

TEST_F(PermissionParityTest, DirectoryNeedsSearchPermissionToPassAndWritePermissionToChange) {
  same([](Side& side) {
    for (const mode_t mode : {0, 0100, 0200, 0300, 0400, 0500, 0600, 0700}) {
      const std::string directory = "d" + std::to_string(mode);
      side.mkdir(directory);
      side.write(directory + "/f", "x");
      side.mkdir(directory + "/sub");
      side.chown(directory, kAlice.uid, kAlice.gid);
      side.chown(directory + "/f", kAlice.uid, kAlice.gid);
      side.chmod(directory, mode);
      side.as(kAlice, [&](Side& alice) {
        alice.look(directory + "/f");
        alice.look(directory + "/missing");
        alice.read(directory + "/f");
        alice.list(directory);
        alice.write(directory + "/new", "x");
        alice.mkdir(directory + "/newdir");
        alice.link(directory + "/f", directory + "/g");
        alice.rename(directory + "/f", directory + "/h");
        alice.unlink(directory + "/h");
        alice.rmdir(directory + "/sub");
        alice.symlink("x", directory + "/s");
        alice.chmod(directory + "/g", 0600);
      });
    }
  });
}

TEST_F(PermissionParityTest, StickyDirectoryProtectsFilesOfOthers) {
  same([](Side& side) {
    side.mkdir("d");
    side.chmod("d", 01777);
    side.as(kAlice, [](Side& alice) {
      alice.write("d/f", "x");
      alice.write("d/g", "x");
      alice.mkdir("d/sub");
    });
    side.as(kBob, [](Side& bob) {
      bob.write("d/mine", "x");
      bob.unlink("d/f");
      bob.rename("d/f", "d/h");
      bob.rename("d/mine", "d/f");
      bob.rename("d/mine", "d/f", RENAME_EXCHANGE);
      bob.rmdir("d/sub");
      bob.rename("d/mine", "d/yours");
      bob.unlink("d/yours");
    });
    side.as(kAlice, [](Side& alice) {
      alice.unlink("d/f");
      alice.rmdir("d/sub");
    });
    side.chown("d", kBob.uid, kBob.gid);
    side.as(kBob, [](Side& bob) { bob.unlink("d/g"); });
    side.list("d");
  });
}

TEST_F(PermissionParityTest, SupplementaryGroupsCount) {
  same([](Side& side) {
    side.mkdir("d");
    side.chown("d", 0, 555);
    side.chmod("d", 0770);
    side.as({kAlice.uid, kAlice.gid, {1, 2, 3, 555}}, [](Side& alice) {
      alice.write("d/f", "x");
      alice.look("d/f");
    });
    side.as({kAlice.uid, kAlice.gid, {1, 2, 3}}, [](Side& alice) {
      alice.write("d/g", "x");
      alice.list("d");
    });
    std::vector<gid_t> many;
    for (gid_t gid = 1000; gid < 1200; ++gid) many.push_back(gid);
    many.push_back(555);
    side.as({kBob.uid, kBob.gid, many}, [](Side& bob) { bob.write("d/many", "x"); });
  });
}

TEST_F(PermissionParityTest, RenamingADirectoryOfAnotherUserNeedsWritePermission) {
  same([](Side& side) {
    side.mkdir("from", 0777);
    side.chmod("from", 0777);
    side.mkdir("to");
    side.chmod("to", 0777);
    side.mkdir("from/d");
    side.as(kBob, [](Side& bob) {
      // Moving it would rewrite its "..", which needs write permission on the directory itself.
      bob.rename("from/d", "to/d");
      bob.rename("from/d", "from/e");
    });
  });
}

TEST_F(PermissionParityTest, ProtectedHardlinksAndOtherUsersFiles) {
  same([](Side& side) {
    side.write("roots", "x");
    side.chmod("roots", 0600);
    side.write("open", "x");
    side.chmod("open", 0666);
    side.as(kBob, [](Side& bob) {
      bob.link("roots", "l1");
      bob.link("open", "l2");
      bob.truncate("roots", 0);
      bob.truncate("open", 0);
    });
  });
}

}  // namespace
}  // namespace sluice::test
