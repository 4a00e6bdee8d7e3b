// SPDX-License-Identifier: BSD-2-Clause
// Rings on ordinary files, which a thread of the process serves. tests/mount/ring_library_test.cpp
// tests the daemon.
#include "tests/unit/client/ring.hpp"

#include <poll.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <random>
#include <thread>

#include "base/unique_fd.hpp"
#include "client/include/sluice/hf3fs_usrbio.h"
#include "tests/support/child.hpp"
#include "tests/support/files.hpp"
#include "tests/support/no_threads.hpp"

namespace sluice {
namespace {

using test::make_buffer;
using test::make_ring;
using test::open_file;
using test::random_bytes;
using test::register_memory;
using test::text_of;
using test::wait_for;

constexpr std::size_t kSize = 3'000'001;

class ClientRingTest : public ::testing::Test {
 protected:
  ClientRingTest()
      : content_(random_bytes(kSize)),
        path_(dir_.make_file("file", content_)),
        file_(open_file(path_, O_RDWR)) {}

  test::TempDir dir_;
  std::string content_;
  const std::string path_;
  const test::FileHandle file_;
};

TEST_F(ClientRingTest, ReadsAndWritesAnOrdinaryFileWithPlainMemory) {
  std::string memory(kSize, '\0');
  const auto buffer = register_memory(memory.data(), memory.size());
  const auto ring = make_ring(64);
  const int file = sluice_ring_add_file(ring.get(), file_.get());
  const int to = sluice_ring_add_buffer(ring.get(), buffer.get());
  ASSERT_GE(file, 0);
  ASSERT_GE(to, 0);
  for (std::uint64_t i = 0; i < 50; ++i)
    ASSERT_EQ(sluice_ring_read(ring.get(), file, to, i * 4096, 4096, i * 7919, i), 0);
  ASSERT_EQ(sluice_ring_read(ring.get(), file, to, 2'000'000, 100, kSize - 10, 50), 0);
  ASSERT_EQ(sluice_ring_read(ring.get(), file, to, kSize - 1, 100, 0, 51), 0);
  EXPECT_EQ(sluice_ring_submit(ring.get()), 52);
  auto done = wait_for(ring, 52);
  for (std::uint64_t i = 0; i < 50; ++i) {
    EXPECT_EQ(done[i].result, 4096);
    EXPECT_EQ(done[i].flags, SLUICE_RING_IN_PROCESS);
    ASSERT_EQ(memory.substr(i * 4096, 4096), content_.substr(i * 7919, 4096)) << i;
  }
  EXPECT_EQ(done[50].result, 10);
  EXPECT_EQ(done[51].result, -ERANGE);

  memory.replace(0, 7, "changed");
  ASSERT_EQ(sluice_ring_write(ring.get(), file, to, 0, 7, 100, 1), 0);
  EXPECT_EQ(sluice_ring_submit(ring.get()), 1);
  EXPECT_EQ(wait_for(ring, 1)[1].result, 7);
  ASSERT_EQ(sluice_ring_read(ring.get(), file, to, 0, kSize, 0, 2), 0);
  EXPECT_EQ(sluice_ring_submit(ring.get()), 1);
  EXPECT_EQ(wait_for(ring, 1)[2].result, std::int64_t{kSize});
  EXPECT_EQ(test::read_file(path_).substr(100, 7), "changed");
}

TEST_F(ClientRingTest, NoMoreRequestsAreInProgressThanItHasEntries) {
  const auto buffer = make_buffer(4096);
  const auto ring = make_ring(3);  // rounded up to 4
  const int file = sluice_ring_add_file(ring.get(), file_.get());
  const int to = sluice_ring_add_buffer(ring.get(), buffer.get());
  for (int round = 0; round < 5; ++round) {
    for (std::uint64_t i = 0; i < 4; ++i)
      ASSERT_EQ(sluice_ring_read(ring.get(), file, to, 0, 10, 0, i), 0) << sluice_error();
    EXPECT_EQ(sluice_ring_read(ring.get(), file, to, 0, 10, 0, 9), -EAGAIN);
    EXPECT_EQ(sluice_ring_submit(ring.get()), 4);
    EXPECT_EQ(sluice_ring_submit(ring.get()), 0);
    EXPECT_EQ(wait_for(ring, 4).size(), 4u);
  }
}

TEST_F(ClientRingTest, WaitEndsWithTheTimeout) {
  const auto ring = make_ring(4);
  sluice_ring_completion done[2];
  const timespec limit{0, 20'000'000}, none{0, 0};
  EXPECT_EQ(sluice_ring_wait(ring.get(), done, 2, 1, &limit), -ETIMEDOUT);
  EXPECT_EQ(sluice_ring_wait(ring.get(), done, 2, 1, &none), -ETIMEDOUT);
  EXPECT_EQ(sluice_ring_wait(ring.get(), done, 2, 0, nullptr), 0);
  const auto buffer = make_buffer(4096);
  ASSERT_EQ(sluice_ring_read(ring.get(), sluice_ring_add_file(ring.get(), file_.get()),
                             sluice_ring_add_buffer(ring.get(), buffer.get()), 0, 10, 0, 5),
            0);
  sluice_ring_submit(ring.get());
  const timespec longer{0, 200'000'000};
  EXPECT_EQ(sluice_ring_wait(ring.get(), done, 2, 2, &longer), 1)
      << "the completions that arrived are returned";
  EXPECT_EQ(done[0].user_data, 5u);
}

TEST_F(ClientRingTest, UnknownFileAndBufferNumbersAreRefused) {
  const auto ring = make_ring(4);
  const auto buffer = make_buffer(4096);
  EXPECT_EQ(sluice_ring_read(ring.get(), 0, 0, 0, 1, 0, 0), -ENOENT);
  EXPECT_EQ(sluice_ring_read(ring.get(), -1, 0, 0, 1, 0, 0), -EINVAL);
  const int file = sluice_ring_add_file(ring.get(), file_.get());
  const int to = sluice_ring_add_buffer(ring.get(), buffer.get());
  EXPECT_EQ(sluice_ring_read(ring.get(), file, to + 1, 0, 1, 0, 0), -ENOENT);
  EXPECT_EQ(sluice_ring_drop_file(ring.get(), file), 0);
  EXPECT_EQ(sluice_ring_drop_file(ring.get(), file), -ENOENT);
  EXPECT_EQ(sluice_ring_read(ring.get(), file, to, 0, 1, 0, 0), -ENOENT);
  EXPECT_EQ(sluice_ring_drop_buffer(ring.get(), to), 0);
  EXPECT_EQ(sluice_ring_drop_buffer(ring.get(), 77), -ENOENT);
  sluice_ring* none = nullptr;
  EXPECT_EQ(sluice_ring_create(0, &none), -EINVAL);
  EXPECT_EQ(sluice_ring_create(40'000, &none), -EINVAL);
  EXPECT_EQ(sluice_ring_create(4, nullptr), -EINVAL);
  EXPECT_EQ(sluice_ring_submit(nullptr), -EINVAL);
}

TEST_F(ClientRingTest, EventfdSignalsCompletions) {
  const auto ring = make_ring(8);
  const auto buffer = make_buffer(4096);
  const int file = sluice_ring_add_file(ring.get(), file_.get());
  const int to = sluice_ring_add_buffer(ring.get(), buffer.get());
  const int event = sluice_ring_eventfd(ring.get());
  ASSERT_GE(event, 0);
  EXPECT_EQ(sluice_ring_eventfd(ring.get()), event);
  pollfd poll_it{event, POLLIN, 0};
  EXPECT_EQ(::poll(&poll_it, 1, 20), 0) << "nothing has arrived";
  for (std::uint64_t round = 0; round < 20; ++round) {
    ASSERT_EQ(sluice_ring_read(ring.get(), file, to, 0, 10, 0, round), 0);
    sluice_ring_submit(ring.get());
    ASSERT_EQ(::poll(&poll_it, 1, 10'000), 1) << round;
    std::uint64_t count = 0;
    ASSERT_EQ(::read(event, &count, sizeof count), static_cast<ssize_t>(sizeof count));
    sluice_ring_completion done[4];
    ASSERT_EQ(sluice_ring_wait(ring.get(), done, 4, 0, nullptr), 1);
  }
}

TEST_F(ClientRingTest, ManyThreadsShareOneRing) {
  const auto ring = make_ring(256);
  constexpr unsigned kThreads = 4, kEach = 500;
  const auto buffer = make_buffer(kThreads * kEach * 16);
  const int file = sluice_ring_add_file(ring.get(), file_.get());
  const int to = sluice_ring_add_buffer(ring.get(), buffer.get());
  std::atomic<unsigned> reaped{0}, wrong{0};
  {
    std::vector<std::jthread> threads;
    for (unsigned thread = 0; thread < kThreads; ++thread) {
      threads.emplace_back([&, thread] {
        for (unsigned i = 0; i < kEach; ++i) {
          const std::uint64_t index = thread * kEach + i;
          while (sluice_ring_read(ring.get(), file, to, index * 16, 16, index * 16, index) ==
                 -EAGAIN)
            std::this_thread::yield();
          sluice_ring_submit(ring.get());
        }
      });
      threads.emplace_back([&] {
        while (reaped < kThreads * kEach) {
          sluice_ring_completion done[16];
          const timespec limit{0, 10'000'000};
          const int got = sluice_ring_wait(ring.get(), done, 16, 1, &limit);
          for (int i = 0; i < got; ++i) {
            if (done[i].result != 16) ++wrong;
            ++reaped;
          }
        }
      });
    }
  }
  EXPECT_EQ(wrong, 0u);
  EXPECT_EQ(text_of(buffer, 0, kThreads * kEach * 16), content_.substr(0, kThreads * kEach * 16));
}

TEST_F(ClientRingTest, TwoProcessesShareOneBuffer) {
  const auto buffer = make_buffer(8192);
  std::memset(sluice_buffer_memory(buffer.get()), 'a', 8192);
  struct sluice_shared_buffer shared {};
  ASSERT_EQ(sluice_buffer_export(buffer.get(), &shared), 0) << sluice_error();
  test::Child other([&] {
    sluice_buffer* mine = nullptr;
    if (sluice_buffer_import(&shared, &mine) != 0) ::_exit(1);
    auto* const memory = static_cast<char*>(sluice_buffer_memory(mine));
    if (memory[0] == 'a') std::memset(memory + 4096, 'b', 4096);
    ::_exit(0);
  });
  ASSERT_TRUE(other.join());
  EXPECT_EQ(text_of(buffer, 4096, 4096), std::string(4096, 'b'));
  EXPECT_EQ(text_of(buffer, 0, 4096), std::string(4096, 'a'));

  std::string plain(100, 'x');
  const auto host = register_memory(plain.data(), plain.size());
  EXPECT_EQ(sluice_buffer_export(host.get(), &shared), -EOPNOTSUPP);
  shared.version = 2;
  sluice_buffer* none = nullptr;
  EXPECT_EQ(sluice_buffer_import(&shared, &none), -EINVAL);
}

TEST_F(ClientRingTest, ExportOfAClosedBufferIsStale) {
  struct sluice_shared_buffer shared {};
  {
    const auto buffer = make_buffer(8192);
    ASSERT_EQ(sluice_buffer_export(buffer.get(), &shared), 0);
  }
  sluice_buffer* none = nullptr;
  EXPECT_LT(sluice_buffer_import(&shared, &none), 0);
  // The descriptor number is now reused for other memory.
  const auto other = make_buffer(8192);
  EXPECT_LT(sluice_buffer_import(&shared, &none), 0);
}

TEST_F(ClientRingTest, RingCanEndWithRequestsInProgress) {
  const auto buffer = make_buffer(kSize);
  for (int round = 0; round < 20; ++round) {
    const auto ring = make_ring(64);
    const int file = sluice_ring_add_file(ring.get(), file_.get());
    const int to = sluice_ring_add_buffer(ring.get(), buffer.get());
    for (std::uint64_t i = 0; i < 64; ++i)
      sluice_ring_read(ring.get(), file, to, 0, i % 8 == 0 ? kSize : 4096, 0, i);
    sluice_ring_submit(ring.get());
  }
}

TEST_F(ClientRingTest, WaitAndSubmitFailAfterItsOwnServerHasEnded) {
  const auto buffer = make_buffer(kSize);
  const auto ring = make_ring(8);
  const int file = sluice_ring_add_file(ring.get(), file_.get());
  const int to = sluice_ring_add_buffer(ring.get(), buffer.get());
  const int event = sluice_ring_eventfd(ring.get());
  ASSERT_EQ(sluice_ring_read(ring.get(), file, to, 0, kSize, 0, 1), 0);  // starts its own server
  const test::NoThreads none;
  EXPECT_EQ(sluice_ring_submit(ring.get()), 1);
  pollfd poll_it{event, POLLIN, 0};
  EXPECT_EQ(::poll(&poll_it, 1, 10'000), 1);
  sluice_ring_completion done[1];
  const timespec limit{10, 0};
  EXPECT_EQ(sluice_ring_wait(ring.get(), done, 1, 1, &limit), -EAGAIN);
  EXPECT_EQ(sluice_ring_submit(ring.get()), -EAGAIN);
}

TEST_F(ClientRingTest, EventfdIsNotReturnedIfItsThreadCannotStart) {
  const auto buffer = make_buffer(10);
  const auto ring = make_ring(4);
  {
    const test::NoThreads none;
    EXPECT_EQ(sluice_ring_eventfd(ring.get()), -EAGAIN);
  }
  const int event = sluice_ring_eventfd(ring.get());
  ASSERT_GE(event, 0) << sluice_error();
  ASSERT_EQ(sluice_ring_read(ring.get(), sluice_ring_add_file(ring.get(), file_.get()),
                             sluice_ring_add_buffer(ring.get(), buffer.get()), 0, 10, 0, 1),
            0);
  EXPECT_EQ(sluice_ring_submit(ring.get()), 1);
  pollfd poll_it{event, POLLIN, 0};
  EXPECT_EQ(::poll(&poll_it, 1, 10'000), 1);
}

TEST_F(ClientRingTest, RequestForADroppedNumberDoesNotUseItsSuccessor) {
  const auto ring = make_ring(8);
  const auto buffer = make_buffer(1'000), other_buffer = make_buffer(1'000);
  const auto other = open_file(dir_.make_file("other", random_bytes(1'000)), O_RDONLY);
  const int file = sluice_ring_add_file(ring.get(), file_.get());
  const int to = sluice_ring_add_buffer(ring.get(), buffer.get());
  ASSERT_EQ(sluice_ring_read(ring.get(), file, to, 0, 1'000, 0, 1), 0);
  EXPECT_EQ(sluice_ring_drop_file(ring.get(), file), 0);
  ASSERT_EQ(sluice_ring_add_file(ring.get(), other.get()), file);
  ASSERT_EQ(sluice_ring_read(ring.get(), file, to, 0, 1'000, 0, 2), 0);
  EXPECT_EQ(sluice_ring_drop_buffer(ring.get(), to), 0);
  ASSERT_EQ(sluice_ring_add_buffer(ring.get(), other_buffer.get()), to);
  ASSERT_EQ(sluice_ring_read(ring.get(), file, to, 0, 1'000, 0, 3), 0);
  EXPECT_EQ(sluice_ring_submit(ring.get()), 3);
  auto done = wait_for(ring, 3);
  EXPECT_EQ(done[1].result, -EBADF);
  EXPECT_EQ(done[2].result, -ENOENT);
  EXPECT_EQ(done[3].result, 1'000);
}

// With the functions of 3FS. The number of a descriptor that the program has closed is soon reused
// for one of ours.
TEST(Hf3fsTest, RegisteredNumberKeepsReferringToItsFile) {
  const test::TempDir dir;
  const std::string contents[] = {random_bytes(1'000), random_bytes(1'000)};
  UniqueFd first(::open(dir.make_file("1", contents[0]).c_str(), O_RDONLY | O_CLOEXEC));
  const UniqueFd second(::open(dir.make_file("2", contents[1]).c_str(), O_RDONLY | O_CLOEXEC));
  struct hf3fs_ior ior {};
  struct hf3fs_iov iov {};
  ASSERT_EQ(hf3fs_iorcreate(&ior, "/", 8, true, 0, -1), 0);
  ASSERT_EQ(hf3fs_iovcreate(&iov, "/", 1'000, 0, -1), 0);
  const int number = first.get();
  const int first_name = hf3fs_reg_fd(number, 0);
  ASSERT_LT(first_name, 0);
  first.reset();
  const int second_name = hf3fs_reg_fd(second.get(), 0);
  ASSERT_LT(second_name, 0);

  const auto read = [&](int name) {
    hf3fs_cqe done{};
    EXPECT_GE(hf3fs_prep_io(&ior, &iov, true, iov.base, name, 0, 1'000, nullptr), 0) << name;
    EXPECT_EQ(hf3fs_submit_ios(&ior), 0);
    EXPECT_EQ(hf3fs_wait_for_ios(&ior, &done, 1, 1, nullptr), 1);
    EXPECT_EQ(done.result, 1'000);
    return std::string(reinterpret_cast<const char*>(iov.base), 1'000);
  };
  for (const int name : {number, first_name}) EXPECT_TRUE(read(name) == contents[0]) << name;
  for (const int name : {second.get(), second_name}) {
    EXPECT_TRUE(read(name) == contents[1]) << name;
  }
  hf3fs_dereg_fd(number);
  EXPECT_TRUE(read(second_name) == contents[1]);
  EXPECT_EQ(hf3fs_prep_io(&ior, &iov, true, iov.base, number, 0, 1, nullptr), -EBADF);
  EXPECT_EQ(hf3fs_prep_io(&ior, &iov, true, iov.base, first_name, 0, 1, nullptr), -EBADF);
  hf3fs_dereg_fd(second_name);
  EXPECT_EQ(hf3fs_prep_io(&ior, &iov, true, iov.base, second.get(), 0, 1, nullptr), -EBADF);
  hf3fs_iovdestroy(&iov);
  hf3fs_iordestroy(&ior);
}

}  // namespace
}  // namespace sluice
