// SPDX-License-Identifier: BSD-2-Clause
// Rings of libsluice on a real mount, with host memory and with GPU memory of the fake libcuda:
// what the daemon does, and what the process does instead.
#include <fcntl.h>
#include <signal.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <fstream>
#include <functional>
#include <optional>
#include <random>
#include <thread>

#include "base/unique_fd.hpp"
#include "client/include/sluice/hf3fs_usrbio.h"
#include "gpu/device.hpp"
#include "tests/mount/tiering.hpp"
#include "tests/support/child.hpp"
#include "tests/support/command.hpp"
#include "tests/support/fake_gpu_environment.hpp"
#include "tests/unit/client/gpu_memory.hpp"
#include "tests/unit/client/ring.hpp"

namespace sluice::test {
namespace {

constexpr std::size_t kSize = 5'000'001;

class RingLibraryTest : public TieringTest {
 protected:
  void SetUp() override {
    TieringTest::SetUp();
    if (IsSkipped() || HasFatalFailure()) return;
    content_ = random_bytes(kSize);
    put("nvme", "file", content_);
    put("hdd", "other", content_.substr(100));
  }
  std::uint64_t figure(const char* name) { return mount().status().at("gpu").at(name); }

  std::string content_;
};

TEST_F(RingLibraryTest, DaemonReadsIntoSharedMemory) {
  start();
  const auto file = open_file(*this / "file"), other = open_file(*this / "other");
  {
    const auto buffer = make_buffer(kSize), late = make_buffer(4096);
    const auto ring = make_ring(128);
    const int to = sluice_ring_add_buffer(ring.get(), buffer.get());
    EXPECT_EQ(figure("rings"), 0u) << "before there is a file";
    const int from = sluice_ring_add_file(ring.get(), file.get());
    const int second = sluice_ring_add_file(ring.get(), other.get());
    const int to_late = sluice_ring_add_buffer(ring.get(), late.get());
    EXPECT_EQ(figure("rings"), 1u);
    EXPECT_EQ(figure("buffers"), 2u);
    for (std::uint64_t i = 0; i < 100; ++i)
      ASSERT_EQ(
          sluice_ring_read(ring.get(), i % 2 == 0 ? from : second, to, i * 4096, 4096, i * 7919, i),
          0);
    ASSERT_EQ(sluice_ring_read(ring.get(), from, to_late, 0, 4096, 5, 100), 0);
    EXPECT_EQ(sluice_ring_submit(ring.get()), 101);
    const auto done = wait_for(ring, 101);
    for (const auto& [user_data, each] : done) {
      EXPECT_EQ(each.result, 4096);
      EXPECT_EQ(each.flags, 0u) << "not done by the daemon";
    }
    for (std::uint64_t i = 0; i < 100; ++i) {
      const std::size_t offset = i * 7919 + (i % 2 == 0 ? 0 : 100);
      ASSERT_EQ(text_of(buffer, i * 4096, 4096), content_.substr(offset, 4096)) << i;
    }
    EXPECT_EQ(text_of(late, 0, 4096), content_.substr(5, 4096));

    EXPECT_EQ(sluice_ring_drop_buffer(ring.get(), to_late), 0);
    EXPECT_EQ(figure("buffers"), 1u);
    EXPECT_EQ(sluice_ring_drop_file(ring.get(), second), 0);
    ASSERT_EQ(sluice_ring_read(ring.get(), from, to, 0, kSize, 0, 1), 0);
    sluice_ring_submit(ring.get());
    EXPECT_EQ(wait_for(ring, 1)[1].result, std::int64_t{kSize});
    EXPECT_TRUE(text_of(buffer, 0, kSize) == content_);
  }
  EXPECT_EQ(figure("rings"), 0u);
  EXPECT_EQ(figure("buffers"), 0u) << "although the file (the anchor) is still open";
}

TEST_F(RingLibraryTest, DaemonReadsIntoGpuMemory) {
  start();
  Devices devices;
  const GpuMemory memory(*devices.all()[0], kSize);
  const auto buffer = register_memory(memory.pointer(), kSize);
  const auto file = open_file(*this / "file");
  const auto ring = make_ring(128);
  const int from = sluice_ring_add_file(ring.get(), file.get());
  const int to = sluice_ring_add_buffer(ring.get(), buffer.get());
  for (std::uint64_t i = 0; i < 128; ++i)
    ASSERT_EQ(sluice_ring_read(ring.get(), from, to, i * 4096, 4096, i * 7919, i), 0);
  EXPECT_EQ(sluice_ring_submit(ring.get()), 128);
  for (const auto& [user_data, each] : wait_for(ring, 128)) {
    EXPECT_EQ(each.result, 4096);
    EXPECT_EQ(each.flags, 0u);
    EXPECT_NE(each.route, unsigned{SLUICE_ROUTE_HOST});
  }
  for (std::size_t i = 0; i < 128; ++i)
    ASSERT_TRUE(memory.bytes(i * 4096, 4096) == content_.substr(i * 7919, 4096)) << i;
}

TEST_F(RingLibraryTest, ProcessExecutesWhatTheDaemonCannot) {
  start();
  std::string plain(kSize, '\0');
  const auto buffer = register_memory(plain.data(), plain.size());
  const auto shared = make_buffer(4096);
  const auto file = open_file(*this / "file");
  const TempDir elsewhere;
  const auto outside = open_file(elsewhere.make_file("outside", content_));
  const auto ring = make_ring(16);
  const int from = sluice_ring_add_file(ring.get(), file.get());
  const int from_outside = sluice_ring_add_file(ring.get(), outside.get());
  const int to = sluice_ring_add_buffer(ring.get(), buffer.get());
  const int to_shared = sluice_ring_add_buffer(ring.get(), shared.get());
  ASSERT_EQ(sluice_ring_read(ring.get(), from, to, 0, 100, 7, 1), 0);
  ASSERT_EQ(sluice_ring_read(ring.get(), from_outside, to_shared, 0, 100, 7, 2), 0);
  ASSERT_EQ(sluice_ring_read(ring.get(), from, to_shared, 100, 100, 7, 3), 0);
  EXPECT_EQ(sluice_ring_submit(ring.get()), 3);
  auto done = wait_for(ring, 3);
  EXPECT_EQ(done[1].flags, SLUICE_RING_IN_PROCESS);
  EXPECT_EQ(done[2].flags, SLUICE_RING_IN_PROCESS);
  EXPECT_EQ(done[3].flags, 0u);
  const std::string expected = content_.substr(7, 100);
  EXPECT_EQ(plain.substr(0, 100), expected);
  EXPECT_EQ(text_of(shared, 0, 100), expected);
  EXPECT_EQ(text_of(shared, 100, 100), expected);
}

TEST_F(RingLibraryTest, ProcessReadsIntoABufferOfAnotherProcess) {
  start();
  const auto buffer = make_buffer(8192);
  struct sluice_shared_buffer shared {};
  ASSERT_EQ(sluice_buffer_export(buffer.get(), &shared), 0);
  Child other([&] {
    sluice_buffer* mine = nullptr;
    sluice_file* file = nullptr;
    sluice_ring* ring = nullptr;
    if (sluice_buffer_import(&shared, &mine) != 0 || sluice_ring_create(8, &ring) != 0 ||
        sluice_open((*this / "file").c_str(), O_RDONLY, 0, &file) != 0)
      ::_exit(1);
    sluice_ring_read(ring, sluice_ring_add_file(ring, file), sluice_ring_add_buffer(ring, mine),
                     4096, 4096, 999, 1);
    sluice_ring_submit(ring);
    sluice_ring_completion done{};
    const timespec limit{5, 0};
    sluice_ring_wait(ring, &done, 1, 1, &limit);
    ::_exit(0);
  });
  ASSERT_TRUE(other.join());
  EXPECT_EQ(text_of(buffer, 4096, 4096), content_.substr(999, 4096));
  EXPECT_TRUE(eventually([&] { return figure("rings") == 0; }));
}

TEST_F(RingLibraryTest, WaitFailsWhenTheMountHasEnded) {
  for (const int signal : {SIGTERM, SIGKILL}) {
    start();
    auto file = open_file(*this / "file");
    const auto buffer = make_buffer(4096);
    auto ring = make_ring(8);
    const int from = sluice_ring_add_file(ring.get(), file.get());
    const int to = sluice_ring_add_buffer(ring.get(), buffer.get());
    ASSERT_EQ(sluice_ring_read(ring.get(), from, to, 0, 10, 0, 1), 0);
    // Put but not submitted, so it is never done.
    std::jthread killer([&] { mount().kill_daemon(signal); });
    sluice_ring_completion done{};
    const timespec limit{10, 0};
    const int said = sluice_ring_wait(ring.get(), &done, 1, 1, &limit);
    EXPECT_EQ(said, signal == SIGTERM ? -ESHUTDOWN : -ENOTCONN) << sluice_error();
    killer.join();
    ring.reset();
    file.reset();
    stop();
  }
}

// A daemon that answers nothing until it is resumed.
class StoppedDaemon {
 public:
  explicit StoppedDaemon(pid_t pid) : pid_(pid) { ::kill(pid_, SIGSTOP); }
  ~StoppedDaemon() { resume(); }
  StoppedDaemon(const StoppedDaemon&) = delete;
  StoppedDaemon& operator=(const StoppedDaemon&) = delete;
  void resume() const { ::kill(pid_, SIGCONT); }

 private:
  const pid_t pid_;
};

// The system call in which a thread of this process is blocked, as a number; "running" if it is not
// blocked; empty if it has ended.
std::string blocked_in(const std::string& thread) {
  std::ifstream file("/proc/self/task/" + thread + "/syscall");
  std::string call;
  file >> call;
  return call;
}

// Waits until a thread of this process waits for the daemon's answer to an ioctl.
bool request_begins() {
  return eventually([] {
    const auto threads = names_in("/proc/self/task");
    return std::any_of(threads.begin(), threads.end(), [](const std::string& each) {
      return blocked_in(each) == std::to_string(SYS_ioctl);
    });
  });
}

// A thread whose work may block.
class BlockingThread {
 public:
  explicit BlockingThread(const std::function<void()>& work)
      : thread_([this, work] {
          id_ = ::gettid();
          work();
        }) {}
  // Waits until it is blocked or has ended.
  bool has_stopped() {
    return eventually([&] { return id_ != 0 && blocked_in(std::to_string(id_)) != "running"; });
  }
  void join() { thread_.join(); }

 private:
  std::atomic<pid_t> id_{0};
  std::jthread thread_;
};

// With the functions of 3FS: a file and GPU memory of two allocations. A request for all of the
// memory spans both, so this process executes it and registers the memory on the file.
class Hf3fsTest : public RingLibraryTest {
 protected:
  static constexpr std::size_t kLength = 4 << 20;

  void SetUp() override {
    RingLibraryTest::SetUp();
    if (IsSkipped() || HasFatalFailure()) return;
    start();
    memory_.emplace(*devices_.all()[0], 2, kLength / 2);
    fd_.reset(::open((*this / "file").c_str(), O_RDONLY | O_CLOEXEC));
    name_ = hf3fs_reg_fd(fd_.get(), 0);
    ASSERT_LT(name_, 0);
    const std::uint8_t id[16] = {1};
    ASSERT_EQ(hf3fs_iorcreate(&ior_, root().c_str(), 8, true, 0, -1), 0);
    ASSERT_EQ(hf3fs_iovwrap(&iov_, memory_->pointer(), id, root().c_str(), kLength, 0, -1), 0)
        << sluice_error();
  }
  void TearDown() override {
    hf3fs_iordestroy(&ior_);
    hf3fs_iovdestroy(&iov_);
    if (fd_) hf3fs_dereg_fd(fd_.get());
    fd_.reset();
    memory_.reset();
    RingLibraryTest::TearDown();
  }

  int prepare() {
    return hf3fs_prep_io(&ior_, &iov_, true, iov_.base, fd_.get(), 0, kLength, nullptr);
  }

  Devices devices_;
  std::optional<GpuMemory> memory_;
  UniqueFd fd_;
  int name_ = 0;  // of the file: the negative number of our copy of the descriptor
  struct hf3fs_ior ior_ {};
  struct hf3fs_iov iov_ {};
};

TEST_F(Hf3fsTest, DestroyedMemoryIsUnregisteredFromFilesThatStayRegistered) {
  ASSERT_GE(prepare(), 0) << sluice_error();
  ASSERT_EQ(hf3fs_submit_ios(&ior_), 0);
  hf3fs_cqe done{};
  ASSERT_EQ(hf3fs_wait_for_ios(&ior_, &done, 1, 1, nullptr), 1);
  EXPECT_EQ(done.result, std::int64_t{kLength});
  EXPECT_EQ(figure("buffers"), 4u) << "two allocations, registered by the ring and on the file";
  hf3fs_iovdestroy(&iov_);
  EXPECT_EQ(figure("buffers"), 0u);
}

// A request in progress uses our copy of the descriptor. Its number must not become that of another
// file meanwhile.
TEST_F(Hf3fsTest, FileStaysOpenWhileTheRingThatEndsHasRequestsInProgress) {
  ASSERT_GE(prepare(), 0) << sluice_error();
  const StoppedDaemon stopped(mount().pid());
  ASSERT_EQ(hf3fs_submit_ios(&ior_), 0);
  ASSERT_TRUE(request_begins());

  BlockingThread destroys([&] { hf3fs_iordestroy(&ior_); });
  ASSERT_TRUE(destroys.has_stopped());
  BlockingThread deregisters([&] { hf3fs_dereg_fd(fd_.get()); });
  ASSERT_TRUE(deregisters.has_stopped());
  EXPECT_GE(::fcntl(-name_, F_GETFD), 0);
  stopped.resume();
  destroys.join();
  deregisters.join();
  EXPECT_LT(::fcntl(-name_, F_GETFD), 0);
}

// What a child does with the parent's handles, and then with its own; 0 or the number of the step
// that went wrong.
int use_in_child(int parents_fd, struct hf3fs_ior* ior, struct hf3fs_iov* iov,
                 const std::string& path) {
  hf3fs_cqe done{};
  hf3fs_dereg_fd(parents_fd);
  const UniqueFd fd(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  if (hf3fs_reg_fd(fd.get(), 0) >= 0) return 1;
  if (hf3fs_prep_io(ior, iov, true, iov->base, fd.get(), 0, 10, nullptr) != -EINVAL) return 2;
  if (hf3fs_submit_ios(ior) != -EINVAL) return 3;
  if (hf3fs_wait_for_ios(ior, &done, 1, 1, nullptr) != -EINVAL) return 4;
  hf3fs_iordestroy(ior);
  hf3fs_iovdestroy(iov);

  struct hf3fs_ior mine {};
  struct hf3fs_iov memory {};
  if (hf3fs_iorcreate(&mine, "/", 8, true, 0, -1) != 0) return 5;
  if (hf3fs_iovcreate(&memory, "/", 10, 0, -1) != 0) return 6;
  if (hf3fs_prep_io(&mine, &memory, true, memory.base, fd.get(), 0, 10, nullptr) < 0) return 7;
  if (hf3fs_submit_ios(&mine) != 0) return 8;
  if (hf3fs_wait_for_ios(&mine, &done, 1, 1, nullptr) != 1 || done.result != 10) return 9;
  hf3fs_dereg_fd(fd.get());
  hf3fs_iordestroy(&mine);
  hf3fs_iovdestroy(&memory);
  return 0;
}

TEST_F(Hf3fsTest, ChildDoesNotWaitForRequestsOfItsParent) {
  const TempDir elsewhere;
  const std::string path = elsewhere.make_file("plain", "0123456789");
  const auto step = make_buffer(sizeof(int));  // shared with the child
  auto& wrong = *static_cast<int*>(sluice_buffer_memory(step.get()));
  wrong = -1;
  ASSERT_GE(prepare(), 0) << sluice_error();
  const StoppedDaemon stopped(mount().pid());
  ASSERT_EQ(hf3fs_submit_ios(&ior_), 0);
  ASSERT_TRUE(request_begins());
  // It holds the lock of the registry while it waits for the request.
  BlockingThread deregisters([&] { hf3fs_dereg_fd(fd_.get()); });
  ASSERT_TRUE(deregisters.has_stopped());

  Child child([&] { wrong = use_in_child(fd_.get(), &ior_, &iov_, path); });
  EXPECT_TRUE(child.join()) << "hangs";
  EXPECT_EQ(wrong, 0);
  stopped.resume();
  deregisters.join();
  hf3fs_cqe done{};
  ASSERT_EQ(hf3fs_wait_for_ios(&ior_, &done, 1, 1, nullptr), 1);
  EXPECT_EQ(done.result, std::int64_t{kLength});
}

TEST_F(RingLibraryTest, ChildThatDestroysMemoryOf3fsLeavesItToItsParent) {
  start();
  struct hf3fs_iov iov {};
  ASSERT_EQ(hf3fs_iovcreate(&iov, root().c_str(), 4096, 0, -1), 0);
  Child child([&] { hf3fs_iovdestroy(&iov); });
  ASSERT_TRUE(child.join());
  struct hf3fs_iov same {};
  const auto* const id = reinterpret_cast<const std::uint8_t*>(iov.id);
  EXPECT_EQ(hf3fs_iovopen(&same, id, root().c_str(), 4096, 0, -1), 0) << sluice_error();
  hf3fs_iovdestroy(&same);
  hf3fs_iovdestroy(&iov);
}

// tests/mount/hf3fs_program.c is written for 3FS and does not mention Sluice.
TEST_F(RingLibraryTest, ProgramWrittenFor3fsRuns) {
  start();
  const auto said = run_command({SLUICE_HF3FS_PROGRAM, root(), *this / "file"});
  EXPECT_EQ(said.exit_code, 0) << said.err;
  EXPECT_TRUE(eventually([&] { return figure("rings") == 0 && figure("buffers") == 0; }));
}

}  // namespace
}  // namespace sluice::test
