// SPDX-License-Identifier: BSD-2-Clause
// Requests that block must not delay requests of other users.
#include <fcntl.h>
#include <linux/fs.h>
#include <sched.h>
#include <sys/ioctl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/xattr.h>
#include <unistd.h>

#include <array>
#include <chrono>
#include <csignal>
#include <cstring>
#include <future>
#include <thread>

#include "base/unique_fd.hpp"
#include "tests/mount/tiers.hpp"
#include "tests/support/chain.hpp"
#include "tests/support/files.hpp"
#include "tests/support/requirement.hpp"
#include "tests/support/wait.hpp"

namespace sluice::test {
namespace {

using std::chrono::seconds;

// A disk on which all changes block.
class Frozen {
 public:
  explicit Frozen(const std::string& path)
      : fd_(::open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC)) {
    if (::ioctl(fd_.get(), FIFREEZE, 0) < 0) throw std::runtime_error("freeze " + path);
  }
  ~Frozen() { ::ioctl(fd_.get(), FITHAW, 0); }
  Frozen(const Frozen&) = delete;
  Frozen& operator=(const Frozen&) = delete;

 private:
  const UniqueFd fd_;
};

void bind_to_core(unsigned core) {
  cpu_set_t one;
  CPU_ZERO(&one);
  CPU_SET(core, &one);
  ::sched_setaffinity(0, sizeof one, &one);
}

class WaitsTest : public TiersTest {
 protected:
  void start_all(std::vector<std::string> flags) {
    flags.push_back("--no-migrate");
    start(std::move(flags));
  }
  // Whether a request from each core is answered while others block.
  bool is_answered() {
    bool all = true;
    for (unsigned core = 0; core < std::thread::hardware_concurrency(); ++core) {
      auto asked = std::async(std::launch::async, [&, core] {
        bind_to_core(core);
        struct stat st {};
        return ::stat((*this / ("nothing" + std::to_string(core))).c_str(), &st);
      });
      all = all && asked.wait_for(seconds(20)) == std::future_status::ready;
      if (!all) thaw_.reset();  // otherwise it would block for ever
    }
    return all;
  }
  void check_slow_requests();

  std::unique_ptr<Frozen> thaw_;
};

void WaitsTest::check_slow_requests() {
  constexpr int kEach = 6;
  const unsigned cores = std::thread::hardware_concurrency();
  std::vector<UniqueFd> files;
  for (unsigned i = 0; i < cores * kEach; ++i) {
    const std::string name = *this / ("f" + std::to_string(i));
    files.emplace_back(::open(name.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0644));
    ASSERT_TRUE(files.back());
    ASSERT_EQ(::pwrite(files.back().get(), "content", 7, 0), 7);
  }
  thaw_ = std::make_unique<Frozen>(on("nvme", ""));
  std::vector<std::future<int>> waiting;
  for (unsigned i = 0; i < files.size(); ++i) {
    waiting.push_back(std::async(std::launch::async, [&, i] {
      bind_to_core(i % cores);
      return i / cores % 2 == 0 ? ::fallocate(files[i].get(), 0, 0, 8192)
                                : ::ftruncate(files[i].get(), 8192);
    }));
  }
  EXPECT_TRUE(is_answered());
  for (auto& each : waiting)
    EXPECT_EQ(each.wait_for(seconds(0)), std::future_status::timeout)
        << "the request did not block";
  thaw_.reset();
  for (auto& each : waiting) EXPECT_EQ(each.get(), 0);
  for (const UniqueFd& file : files) {
    struct stat st {};
    EXPECT_EQ(::fstat(file.get(), &st), 0);
    EXPECT_EQ(st.st_size, 8192);
    EXPECT_EQ(::fsync(file.get()), 0);
  }
}

TEST_F(WaitsTest, SlowRequestsDoNotDelayOthers) {
  start_all({});
  check_slow_requests();
}

TEST_F(WaitsTest, UnmountWaitsForSlowFiles) {
  start_all({});
  const std::string name = *this / "f";
  {
    const UniqueFd file(::open(name.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0644));
    for (int i = 0; i < 20; ++i) EXPECT_EQ(::fsync(file.get()), 0);
  }
  mount().umount();
  EXPECT_TRUE(fsck().ok());
}

TEST_F(WaitsTest, LeaseOnTheTierDoesNotDelayOthers) {
  start_all({});
  ::signal(SIGIO, SIG_IGN);
  write_file(*this / "f", std::string(1 << 20, 'x'));
  const UniqueFd lease(::open(on("nvme", "f").c_str(), O_RDWR | O_CLOEXEC));
  // The daemon learns about the close asynchronously.
  ASSERT_TRUE(eventually([&] { return ::fcntl(lease.get(), F_SETLEASE, F_WRLCK) == 0; }));
  const UniqueFd refused(::open((*this / "f").c_str(), O_RDONLY | O_CLOEXEC));
  EXPECT_FALSE(refused);
  EXPECT_EQ(errno, EAGAIN);
  ASSERT_EQ(::fcntl(lease.get(), F_SETLEASE, F_UNLCK), 0);
  EXPECT_EQ(read_file(*this / "f").size(), 1U << 20);
}

// The tree is too deep for recursion on the stack of a thread. The pin has no effect, because no
// request creates so many directories on another tier.
TEST(DeepTreeTest, PinAtTheBottomOfADeepTreeWorks) {
  if (!require_mounts("mount")) return;
  const TempDir base;
  // The stack size of the threads of the daemon.
  rlimit before{};
  ::getrlimit(RLIMIT_STACK, &before);
  const rlimit little{512 << 10, before.rlim_max};
  ::setrlimit(RLIMIT_STACK, &little);
  Mount mount({.tiers = {"fast=" + base.make_dir("fast"), "slow=" + base.make_dir("slow")},
               .state = base / "state",
               .mountpoint = base / "mnt",
               .flags = {"--no-migrate"}});
  ::setrlimit(RLIMIT_STACK, &before);
  {
    const UniqueFd bottom = make_chain(mount.path(), kDeep);
    const std::string here = "/proc/self/fd/" + std::to_string(bottom.get());
    EXPECT_EQ(::setxattr(here.c_str(), "user.sluice.pin", "slow", 4, 0), 0);
    const UniqueFd file(::openat(bottom.get(), "file", O_RDWR | O_CREAT | O_CLOEXEC, 0644));
    EXPECT_TRUE(file) << std::strerror(errno);
    std::array<char, 16> pin{};
    EXPECT_EQ(::getxattr(here.c_str(), "user.sluice.pin", pin.data(), pin.size()), 4);
    EXPECT_STREQ(pin.data(), "slow");
  }
  mount.umount();
  EXPECT_TRUE(fsck(mount.pool()).ok());
  for (const char* tier : {"fast", "slow"}) remove_chain(base / tier);
}

}  // namespace
}  // namespace sluice::test
