// SPDX-License-Identifier: BSD-2-Clause
// libsluice while the daemon is killed and another one takes over, again and again: every read and
// write is right, no error reaches the program, and the daemon still does the work.
#include <dlfcn.h>
#include <fcntl.h>
#include <poll.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cerrno>
#include <cstdarg>
#include <functional>
#include <random>
#include <thread>

#include "gpu/cufile_api.hpp"
#include "gpu/device.hpp"
#include "tests/mount/tiering.hpp"
#include "tests/support/fake_gpu_environment.hpp"
#include "tests/support/seed.hpp"
#include "tests/support/wait.hpp"
#include "tests/unit/client/client.hpp"
#include "tests/unit/client/gpu_memory.hpp"
#include "tests/unit/client/model.hpp"
#include "tests/unit/client/ring.hpp"

namespace sluice::test {
namespace {

// What answers the ioctls of this process instead of the kernel, if anything.
std::function<int(unsigned long, void*)> g_ioctl;

}  // namespace
}  // namespace sluice::test

// Called by libsluice instead of that of the C library.
extern "C" int ioctl(int fd, unsigned long request, ...) noexcept {
  va_list arguments;
  va_start(arguments, request);
  void* const argument = va_arg(arguments, void*);
  va_end(arguments);
  if (sluice::test::g_ioctl && _IOC_TYPE(request) == SLUICE_IOC_TYPE)
    return sluice::test::g_ioctl(request, argument);
  return static_cast<int>(::syscall(SYS_ioctl, fd, request, argument));
}

namespace sluice::test {
namespace {

constexpr std::size_t kSize = 3'000'001;

class ClientTakeoverTest : public TieringTest {
 protected:
  void SetUp() override {
    TieringTest::SetUp();
    if (IsSkipped() || HasFatalFailure()) return;
    content_ = random_bytes(kSize);
    put("nvme", "file", content_);
    start({"--debug", "crash_limit=0"});
  }
  void TearDown() override {
    g_ioctl = nullptr;
    TieringTest::TearDown();
  }

  Device& device() { return *devices_.all()[0]; }
  std::uint64_t buffers() { return mount().status().at("gpu").at("buffers"); }

  // Calls `round(thread)` in a loop by some threads while the daemon is killed, or ended in another
  // way. Each thread gets on after each end. A round returns what went wrong, or "".
  void survive(unsigned threads, const std::function<std::string(unsigned)>& round,
               const std::function<void()>& end_daemon = nullptr) {
    std::vector<std::atomic<int>> done(threads);
    std::vector<std::string> wrong(threads);
    std::vector<std::jthread> all;
    for (unsigned i = 0; i < threads; ++i) {
      all.emplace_back([&, i](const std::stop_token& stop) {
        EXPECT_TRUE(device().enter());  // for GpuMemory
        for (; !stop.stop_requested(); ++done[i]) {
          if (wrong[i].empty()) wrong[i] = round(i);
        }
      });
    }
    const auto get_on = [&] {
      const std::vector<int> before(done.begin(), done.end());
      return eventually([&] {
        for (unsigned i = 0; i < threads; ++i) {
          if (done[i] < before[i] + 2) return false;  // one round began afterwards
        }
        return true;
      });
    };
    for (int kill = 0; kill < rounds(10, 200); ++kill) {
      ASSERT_TRUE(get_on()) << "hangs before kill " << kill;
      end_daemon ? end_daemon() : mount().crash_daemon();
    }
    ASSERT_TRUE(get_on()) << "hangs after the last kill";
    for (auto& each : all) each.request_stop();
    all.clear();
    for (unsigned i = 0; i < threads; ++i) EXPECT_EQ(wrong[i], "") << "of thread " << i;
  }

  Devices devices_;
  std::string content_;
};

TEST_F(ClientTakeoverTest, ThreadsReadWithOneFileAndOneBuffer) {
  constexpr std::size_t kPart = 400'000;
  const GpuMemory memory(device(), 3 * kPart);
  const auto buffer = register_memory(memory.pointer(), 3 * kPart);
  const auto file = open_file(*this / "file");
  survive(3, [&](unsigned thread) -> std::string {
    thread_local std::mt19937_64 random(thread);
    const std::size_t offset = random() % (kSize - kPart);
    struct sluice_result result {};
    const ssize_t done =
        sluice_read(file.get(), buffer.get(), thread * kPart, kPart, offset, &result);
    if (done < 0) return sluice_error();
    if (done != kPart) return "short: " + std::to_string(done);
    if (result.in_process != 0) return "not read by the daemon";
    return memory.bytes(thread * kPart, kPart) == content_.substr(offset, kPart) ? "" : "bytes";
  });
  EXPECT_EQ(buffers(), 1u) << "registered more than once with the last daemon";
}

TEST_F(ClientTakeoverTest, VectoredReadOfMemoryOfSeveralAllocations) {
  const GpuMemory memory(device(), 2, 2 << 20);
  const auto buffer = register_memory(memory.pointer(), 4 << 20);
  const auto file = open_file(*this / "file");
  std::mt19937_64 random(1);
  survive(1, [&](unsigned) -> std::string {
    std::vector<struct sluice_segment> segments;
    for (std::uint64_t i = 0; i < 900; ++i)
      segments.push_back({i * 4'500, random() % (kSize - 4'000), 4'000});
    memory.fill(std::string(4 << 20, '\0'));
    struct sluice_result result {};
    const ssize_t done =
        sluice_readv(file.get(), buffer.get(), segments.data(), segments.size(), &result);
    if (done < 0) return sluice_error();
    if (done != 900 * 4'000) return "short: " + std::to_string(done);
    if (result.in_process != 0) return "not read by the daemon";
    const std::string bytes = memory.bytes(0, 4 << 20);
    for (const auto& each : segments) {
      if (bytes.compare(each.buffer_offset, each.length, content_, each.file_offset, each.length))
        return "bytes";
    }
    return "";
  });
}

TEST_F(ClientTakeoverTest, Writes) {
  const GpuMemory memory(device(), kSize);
  const auto buffer = register_memory(memory.pointer(), kSize);
  const auto file = open_file(*this / "file", O_RDWR);
  int round = 0;
  survive(1, [&](unsigned) -> std::string {
    const std::string bytes = random_bytes(kSize - static_cast<std::size_t>(++round % 1'000));
    memory.fill(bytes);
    const ssize_t done = sluice_write(file.get(), buffer.get(), 0, bytes.size(), 0, nullptr);
    if (done < 0) return sluice_error();
    if (done != static_cast<ssize_t>(bytes.size())) return "short: " + std::to_string(done);
    return read_file(*this / "file").substr(0, bytes.size()) == bytes ? "" : "bytes";
  });
}

TEST_F(ClientTakeoverTest, ReadsInAStream) {
  const GpuMemory memory(device(), kSize);
  const auto buffer = register_memory(memory.pointer(), kSize);
  const auto file = open_file(*this / "file");
  CUstream stream = nullptr;
  ASSERT_EQ(device().api().cuStreamCreate(&stream, kStreamNonBlocking), CUDA_SUCCESS);
  survive(1, [&](unsigned) -> std::string {
    std::array<ssize_t, 3> done{};
    for (std::size_t i = 0; i < 3; ++i) {
      if (sluice_read_stream(file.get(), buffer.get(), 1'000'000 * i, 1'000'000, 1'000'000 * i,
                             stream, &done[i]) != 0)
        return sluice_error();
    }
    if (device().api().cuStreamSynchronize(stream) != CUDA_SUCCESS) return "the stream";
    for (const ssize_t each : done) {
      if (each != 1'000'000) return "result " + std::to_string(each);
    }
    return memory.bytes(0, 3'000'000) == content_.substr(0, 3'000'000) ? "" : "bytes";
  });
  device().api().cuStreamDestroy(stream);
}

TEST_F(ClientTakeoverTest, LoadsOfAModelAndRecordsByNumber) {
  write_file(*this / "m.safetensors", pack_tensors({{"w", content_}, {"b", random_bytes(77)}}));
  const auto model = open_model(*this / "m.safetensors");
  const std::size_t size = sluice_model_arena(model.get());
  const GpuMemory memory(device(), size);
  const auto buffer = register_memory(memory.pointer(), size);
  const auto file = open_file(*this / "file");
  const std::size_t at = sluice_model_find(model.get(), "w")->arena_offset;
  const std::array<std::uint64_t, 4> index{700, 3, 3, 29};
  survive(1, [&](unsigned) -> std::string {
    struct sluice_result result {};
    if (sluice_model_load(model.get(), buffer.get(), 0, nullptr, nullptr, &result) < 0)
      return sluice_error();
    if (memory.bytes(at, kSize) != content_) return "bytes of the model";
    if (sluice_gather(file.get(), buffer.get(), 0, index.data(), 4, 4096, 0, nullptr) < 0)
      return sluice_error();
    for (std::size_t i = 0; i < 4; ++i) {
      if (memory.bytes(i * 4096, 4096) != content_.substr(index[i] * 4096, 4096)) return "records";
    }
    return "";
  });
}

TEST_F(ClientTakeoverTest, ReadsByTheCufileDropin) {
  void* library = ::dlopen(SLUICE_DROPIN, RTLD_NOW | RTLD_LOCAL);
  ASSERT_NE(library, nullptr) << ::dlerror();
  const auto find = [&]<typename Function>(Function& function, const char* name) {
    function = reinterpret_cast<Function>(::dlsym(library, name));
  };
  CuFileApi api{};
  find(api.cuFileHandleRegister, "cuFileHandleRegister");
  find(api.cuFileHandleDeregister, "cuFileHandleDeregister");
  find(api.cuFileRead, "cuFileRead");
  const UniqueFd fd(::open((*this / "file").c_str(), O_RDONLY | O_DIRECT | O_CLOEXEC));
  CUfileDescr_t description{};
  description.type = CU_FILE_HANDLE_TYPE_OPAQUE_FD;
  description.handle.fd = fd.get();
  CUfileHandle_t handle = nullptr;
  ASSERT_EQ(api.cuFileHandleRegister(&handle, &description).err, CU_FILE_SUCCESS);
  const GpuMemory memory(device(), kSize);
  survive(1, [&](unsigned) -> std::string {
    const ssize_t done = api.cuFileRead(handle, memory.pointer(), kSize, 0, 0);
    if (done != ssize_t{kSize}) return "result " + std::to_string(done);
    return memory.bytes(0, kSize) == content_ ? "" : "bytes";
  });
  EXPECT_EQ(buffers(), 1u) << "not read by the daemon";
  api.cuFileHandleDeregister(handle);
}

// A ring with one file and one buffer.
struct RingStage {
  RingStage(FileHandle opened, BufferHandle to, unsigned entries = 64)
      : file(std::move(opened)),
        buffer(std::move(to)),
        ring(make_ring(entries)),
        file_number(sluice_ring_add_file(ring.get(), file.get())),
        buffer_number(sluice_ring_add_buffer(ring.get(), buffer.get())) {}
  int read(std::uint64_t to, std::uint64_t length, std::uint64_t from, std::uint64_t user) {
    return sluice_ring_read(ring.get(), file_number, buffer_number, to, length, from, user);
  }
  int write(std::uint64_t from, std::uint64_t length, std::uint64_t to, std::uint64_t user) {
    return sluice_ring_write(ring.get(), file_number, buffer_number, from, length, to, user);
  }

  FileHandle file;
  BufferHandle buffer;
  RingHandle ring;
  int file_number, buffer_number;
};

// Puts 60 small reads and one large one, takes their completions with `take` and checks that each
// came once.
std::string ring_round(RingStage& stage, std::mt19937_64& random, const std::string& content,
                       const std::function<std::string(std::size_t, std::size_t)>& bytes,
                       const std::function<int(sluice_ring_completion*, unsigned)>& take) {
  constexpr std::size_t kReads = 60, kEach = 4096, kLarge = 1'500'000;
  std::array<std::uint64_t, kReads + 1> offsets{};
  for (std::size_t i = 0; i <= kReads; ++i) {
    const std::size_t length = i < kReads ? kEach : kLarge;
    offsets[i] = random() % (content.size() - length);
    if (stage.read(i * kEach, length, offsets[i], 1000 + i) != 0) return sluice_error();
  }
  if (sluice_ring_submit(stage.ring.get()) != kReads + 1) return sluice_error();
  std::array<int, kReads + 1> came{};
  for (std::size_t got = 0; got <= kReads;) {
    std::array<sluice_ring_completion, 16> done{};
    const int count = take(done.data(), done.size());
    if (count < 0) return sluice_error();
    for (int i = 0; i < count; ++i, ++got) {
      const auto& each = done[static_cast<std::size_t>(i)];
      const std::size_t number = each.user_data - 1000;
      if (number > kReads || ++came[number] > 1) return "a completion came twice";
      if (each.flags != 0) return "not by the daemon";
      if (each.result != static_cast<std::int64_t>(number < kReads ? kEach : kLarge))
        return "result " + std::to_string(each.result);
    }
  }
  for (std::size_t i = 0; i <= kReads; ++i) {
    const std::size_t length = i < kReads ? kEach : kLarge;
    if (bytes(i * kEach, length) != content.substr(offsets[i], length)) return "bytes";
  }
  return "";
}

TEST_F(ClientTakeoverTest, RingIntoHostMemory) {
  RingStage stage(open_file(*this / "file"), make_buffer(kSize));
  std::mt19937_64 random(1);
  survive(1, [&](unsigned) {
    return ring_round(
        stage, random, content_,
        [&](auto offset, auto size) { return std::string(text_of(stage.buffer, offset, size)); },
        [&](auto* done, unsigned most) {
          return sluice_ring_wait(stage.ring.get(), done, most, 1, nullptr);
        });
  });
  EXPECT_EQ(mount().status().at("gpu").at("rings"), 1);
  EXPECT_EQ(buffers(), 1u);
}

TEST_F(ClientTakeoverTest, RingAndReadsWhileTheDaemonIsUpgraded) {
  RingStage stage(open_file(*this / "file"), make_buffer(kSize));
  const GpuMemory memory(device(), kSize);
  const auto buffer = register_memory(memory.pointer(), kSize);
  const auto file = open_file(*this / "file");
  std::mt19937_64 random(4);
  const auto by_ring = [&] {
    return ring_round(
        stage, random, content_,
        [&](auto offset, auto size) { return std::string(text_of(stage.buffer, offset, size)); },
        [&](auto* done, unsigned most) {
          return sluice_ring_wait(stage.ring.get(), done, most, 1, nullptr);
        });
  };
  const auto by_ioctl = [&]() -> std::string {
    if (sluice_read(file.get(), buffer.get(), 0, kSize, 0, nullptr) != ssize_t{kSize})
      return sluice_error();
    return memory.bytes(0, kSize) == content_ ? "" : "bytes";
  };
  survive(
      2, [&](unsigned thread) { return thread == 0 ? by_ring() : by_ioctl(); },
      [&] {
        const auto said = tell({"restart"});
        EXPECT_TRUE(said.ok()) << said.err;
      });
}

// A daemon that hands over ends them early, and the next one does the rest.
TEST_F(ClientTakeoverTest, LongReadsWhileTheDaemonIsUpgraded) {
  constexpr std::size_t kLong = (96 << 20) + 4321, kParts = 24, kPart = kLong / kParts;
  const std::string content = random_bytes(kLong);
  put("hdd", "long", content);
  const auto file = open_file(*this / "long");
  const GpuMemory memory(device(), 2 * kLong);
  const auto buffer = register_memory(memory.pointer(), 2 * kLong);
  const auto right = [&](std::size_t at, std::size_t size, ssize_t done) -> std::string {
    if (done < 0) return sluice_error();
    if (done != static_cast<ssize_t>(size)) return "short: " + std::to_string(done);
    return memory.bytes(at, size) == std::string_view(content).substr(0, size) ? "" : "bytes";
  };
  survive(
      2,
      [&](unsigned thread) -> std::string {
        if (thread == 0)
          return right(0, kLong, sluice_read(file.get(), buffer.get(), 0, kLong, 0, nullptr));
        std::vector<struct sluice_segment> parts;
        for (std::size_t i = 0; i < kParts; ++i)
          parts.push_back({kLong + i * kPart, i * kPart, kPart});
        return right(kLong, kParts * kPart,
                     sluice_readv(file.get(), buffer.get(), parts.data(), kParts, nullptr));
      },
      [&] {
        const auto said = tell({"restart"});
        EXPECT_TRUE(said.ok()) << said.err;
      });
}

TEST_F(ClientTakeoverTest, RingIntoGpuMemoryByCallersThatPoll) {
  const GpuMemory memory(device(), kSize);
  RingStage stage(open_file(*this / "file"), register_memory(memory.pointer(), kSize));
  std::mt19937_64 random(2);
  survive(1, [&](unsigned) {
    return ring_round(
        stage, random, content_, [&](auto offset, auto size) { return memory.bytes(offset, size); },
        [&](auto* done, unsigned most) {
          std::this_thread::sleep_for(std::chrono::microseconds(100));
          return sluice_ring_wait(stage.ring.get(), done, most, 0, nullptr);
        });
  });
}

TEST_F(ClientTakeoverTest, RingWithAnEventfd) {
  RingStage stage(open_file(*this / "file"), make_buffer(kSize));
  const int event = sluice_ring_eventfd(stage.ring.get());
  ASSERT_GE(event, 0);
  std::mt19937_64 random(3);
  survive(1, [&](unsigned) {
    return ring_round(
        stage, random, content_,
        [&](auto offset, auto size) { return std::string(text_of(stage.buffer, offset, size)); },
        [&](auto* done, unsigned most) {
          // Nothing but the event makes this caller look.
          if (const int count = sluice_ring_wait(stage.ring.get(), done, most, 0, nullptr))
            return count;
          pollfd ready{event, POLLIN, 0};
          ::poll(&ready, 1, 10'000);
          std::uint64_t ignored = 0;
          [[maybe_unused]] const ssize_t got = ::read(event, &ignored, sizeof ignored);
          return 0;
        });
  });
}

TEST_F(ClientTakeoverTest, RingWrites) {
  RingStage stage(open_file(*this / "file", O_RDWR), make_buffer(kSize));
  auto* const memory = static_cast<char*>(sluice_buffer_memory(stage.buffer.get()));
  int round = 0;
  survive(1, [&](unsigned) -> std::string {
    const std::string bytes = random_bytes(2'000'000 - static_cast<std::size_t>(++round % 1'000));
    bytes.copy(memory, bytes.size());
    constexpr std::size_t kEach = 50'000;
    unsigned count = 0;
    for (std::size_t at = 0; at < bytes.size(); at += kEach, ++count)
      stage.write(at, std::min(kEach, bytes.size() - at), at, count);
    sluice_ring_submit(stage.ring.get());
    for (const auto& [user_data, each] : wait_for(stage.ring, count)) {
      if (each.result <= 0) return "result " + std::to_string(each.result);
    }
    return read_file(*this / "file").substr(0, bytes.size()) == bytes ? "" : "bytes";
  });
}

TEST_F(ClientTakeoverTest, StaleRingIsNoticedAndBeginsNothingBeforeItIsSubmitted) {
  RingStage stage(open_file(*this / "file"), make_buffer(8192));
  ASSERT_EQ(stage.read(0, 4096, 7, 1), 0);
  mount().crash_daemon();
  ASSERT_EQ(sluice_ring_submit(stage.ring.get()), 1);
  ASSERT_EQ(stage.read(4096, 4096, 9, 2), 0);
  EXPECT_EQ(wait_for(stage.ring, 1).count(1), 1u);
  EXPECT_EQ(text_of(stage.buffer, 0, 4096), content_.substr(7, 4096));

  sluice_ring_completion none{};
  const timespec limit{0, 50'000'000};
  EXPECT_EQ(sluice_ring_wait(stage.ring.get(), &none, 1, 1, &limit), -ETIMEDOUT);
  EXPECT_EQ(text_of(stage.buffer, 4096, 4096), std::string(4096, '\0'));
  ASSERT_EQ(sluice_ring_submit(stage.ring.get()), 1);
  EXPECT_EQ(wait_for(stage.ring, 1).count(2), 1u);
  EXPECT_EQ(text_of(stage.buffer, 4096, 4096), content_.substr(9, 4096));
}

TEST_F(ClientTakeoverTest, RingTakesFilesAndBuffersAfterATakeover) {
  RingStage stage(open_file(*this / "file"), make_buffer(4096));
  mount().crash_daemon();
  const auto other = open_file(*this / "file");
  const auto late = make_buffer(4096);
  stage.file_number = sluice_ring_add_file(stage.ring.get(), other.get());
  ASSERT_GE(stage.file_number, 0) << sluice_error();
  stage.buffer_number = sluice_ring_add_buffer(stage.ring.get(), late.get());
  ASSERT_EQ(stage.read(0, 4096, 7, 1), 0);
  sluice_ring_submit(stage.ring.get());
  EXPECT_EQ(wait_for(stage.ring, 1)[1].flags, 0u) << "not by the daemon";
  EXPECT_EQ(text_of(late, 0, 4096), content_.substr(7, 4096));
  stage.ring.reset();
  EXPECT_EQ(buffers(), 0u);
}

// With memory that the daemon can't use, no daemon ever completes a request of the ring.
TEST_F(ClientTakeoverTest, RingIntoPlainMemoryTakesFilesAfterAnyNumberOfTakeovers) {
  std::string memory(4096, '\0');
  const auto buffer = register_memory(memory.data(), memory.size());
  const auto file = open_file(*this / "file");
  const auto ring = make_ring(8);
  const int to = sluice_ring_add_buffer(ring.get(), buffer.get());
  for (std::uint64_t takeovers = 0; takeovers < 20; ++takeovers) {
    const int from = sluice_ring_add_file(ring.get(), file.get());
    ASSERT_GE(from, 0) << sluice_error() << " after " << takeovers;
    ASSERT_EQ(sluice_ring_read(ring.get(), from, to, 0, 4096, takeovers, 1), 0);
    ASSERT_EQ(sluice_ring_submit(ring.get()), 1);
    ASSERT_EQ(wait_for(ring, 1)[1].result, 4096);
    ASSERT_TRUE(memory == content_.substr(takeovers, 4096));
    ASSERT_EQ(sluice_ring_drop_file(ring.get(), from), 0);
    mount().crash_daemon();
  }
}

TEST_F(ClientTakeoverTest, RingTakesAFileAfterItMetTooManyTakeoversInOneCall) {
  const auto file = open_file(*this / "file");
  const auto ring = make_ring(8);
  const int from = sluice_ring_add_file(ring.get(), file.get());
  ASSERT_EQ(sluice_ring_drop_file(ring.get(), from), 0);
  mount().crash_daemon();
  // Each daemon ends after it has created the ring.
  g_ioctl = [](unsigned long request, void* argument) {
    if (_IOC_NR(request) == _IOC_NR(SLUICE_IOC_RING_CREATE)) {
      static_cast<struct sluice_ring_create*>(argument)->ring = 1;
      return 0;
    }
    errno = ESTALE;
    return -1;
  };
  EXPECT_EQ(sluice_ring_add_file(ring.get(), file.get()), -ECONNABORTED);
  g_ioctl = nullptr;
  EXPECT_GE(sluice_ring_add_file(ring.get(), file.get()), 0) << sluice_error();
}

// A daemon whose every answer is ESTALE. Each registration is with a new daemon if `dies`.
struct StaleDaemon {
  int operator()(unsigned long request, void* argument) {
    switch (_IOC_NR(request)) {
      case _IOC_NR(SLUICE_IOC_BUFFER_REGISTER):
        static_cast<struct sluice_buffer_register*>(argument)->buffer =
            epoch << SLUICE_EPOCH_SHIFT | ++count;
        if (dies) ++epoch;
        return 0;
      case _IOC_NR(SLUICE_IOC_READ):
        ++reads;
        errno = ESTALE;
        return -1;
      default:
        return 0;
    }
  }
  bool dies;
  std::uint64_t epoch = 1, count = 0;
  int reads = 0;
};

TEST_F(ClientTakeoverTest, ThisProcessReadsIfDaemonsEndAgainAndAgain) {
  const GpuMemory memory(device(), kSize);
  const auto buffer = register_memory(memory.pointer(), kSize);
  const auto file = open_file(*this / "file");
  ASSERT_EQ(sluice_read(file.get(), buffer.get(), 0, 100, 0, nullptr), 100);
  StaleDaemon daemon{.dies = true};
  g_ioctl = std::ref(daemon);
  struct sluice_result result {};
  EXPECT_EQ(sluice_read(file.get(), buffer.get(), 0, 1'000, 7, &result), 1'000) << sluice_error();
  EXPECT_EQ(result.in_process, 1u);
  EXPECT_EQ(memory.bytes(0, 1'000), content_.substr(7, 1'000));
  EXPECT_EQ(daemon.reads, 3);
  // Its ids are not those of the daemon that is there. A request finds that out, and uses it again.
  g_ioctl = nullptr;
  mount().crash_daemon();
  const auto later = open_file(*this / "file");
  EXPECT_EQ(sluice_read(later.get(), buffer.get(), 0, 1'000, 70, &result), 1'000) << sluice_error();
  EXPECT_EQ(result.in_process, 0u);
  EXPECT_EQ(memory.bytes(0, 1'000), content_.substr(70, 1'000));
}

TEST_F(ClientTakeoverTest, FileThatIsGoneIsNotTakenForATakeover) {
  const GpuMemory memory(device(), kSize);
  const auto buffer = register_memory(memory.pointer(), kSize);
  const auto file = open_file(*this / "file");
  StaleDaemon daemon{.dies = false};
  const auto query = [&](unsigned long request, void* argument) {
    if (_IOC_NR(request) == _IOC_NR(SLUICE_IOC_QUERY)) {
      static_cast<struct sluice_query*>(argument)->abi_version = SLUICE_ABI_VERSION;
      static_cast<struct sluice_query*>(argument)->gpus = 1;
    }
    return daemon(request, argument);
  };
  g_ioctl = query;
  EXPECT_EQ(sluice_read(file.get(), buffer.get(), 0, 100, 0, nullptr), -ESTALE);
  EXPECT_EQ(daemon.reads, 1);
}

}  // namespace
}  // namespace sluice::test
