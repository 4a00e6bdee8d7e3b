// SPDX-License-Identifier: BSD-2-Clause
// chattr +i and +a through the mount: each call is made on a file of the mount and on a file of the
// tier, and must have the same result, on ext4 and xfs, for small and large files, served and with
// passthrough.
#include <fcntl.h>
#include <linux/fs.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <functional>

#include "tests/mount/tiers.hpp"
#include "tests/support/files.hpp"
#include "tests/support/user.hpp"

namespace sluice::test {
namespace {

struct Case {
  const char* tier;
  std::size_t size;
  bool passthrough;
};

void PrintTo(const Case& c, std::ostream* out) {
  *out << c.tier << ' ' << c.size << (c.passthrough ? "" : " served");
}

void set_flags(const std::string& path, unsigned wanted) {
  const UniqueFd fd(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  unsigned flags = 0;
  ASSERT_EQ(::ioctl(fd.get(), FS_IOC_GETFLAGS, &flags), 0) << path << errno_name(errno);
  flags = (flags & ~static_cast<unsigned>(FS_IMMUTABLE_FL | FS_APPEND_FL)) | wanted;
  ASSERT_EQ(::ioctl(fd.get(), FS_IOC_SETFLAGS, &flags), 0) << path << errno_name(errno);
}

std::string outcome(bool good) { return good ? "ok" : errno_name(errno); }

// The result of a store through a shared mapping, in a child process, because it may be killed.
std::string store(int fd) {
  void* at = ::mmap(nullptr, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  if (at == MAP_FAILED) return "refused";
  const std::string stored = in_child([&] {
    static_cast<volatile char*>(at)[0] = 'M';
    return outcome(::msync(at, 4096, MS_SYNC) == 0);
  });
  ::munmap(at, 4096);
  return stored;
}

// All calls that change bytes through an open descriptor.
std::string change_by(int fd) {
  std::string log;
  log += "write " + outcome(::write(fd, "W", 1) == 1) + "\n";
  log += "pwrite " + outcome(::pwrite(fd, "P", 1, 0) == 1) + "\n";
  log += "store " + store(fd) + "\n";
  log += "truncate " + outcome(::ftruncate(fd, 3) == 0) + "\n";
  log += "allocate " + outcome(::fallocate(fd, 0, 0, 1 << 20) == 0) + "\n";
  log += "punch " +
         outcome(::fallocate(fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 0, 4096) == 0) + "\n";
  return log;
}

// All calls that change bytes or names by path.
std::string change(const std::string& path) {
  std::string log;
  const auto try_open = [&](const char* name, int flags) {
    const UniqueFd fd(::open(path.c_str(), flags | O_CLOEXEC));
    log += std::string("open ") + name + " " + outcome(static_cast<bool>(fd)) + "\n";
    if (fd && (flags & O_ACCMODE) != O_RDONLY) log += change_by(fd.get());
  };
  try_open("O_WRONLY", O_WRONLY);
  try_open("O_RDWR", O_RDWR);
  try_open("O_RDONLY|O_TRUNC", O_RDONLY | O_TRUNC);
  try_open("O_RDWR|O_TRUNC|O_APPEND", O_RDWR | O_TRUNC | O_APPEND);
  try_open("O_CREAT", O_RDWR | O_CREAT);
  try_open("O_APPEND", O_WRONLY | O_APPEND);
  try_open("O_RDWR|O_APPEND", O_RDWR | O_APPEND);
  {
    // An earlier reader decides whether the file is open with passthrough.
    const UniqueFd reader(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
    try_open("beside a reader", O_RDWR | O_APPEND);
    log += "store read-only " + store(reader.get()) + "\n";
  }
  {
    // O_APPEND can be cleared, but bytes are still appended.
    const UniqueFd fd(::open(path.c_str(), O_RDWR | O_APPEND | O_CLOEXEC));
    if (fd) ::fcntl(fd.get(), F_SETFL, 0);
    if (fd) log += "without O_APPEND " + outcome(::pwrite(fd.get(), "Q", 1, 0) == 1) + "\n";
  }
  log += "truncate " + outcome(::truncate(path.c_str(), 1) == 0) + "\n";
  log += "chmod " + outcome(::chmod(path.c_str(), 0600) == 0) + "\n";
  log += "link " + outcome(::link(path.c_str(), (path + "2").c_str()) == 0) + "\n";
  log += "rename " + outcome(::rename(path.c_str(), (path + "3").c_str()) == 0) + "\n";
  log += "unlink " + outcome(::unlink(path.c_str()) == 0) + "\n";
  return log;
}

class FlagsTest : public TiersTest, public testing::WithParamInterface<Case> {
 protected:
  // One file for the mount and one that is used directly, on the same tier.
  void begin() {
    const Case& c = GetParam();
    for (const char* directory : {"d", "native"}) {
      put(c.tier, std::string(directory) + "/f", pattern(c.size, 7));
      ::chown(on(c.tier, directory).c_str(), kAlice.uid, kAlice.gid);
      ::chown(on(c.tier, std::string(directory) + "/f").c_str(), kAlice.uid, kAlice.gid);
    }
    start(c.passthrough ? std::vector<std::string>{"--no-migrate"}
                        : std::vector<std::string>{"--no-migrate", "--debug=passthrough=off"});
  }
  std::string ours() const { return *this / "d/f"; }
  std::string native() const { return on(GetParam().tier, "native/f"); }
  void set_both(unsigned flags) {
    set_flags(ours(), flags);
    set_flags(native(), flags);
  }
  void expect_the_same_bytes() {
    const std::string wanted = read_file(native());
    EXPECT_EQ(read_file(on(GetParam().tier, "d/f")) == wanted, true) << "on the tier";
    EXPECT_EQ(read_file(ours()) == wanted, true) << "in the mount";
  }
};

TEST_P(FlagsTest, ImmutableFileCannotBeChanged) {
  begin();
  set_both(FS_IMMUTABLE_FL);
  EXPECT_EQ(change(ours()), change(native())) << "root";
  EXPECT_EQ(as_user(kAlice, [&] { return change(ours()); }),
            as_user(kAlice, [&] { return change(native()); }));
  expect_the_same_bytes();
  EXPECT_EQ(read_file(ours()) == pattern(GetParam().size, 7), true);
  set_both(0);
  EXPECT_EQ(change(ours()), change(native())) << "and without the flag, again";
}

TEST_P(FlagsTest, AppendOnlyFileKeepsItsBytes) {
  begin();
  set_both(FS_APPEND_FL);
  EXPECT_EQ(change(ours()), change(native())) << "root";
  EXPECT_EQ(as_user(kAlice, [&] { return change(ours()); }),
            as_user(kAlice, [&] { return change(native()); }));
  expect_the_same_bytes();
  EXPECT_TRUE(read_file(ours()).starts_with(pattern(GetParam().size, 7)));
  set_both(0);
  EXPECT_EQ(change(ours()), change(native())) << "and without the flag, again";
}

TEST_P(FlagsTest, FlagSetOnTheTierApplies) {
  begin();
  set_flags(on(GetParam().tier, "d/f"), FS_APPEND_FL);
  set_flags(native(), FS_APPEND_FL);
  EXPECT_EQ(change(ours()), change(native()));
  expect_the_same_bytes();
  set_flags(on(GetParam().tier, "d/f"), 0);
  set_flags(native(), 0);
  EXPECT_EQ(change(ours()), change(native()));
}

// xfs allows changes through descriptors that were open before. Truncating a file of the mount
// opens it again, which is refused.
TEST_P(FlagsTest, OpenDescriptorOfAFileThatBecomesImmutableMayDoNoMoreThanOnTheTier) {
  begin();
  const UniqueFd fd(::open(ours().c_str(), O_RDWR | O_CLOEXEC));
  const UniqueFd other(::open(native().c_str(), O_RDWR | O_CLOEXEC));
  for (const int each : {fd.get(), other.get()}) ASSERT_EQ(::pwrite(each, "x", 1, 0), 1);
  set_both(FS_IMMUTABLE_FL);
  const std::vector<std::function<std::string(int)>> acts = {
      [](int on) { return outcome(::pwrite(on, "y", 1, 0) == 1); },
      [](int on) { return outcome(::fallocate(on, 3, 0, 4096) == 0); },
      [](int on) { return outcome(::ftruncate(on, 3) == 0); }};
  for (const auto& act : acts) {
    const std::string here = act(fd.get()), there = act(other.get());
    EXPECT_TRUE(here == there || here == "EPERM") << here << ", not " << there;
  }
  set_both(0);
}

TEST_P(FlagsTest, FileThatBecomesAppendOnlyWhileOpenCannotBeMappedByNewOpens) {
  begin();
  const UniqueFd reader(::open(ours().c_str(), O_RDONLY | O_CLOEXEC));
  set_both(FS_APPEND_FL);
  const UniqueFd fd(::open(ours().c_str(), O_RDWR | O_APPEND | O_CLOEXEC));
  // With passthrough, an open that could be mapped must be refused.
  if (!fd) {
    EXPECT_EQ(errno, EBUSY);
  } else {
    EXPECT_EQ(store(fd.get()), "refused");
  }
  const UniqueFd log(::open(ours().c_str(), O_WRONLY | O_APPEND | O_CLOEXEC));
  ASSERT_TRUE(log) << errno_name(errno);
  EXPECT_EQ(::write(log.get(), "tail", 4), 4);
  EXPECT_EQ(read_file(ours()) == pattern(GetParam().size, 7) + "tail", true);
  set_both(0);
}

INSTANTIATE_TEST_SUITE_P(Files, FlagsTest,
                         testing::Values(Case{"nvme", 20, true}, Case{"nvme", 300'000, false},
                                         Case{"ssd", 300'000, true}));

}  // namespace
}  // namespace sluice::test
