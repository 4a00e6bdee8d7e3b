// SPDX-License-Identifier: BSD-2-Clause
// The names that the kernel caches differ from those on the tiers: files created directly on a
// tier, and names that change while other processes open them.
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <map>
#include <thread>

#include "tests/mount/tiers.hpp"
#include "tests/support/files.hpp"
#include "tests/support/user.hpp"

namespace sluice::test {
namespace {

class PastTheMountTest : public TiersTest {
 protected:
  // Makes the kernel cache that the name does not exist.
  void look_for(const std::string& name) {
    ASSERT_FALSE(exists(*this / name));
    ASSERT_FALSE(exists(*this / name));
  }
  // The result of open with O_CREAT as a user: the name of an errno, or the content of the file.
  std::string create(const User& user, const std::string& name, int flags = O_RDWR) {
    const std::string path = *this / name;
    return as_user(user, [&]() -> std::string {
      const UniqueFd fd(::open(path.c_str(), flags | O_CREAT | O_NONBLOCK | O_CLOEXEC, 0600));
      if (!fd) return errno_name(errno);
      char text[100] = {};
      const ssize_t got = ::read(fd.get(), text, sizeof text);
      return got < 0 ? "read: " + errno_name(errno)
                     : std::string(text, static_cast<std::size_t>(got));
    });
  }
};

TEST_F(PastTheMountTest, CreatingAnExistingNameChecksPermissions) {
  put_dir("nvme", "pub");
  put_dir("hdd", "pub");
  for (const char* tier : {"nvme", "hdd"}) ASSERT_EQ(::chmod(on(tier, "pub").c_str(), 01777), 0);
  start();
  for (const std::string tier : {"nvme", "hdd"}) {
    const std::string private_file = "pub/private-" + tier, own = "pub/own-" + tier;
    look_for(private_file);
    look_for(own);
    write_file(on(tier, private_file), "secret", 0600);
    write_file(on(tier, own), "mine", 0600);
    ASSERT_EQ(::chown(on(tier, own).c_str(), kNobody.uid, kNobody.gid), 0);
    EXPECT_EQ(create(kNobody, private_file), "EACCES");
    EXPECT_EQ(create(kNobody, private_file, O_WRONLY | O_TRUNC), "EACCES");
    EXPECT_EQ(create(kNobody, own), "mine");
    EXPECT_EQ(read_file(on(tier, private_file)), "secret");
    EXPECT_EQ(tiers_with(private_file), tier);
  }
}

TEST_F(PastTheMountTest, FifoInPlaceOfANewFileDoesNotBlockTheDaemon) {
  put_dir("nvme", "pub");
  ASSERT_EQ(::chmod(on("nvme", "pub").c_str(), 0777), 0);
  start();
  look_for("pub/p");
  ASSERT_EQ(::mkfifo(on("nvme", "pub/p").c_str(), 0666), 0);
  ASSERT_EQ(::chmod(on("nvme", "pub/p").c_str(), 0666), 0);
  EXPECT_EQ(create(kNobody, "pub/p"), "read: EAGAIN");
  EXPECT_EQ(names_in(*this / "pub"), std::vector<std::string>{"p"});
}

// Programs that save files atomically do this.
TEST_F(PastTheMountTest, OpenDuringReplacementReadsTheOldOrTheNewFile) {
  start();
  write_file(*this / "f", "0");
  std::atomic<bool> done{false};
  std::thread saves([&] {
    for (int i = 1; !done; ++i) {
      write_file(*this / "f.tmp", std::to_string(i));
      if (::rename((*this / "f.tmp").c_str(), (*this / "f").c_str()) < 0) ADD_FAILURE() << errno;
    }
  });
  std::map<std::string, int> problems;
  for (int i = 0; i < 20'000; ++i) {
    const UniqueFd fd(::open((*this / "f").c_str(), O_RDONLY | O_CLOEXEC));
    char text[20] = {};
    if (!fd) {
      ++problems["open: " + errno_name(errno)];
    } else if (const ssize_t got = ::read(fd.get(), text, sizeof text); got <= 0) {
      ++problems[got == 0 ? "empty" : "read: " + errno_name(errno)];
    }
  }
  done = true;
  saves.join();
  for (const auto& [what, times] : problems) ADD_FAILURE() << what << ": " << times;
}

}  // namespace
}  // namespace sluice::test
