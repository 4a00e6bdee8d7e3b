// SPDX-License-Identifier: BSD-2-Clause
// POSIX ACLs, set and read as raw xattrs.
#include <fcntl.h>
#include <unistd.h>

#include <cstdint>
#include <string>

#include "tests/mount/parity.hpp"

namespace sluice::test {
namespace {

class AclParityTest : public ParityTest {};

// A POSIX ACL as the kernel reads it from the xattr (linux/posix_acl_xattr.h).
class Acl {
 public:
  Acl() { append(std::uint32_t{2}); }
  Acl& entry(std::uint16_t tag, std::uint16_t permissions, std::uint32_t id = 0xffffffff) {
    append(tag);
    append(permissions);
    append(id);
    return *this;
  }
  const std::string& bytes() const { return bytes_; }

  static constexpr std::uint16_t kOwner = 1, kUser = 2, kOwningGroup = 4, kGroup = 8, kMask = 16,
                                 kOther = 32;

 private:
  template <typename T>
  void append(T value) {
    bytes_.append(reinterpret_cast<const char*>(&value), sizeof value);
  }
  std::string bytes_;
};

constexpr const char* kAccess = "system.posix_acl_access";
constexpr const char* kDefault = "system.posix_acl_default";

Acl bob_may_read() {
  return Acl()
      .entry(Acl::kOwner, 6)
      .entry(Acl::kUser, 4, kBob.uid)
      .entry(Acl::kOwningGroup, 0)
      .entry(Acl::kMask, 4)
      .entry(Acl::kOther, 0);
}

TEST_F(AclParityTest, AccessAclGrantsAccessAndChangesTheMode) {
  same([](Side& side) {
    side.write("f", "secret");
    side.chmod("f", 0600);
    side.as(kBob, [](Side& bob) { bob.read("f"); });
    side.set_xattr("f", kAccess, bob_may_read().bytes());
    side.look("f");
    side.get_xattr("f", kAccess);
    side.list_xattrs("f");
    side.as(kBob, [](Side& bob) {
      bob.read("f");
      bob.open("f", O_WRONLY);
      bob.set_xattr("f", kAccess, bob_may_read().bytes());
    });
    side.as(kAlice, [](Side& alice) { alice.read("f"); });
    side.chmod("f", 0600);  // clears the mask: the entry stays but grants nothing
    side.get_xattr("f", kAccess);
    side.as(kBob, [](Side& bob) { bob.read("f"); });
    side.chmod("f", 0660);
    side.as(kBob, [](Side& bob) { bob.read("f"); });
    side.remove_xattr("f", kAccess);
    side.look("f");
    side.as(kBob, [](Side& bob) { bob.read("f"); });
  });
}

TEST_F(AclParityTest, MinimalAclBecomesTheMode) {
  same([](Side& side) {
    side.write("f", "x");
    const Acl minimal =
        Acl().entry(Acl::kOwner, 7).entry(Acl::kOwningGroup, 5).entry(Acl::kOther, 1);
    side.set_xattr("f", kAccess, minimal.bytes());
    side.look("f");
    side.list_xattrs("f");
    side.get_xattr("f", kAccess);
  });
}

TEST_F(AclParityTest, DefaultAclIsInheritedInsteadOfTheUmask) {
  same([](Side& side) {
    side.mkdir("d", 0755);
    side.chmod("d", 0777);
    const Acl acl = Acl()
                        .entry(Acl::kOwner, 7)
                        .entry(Acl::kUser, 6, kBob.uid)
                        .entry(Acl::kOwningGroup, 5)
                        .entry(Acl::kGroup, 7, 555)
                        .entry(Acl::kMask, 7)
                        .entry(Acl::kOther, 0);
    side.set_xattr("d", kDefault, acl.bytes());
    ::umask(077);
    side.write("d/f", "x");
    side.open("d/exec", O_CREAT | O_WRONLY, 0751);
    side.mkdir("d/sub", 0777);
    side.mkdir("d/sub/sub", 0700);
    side.write("d/sub/sub/f", "x");
    side.mknod("d/p", S_IFIFO | 0666);
    side.symlink("x", "d/s");
    ::umask(022);
    for (const char* name : {"d/f", "d/exec", "d/sub", "d/sub/sub", "d/sub/sub/f", "d/p", "d/s"}) {
      side.look(name);
      side.get_xattr(name, kAccess);
      side.get_xattr(name, kDefault);
    }
    side.as(kBob, [](Side& bob) {
      bob.read("d/f");
      bob.write("d/by-bob", "x");
      bob.look("d/by-bob");
    });
    side.as({kAlice.uid, kAlice.gid, {555}}, [](Side& alice) { alice.write("d/f", "y"); });
    side.remove_xattr("d", kDefault);
    side.write("d/after", "x");
    side.look("d/after");
  });
}

TEST_F(AclParityTest, InvalidAclsAreRefused) {
  same([](Side& side) {
    side.write("f", "x");
    side.mkdir("d");
    side.symlink("f", "s");
    side.set_xattr("f", kDefault, bob_may_read().bytes());
    side.set_xattr("s", kAccess, bob_may_read().bytes());
    side.set_xattr("f", kAccess, "garbage");
    side.set_xattr("f", kAccess, Acl().entry(Acl::kOwner, 7).bytes());
    side.get_xattr("f", kAccess);
    side.get_xattr("d", kDefault);
    side.remove_xattr("d", kDefault);
    side.chown("f", kAlice.uid, kAlice.gid);
    side.as(kBob, [](Side& bob) { bob.set_xattr("f", kAccess, bob_may_read().bytes()); });
    side.as(kAlice, [](Side& alice) { alice.set_xattr("f", kAccess, bob_may_read().bytes()); });
  });
}

TEST_F(AclParityTest, AclCanDenyAccessToADirectory) {
  same([](Side& side) {
    side.mkdir("d", 0700);
    side.write("d/f", "x");
    const Acl acl = Acl()
                        .entry(Acl::kOwner, 7)
                        .entry(Acl::kUser, 5, kBob.uid)
                        .entry(Acl::kOwningGroup, 0)
                        .entry(Acl::kMask, 5)
                        .entry(Acl::kOther, 0);
    side.set_xattr("d", kAccess, acl.bytes());
    side.as(kBob, [](Side& bob) {
      bob.list("d");
      bob.read("d/f");
      bob.write("d/g", "x");
    });
    side.as(kAlice, [](Side& alice) {
      alice.list("d");
      alice.read("d/f");
    });
  });
}

}  // namespace
}  // namespace sluice::test
