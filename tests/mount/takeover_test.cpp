// SPDX-License-Identifier: BSD-2-Clause
// Clients that call the ioctls directly while the daemon is killed and another one takes over: what
// they are told, and that no read reports bytes that did not arrive.
#include <fcntl.h>
#include <sys/ioctl.h>

#include <atomic>
#include <cstring>
#include <thread>

#include "tests/mount/gpu_mount.hpp"
#include "tests/mount/ring_client.hpp"
#include "tests/support/seed.hpp"

namespace sluice::test {
namespace {

class TakeoverTest : public GpuMountTest {
 protected:
  void start() { GpuMountTest::start({"--debug", "crash_limit=0"}); }

  static int kills() { return rounds(10, 200); }
};

TEST_F(TakeoverTest, NumbersOfADeadDaemonAreStale) {
  start();
  const UniqueFd file = open_file("small");
  SharedMemory memory(kSmall);
  const std::uint64_t old = register_memory(file.get(), memory, kSmall);
  auto read = transfer(old, 0, 0, kSmall);
  ASSERT_EQ(named(ioctl_code(file.get(), SLUICE_IOC_READ, &read)), "ok");
  std::memset(memory.data(), 0, kSmall);

  mount().crash_daemon();

  EXPECT_EQ(named(ioctl_code(file.get(), SLUICE_IOC_READ, &read)), "ESTALE");
  EXPECT_EQ(named(ioctl_code(file.get(), SLUICE_IOC_READ, &read)), "ESTALE") << "only once";
  sluice_buffer_unregister end{old};
  EXPECT_EQ(named(ioctl_code(file.get(), SLUICE_IOC_BUFFER_UNREGISTER, &end)), "ESTALE");
  sluice_query query{};
  ASSERT_EQ(named(ioctl_code(file.get(), SLUICE_IOC_QUERY, &query)), "ok");
  EXPECT_EQ(query.epoch, 1u);

  const std::uint64_t now = register_memory(file.get(), memory, kSmall);
  EXPECT_EQ(now >> SLUICE_EPOCH_SHIFT, 1u);
  auto unknown = transfer(now + 1, 0, 0, kSmall);
  EXPECT_EQ(named(ioctl_code(file.get(), SLUICE_IOC_READ, &unknown)), "ENOENT");
  read.buffer = now;
  EXPECT_EQ(named(ioctl_code(file.get(), SLUICE_IOC_READ, &read)), "ok");
  EXPECT_EQ(memory.text(kSmall), pattern(kSmall, 1));
}

// A request that was in progress comes to the new daemon as a whole, which does not know the
// buffer.
TEST_F(TakeoverTest, EachTakeoverIsToldOnceAndNoReadIsCutShort) {
  start();
  const std::string content = pattern(kBig, 2);
  const UniqueFd file = open_file("big");
  SharedMemory memory(kBig);
  std::atomic<int> epoch{-1};  // of the buffer
  int stale = 0, wrong = 0, failed = 0;
  std::jthread reader([&](const std::stop_token& stop) {
    std::uint64_t buffer = 0;
    const auto add = [&] {
      buffer = register_memory(file.get(), memory, kBig);
      epoch = static_cast<int>(buffer >> SLUICE_EPOCH_SHIFT);
    };
    add();
    while (!stop.stop_requested()) {
      std::memset(memory.data(), 0, kBig);
      auto read = transfer(buffer, 0, 0, kBig);
      const int code = ioctl_code(file.get(), SLUICE_IOC_READ, &read);
      if (code == 0) {
        if (read.done == 0 || memory.text(read.done) != content.substr(0, read.done)) ++wrong;
        continue;
      }
      if (code == ESTALE) ++stale;
      if (code != ESTALE) ++failed;
      add();
    }
  });
  for (int kill = 0; kill < kills(); ++kill) {
    ASSERT_TRUE(eventually([&] { return epoch == kill; })) << kill;
    mount().crash_daemon();
  }
  EXPECT_TRUE(eventually([&] { return epoch == kills(); }));
  reader.request_stop();
  reader.join();
  EXPECT_EQ(stale, kills());
  EXPECT_EQ(wrong, 0);
  EXPECT_EQ(failed, 0);
}

TEST_F(TakeoverTest, RingOfADeadDaemonIsStaleAndItsMemoryCanBeUsedAgain) {
  start();
  const std::string content = pattern(kBig, 2);
  const UniqueFd file = open_file("big");
  SharedMemory memory(kBig);
  BareRing ring;
  ASSERT_EQ(named(ring.create(file.get())), "ok");
  std::uint64_t buffer = register_memory(file.get(), memory, kBig);
  std::uint64_t token = ring.add(file.get());
  EXPECT_EQ(ring.result_of(ring_entry(SLUICE_RING_READ, token, buffer, 0, 7, 100)), 100);
  const auto ask = [&] {
    sluice_ring_file nothing{ring.name(), 0};
    return named(ioctl_code(file.get(), SLUICE_IOC_RING_DROP_FILE, &nothing));
  };
  EXPECT_EQ(ask(), "ENOENT");
  const std::uint64_t old_buffer = buffer, old_token = token;

  mount().crash_daemon();

  ring.put(ring_entry(SLUICE_RING_READ, token, buffer, 0, 9, 100));
  EXPECT_EQ(ask(), "ESTALE");
  EXPECT_TRUE(ring.reap().empty());
  ASSERT_EQ(named(ring.create(file.get())), "ok");
  buffer = register_memory(file.get(), memory, kBig);
  token = ring.add(file.get());
  const auto result = [&](std::uint64_t of_file, std::uint64_t to) {
    return ring.result_of(ring_entry(SLUICE_RING_READ, of_file, to, 0, 9, 100));
  };
  EXPECT_EQ(result(old_token, buffer), -ESTALE);
  EXPECT_EQ(result(token, old_buffer), -ESTALE);
  EXPECT_EQ(result(token + 1, buffer), -EBADF);
  EXPECT_EQ(result(token, buffer + 1), -ENOENT);
  EXPECT_EQ(result(token, buffer), 100) << "or the entry of before was taken";
  EXPECT_EQ(memory.text(100), content.substr(9, 100));
}

}  // namespace
}  // namespace sluice::test
