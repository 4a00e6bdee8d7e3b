// SPDX-License-Identifier: BSD-2-Clause
// Buffers in host memory, through a real mount: which memory is accepted, who may use a buffer, and
// what is left when a client ends.
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstring>
#include <random>
#include <set>
#include <thread>

#include "tests/mount/gpu_mount.hpp"
#include "tests/support/child.hpp"
#include "tests/support/seed.hpp"
#include "tests/support/silent_file.hpp"
#include "tests/support/user.hpp"

namespace sluice::test {
namespace {

class GpuBufferTest : public GpuMountTest {};

// A client that registers the file as its buffer.
class SilentClient {
 public:
  SilentClient(const std::string& silent, const std::string& file)
      : child_([&] {
          {
            const UniqueFd open(::open(file.c_str(), O_RDONLY | O_CLOEXEC));
            const SharedMemory memory(4096);
            auto request = registration(memory, 4096);
            request.fd = ::open(silent.c_str(), O_RDWR | O_CLOEXEC);
            ioctl_code(open.get(), SLUICE_IOC_BUFFER_REGISTER, &request);
          }
          write_file(silent + ".asked", "");
          ::pause();
        }) {
    EXPECT_TRUE(eventually([&] { return exists(silent + ".asked"); }));
  }

 private:
  Child child_;
};

TEST_F(GpuBufferTest, BufferIsVisibleOnlyToItsProcessAndOpenFile) {
  start();
  const UniqueFd file = open_file("small"), again = open_file("small");
  SharedMemory memory(4096);
  const std::uint64_t buffer = register_memory(file.get(), memory, 4096);
  const auto read_by = [&](const UniqueFd& by) {
    auto request = transfer(buffer, 0, 0, 10);
    return named(ioctl_code(by.get(), SLUICE_IOC_READ, &request));
  };
  const auto unregister_by = [&](const UniqueFd& by) {
    sluice_buffer_unregister request{buffer};
    return named(ioctl_code(by.get(), SLUICE_IOC_BUFFER_UNREGISTER, &request));
  };
  EXPECT_EQ(read_by(again), "ENOENT");
  EXPECT_EQ(unregister_by(again), "ENOENT");
  EXPECT_EQ(in_child([&] { return read_by(file); }), "ENOENT");
  EXPECT_EQ(in_child([&] { return unregister_by(file); }), "ENOENT");
  EXPECT_EQ(as_user(kAlice, [&] { return read_by(file); }), "ENOENT");
  std::string in_thread;
  std::thread([&] { in_thread = read_by(file); }).join();
  EXPECT_EQ(in_thread, "ok");
  EXPECT_EQ(read_by(file), "ok");
  EXPECT_EQ(unregister_by(file), "ok");
  EXPECT_EQ(unregister_by(file), "ENOENT");
  EXPECT_EQ(read_by(file), "ENOENT");
  EXPECT_TRUE(is_free_of_buffers());
}

TEST_F(GpuBufferTest, MemoryThatCouldShrinkIsRefused) {
  start();
  const UniqueFd file = open_file("small");
  const auto code = [&](sluice_buffer_register request) {
    return named(ioctl_code(file.get(), SLUICE_IOC_BUFFER_REGISTER, &request));
  };
  SharedMemory memory(8192);
  SharedMemory unsealed(8192, SharedMemory::Sealed::No);
  EXPECT_EQ(code(registration(unsealed, 4096)), "EPERM");
  EXPECT_EQ(code(registration(memory, 8193)), "EINVAL");
  EXPECT_EQ(code(registration(memory, 4096, 8000)), "EINVAL");
  EXPECT_EQ(code(registration(memory, 0)), "EINVAL");
  EXPECT_EQ(code(registration(memory, ~0ull, 2)), "EINVAL");
  auto closed = registration(memory, 4096);
  closed.fd = 1 << 20;
  EXPECT_EQ(code(closed), "EBADF");
  closed.fd = -1;
  EXPECT_EQ(code(closed), "EBADF");
  auto plain = registration(memory, 4096);
  const UniqueFd other = open_file("small");
  plain.fd = other.get();
  EXPECT_NE(code(plain), "ok") << "a file of the mount, mapped by its own daemon, would block";
  EXPECT_EQ(code(registration(memory, 4096, 4096)), "ok");
}

// The server of this file answers neither close() nor stat(), so a thread of the daemon that calls
// them blocks.
TEST_F(GpuBufferTest, DescriptorThatHangsInCloseDelaysNoOneElse) {
  start();
  SilentFile silent(base_ / "silent");
  int said[2], go_on[2];
  ASSERT_EQ(::pipe2(said, O_CLOEXEC), 0);
  ASSERT_EQ(::pipe2(go_on, O_CLOEXEC), 0);
  const auto heard = [&] {
    pollfd ready{said[0], POLLIN, 0};
    char text[100] = "nothing";
    if (::poll(&ready, 1, 10'000) == 1) ::read(said[0], text, sizeof text);
    return std::string(text);
  };
  Child client([&] {
    if (::setresuid(kAlice.uid, kAlice.uid, kAlice.uid) < 0) ::abort();
    const UniqueFd file = open_file("small");
    const SharedMemory memory(4096);
    const int endless = ::open((base_ / "silent").c_str(), O_RDWR | O_CLOEXEC);
    std::string codes;
    for (unsigned i = 0; i < 5; ++i) {
      auto request = registration(memory, 4096);
      request.fd = endless;
      if (i % 2 == 1) request.kind = SLUICE_BUFFER_CUDA_FD, request.allocation_length = 4096;
      codes += named(ioctl_code(file.get(), SLUICE_IOC_BUFFER_REGISTER, &request)) + " ";
    }
    ::write(said[1], codes.c_str(), codes.size() + 1);
    char byte;
    ::read(go_on[0], &byte, 1);
    const bool works = eventually([&] {
      auto request = registration(memory, 4096);
      return ioctl_code(file.get(), SLUICE_IOC_BUFFER_REGISTER, &request) == 0;
    });
    ::write(said[1], works ? "ok" : "no", 3);
  });
  EXPECT_EQ(heard(), "EINVAL EINVAL EINVAL EINVAL EBUSY ");
  const UniqueFd file = open_file("small");
  const SharedMemory memory(4096);
  auto others = registration(memory, 4096);
  EXPECT_EQ(named(ioctl_code(file.get(), SLUICE_IOC_BUFFER_REGISTER, &others)), "ok");
  silent.end();
  ::write(go_on[1], "x", 1);
  EXPECT_EQ(heard(), "ok");
  for (const int fd : {said[0], said[1], go_on[0], go_on[1]}) ::close(fd);
}

TEST_F(GpuBufferTest, PoolMountsAgainWhileADescriptorOfTheOldDaemonHangs) {
  start();
  SilentFile silent(base_ / "silent");
  const SilentClient client(base_ / "silent", *this / "small");
  const pid_t before = mount().pid();
  mount().remount();
  EXPECT_EQ(::kill(before, 0), 0) << "no descriptor hangs, so nothing is tested";
  EXPECT_EQ(read_file(*this / "small"), pattern(kSmall, 1));
  silent.end();
  EXPECT_TRUE(eventually([&] { return ::kill(before, 0) < 0; }));
}

TEST_F(GpuBufferTest, KilledDaemonKeepsNothingOpenWhileADescriptorHangs) {
  start({"--debug=keeper=off"});
  SilentFile silent(base_ / "silent");
  const SilentClient client(base_ / "silent", *this / "small");
  ::kill(mount().pid(), SIGKILL);
  EXPECT_TRUE(eventually([&] { return !open_file("small") && errno == ENOTCONN; }))
      << "/dev/fuse is still open";
  EXPECT_EQ(::kill(mount().pid(), 0), 0) << "no descriptor hangs, so nothing is tested";
  silent.end();
  mount().kill_daemon(SIGKILL);
}

TEST_F(GpuBufferTest, KilledDaemonGetsASuccessorWhileADescriptorHangs) {
  start();
  const pid_t before = mount().pid();
  SilentFile silent(base_ / "silent");
  const SilentClient client(base_ / "silent", *this / "small");
  ::kill(before, SIGKILL);
  EXPECT_EQ(read_file(*this / "small"), pattern(kSmall, 1));
  EXPECT_EQ(::kill(before, 0), 0) << "no descriptor hangs, so nothing is tested";
  EXPECT_NE(mount().status().at("pid"), before);
  silent.end();
}

TEST_F(GpuBufferTest, BuffersEndWithTheProcessEvenIfAChildKeepsTheFileOpen) {
  start();
  int ready[2], stay[2];
  ASSERT_EQ(::pipe(ready), 0);
  ASSERT_EQ(::pipe(stay), 0);
  const pid_t parent = ::fork();
  if (parent == 0) {
    const UniqueFd file = open_file("small");
    SharedMemory memory(4096);
    register_memory(file.get(), memory, 4096);
    if (::fork() == 0) {
      ::close(stay[1]);
      char byte;
      ::read(stay[0], &byte, 1);  // keeps the file open
      ::_exit(0);
    }
    ::write(ready[1], "x", 1);
    ::pause();
  }
  char byte;
  ASSERT_EQ(::read(ready[0], &byte, 1), 1);
  EXPECT_EQ(gpu().at("buffers"), 1);
  ::kill(parent, SIGKILL);
  ::waitpid(parent, nullptr, 0);
  EXPECT_TRUE(is_free_of_buffers());
  EXPECT_GE(mount().status().at("open_files"), 1) << "the child should keep it open";
  for (int fd : {ready[0], ready[1], stay[0], stay[1]}) ::close(fd);
}

TEST_F(GpuBufferTest, ClientKilledDuringAReadLeavesNothing) {
  start();
  for (int round = 0; round < 5; ++round) {
    int ready[2];
    ASSERT_EQ(::pipe(ready), 0);
    const pid_t child = ::fork();
    if (child == 0) {
      const UniqueFd file = open_file("big");
      SharedMemory memory(kBig);
      const std::uint64_t buffer = register_memory(file.get(), memory, kBig);
      for (bool first = true;; first = false) {
        auto request = transfer(buffer, 0, 0, kBig);
        ioctl_code(file.get(), SLUICE_IOC_READ, &request);
        if (first) ::write(ready[1], "x", 1);
      }
    }
    char byte;
    ASSERT_EQ(::read(ready[0], &byte, 1), 1);
    ::kill(child, SIGKILL);
    ::waitpid(child, nullptr, 0);
    EXPECT_TRUE(is_free_of_buffers());
    ::close(ready[0]);
    ::close(ready[1]);
  }
  EXPECT_TRUE(read_file(*this / "big") == pattern(kBig, 2));
}

// The kernel does not let a killed process go before its request has an answer.
TEST_F(GpuBufferTest, ReadOfAKilledClientEndsEarly) {
  constexpr std::uint64_t kSegment = SLUICE_MAX_SEGMENT, kAll = SLUICE_MAX_SEGMENTS * kSegment;
  start();
  const UniqueFd file = open_file("sparse", O_RDWR | O_CREAT);
  ASSERT_EQ(::ftruncate(file.get(), kSegment), 0);
  int ready[2];
  ASSERT_EQ(::pipe(ready), 0);
  const pid_t child = ::fork();
  if (child == 0) {
    SharedMemory memory(kSegment);
    auto request = std::make_unique<sluice_readv>();
    request->buffer = register_memory(file.get(), memory, kSegment);
    request->count = SLUICE_MAX_SEGMENTS;
    for (auto& segment : request->segments) segment = {0, 0, kSegment};
    ::write(ready[1], "x", 1);
    ioctl_code(file.get(), SLUICE_IOC_READV, request.get());
    ::_exit(0);
  }
  char byte;
  ASSERT_EQ(::read(ready[0], &byte, 1), 1);
  std::this_thread::sleep_for(std::chrono::milliseconds(20));  // so that it is in the request
  ::kill(child, SIGKILL);
  ::waitpid(child, nullptr, 0);
  sluice_stats stats{};
  EXPECT_EQ(named(ioctl_code(file.get(), SLUICE_IOC_STATS, &stats)), "ok");
  EXPECT_LT(stats.routes[SLUICE_ROUTE_HOST].bytes, kAll);
  EXPECT_TRUE(is_free_of_buffers());
  ::close(ready[0]);
  ::close(ready[1]);
}

TEST_F(GpuBufferTest, SeveralClientsReadAtOnce) {
  start();
  std::vector<std::unique_ptr<Child>> children;
  for (int i = 0; i < 3; ++i) {
    children.push_back(std::make_unique<Child>([this, i] {
      const bool big = i % 2 == 0;
      const std::string content = big ? pattern(kBig, 2) : pattern(kSmall, 1);
      const UniqueFd file = open_file(big ? "big" : "small");
      SharedMemory memory(content.size());
      const std::uint64_t buffer = register_memory(file.get(), memory, content.size());
      for (int round = 0; round < 20; ++round) {
        std::memset(memory.data(), 0, content.size());
        auto request = transfer(buffer, 0, 0, content.size());
        if (ioctl_code(file.get(), SLUICE_IOC_READ, &request) != 0) ::abort();
        if (memory.text(content.size()) != content) ::abort();
      }
      write_file(*this / ("done" + std::to_string(i)), "");
    }));
  }
  for (auto& child : children) EXPECT_TRUE(child->join());
  for (int i = 0; i < 3; ++i) EXPECT_TRUE(exists(*this / ("done" + std::to_string(i)))) << i;
  EXPECT_TRUE(is_free_of_buffers());
}

TEST_F(GpuBufferTest, GarbageIsRefusedAndTheMountKeepsWorking) {
  start();
  const UniqueFd file = open_file("small", O_RDWR);
  SharedMemory memory(4096);
  const std::uint64_t buffer = register_memory(file.get(), memory, 4096);
  const std::set<int> expected{0,      EINVAL, ENOTTY, E2BIG, ENOENT,     EBADF,  ENODEV,
                               ERANGE, EPERM,  EFBIG,  EIO,   EOPNOTSUPP, ENOSPC, EACCES};
  std::mt19937_64 random(test_seed());
  const auto below = [&](unsigned limit) { return static_cast<unsigned>(random() % limit); };
  std::vector<std::uint64_t> argument(16384 / 8);
  for (int i = 0; i < 20'000; ++i) {
    const unsigned number = below(10);
    const unsigned size = below(4) == 0 ? below(16384) : below(600);
    for (unsigned at = 0; at < size / 8 + 1; ++at) {
      const unsigned kind = below(6);
      argument[at] = kind == 0   ? random()
                     : kind == 1 ? ~0ull >> below(64)
                     : kind == 2 ? below(8)
                     : kind == 3 ? buffer
                                 : 0;
    }
    const unsigned long command = _IOC(below(4), SLUICE_IOC_TYPE, number, size);
    const int code = ioctl_code(file.get(), command, argument.data());
    ASSERT_TRUE(expected.contains(code)) << number << " " << size << " " << named(code);
  }
  EXPECT_EQ(named(ioctl_code(file.get(), SLUICE_IOC_READ, nullptr)), "EFAULT");
  auto request = transfer(register_memory(file.get(), memory, 4096), 0, 0, 10);
  EXPECT_EQ(named(ioctl_code(file.get(), SLUICE_IOC_READ, &request)), "ok");
}

TEST_F(GpuBufferTest, OpenFileHasALimitOfBuffers) {
  start();
  SharedMemory memory(4096);
  {
    const UniqueFd file = open_file("small");
    auto request = registration(memory, 4096);
    for (int i = 0; i < 4096; ++i)
      ASSERT_EQ(named(ioctl_code(file.get(), SLUICE_IOC_BUFFER_REGISTER, &request)), "ok") << i;
    EXPECT_EQ(named(ioctl_code(file.get(), SLUICE_IOC_BUFFER_REGISTER, &request)), "ENOSPC");
    EXPECT_EQ(gpu().at("buffers"), 4096);
  }
  EXPECT_TRUE(is_free_of_buffers());
  const UniqueFd file = open_file("small");
  EXPECT_NE(register_memory(file.get(), memory, 4096), 0u);
}

TEST_F(GpuBufferTest, HostMemoryHasALimitInBytes) {
  start({"--gpu-host-memory", "1MiB"});
  const UniqueFd file = open_file("small");
  const SharedMemory memory(2 * kMiB);
  auto request = registration(memory, kMiB + 1);
  EXPECT_EQ(named(ioctl_code(file.get(), SLUICE_IOC_BUFFER_REGISTER, &request)), "ENOSPC");
  EXPECT_NE(mount().log().find("the limit gpu_host_memory is reached"), std::string::npos);
  request = registration(memory, kMiB);
  EXPECT_EQ(named(ioctl_code(file.get(), SLUICE_IOC_BUFFER_REGISTER, &request)), "ok");
  EXPECT_EQ(gpu().at("host_bytes"), kMiB);
  EXPECT_EQ(gpu().at("host_bytes_limit"), kMiB);
  const auto text = tell({"status"});
  EXPECT_NE(text.out.find("1.0 MiB of host memory, limit 1.0 MiB"), std::string::npos) << text.out;
}
}  // namespace
}  // namespace sluice::test
