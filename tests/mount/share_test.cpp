// SPDX-License-Identifier: BSD-2-Clause
// sluice_map() on a real mount, with GPU memory of the fake libcuda: processes map the daemon's
// copy of a file. CUDA does not survive a fork, so every program is a child.
#include <fcntl.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <random>
#include <vector>

#include "base/unix_socket.hpp"
#include "gpu/device.hpp"
#include "gpu/memory.hpp"
#include "tests/mount/gpu_client.hpp"
#include "tests/mount/tiering.hpp"
#include "tests/support/child.hpp"
#include "tests/support/fake_gpu.hpp"
#include "tests/support/seed.hpp"
#include "tests/support/user.hpp"
#include "tests/unit/client/client.hpp"
#include "tests/unit/client/gpu_memory.hpp"

namespace sluice::test {
namespace {

constexpr std::size_t kSize = 5'000'001;

struct Unmapper {
  void operator()(sluice_mapping* mapping) const { sluice_unmap(mapping); }
};
using MappingHandle = std::unique_ptr<sluice_mapping, Unmapper>;

// Maps as soon as the file has not changed for long enough. Null: sluice_error() tells why.
MappingHandle map(const std::string& path) {
  MappingHandle handle;
  int code = 0;
  const bool decided = eventually([&] {
    const auto file = open_file(path);
    sluice_mapping* mapping = nullptr;
    code = sluice_map(file.get(), nullptr, &mapping);
    handle.reset(mapping);
    return code != -EAGAIN && code != -EBUSY;
  });
  return decided && code == 0 ? std::move(handle) : nullptr;
}

std::string bytes_at(CUdeviceptr address, std::size_t size) {
  Devices devices;
  Device& device = *devices.all().at(0);
  std::string out(size, '\0');
  if (!device.enter() || device.api().cuMemcpyDtoH(out.data(), address, size) != CUDA_SUCCESS) {
    return "can't be read";
  }
  return out;
}

std::string bytes_of(const MappingHandle& mapping) {
  return bytes_at(reinterpret_cast<CUdeviceptr>(sluice_mapping_address(mapping.get())),
                  sluice_mapping_size(mapping.get()));
}

// Maps and compares. Returns "" or what is wrong.
std::string check_map(const std::string& path, const std::string& content) {
  const auto mapping = map(path);
  if (!mapping) return sluice_error();
  if (sluice_mapping_size(mapping.get()) != content.size()) return "wrong size";
  return bytes_of(mapping) == content ? "" : "wrong bytes";
}

// A token for the file, as soon as it can be shared.
sluice_share token_for(int file) {
  sluice_share share{};
  eventually([&] {
    share = {};
    return ioctl_code(file, SLUICE_IOC_SHARE, &share) == 0 && share.filled == share.size;
  });
  return share;
}

// What the daemon's socket gives for the token; empty if it refuses.
UniqueFd exchange(const sluice_share& share) {
  const auto socket = connect_unix(share.socket);
  if (!socket) return {};
  ::send(socket->get(), share.token, sizeof share.token, MSG_NOSIGNAL);
  sluice_share_reply reply{};
  std::vector<UniqueFd> fds;
  const auto got =
      receive_with_fds(socket->get(), std::as_writable_bytes(std::span(&reply, 1)), fds);
  if (!got || *got != sizeof reply || fds.empty()) return {};
  UniqueFd memory = std::move(fds.front());
  const auto checked =
      receive_with_fds(socket->get(), std::as_writable_bytes(std::span(&reply, 1)), fds);
  if (!checked || *checked != sizeof reply || reply.error != 0) return {};
  return memory;
}

// A child that works while the test does something: it calls proceed() to let the test go on, and
// waits for it.
class Partner {
 public:
  explicit Partner(const std::function<std::string(const std::function<void()>& proceed)>& work) {
    std::array<int, 2> there{}, back{};
    if (::pipe2(there.data(), O_CLOEXEC) < 0 || ::pipe2(back.data(), O_CLOEXEC) < 0) std::abort();
    child_ = ::fork();
    if (child_ == 0) {
      ::close(there[1]);
      ::close(back[0]);
      const std::string answer = work([&] {
        char c = '.';
        if (::write(back[1], &c, 1) != 1 || ::read(there[0], &c, 1) != 1) ::_exit(1);
      });
      if (::write(back[1], ("=" + answer).c_str(), answer.size() + 1) < 0) ::_exit(1);
      ::_exit(0);
    }
    ::close(there[0]);
    ::close(back[1]);
    to_.reset(there[1]);
    from_.reset(back[0]);
  }
  ~Partner() {
    ::kill(child_, SIGKILL);
    ::waitpid(child_, nullptr, 0);
  }
  Partner(const Partner&) = delete;
  Partner& operator=(const Partner&) = delete;

  // Waits for proceed(), or for the end. Returns "." or "=" and the result.
  std::string wait() {
    std::string out;
    for (char c = 0; ::read(from_.get(), &c, 1) == 1;) {
      out += c;
      if (out == ".") break;
    }
    return out;
  }
  void go_on() { EXPECT_EQ(::write(to_.get(), ".", 1), 1); }

 private:
  pid_t child_;
  UniqueFd to_, from_;
};

class ShareTest : public TieringTest {
 protected:
  void SetUp() override {
    FakeGpu::install();
    // Other users have GPUs, too.
    ASSERT_EQ(::chmod(std::getenv(FakeControl::kDirectory), 01777), 0);
    TieringTest::SetUp();
    if (IsSkipped() || HasFatalFailure()) return;
    content_ = random_bytes(kSize);
    put("nvme", "model", content_);
  }
  void start_with_hbm() { start({"--hbm", "64MiB", "--debug", "gpu_rest=100"}); }
  std::string model() const { return *this / "model"; }
  std::uint64_t allocated() { return FakeGpu::count(FakeCount::AllocatedBytes, mount().pid()); }
  bool has_logged(const std::string& text) { return mount().log().find(text) != std::string::npos; }

  std::string content_;
};

TEST_F(ShareTest, ProcessesOfAUserSeeTheSameMemory) {
  start_with_hbm();
  Partner first([&](const std::function<void()>& proceed) -> std::string {
    const auto mapping = map(model());
    if (!mapping) return sluice_error();
    if (bytes_of(mapping) != content_) return "wrong bytes";
    proceed();
    return bytes_of(mapping) == content_ ? "" : "wrong bytes later";
  });
  ASSERT_EQ(first.wait(), ".");
  const auto before = allocated();
  EXPECT_EQ(in_child([&] { return check_map(model(), content_); }), "");
  EXPECT_EQ(allocated(), before) << "a second copy";
  first.go_on();
  EXPECT_EQ(first.wait(), "=");
}

TEST_F(ShareTest, AnotherUserNeverGetsTheMemory) {
  start_with_hbm();
  ASSERT_EQ(::chmod(model().c_str(), 0644), 0);
  sluice_share share{};
  Partner alice([&](const std::function<void()>& proceed) -> std::string {
    if (::setresuid(kAlice.uid, kAlice.uid, kAlice.uid) != 0) return "could not become the user";
    const auto mapping = map(model());
    if (!mapping) return sluice_error();
    proceed();
    return "";
  });
  ASSERT_EQ(alice.wait(), ".");
  const auto before = allocated();
  // Reads of others do not come from it, root's neither.
  const auto read_route = [&](const User* user) {
    const auto work = [&]() -> std::string {
      Devices devices;
      const GpuMemory memory(*devices.all().at(0), kSize);
      const auto file = open_file(model());
      const auto buffer = register_memory(memory.pointer(), kSize);
      struct sluice_result result {};
      if (sluice_read(file.get(), buffer.get(), 0, kSize, 0, &result) !=
          static_cast<ssize_t>(kSize))
        return sluice_error();
      if (result.in_process != 0) return "in process";
      return memory.bytes(0, kSize) == content_ ? sluice_route_name(result.route) : "wrong bytes";
    };
    return user != nullptr ? as_user(*user, work) : in_child(work);
  };
  EXPECT_EQ(read_route(&kAlice), "hbm");
  EXPECT_NE(read_route(&kBob), "hbm");
  EXPECT_NE(read_route(nullptr), "hbm");
  // Each user has a copy of its own.
  EXPECT_EQ(as_user(kBob, [&] { return check_map(model(), content_); }), "");
  EXPECT_GT(allocated(), before);
  // A token is for the user who asked.
  std::array<int, 2> ends{};
  ASSERT_EQ(::pipe2(ends.data(), O_CLOEXEC), 0);
  EXPECT_EQ(as_user(kAlice,
                    [&]() -> std::string {
                      const UniqueFd file(::open(model().c_str(), O_RDONLY | O_CLOEXEC));
                      const sluice_share asked = token_for(file.get());
                      return ::write(ends[1], &asked, sizeof asked) > 0 ? "" : "write";
                    }),
            "");
  ASSERT_EQ(::read(ends[0], &share, sizeof share), static_cast<ssize_t>(sizeof share));
  ::close(ends[0]);
  ::close(ends[1]);
  const auto take = [&]() -> std::string { return exchange(share) ? "got it" : "refused"; };
  EXPECT_EQ(as_user(kBob, take), "refused");
  EXPECT_EQ(in_child(take), "refused");
  EXPECT_EQ(as_user(kAlice, take), "got it");
  EXPECT_EQ(as_user(kAlice, take), "refused") << "a second time";
  alice.go_on();
  EXPECT_EQ(alice.wait(), "=");
}

// The process itself may not use the copy, so the daemon gathers.
TEST_F(ShareTest, RecordsOfAFileInGpuMemoryAreGatheredByTheDaemon) {
  start_with_hbm();
  EXPECT_EQ(in_child([&]() -> std::string {
              constexpr std::size_t kRecord = 4096, kCount = 2048, kOffset = 8;
              Devices devices;
              Device& device = *devices.all().at(0);
              const GpuMemory memory(device, kCount * kRecord), numbers(device, kCount * 8);
              std::string index, wanted;
              for (std::uint64_t i = 0; i < kCount; ++i) {
                const std::uint64_t number = i * 7 % ((kSize - kOffset) / kRecord);
                index.append(reinterpret_cast<const char*>(&number), sizeof number);
                wanted += content_.substr(kOffset + number * kRecord, kRecord);
              }
              numbers.fill(index);
              const FileHandle file = open_file(model());
              const BufferHandle buffer = register_memory(memory.pointer(), kCount * kRecord);
              sluice_result result{};
              const auto gathered = [&] {
                memory.fill(std::string(kCount * kRecord, '.'));
                const auto done =
                    sluice_gather(file.get(), buffer.get(), 0,
                                  static_cast<const std::uint64_t*>(numbers.pointer()), kCount,
                                  kRecord, kOffset, &result);
                return done == kCount * kRecord && memory.bytes(0, wanted.size()) == wanted;
              };
              if (!gathered() || result.in_process == 0) return "before";
              // From the second read on, the file is in the memory of the GPU.
              const bool kept = eventually([&] {
                return sluice_read(file.get(), buffer.get(), 0, kSize, 0, &result) == kSize &&
                       result.route == SLUICE_ROUTE_HBM;
              });
              if (!kept) return "not kept";
              // The library asks again after a moment.
              bool right = true;
              const bool by_daemon = eventually([&] {
                right = right && gathered();
                return !right || result.in_process == 0;
              });
              if (!right || !by_daemon) return right ? "not by the daemon" : "wrong bytes";
              return result.route == SLUICE_ROUTE_HBM ? "" : "another route";
            }),
            "");
}

TEST_F(ShareTest, ScribbledMemoryIsNoticed) {
  start_with_hbm();
  EXPECT_EQ(
      in_child([&]() -> std::string {
        const UniqueFd file(::open(model().c_str(), O_RDONLY | O_CLOEXEC));
        const sluice_share share = token_for(file.get());
        Devices devices;
        Device& device = *devices.all().at(0);
        auto memory = import_fd(device, exchange(share), share.allocation_length, 0, share.size);
        if (!memory) return memory.error().text();
        const std::string scribble(10'000, 's');
        const CudaApi& api = device.api();
        const bool written = api.cuMemcpyHtoD((*memory)->address() + 1'000'000, scribble.data(),
                                              scribble.size()) == CUDA_SUCCESS;
        // The copy from pageable memory may arrive later.
        return written && api.cuCtxSynchronize() == CUDA_SUCCESS ? "" : "can't write";
      }),
      "");
  EXPECT_EQ(in_child([&]() -> std::string {
              sluice_file* file = nullptr;
              sluice_mapping* mapping = nullptr;
              if (sluice_open(model().c_str(), O_RDONLY, 0, &file) < 0) return sluice_error();
              if (sluice_map_begin(file, nullptr, &mapping) < 0) return sluice_error();
              if (sluice_map_wait(mapping) != -EAGAIN) return "it is taken as good";
              if (sluice_map_wait(mapping) != -EAGAIN) return "it has become good";
              sluice_unmap(mapping);
              sluice_close(file);
              return check_map(model(), content_);
            }),
            "");
  EXPECT_TRUE(has_logged("has written to GPU memory"));
  EXPECT_TRUE(has_logged(" uid=0 blocks=3 "));
}

// A reader of another user may have begun before the copy is shared, and copy bytes after they were
// written to. It must notice.
TEST_F(ShareTest, ReadersAtTheTimeOfSharingGetTheFile) {
  constexpr std::uint64_t kSegments = 8, kEach = 256 << 10;
  constexpr int kRounds = 4;
  for (int i = 0; i < kRounds; ++i) put("nvme", "file" + std::to_string(i), content_);
  // Each of the daemon's copies waits, so that there is time between the first and the last.
  ::setenv("SLUICE_FAKE_CUDA_DELAY_US", "20000", 1);
  start_with_hbm();
  ::unsetenv("SLUICE_FAKE_CUDA_DELAY_US");
  for (int i = 0; i < kRounds; ++i) {
    const std::string path = *this / ("file" + std::to_string(i));
    ASSERT_EQ(::chmod(path.c_str(), 0644), 0);
    Partner reader([&](const std::function<void()>& proceed) -> std::string {
      Devices devices;
      const GpuMemory memory(*devices.all().at(0), kSize);
      const auto file = open_file(path);
      const auto buffer = register_memory(memory.pointer(), kSize);
      std::vector<struct sluice_segment> segments;
      for (std::uint64_t n = 0; n < kSegments; ++n)
        segments.push_back({n * kEach, n * kEach, kEach});
      struct sluice_result result {};
      const auto read = [&] {
        return sluice_readv(file.get(), buffer.get(), segments.data(), segments.size(), &result) ==
                   static_cast<ssize_t>(kSegments * kEach) &&
               memory.bytes(0, kSegments * kEach) == content_.substr(0, kSegments * kEach);
      };
      if (!eventually([&] {
            sluice_read(file.get(), buffer.get(), 0, kSize, 0, nullptr);
            return !read() || result.route == SLUICE_ROUTE_HBM;
          }))
        return "not in GPU memory";
      proceed();
      do {
        if (!read()) return "wrong bytes";
      } while (result.route == SLUICE_ROUTE_HBM);  // until the copy is shared
      return "";
    });
    ASSERT_EQ(reader.wait(), ".");
    reader.go_on();
    const auto scribble = [&]() -> std::string {
      const UniqueFd file(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
      Devices devices;
      Device& device = *devices.all().at(0);
      if (!device.enter()) return "no GPU";
      const sluice_share share = token_for(file.get());
      auto memory = import_fd(device, exchange(share), share.allocation_length, 0, share.size);
      if (!memory) return memory.error().text();
      const std::string bytes(kSegments * kEach, 's');
      return device.api().cuMemcpyHtoD((*memory)->address(), bytes.data(), bytes.size()) ==
                     CUDA_SUCCESS
                 ? ""
                 : "can't write";
    };
    EXPECT_EQ(as_user(kAlice, scribble), "");
    EXPECT_EQ(reader.wait(), "=");
  }
}

TEST_F(ShareTest, AMappingKeepsWhatItHasWhenTheFileChanges) {
  start_with_hbm();
  EXPECT_EQ(in_child([&]() -> std::string {
              const auto mapping = map(model());
              if (!mapping) return sluice_error();
              // The handle is of the file before the change.
              const auto old = open_file(model());
              const std::string changed = random_bytes(kSize + 5);
              write_file(model(), changed);
              sluice_mapping* stale = nullptr;
              int code = 0;
              if (!eventually([&] {
                    code = sluice_map(old.get(), nullptr, &stale);
                    return code != -EAGAIN;
                  }) ||
                  code != -ESTALE)
                return "the file before the change: " + std::to_string(code);
              const std::string wrong = check_map(model(), changed);
              if (!wrong.empty()) return wrong;
              return bytes_of(mapping) == content_ ? "" : "the mapping has changed";
            }),
            "");
}

TEST_F(ShareTest, AMappingOutlivesCopyFileAndDaemon) {
  start_with_hbm();
  Partner partner([&](const std::function<void()>& proceed) -> std::string {
    const auto mapping = map(model());
    if (!mapping) return sluice_error();
    for (const char* step : {"release", "successor", "end"}) {
      proceed();
      if (bytes_of(mapping) != content_) return std::string("wrong bytes after ") + step;
    }
    return "";
  });
  ASSERT_EQ(partner.wait(), ".");
  ASSERT_EQ(tell({"gpu", "release"}).exit_code, 0);
  partner.go_on();
  ASSERT_EQ(partner.wait(), ".");
  mount().crash_daemon();
  EXPECT_EQ(in_child([&] { return check_map(model(), content_); }), "") << "the next daemon";
  partner.go_on();
  ASSERT_EQ(partner.wait(), ".");
  stop();
  partner.go_on();
  EXPECT_EQ(partner.wait(), "=");
}

TEST_F(ShareTest, TokensOfAnEarlierDaemonAreTriedOnce) {
  start_with_hbm();
  const UniqueFd file(::open(model().c_str(), O_RDONLY | O_CLOEXEC));
  const sluice_share share = token_for(file.get());
  ASSERT_NE(share.size, 0u);
  mount().crash_daemon();
  EXPECT_FALSE(exchange(share));
  EXPECT_EQ(in_child([&] { return check_map(model(), content_); }), "");
}

TEST_F(ShareTest, KilledClientsLeaveNothing) {
  start_with_hbm();
  ASSERT_EQ(in_child([&] { return check_map(model(), content_); }), "");
  std::mt19937_64 random(test_seed());
  for (int i = 0; i < 30; ++i) {
    const pid_t child = ::fork();
    if (child == 0) {
      for (;;) map(model());
    }
    ::usleep(static_cast<useconds_t>(random() % 30'000));
    ::kill(child, SIGKILL);
    ::waitpid(child, nullptr, 0);
  }
  EXPECT_EQ(in_child([&] { return check_map(model(), content_); }), "");
  ASSERT_EQ(tell({"gpu", "release"}).exit_code, 0);
  EXPECT_TRUE(eventually([&] { return allocated() == 0; })) << allocated();
}

TEST_F(ShareTest, GarbageIsHarmless) {
  start_with_hbm();
  const UniqueFd file(::open(model().c_str(), O_RDONLY | O_CLOEXEC));
  const sluice_share good = token_for(file.get());
  std::mt19937_64 random(test_seed());
  for (int i = 0; i < 300; ++i) {
    std::array<std::uint64_t, sizeof(sluice_share) / 8> words{};
    for (auto& word : words) word = random() % 3 == 0 ? random() : 0;
    ioctl_code(file.get(), SLUICE_IOC_SHARE, words.data());
    sluice_share share = good;
    share.token[random() % sizeof share.token] ^= static_cast<__u8>(1 << random() % 8);
    EXPECT_FALSE(exchange(share));
  }
  // All tokens that were given out for zero UUIDs are too many, until they are too old.
  EXPECT_EQ(in_child([&] { return check_map(model(), content_); }), "");
  const UniqueFd writer(::open(model().c_str(), O_WRONLY | O_CLOEXEC));
  sluice_share share{};
  EXPECT_EQ(errno_name(ioctl_code(writer.get(), SLUICE_IOC_SHARE, &share)), "EBADF");
}

TEST_F(ShareTest, ErrorsSayWhy) {
  start();
  const auto why = [&](const std::string& path, int flags = O_RDONLY) {
    return in_child([&]() -> std::string {
      const auto file = open_file(path, flags);
      sluice_mapping* mapping = nullptr;
      return sluice_map(file.get(), nullptr, &mapping) == 0 ? "mapped" : sluice_error();
    });
  };
  EXPECT_EQ(why(model()),
            "map " + model() +
                ": not shared because the mount keeps no files in GPU memory; set hbm "
                "in its configuration, and see 'sluice doctor'");
  write_file(base_ / "elsewhere", "x");
  EXPECT_NE(why(base_ / "elsewhere").find("not shared because the file is not on a Sluice mount"),
            std::string::npos);
  EXPECT_EQ(in_child([&]() -> std::string {
              const auto file = open_file(model());
              sluice_mapping* mapping = nullptr;
              return sluice_map(file.get(), "GPU-nonsense", &mapping) == -ENODEV &&
                             sluice_map(nullptr, nullptr, &mapping) == -EINVAL &&
                             sluice_map(file.get(), nullptr, nullptr) == -EINVAL
                         ? ""
                         : "accepted";
            }),
            "");
}

}  // namespace
}  // namespace sluice::test
