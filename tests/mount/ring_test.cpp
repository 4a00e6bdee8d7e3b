// SPDX-License-Identifier: BSD-2-Clause
// Rings through a real mount, with buffers in host memory: permissions, the bytes, and what is left
// when a client ends.
#include <fcntl.h>
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
#include "tests/mount/ring_client.hpp"
#include "tests/support/child.hpp"
#include "tests/support/seed.hpp"
#include "tests/support/user.hpp"

namespace sluice::test {
namespace {

class RingTest : public GpuMountTest {
 protected:
  // RELEASE arrives some time after close().
  bool is_free_of_rings() {
    return eventually([&] {
      return gpu().at("rings") == 0 && gpu().at("buffers") == 0 && gpu().at("host_bytes") == 0;
    });
  }
};

// A ring with one file, which is its anchor, and one buffer.
struct Stage {
  explicit Stage(UniqueFd open, std::size_t size = kBig)
      : file(std::move(open)), memory(size), made(ring.create(file.get())) {
    if (made != 0) return;
    buffer = register_memory(file.get(), memory, size);
    token = ring.add(file.get());
  }
  std::optional<std::int64_t> read(std::uint64_t to, std::uint64_t from, std::uint64_t length) {
    return ring.result_of(ring_entry(SLUICE_RING_READ, token, buffer, to, from, length));
  }
  std::optional<std::int64_t> write(std::uint64_t to, std::uint64_t from, std::uint64_t length) {
    return ring.result_of(ring_entry(SLUICE_RING_WRITE, token, buffer, from, to, length));
  }

  UniqueFd file;
  SharedMemory memory;
  BareRing ring;
  int made;
  std::uint64_t buffer = 0, token = 0;
};

TEST_F(RingTest, ReadsReturnTheBytesUpToTheEndOfTheFile) {
  start();
  const std::string content = pattern(kBig, 2);
  Stage stage(open_file("big"));
  ASSERT_EQ(named(stage.made), "ok");
  EXPECT_EQ(gpu().at("rings"), 1);
  EXPECT_EQ(stage.read(7, 13, 4099), 4099);
  EXPECT_EQ(stage.memory.text(4099, 7), content.substr(13, 4099));
  EXPECT_EQ(stage.read(0, 0, kBig), std::int64_t{kBig});
  EXPECT_TRUE(stage.memory.text(kBig) == content);
  EXPECT_EQ(stage.read(0, kBig - 10, 50), 10);
  EXPECT_EQ(stage.read(0, kBig + 10, 50), 0);
  EXPECT_EQ(stage.read(1, 0, kBig), -ERANGE);
  EXPECT_EQ(stage.ring.result_of(ring_entry(SLUICE_RING_READ, 77, stage.buffer, 0, 0, 1)), -EBADF);
  EXPECT_EQ(stage.ring.result_of(ring_entry(SLUICE_RING_READ, stage.token, 77, 0, 0, 1)), -ENOENT);
}

TEST_F(RingTest, ManyConcurrentRingsReadCorrectBytes) {
  start();
  const std::string content = pattern(kBig, 2);
  std::vector<std::jthread> threads;
  std::atomic<int> wrong{0};
  for (unsigned thread = 0; thread < 6; ++thread) {
    threads.emplace_back([&, thread] {
      Stage stage(open_file("big"), 64 * 4096);
      const UniqueFd slow = open_file("slow");
      const std::uint64_t other = stage.ring.add(slow.get());
      const std::string others = pattern(kSmall, 3);
      std::mt19937_64 random(thread);
      for (int round = 0; round < 50; ++round) {
        std::vector<std::uint64_t> offsets(64);
        for (std::uint64_t i = 0; i < 64; ++i) {
          const bool is_other = i % 5 == 0;
          offsets[i] = random() % ((is_other ? kSmall : kBig) - 4096);
          stage.ring.put(ring_entry(SLUICE_RING_READ, is_other ? other : stage.token, stage.buffer,
                                    i * 4096, offsets[i], 4096, i));
        }
        std::set<std::uint64_t> seen;
        const bool all = eventually([&] {
          for (const auto& done : stage.ring.reap()) {
            if (done.result == 4096) seen.insert(done.user_data);
          }
          return seen.size() == 64;
        });
        if (!all) ++wrong;
        for (std::uint64_t i = 0; i < 64; ++i) {
          const std::string& from = i % 5 == 0 ? others : content;
          if (stage.memory.text(4096, i * 4096) != std::string_view(from).substr(offsets[i], 4096))
            ++wrong;
        }
      }
    });
  }
  threads.clear();
  EXPECT_EQ(wrong, 0);
  EXPECT_TRUE(is_free_of_rings());
}

using Results = std::pair<std::int64_t, std::int64_t>;  // of a write and of a read

TEST_F(RingTest, EntryHasTheAccessModeOfItsOpenFile) {
  start();
  const auto results = [&](int flags) {
    Stage stage(open_file("small", flags), 4096);
    std::memcpy(stage.memory.data(), "changed", 7);
    const auto wrote = stage.write(100, 0, 7), got = stage.read(10, 100, 7);
    return Results(*wrote, *got);
  };
  EXPECT_EQ(results(O_RDONLY), Results(-EBADF, 7));
  EXPECT_EQ(results(O_WRONLY), Results(7, -EBADF));
  EXPECT_EQ(results(O_RDWR), Results(7, 7));
  EXPECT_EQ(results(O_RDWR | O_APPEND), Results(-EINVAL, 7));
  std::string expected = pattern(kSmall, 1);
  expected.replace(100, 7, "changed");
  EXPECT_EQ(read_file(*this / "small"), expected);
}

TEST_F(RingTest, WriteRemovesSetuidBits) {
  start();
  ASSERT_EQ(::chmod((*this / "small").c_str(), 06777), 0);
  EXPECT_EQ(as_user(kAlice,
                    [&]() -> std::string {
                      Stage stage(open_file("small", O_RDWR), 4096);
                      if (stage.made != 0) return named(stage.made);
                      return std::to_string(stage.write(0, 0, 7).value_or(-1));
                    }),
            "7");
  struct stat status {};
  ASSERT_EQ(::stat((*this / "small").c_str(), &status), 0);
  EXPECT_EQ(status.st_mode & 07777, 0777u);
}

TEST_F(RingTest, TokenEndsWithItsOpenFile) {
  start();
  Stage stage(open_file("big"));
  std::uint64_t token = 0;
  {
    const UniqueFd other = open_file("slow");
    token = stage.ring.add(other.get());
    EXPECT_EQ(stage.ring.result_of(ring_entry(SLUICE_RING_READ, token, stage.buffer, 0, 0, 10)),
              10);
  }
  EXPECT_TRUE(eventually([&] {  // RELEASE arrives some time after close()
    return stage.ring.result_of(ring_entry(SLUICE_RING_READ, token, stage.buffer, 0, 0, 10)) ==
           -EBADF;
  }));
  const UniqueFd other = open_file("slow");
  sluice_ring_file drop{stage.ring.name(), stage.ring.add(other.get())};
  EXPECT_EQ(named(ioctl_code(other.get(), SLUICE_IOC_RING_DROP_FILE, &drop)), "ok");
  EXPECT_EQ(named(ioctl_code(other.get(), SLUICE_IOC_RING_DROP_FILE, &drop)), "ENOENT");
  EXPECT_EQ(stage.ring.result_of(ring_entry(SLUICE_RING_READ, drop.file, stage.buffer, 0, 0, 10)),
            -EBADF);
  EXPECT_EQ(stage.read(0, 0, 10), 10);
}

TEST_F(RingTest, RingEndsWithItsAnchor) {
  start();
  Stage stage(open_file("big"));
  const UniqueFd other = open_file("slow");
  stage.ring.add(other.get());
  EXPECT_EQ(stage.read(0, 0, 10), 10);
  stage.file.reset();
  EXPECT_TRUE(is_free_of_rings());
  EXPECT_EQ(std::atomic_ref(stage.ring.header().ended).load(), unsigned{ESHUTDOWN});
  sluice_ring_file request{stage.ring.name(), 0};
  EXPECT_EQ(named(ioctl_code(other.get(), SLUICE_IOC_RING_ADD_FILE, &request)), "ENOENT");
}

TEST_F(RingTest, DestroyEndsTheRing) {
  start();
  Stage stage(open_file("big"));
  sluice_ring_destroy request{stage.ring.name()};
  EXPECT_EQ(named(ioctl_code(stage.file.get(), SLUICE_IOC_RING_DESTROY, &request)), "ok");
  EXPECT_EQ(stage.ring.header().ended, unsigned{ESHUTDOWN});
  EXPECT_EQ(named(ioctl_code(stage.file.get(), SLUICE_IOC_RING_DESTROY, &request)), "ENOENT");
  EXPECT_EQ(gpu().at("rings"), 0);
}

TEST_F(RingTest, InvalidRingMemoryIsRefused) {
  start();
  const UniqueFd file = open_file("small");
  const auto code = [&](auto change) {
    BareRing ring;
    change(ring);
    return named(ring.create(file.get()));
  };
  EXPECT_EQ(code([](BareRing&) {}), "ok");
  EXPECT_EQ(code([](BareRing& ring) { ring.header().magic = 0; }), "EINVAL");
  EXPECT_EQ(code([](BareRing& ring) { ring.header().entries = 1 << 15; }), "EINVAL");
  const SharedMemory loose(65536, SharedMemory::Sealed::No);
  sluice_ring_create request{loose.fd(), 0, 65536, 0};
  EXPECT_EQ(named(ioctl_code(file.get(), SLUICE_IOC_RING_CREATE, &request)), "EPERM");
  request.fd = file.get();
  EXPECT_EQ(named(ioctl_code(file.get(), SLUICE_IOC_RING_CREATE, &request)), "EINVAL");
  BareRing longer;
  sluice_ring_create beyond{longer.memory().fd(), 0, longer.size() + 65536, 0};
  EXPECT_EQ(named(ioctl_code(file.get(), SLUICE_IOC_RING_CREATE, &beyond)), "EINVAL");
}

TEST_F(RingTest, RingTokenAndBufferAreInvisibleToOtherProcesses) {
  start();
  Stage stage(open_file("big"));
  // A child that has inherited every descriptor and the memory.
  const std::string said = in_child([&] {
    sluice_ring_file add{stage.ring.name(), 0};
    std::string codes = named(ioctl_code(stage.file.get(), SLUICE_IOC_RING_ADD_FILE, &add)) + " ";
    sluice_ring_file drop{stage.ring.name(), stage.token};
    codes += named(ioctl_code(stage.file.get(), SLUICE_IOC_RING_DROP_FILE, &drop)) + " ";
    sluice_ring_destroy destroy{stage.ring.name()};
    codes += named(ioctl_code(stage.file.get(), SLUICE_IOC_RING_DESTROY, &destroy)) + " ";
    // A ring of the child on the same open file does not find the parent's buffer.
    BareRing own;
    if (own.create(stage.file.get()) != 0) return codes + "no ring";
    const std::uint64_t token = own.add(stage.file.get());
    const auto got = own.result_of(ring_entry(SLUICE_RING_READ, token, stage.buffer, 0, 0, 10));
    return codes + std::to_string(got.value_or(1));
  });
  EXPECT_EQ(said, "ENOENT ENOENT ENOENT " + std::to_string(-ENOENT));
  EXPECT_EQ(stage.read(0, 0, 10), 10);
  // Tokens belong to one ring.
  BareRing second;
  ASSERT_EQ(second.create(stage.file.get()), 0);
  EXPECT_EQ(second.result_of(ring_entry(SLUICE_RING_READ, stage.token, stage.buffer, 0, 0, 10)),
            -EBADF);
}

TEST_F(RingTest, TwoProcessesShareOneBuffer) {
  start();
  const std::string content = pattern(kBig, 2);
  SharedMemory shared(8192);
  {
    const Child other([&] {
      const UniqueFd file = open_file("big");
      BareRing ring;
      if (ring.create(file.get()) != 0) ::_exit(1);
      const std::uint64_t buffer = register_memory(file.get(), shared, 8192);
      const auto entry =
          ring_entry(SLUICE_RING_READ, ring.add(file.get()), buffer, 4096, 999, 4096);
      ::_exit(ring.result_of(entry) == 4096 ? 0 : 1);
    });
    const UniqueFd file = open_file("big");
    BareRing ring;
    ASSERT_EQ(ring.create(file.get()), 0);
    const std::uint64_t buffer = register_memory(file.get(), shared, 8192);
    EXPECT_EQ(
        ring.result_of(ring_entry(SLUICE_RING_READ, ring.add(file.get()), buffer, 0, 555, 4096)),
        4096);
    EXPECT_TRUE(eventually([&] { return shared.text(4096, 4096) == content.substr(999, 4096); }));
  }
  EXPECT_EQ(shared.text(4096), content.substr(555, 4096));
}

TEST_F(RingTest, ClientKilledDuringRequestsLeavesNothing) {
  start();
  for (int round = 0; round < 5; ++round) {
    int ready[2];
    ASSERT_EQ(::pipe(ready), 0);
    const pid_t child = ::fork();
    if (child == 0) {
      Stage stage(open_file("big", O_RDWR));
      for (std::uint64_t i = 0;; ++i) {
        // Small and large reads and writes, as fast as slots become free.
        const bool large = i % 16 == 0;
        const std::uint64_t length = large ? 3'000'000 : 4096;
        stage.ring.put(ring_entry(i % 7 == 0 ? SLUICE_RING_WRITE : SLUICE_RING_READ, stage.token,
                                  stage.buffer, i % 7 == 0 ? 0 : i % 1000, 0, length, i));
        while (i + 1 - std::atomic_ref(stage.ring.header().taken).load() >= 64) stage.ring.reap();
        if (i == 200) ::write(ready[1], "x", 1);
      }
    }
    char byte;
    ASSERT_EQ(::read(ready[0], &byte, 1), 1);
    ::kill(child, SIGKILL);
    ::waitpid(child, nullptr, 0);
    EXPECT_TRUE(is_free_of_rings());
    ::close(ready[0]);
    ::close(ready[1]);
  }
  EXPECT_EQ(read_file(*this / "small"), pattern(kSmall, 1));
}

TEST_F(RingTest, OverwritingTheMemoryHarmsOnlyItsOwnRing) {
  start();
  Stage good(open_file("big"));
  std::mt19937_64 random(test_seed());
  for (int round = 0; round < 20; ++round) {
    Stage bad(open_file("small", O_RDWR), 4096);
    ASSERT_EQ(bad.made, 0);
    for (int i = 0; i < 3000; ++i) {
      const bool in_header = random() % 2 == 0;
      const std::size_t where = random() % (in_header ? 144 : bad.ring.size() / 4);
      auto& word = reinterpret_cast<std::uint32_t*>(bad.ring.memory().data())[where];
      std::atomic_ref(word).store(static_cast<std::uint32_t>(random() >> (random() % 64)));
    }
    ASSERT_EQ(good.read(0, 0, 10), 10) << round;
  }
  EXPECT_TRUE(eventually([&] { return gpu().at("rings") == 1; }));
}

TEST_F(RingTest, MountEndsWhileRingsAreOpen) {
  start();
  Stage stage(open_file("big"));
  EXPECT_EQ(stage.read(0, 0, 10), 10);
  mount().kill_daemon(SIGTERM);
  EXPECT_EQ(std::atomic_ref(stage.ring.header().ended).load(), unsigned{ESHUTDOWN});
  stage.file.reset();
}

TEST_F(RingTest, ReadsContinueWhenTheFileMoves) {
  start();
  Stage stage(open_file("slow"), 10'000);
  const std::string content = pattern(kSmall, 3);
  EXPECT_EQ(stage.read(0, 0, kSmall), std::int64_t{kSmall});
  std::atomic<bool> stop{false};
  std::jthread mover([&] {
    for (int i = 0; i < 4; ++i)
      tell({"move", "--to", i % 2 == 0 ? "nvme" : "hdd", "--wait", *this / "slow"});
    stop = true;
  });
  while (!stop) {
    ASSERT_EQ(stage.read(0, 0, kSmall), std::int64_t{kSmall});
    ASSERT_EQ(stage.memory.text(kSmall), content);
  }
}

TEST_F(RingTest, RingsOfOneUserAreLimited) {
  start();
  const std::string said = as_user(kAlice, [&]() -> std::string {
    std::vector<std::unique_ptr<BareRing>> rings;
    const UniqueFd file = open_file("small");
    for (int i = 0; i < 300; ++i) {
      rings.push_back(std::make_unique<BareRing>(1));
      if (const int code = rings.back()->create(file.get()); code != 0)
        return std::to_string(i) + " " + named(code);
    }
    return "no end";
  });
  EXPECT_EQ(said, "256 ENOSPC");
  EXPECT_TRUE(is_free_of_rings());
}

}  // namespace
}  // namespace sluice::test
