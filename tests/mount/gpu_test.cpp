// SPDX-License-Identifier: BSD-2-Clause
// The ioctls through a real mount, with buffers in host memory: the bytes, the effects of a
// transfer on other users of the file, and what is reported.
#include <fcntl.h>
#include <linux/fs.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/xattr.h>
#include <unistd.h>

#include <atomic>
#include <cstring>
#include <set>
#include <thread>

#include "tests/mount/gpu_mount.hpp"
#include "tests/support/seed.hpp"
#include "tests/support/user.hpp"

namespace sluice::test {
namespace {

class GpuTest : public GpuMountTest {};

TEST_F(GpuTest, QueryReturnsTheFileAndItsRoute) {
  start();
  const UniqueFd file = open_file("big");
  sluice_query query{};
  query.kind = SLUICE_BUFFER_MEMFD;
  ASSERT_EQ(named(ioctl_code(file.get(), SLUICE_IOC_QUERY, &query)), "ok");
  EXPECT_EQ(query.abi_version, SLUICE_ABI_VERSION);
  EXPECT_EQ(query.file_size, kBig);
  EXPECT_EQ(query.route, SLUICE_ROUTE_HOST);
  EXPECT_EQ(query.why, SLUICE_WHY_HOST_MEMORY);
  EXPECT_EQ(query.max_segments, SLUICE_MAX_SEGMENTS);
  EXPECT_GE(query.alignment, 1u);
  EXPECT_STREQ(query.tier, "nvme");
  EXPECT_STRNE(query.reason, "");
  EXPECT_EQ(gpu().at("cuda"), Json()) << "CUDA was loaded for host memory";
}

TEST_F(GpuTest, ReadReturnsTheBytesUpToTheEndOfTheFile) {
  start();
  for (const auto& [name, size, seed] : {std::tuple("small", kSmall, 1), {"big", kBig, 2}}) {
    const std::string content = pattern(size, static_cast<std::uint64_t>(seed));
    const UniqueFd file = open_file(name);
    SharedMemory memory(size + 100);
    const std::uint64_t buffer = register_memory(file.get(), memory, size + 100);
    EXPECT_NE(buffer, 0u);
    auto whole = transfer(buffer, 100, 0, size);
    ASSERT_EQ(named(ioctl_code(file.get(), SLUICE_IOC_READ, &whole)), "ok");
    EXPECT_EQ(whole.done, size);
    EXPECT_EQ(whole.route, SLUICE_ROUTE_HOST);
    EXPECT_EQ(whole.why, SLUICE_WHY_HOST_MEMORY);
    EXPECT_EQ(memory.text(size, 100), content);

    auto odd = transfer(buffer, 7, 13, 4099);
    ASSERT_EQ(named(ioctl_code(file.get(), SLUICE_IOC_READ, &odd)), "ok");
    EXPECT_EQ(odd.done, 4099u);
    EXPECT_EQ(memory.text(4099, 7), content.substr(13, 4099));

    auto tail = transfer(buffer, 0, size - 10, 50);
    ASSERT_EQ(named(ioctl_code(file.get(), SLUICE_IOC_READ, &tail)), "ok");
    EXPECT_EQ(tail.done, 10u);
    auto beyond = transfer(buffer, 0, size + 10, 50);
    ASSERT_EQ(named(ioctl_code(file.get(), SLUICE_IOC_READ, &beyond)), "ok");
    EXPECT_EQ(beyond.done, 0u);
    auto nothing = transfer(buffer, 0, 0, 0);
    EXPECT_EQ(named(ioctl_code(file.get(), SLUICE_IOC_READ, &nothing)), "ok");
    auto too_long = transfer(buffer, 101, 0, size);
    EXPECT_EQ(named(ioctl_code(file.get(), SLUICE_IOC_READ, &too_long)), "ERANGE");
  }
  EXPECT_TRUE(is_free_of_buffers());
}

TEST_F(GpuTest, ReadvAcceptsManySegmentsAndAShortStructure) {
  start();
  const std::string content = pattern(kBig, 2);
  const UniqueFd file = open_file("big");
  SharedMemory memory(SLUICE_MAX_SEGMENTS * 1000);
  auto request = std::make_unique<sluice_readv>();
  std::memset(request.get(), 0, sizeof *request);
  request->buffer = register_memory(file.get(), memory, SLUICE_MAX_SEGMENTS * 1000);
  request->count = SLUICE_MAX_SEGMENTS;
  for (std::size_t i = 0; i < SLUICE_MAX_SEGMENTS; ++i) {
    // The last segment reaches the end of the file.
    request->segments[i] = {i * 1000, i == 511 ? kBig - 1 : i * 7919, 900};
  }
  ASSERT_EQ(named(ioctl_code(file.get(), SLUICE_IOC_READV, request.get())), "ok");
  EXPECT_EQ(request->done, 511u * 900 + 1);
  EXPECT_EQ(request->route, SLUICE_ROUTE_HOST);
  for (std::size_t i = 0; i < 511; ++i)
    ASSERT_EQ(memory.text(900, i * 1000), content.substr(i * 7919, 900)) << i;
  EXPECT_EQ(memory.data()[511'000], content.back());

  struct Short {
    __u64 buffer;
    __u32 count, route, why, reserved;
    __u64 done;
    sluice_segment segments[2];
  } few{request->buffer, 2, 0, 0, 0, 0, {{0, 5, 10}, {10, 100, 10}}};
  const unsigned long command = _IOWR(SLUICE_IOC_TYPE, 6, Short);
  ASSERT_EQ(named(ioctl_code(file.get(), command, &few)), "ok");
  EXPECT_EQ(few.done, 20u);
  EXPECT_EQ(memory.text(20), content.substr(5, 10) + content.substr(100, 10));
  few.count = 3;
  EXPECT_EQ(named(ioctl_code(file.get(), command, &few)), "EINVAL")
      << "more segments than were sent";
  request->count = SLUICE_MAX_SEGMENTS + 1;
  EXPECT_EQ(named(ioctl_code(file.get(), SLUICE_IOC_READV, request.get())), "EINVAL");
  request->count = 0;
  EXPECT_EQ(named(ioctl_code(file.get(), SLUICE_IOC_READV, request.get())), "ok");
}

TEST_F(GpuTest, LongReadIsDoneAtOnceWhileOthersWait) {
  constexpr std::size_t kLong = 300 << 20;
  start();
  const UniqueFd file = open_file("long", O_RDWR | O_CREAT);
  ASSERT_EQ(::ftruncate(file.get(), kLong), 0);
  SharedMemory memory(kLong);
  const std::uint64_t buffer = register_memory(file.get(), memory, kLong);
  std::vector<std::jthread> others;
  for (int i = 0; i < 8; ++i) {
    others.emplace_back([&](const std::stop_token& stop) {
      struct stat found {};
      for (unsigned n = 0; !stop.stop_requested(); ++n)
        ::stat((*this / ("none" + std::to_string(n))).c_str(), &found);
    });
  }
  auto whole = transfer(buffer, 0, 0, kLong);
  EXPECT_EQ(named(ioctl_code(file.get(), SLUICE_IOC_READ, &whole)), "ok");
  EXPECT_EQ(whole.done, kLong);
}

TEST_F(GpuTest, ReadAndWriteNeedTheRightOpenMode) {
  start();
  SharedMemory memory(4096);
  const auto code = [&](const char* name, int flags, unsigned long command) {
    const UniqueFd file = open_file(name, flags);
    auto request = transfer(register_memory(file.get(), memory, 4096), 0, 0, 10);
    return named(ioctl_code(file.get(), command, &request));
  };
  for (const char* name : {"small", "big"}) {
    EXPECT_EQ(code(name, O_RDONLY, SLUICE_IOC_WRITE), "EBADF");
    EXPECT_EQ(code(name, O_WRONLY, SLUICE_IOC_READ), "EBADF");
    EXPECT_EQ(code(name, O_RDWR, SLUICE_IOC_READ), "ok");
    EXPECT_EQ(code(name, O_WRONLY, SLUICE_IOC_WRITE), "ok");
    EXPECT_EQ(code(name, O_RDWR | O_APPEND, SLUICE_IOC_WRITE), "EINVAL");
  }
  const UniqueFd made(::open(root().c_str(), O_TMPFILE | O_RDWR | O_CLOEXEC, 0600));
  auto request = transfer(register_memory(made.get(), memory, 4096), 0, 0, 10);
  EXPECT_EQ(named(ioctl_code(made.get(), SLUICE_IOC_WRITE, &request)), "ok");
  const UniqueFd directory(::open(root().c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  sluice_query query{};
  EXPECT_EQ(named(ioctl_code(directory.get(), SLUICE_IOC_QUERY, &query)), "ENOTTY");
  int flags = 0;
  EXPECT_EQ(named(ioctl_code(made.get(), FS_IOC_GETFLAGS, &flags)), "ok") << "not ours";
}

TEST_F(GpuTest, WriteIsVisibleToAllReadersAtOnce) {
  start();
  for (const char* name : {"small", "big"}) {
    std::string content = read_file(*this / name);
    // The reader opens and caches the file before the writer opens it, because that decides how it
    // is served.
    const UniqueFd reader = open_file(name);
    std::string seen(content.size() + 5000, '\0');
    ASSERT_EQ(::pread(reader.get(), seen.data(), seen.size(), 0),
              static_cast<ssize_t>(content.size()));
    const UniqueFd writer = open_file(name, O_RDWR);
    SharedMemory memory(9000);
    const std::uint64_t buffer = register_memory(writer.get(), memory, 9000);
    for (std::uint64_t round = 1; round <= 20; ++round) {
      const std::string data = pattern(9000, 100 + round);
      std::memcpy(memory.data(), data.data(), data.size());
      // Some writes are in the middle, others make the file longer.
      const std::uint64_t at = round % 2 == 0 ? 500 + round : content.size() - 4000;
      auto request = transfer(buffer, 0, at, 9000);
      ASSERT_EQ(named(ioctl_code(writer.get(), SLUICE_IOC_WRITE, &request)), "ok");
      EXPECT_EQ(request.done, 9000u);
      content.resize(std::max<std::size_t>(content.size(), at + 9000));
      content.replace(at, 9000, data);
      seen.assign(content.size() + 5000, '\0');
      ASSERT_EQ(::pread(reader.get(), seen.data(), seen.size(), 0),
                static_cast<ssize_t>(content.size()))
          << name << " round " << round;
      seen.resize(content.size());
      ASSERT_TRUE(seen == content) << name << " round " << round;
      EXPECT_EQ(static_cast<std::size_t>(lstat_of(*this / name).st_size), content.size());
    }
    EXPECT_TRUE(read_file(on("nvme", name)) == content);
  }
}

// The kernel does not know yet that the file is longer, so it would append at the wrong offset.
TEST_F(GpuTest, AppendAfterAWriteGoesBehindIt) {
  start({"--debug=passthrough=off"});
  std::string content = read_file(*this / "small");
  const UniqueFd appender = open_file("small", O_WRONLY | O_APPEND);
  const UniqueFd writer = open_file("small", O_RDWR);
  SharedMemory memory(9000);
  const std::uint64_t buffer = register_memory(writer.get(), memory, 9000);
  for (std::uint64_t round = 1; round <= 10; ++round) {
    const std::string data = pattern(9000, round), more = pattern(333, round);
    std::memcpy(memory.data(), data.data(), data.size());
    auto request = transfer(buffer, 0, content.size(), 9000);
    ASSERT_EQ(named(ioctl_code(writer.get(), SLUICE_IOC_WRITE, &request)), "ok");
    ASSERT_EQ(::write(appender.get(), more.data(), more.size()), 333);
    content += data + more;
    ASSERT_TRUE(read_file(*this / "small") == content) << "round " << round;
  }
}

TEST_F(GpuTest, MappingSeesAWriteWithinSeconds) {
  start();
  const UniqueFd reader = open_file("small");
  const auto* mapped =
      static_cast<const char*>(::mmap(nullptr, 4096, PROT_READ, MAP_SHARED, reader.get(), 0));
  ASSERT_NE(mapped, MAP_FAILED);
  ASSERT_EQ(std::string_view(mapped, 100), pattern(kSmall, 1).substr(0, 100));
  const UniqueFd writer = open_file("small", O_WRONLY);
  SharedMemory memory(100);
  std::memset(memory.data(), 'x', 100);
  auto request = transfer(register_memory(writer.get(), memory, 100), 0, 0, 100);
  ASSERT_EQ(named(ioctl_code(writer.get(), SLUICE_IOC_WRITE, &request)), "ok");
  EXPECT_TRUE(eventually([&] { return std::string_view(mapped, 100) == std::string(100, 'x'); }));
  ::munmap(const_cast<char*>(mapped), 4096);
}

TEST_F(GpuTest, ReadSeesWritesAndTruncationsOfTheMount) {
  start();
  const UniqueFd file = open_file("new", O_RDWR | O_CREAT);
  SharedMemory memory(100'000);
  const std::uint64_t buffer = register_memory(file.get(), memory, 100'000);
  for (std::size_t size = 1; size < 80'000; size += 7777) {
    const std::string data = pattern(size, size);
    ASSERT_EQ(::pwrite(file.get(), data.data(), size, 0), static_cast<ssize_t>(size));
    auto request = transfer(buffer, 0, 0, 100'000);
    ASSERT_EQ(named(ioctl_code(file.get(), SLUICE_IOC_READ, &request)), "ok");
    ASSERT_EQ(request.done, size);
    ASSERT_EQ(memory.text(size), data);
    ASSERT_EQ(::ftruncate(file.get(), static_cast<off_t>(size / 2)), 0);
    request = transfer(buffer, 0, 0, 100'000);
    ASSERT_EQ(named(ioctl_code(file.get(), SLUICE_IOC_READ, &request)), "ok");
    ASSERT_EQ(request.done, size / 2);
  }
}

TEST_F(GpuTest, ReadsStayCorrectWhileTheFileMoves) {
  start();
  const std::string content = pattern(kSmall, 1);
  std::atomic<bool> stop{false};
  std::atomic<int> reads{0}, wrong{0};
  std::vector<std::thread> readers;
  for (int i = 0; i < 2; ++i) {
    readers.emplace_back([&] {
      SharedMemory memory(kSmall);
      while (!stop) {
        const UniqueFd file = open_file("small");
        const std::uint64_t buffer = register_memory(file.get(), memory, kSmall);
        for (int k = 0; k < 50; ++k) {
          std::memset(memory.data(), 0, kSmall);
          auto request = transfer(buffer, 0, 0, kSmall);
          const int code = ioctl_code(file.get(), SLUICE_IOC_READ, &request);
          if (code != 0 || request.done != kSmall || memory.text(kSmall) != content) ++wrong;
          ++reads;
        }
      }
    });
  }
  std::set<std::string> places;
  for (int round = 0; round < 12; ++round) {
    const std::string to = round % 3 == 0 ? "hdd" : round % 3 == 1 ? "ssd" : "nvme";
    EXPECT_EQ(::setxattr((*this / "small").c_str(), "user.sluice.tier", to.data(), to.size(), 0),
              0);
    if (eventually([&] { return tier_of("small") == to; }, std::chrono::milliseconds(3000)))
      places.insert(to);
  }
  stop = true;
  for (auto& each : readers) each.join();
  EXPECT_EQ(wrong, 0);
  EXPECT_GT(reads, 0);
  EXPECT_GE(places.size(), 2u) << "reads must not prevent moves forever";
}

TEST_F(GpuTest, WriteContinuesOnTheNextTierWhenOneIsFull) {
  set_options("nvme", "reserve=90MiB");  // so that the daemon sees the writes
  start();
  const UniqueFd file = open_file("growing", O_RDWR | O_CREAT);
  constexpr std::size_t kPiece = 8 * kMiB;
  SharedMemory memory(kPiece);
  const std::uint64_t buffer = register_memory(file.get(), memory, kPiece);
  for (std::uint64_t i = 0; i < 14; ++i) {
    const std::string data = pattern(kPiece, i);
    std::memcpy(memory.data(), data.data(), kPiece);
    auto request = transfer(buffer, 0, i * kPiece, kPiece);
    ASSERT_EQ(named(ioctl_code(file.get(), SLUICE_IOC_WRITE, &request)), "ok") << i;
  }
  EXPECT_EQ(tier_of("growing"), "ssd");
  for (std::uint64_t i = 0; i < 14; ++i) {
    auto request = transfer(buffer, 0, i * kPiece, kPiece);
    ASSERT_EQ(named(ioctl_code(file.get(), SLUICE_IOC_READ, &request)), "ok") << i;
    ASSERT_TRUE(memory.text(kPiece) == pattern(kPiece, i)) << i;
  }
  auto too_far = transfer(buffer, 0, 1ull << 62, kPiece);
  EXPECT_EQ(named(ioctl_code(file.get(), SLUICE_IOC_WRITE, &too_far)), "EFBIG");
}

TEST_F(GpuTest, WriteByAUserRemovesSetuid) {
  put("nvme", "program", "x");
  ::chmod(on("nvme", "program").c_str(), 04777);
  start();
  const std::string outcome = as_user(kAlice, [&] {
    const UniqueFd file = open_file("program", O_RDWR);
    SharedMemory memory(10);
    auto request = transfer(register_memory(file.get(), memory, 10), 0, 0, 10);
    return named(ioctl_code(file.get(), SLUICE_IOC_WRITE, &request));
  });
  EXPECT_EQ(outcome, "ok");
  EXPECT_EQ(lstat_of(*this / "program").st_mode & 07777, 0777u);
}

TEST_F(GpuTest, ReadingTheWholeFileCountsAsOneAccess) {
  start();
  const UniqueFd file = open_file("big");
  SharedMemory memory(kBig);
  const std::uint64_t buffer = register_memory(file.get(), memory, kBig);
  const double before = heat("big");
  for (std::uint64_t i = 0; i < 100; ++i) {
    auto request = transfer(buffer, 0, i * 4096, 4096);
    ASSERT_EQ(named(ioctl_code(file.get(), SLUICE_IOC_READ, &request)), "ok");
  }
  EXPECT_NEAR(heat("big"), before, 0.1);
  for (int i = 0; i < 5; ++i) {
    auto request = transfer(buffer, 0, 0, kBig);
    ASSERT_EQ(named(ioctl_code(file.get(), SLUICE_IOC_READ, &request)), "ok");
  }
  EXPECT_NEAR(heat("big"), before + 5, 0.1);
}

TEST_F(GpuTest, PrefetchWarmsOrPromotes) {
  start();
  const auto code = [](const UniqueFd& file, sluice_prefetch request) {
    return named(ioctl_code(file.get(), SLUICE_IOC_PREFETCH, &request));
  };
  const UniqueFd file = open_file("big");
  EXPECT_EQ(code(file, {0, 0, 0, 0}), "ok");
  EXPECT_EQ(code(file, {4096, 100, SLUICE_PREFETCH_WARM, 0}), "ok");
  EXPECT_EQ(code(file, {1ull << 63, 0, 0, 0}), "EINVAL");
  EXPECT_EQ(code(file, {0, 0, 8, 0}), "EINVAL");
  EXPECT_EQ(code(file, {0, 0, 0, 1}), "EINVAL");
  EXPECT_EQ(code(open_file("slow", O_WRONLY), {0, 0, SLUICE_PREFETCH_WARM, 0}), "EBADF");
  const std::string refused = as_user(kAlice, [&] {
    return code(open_file("slow"), {0, 0, SLUICE_PREFETCH_PROMOTE, 0});
  });
  EXPECT_EQ(refused, "EPERM");
  EXPECT_EQ(tier_of("slow"), "hdd");
  EXPECT_EQ(code(open_file("slow"), {0, 0, SLUICE_PREFETCH_PROMOTE, 0}), "ok");
  EXPECT_TRUE(eventually([&] { return tier_of("slow") == "nvme"; }));
  EXPECT_EQ(read_file(*this / "slow"), pattern(kSmall, 3));
}

TEST_F(GpuTest, AttributesShowTheRouteAndStartAPrefetch) {
  start();
  const auto set = [&](const char* name, const std::string& value) {
    const int code =
        ::setxattr((*this / name).c_str(), "user.sluice.prefetch", value.data(), value.size(), 0);
    return named(code == 0 ? 0 : errno);
  };
  for (const char* good : {"", "warm", "0-1MiB", "4096-8192"}) EXPECT_EQ(set("big", good), "ok");
  for (const char* bad : {"hot", "1", "5-5", "9-1", "-", "a-b", "0-", "-5"})
    EXPECT_EQ(set("big", bad), "EINVAL") << bad;
  EXPECT_EQ(set("", "warm"), "EISDIR");
  EXPECT_EQ(set("slow", "promote"), "ok");
  EXPECT_TRUE(eventually([&] { return tier_of("slow") == "nvme"; }));
  EXPECT_FALSE(xattr_of(*this / "slow", "user.sluice.prefetch"));
  const auto route = xattr_of(*this / "big", "user.sluice.gpu");
  ASSERT_TRUE(route);
  EXPECT_NE(route->find(": "), std::string::npos) << *route;
  EXPECT_FALSE(xattr_of(*this / "", "user.sluice.gpu"));
}

TEST_F(GpuTest, StatisticsCountAndOnlyTheOwnerResetsThem) {
  start();
  const UniqueFd file = open_file("big");
  SharedMemory memory(kBig);
  const std::uint64_t buffer = register_memory(file.get(), memory, kBig);
  for (int i = 0; i < 3; ++i) {
    auto request = transfer(buffer, 0, 0, kBig);
    ASSERT_EQ(named(ioctl_code(file.get(), SLUICE_IOC_READ, &request)), "ok");
  }
  auto request = transfer(buffer, 1, 0, kBig);
  ASSERT_EQ(named(ioctl_code(file.get(), SLUICE_IOC_READ, &request)), "ERANGE");
  const auto ask = [&](std::uint32_t flags) {
    sluice_stats stats{};
    stats.flags = flags;
    EXPECT_EQ(named(ioctl_code(file.get(), SLUICE_IOC_STATS, &stats)), "ok");
    return stats;
  };
  const sluice_stats stats = ask(0);
  EXPECT_EQ(stats.buffers, 1u);
  EXPECT_EQ(stats.buffer_bytes, kBig);
  for (const int route : {0, static_cast<int>(SLUICE_ROUTE_HOST)}) {
    EXPECT_EQ(stats.routes[route].operations, 3u);
    EXPECT_EQ(stats.routes[route].bytes, 3 * kBig);
    EXPECT_GT(stats.routes[route].latency_p50_ns, 0u);
    EXPECT_GE(stats.routes[route].latency_p99_ns, stats.routes[route].latency_p50_ns);
    EXPECT_GT(stats.routes[route].peak_bytes_per_second, 0u);
  }
  EXPECT_EQ(stats.routes[0].failures, 0u) << "refused requests do not count as failures";
  const Json shown = gpu();
  EXPECT_EQ(shown.at("buffers"), 1);
  EXPECT_EQ(shown.at("routes").at("host").at("operations"), 3);
  EXPECT_GT(shown.at("routes").at("host").at("bytes_per_s"), 0);
  EXPECT_FALSE(shown.at("routes").contains("gds"));
  const auto text = tell({"status"});
  EXPECT_NE(text.out.find("host "), std::string::npos) << text.out;
  EXPECT_NE(text.out.find("1 registered"), std::string::npos) << text.out;

  const std::string refused = as_user(kAlice, [&] {
    sluice_stats reset{};
    reset.flags = SLUICE_STATS_RESET;
    return named(ioctl_code(open_file("big").get(), SLUICE_IOC_STATS, &reset));
  });
  EXPECT_EQ(refused, "EPERM");
  EXPECT_EQ(ask(SLUICE_STATS_RESET).routes[0].operations, 3u);
  EXPECT_EQ(ask(0).routes[0].operations, 0u);
}

TEST_F(GpuTest, HostMemoryWorksWithoutGpus) {
  start({"--no-gpu"});
  const UniqueFd file = open_file("small");
  SharedMemory memory(4096);
  auto request = transfer(register_memory(file.get(), memory, 4096), 0, 0, 10);
  EXPECT_EQ(named(ioctl_code(file.get(), SLUICE_IOC_READ, &request)), "ok");
  sluice_buffer_register device{};
  device.kind = SLUICE_BUFFER_CUDA_IPC;
  device.length = 4096;
  EXPECT_EQ(named(ioctl_code(file.get(), SLUICE_IOC_BUFFER_REGISTER, &device)), "EOPNOTSUPP");
  sluice_query query{};
  ASSERT_EQ(named(ioctl_code(file.get(), SLUICE_IOC_QUERY, &query)), "ok");
  EXPECT_EQ(query.gpus, 0u);
  EXPECT_NE(std::string_view(query.reason).find("gpu = false"), std::string_view::npos)
      << query.reason;
  EXPECT_EQ(gpu().at("cuda"), Json()) << "CUDA was loaded";
}

TEST_F(GpuTest, EverythingWorksWithoutPassthroughAndWithoutKeeper) {
  for (const char* flag : {"--debug=passthrough=off", "--debug=keeper=off"}) {
    start({flag});
    {
      const UniqueFd file = open_file("big", O_RDWR);
      SharedMemory memory(kBig);
      const std::uint64_t buffer = register_memory(file.get(), memory, kBig);
      auto request = transfer(buffer, 0, 0, kBig);
      ASSERT_EQ(named(ioctl_code(file.get(), SLUICE_IOC_READ, &request)), "ok");
      EXPECT_TRUE(memory.text(kBig) == read_file(*this / "big"));
      const std::string data = pattern(1000, 77);
      std::memcpy(memory.data(), data.data(), data.size());
      request = transfer(buffer, 0, 50, 1000);
      ASSERT_EQ(named(ioctl_code(file.get(), SLUICE_IOC_WRITE, &request)), "ok");
      EXPECT_EQ(read_file(*this / "big").substr(50, 1000), data);
    }
    stop();
  }
}

}  // namespace
}  // namespace sluice::test
