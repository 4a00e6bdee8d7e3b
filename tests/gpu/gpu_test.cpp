// SPDX-License-Identifier: BSD-2-Clause
// Real CUDA across processes, through a real mount; the fakes of the unit tests can't show this.
// Each client is a separate process, forked before CUDA is used; the test itself never uses CUDA.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <sys/xattr.h>
#include <unistd.h>

#include <array>
#include <cstring>
#include <functional>
#include <memory>
#include <nlohmann/json.hpp>
#include <vector>

#include "base/unique_fd.hpp"
#include "gpu/device.hpp"
#include "gpu/engine.hpp"
#include "tests/mount/ring_client.hpp"
#include "tests/support/command.hpp"
#include "tests/support/files.hpp"
#include "tests/support/janitor.hpp"
#include "tests/support/mount.hpp"
#include "tests/support/requirement.hpp"
#include "tests/support/temp_dir.hpp"
#include "tests/support/wait.hpp"

namespace sluice::test {
namespace {

constexpr std::size_t kMiB = 1 << 20;
constexpr std::size_t kFile = 96 * kMiB + 4097;  // no multiple of anything
constexpr std::size_t kMemory = 128 * kMiB;

// Looks for the driver without calling libcuda, because a process that forks must not do so.
bool has_gpu() { return ::access("/proc/driver/nvidia/version", R_OK) == 0; }

// In a client: a failure ends the process, and the test reports it.
[[noreturn]] void give_up(const std::string& why) { throw std::runtime_error(why); }
void expect(bool holds, const std::string& what) {
  if (!holds) give_up(what);
}

// A client process. An exception in it fails the test.
class Client {
 public:
  explicit Client(const std::function<void()>& work) {
    int ends[2];
    if (::pipe2(ends, O_CLOEXEC) < 0) throw std::runtime_error("pipe2");
    errors_.reset(ends[0]);
    UniqueFd write_end(ends[1]);
    pid_ = ::fork();
    if (pid_ == 0) {
      std::string problem;
      try {
        work();
      } catch (const std::exception& error) {
        problem = error.what();
      }
      if (::write(write_end.get(), problem.data(), problem.size()) < 0) ::_exit(3);
      ::_exit(problem.empty() ? 0 : 1);
    }
  }
  ~Client() {
    if (pid_ > 0) kill();
  }
  void kill() {
    ::kill(pid_, SIGKILL);
    ::waitpid(pid_, nullptr, 0);
    pid_ = 0;
  }
  pid_t pid() const { return pid_; }
  // Describes the failure; empty if there was none.
  std::string join() {
    std::string problem(4096, '\0');
    const ssize_t got = ::read(errors_.get(), problem.data(), problem.size());
    problem.resize(got > 0 ? static_cast<std::size_t>(got) : 0);
    int status = 0;
    ::waitpid(pid_, &status, 0);
    pid_ = 0;
    if (problem.empty() && status != 0) problem = "status " + std::to_string(status);
    return problem;
  }

 private:
  UniqueFd errors_;
  pid_t pid_ = 0;
};

// GPU memory of a client, from cuMemAlloc or the virtual memory API.
class GpuMemory {
 public:
  enum class Kind { Ipc, Fd };
  GpuMemory(Device& device, Kind kind, std::size_t size) : device_(device), kind_(kind) {
    const CudaApi& api = device.api();
    if (!device.enter()) give_up("the GPU can't be used");
    if (kind == Kind::Ipc) {
      check(api.cuMemAlloc(&address_, size), "cuMemAlloc");
      size_ = size;
    } else {
      expect(api.has_virtual_memory(), "no virtual memory API");
      CUmemAllocationProp properties{};
      properties.type = CU_MEM_ALLOCATION_TYPE_PINNED;
      properties.requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
      properties.location = {CU_MEM_LOCATION_TYPE_DEVICE, device.ordinal()};
      std::size_t unit = 0;
      check(api.cuMemGetAllocationGranularity(&unit, &properties, CU_MEM_ALLOC_GRANULARITY_MINIMUM),
            "granularity");
      size_ = (size + unit - 1) / unit * unit;
      check(api.cuMemCreate(&handle_, size_, &properties, 0), "cuMemCreate");
      check(api.cuMemAddressReserve(&address_, size_, 0, 0, 0), "cuMemAddressReserve");
      check(api.cuMemMap(address_, size_, 0, handle_, 0), "cuMemMap");
      const CUmemAccessDesc access{properties.location, CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
      check(api.cuMemSetAccess(address_, size_, &access, 1), "cuMemSetAccess");
    }
    fill(0xa5);
  }
  GpuMemory(const GpuMemory&) = delete;
  GpuMemory& operator=(const GpuMemory&) = delete;

  // A registration of [offset, +length). The caller closes its descriptor.
  sluice_buffer_register registration(std::uint64_t offset, std::uint64_t length) const {
    sluice_buffer_register request{};
    request.offset = offset, request.length = length, request.fd = -1;
    std::memcpy(request.gpu_uuid, device_.uuid().data(), 16);
    if (kind_ == Kind::Ipc) {
      request.kind = SLUICE_BUFFER_CUDA_IPC;
      CUipcMemHandle handle{};
      check(device_.api().cuIpcGetMemHandle(&handle, address_), "cuIpcGetMemHandle");
      std::memcpy(request.ipc_handle, handle.reserved, sizeof handle.reserved);
    } else {
      request.kind = SLUICE_BUFFER_CUDA_FD;
      request.allocation_length = size_;
      check(device_.api().cuMemExportToShareableHandle(&request.fd, handle_,
                                                       CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0),
            "cuMemExportToShareableHandle");
    }
    return request;
  }
  void fill(unsigned char value) {
    check(device_.api().cuMemsetD8Async(address_, value, size_, nullptr), "cuMemsetD8Async");
    check(device_.api().cuCtxSynchronize(), "cuCtxSynchronize");
  }
  std::string content(std::size_t offset, std::size_t length) const {
    std::string text(length, '\0');
    check(device_.api().cuMemcpyDtoH(text.data(), address_ + offset, length), "cuMemcpyDtoH");
    return text;
  }
  void put(std::size_t offset, const std::string& text) {
    check(device_.api().cuMemcpyHtoD(address_ + offset, text.data(), text.size()), "cuMemcpyHtoD");
    // From pageable memory, the call may return before the bytes have arrived.
    check(device_.api().cuCtxSynchronize(), "cuCtxSynchronize");
  }
  CUdeviceptr address() const { return address_; }

 private:
  void check(CUresult code, const char* what) const {
    if (code != CUDA_SUCCESS) give_up(std::string(what) + ": " + device_.api().text_of(code));
  }

  Device& device_;
  const Kind kind_;
  CUdeviceptr address_ = 0;
  std::size_t size_ = 0;
  CUmemGenericAllocationHandle handle_ = 0;
};

// Calls an ioctl; returns "ok" or the name of the errno.
std::string call(int fd, unsigned long command, void* argument) {
  return errno_name(::ioctl(fd, command, argument) < 0 ? errno : 0);
}

std::uint64_t registered(int fd, const GpuMemory& memory, std::uint64_t offset,
                         std::uint64_t length) {
  auto request = memory.registration(offset, length);
  const std::string answer = call(fd, SLUICE_IOC_BUFFER_REGISTER, &request);
  if (request.fd >= 0) ::close(request.fd);
  expect(answer == "ok", "register: " + answer);
  return request.buffer;
}

// Reads file[file_offset, +length) to buffer[buffer_offset...]. Returns "ok" or the name of an
// errno. One request may do less than requested when others wait, so this repeats it. `request` is
// set to the sum.
std::string read_to(int fd, sluice_transfer& request) {
  const sluice_transfer whole = request;
  std::uint64_t done = 0;
  for (;;) {
    request = whole;
    request.buffer_offset += done;
    request.file_offset += done;
    request.length -= done;
    const std::string answer = call(fd, SLUICE_IOC_READ, &request);
    if (answer != "ok") return answer;
    done += request.done;
    if (request.done > 0 && done < whole.length) continue;
    request.done = done;
    return answer;
  }
}
sluice_transfer transfer(std::uint64_t buffer, std::uint64_t buffer_offset,
                         std::uint64_t file_offset, std::uint64_t length,
                         std::uint32_t route = SLUICE_ROUTE_AUTO) {
  sluice_transfer request{};
  request.buffer = buffer, request.buffer_offset = buffer_offset;
  request.file_offset = file_offset, request.length = length, request.route = route;
  return request;
}

class RealGpuTest : public testing::Test {
 protected:
  void SetUp() override {
    if (!require_mounts("gpu")) return;
    if (!require("gpu", has_gpu(), "no NVIDIA driver on this machine")) return;
    base_.make_dir("nvme");
    base_.make_dir("hdd");
    start();
    content_ = pattern(kFile, 5);
    write_file(*mount_ / "data", content_);
  }
  void TearDown() override {
    if (mount_ && HasFailure()) show_log();
    mount_.reset();
  }
  void start(std::vector<std::string> flags = {}, std::vector<std::string> environment = {}) {
    mount_.reset();
    mount_ = std::make_unique<Mount>(Pool{{"nvme=" + base_ / "nvme", "hdd=" + base_ / "hdd"},
                                          base_ / "state",
                                          base_ / "mnt",
                                          std::move(flags),
                                          std::move(environment)});
  }
  // Prints the daemon's log after a failure.
  void show_log() const {
    const CommandResult tail = run_command({"tail", "-n", "30", base_ / "state/sluice.log"});
    std::fprintf(stderr, "--- end of the daemon's log\n%s---\n", tail.out.c_str());
  }
  UniqueFd open_data(int flags = O_RDONLY) const {
    return UniqueFd(::open((*mount_ / "data").c_str(), flags | O_CLOEXEC));
  }
  // Drops the file from the page cache.
  void make_cold() const {
    const UniqueFd fd(::open((base_ / "nvme/data").c_str(), O_RDONLY | O_CLOEXEC));
    ASSERT_EQ(::fsync(fd.get()), 0);
    ::posix_fadvise(fd.get(), 0, 0, POSIX_FADV_DONTNEED);
    const UniqueFd all(::open("/proc/sys/vm/drop_caches", O_WRONLY | O_CLOEXEC));
    if (all) {
      ASSERT_EQ(::write(all.get(), "1\n", 2), 2);
    }
  }

  // Runs `work(device)` in a separate process, and expects no failure there.
  void in_client(const std::function<void(Device&)>& work) const {
    EXPECT_EQ(client(work)->join(), "");
  }
  static std::unique_ptr<Client> client(const std::function<void(Device&)>& work) {
    return std::make_unique<Client>([work] {
      Devices devices;
      expect(!devices.all().empty(), "no GPU: " + devices.why_none());
      work(*devices.all()[0]);
    });
  }
  // MiB of GPU memory in use by all processes together.
  static long used_mib() {
    const auto smi = run_command(
        {"nvidia-smi", "--query-gpu=memory.used", "--format=csv,noheader,nounits", "-i", "0"});
    EXPECT_TRUE(smi.ok()) << smi.err;
    return std::atol(smi.out.c_str());
  }
  long buffers() const { return mount_->status().at("gpu").at("buffers").get<long>(); }

  TempDir base_;
  std::unique_ptr<Mount> mount_;
  std::string content_;
};

TEST_F(RealGpuTest, ReadsArriveInBothKindsOfMemoryAtAnyOffset) {
  for (const auto kind : {GpuMemory::Kind::Ipc, GpuMemory::Kind::Fd}) {
    SCOPED_TRACE(kind == GpuMemory::Kind::Ipc ? "IPC" : "VMM");
    in_client([&](Device& device) {
      GpuMemory memory(device, kind, kMemory);
      const UniqueFd file = open_data();
      // In the middle of the allocation, and not aligned.
      constexpr std::size_t kBegin = 3 * kMiB + 5;
      const auto buffer = registered(file.get(), memory, kBegin, kFile + 100);
      auto whole = transfer(buffer, 100, 0, kFile);
      expect(read_to(file.get(), whole) == "ok" && whole.done == kFile, "read all");
      expect(memory.content(kBegin + 100, kFile) == content_, "wrong bytes");
      auto odd = transfer(buffer, 1, 4095, 70'001);
      expect(read_to(file.get(), odd) == "ok" && odd.done == 70'001, "read a part");
      expect(memory.content(kBegin + 1, 70'001) == content_.substr(4095, 70'001), "a part differs");
      expect(memory.content(0, kBegin) == std::string(kBegin, '\xa5'), "written before the buffer");
      auto tail = transfer(buffer, 0, kFile - 10, 100);
      expect(read_to(file.get(), tail) == "ok" && tail.done == 10, "short at the end");
      auto beyond = transfer(buffer, 101, 0, kFile);
      expect(read_to(file.get(), beyond) == "ERANGE", "a read beyond the buffer");
    });
  }
}

TEST_F(RealGpuTest, EveryRouteReadsTheSameBytesWarmAndCold) {
  for (const bool cold : {true, false}) {
    for (std::uint32_t route = SLUICE_ROUTE_AUTO; route <= SLUICE_ROUTE_PAGEABLE; ++route) {
      SCOPED_TRACE(std::string(name_of(Route{route})) + (cold ? ", cold" : ", warm"));
      if (cold) {
        mount_->remount();  // registered pages can't be dropped
        make_cold();
      }
      in_client([&](Device& device) {
        GpuMemory memory(device, GpuMemory::Kind::Ipc, kMemory);
        const UniqueFd file = open_data();
        const auto buffer = registered(file.get(), memory, 0, kMemory);
        auto request = transfer(buffer, 13, 1, kFile - 2, route);
        const std::string answer = read_to(file.get(), request);
        const bool may_lack = route == SLUICE_ROUTE_GDS || route == SLUICE_ROUTE_CUFILE;
        if (may_lack && answer == "EOPNOTSUPP") return;
        expect(answer == "ok", answer);
        expect(route == SLUICE_ROUTE_AUTO || request.route == route, "another route was taken");
        expect(request.done == kFile - 2, "short");
        expect(memory.content(13, kFile - 2) == content_.substr(1, kFile - 2), "wrong bytes");
      });
    }
  }
}

TEST_F(RealGpuTest, RingReadsEveryBlockToItsOffset) {
  for (const auto kind : {GpuMemory::Kind::Ipc, GpuMemory::Kind::Fd}) {
    SCOPED_TRACE(kind == GpuMemory::Kind::Ipc ? "IPC" : "VMM");
    in_client([&](Device& device) {
      constexpr std::uint64_t kDepth = 128, kBlock = 4096;
      GpuMemory memory(device, kind, kDepth * kBlock);
      const UniqueFd file = open_data();
      const auto buffer = registered(file.get(), memory, 0, kDepth * kBlock);
      BareRing ring(kDepth);
      expect(ring.create(file.get()) == 0, "no ring");
      const std::uint64_t token = ring.add(file.get());
      for (std::uint64_t round = 0; round < 50; ++round) {
        memory.fill(0);
        const auto offset = [&](std::uint64_t i) {
          return (round * 7919 + i * 104'729) * 5 % (kFile - kBlock);
        };
        for (std::uint64_t i = 0; i < kDepth; ++i)
          ring.put(ring_entry(SLUICE_RING_READ, token, buffer, i * kBlock, offset(i), kBlock, i));
        std::size_t done = 0;
        expect(eventually([&] {
                 for (const auto& each : ring.reap()) done += each.result == kBlock ? 1 : 1000;
                 return done >= kDepth;
               }),
               "too few completions");
        expect(done == kDepth, "a read failed");
        const std::string all = memory.content(0, kDepth * kBlock);
        for (std::uint64_t i = 0; i < kDepth; ++i)
          expect(all.compare(i * kBlock, kBlock, content_, offset(i), kBlock) == 0, "wrong bytes");
      }
    });
  }
}

TEST_F(RealGpuTest, EachOfManySegmentsArrivesAtItsOffset) {
  in_client([&](Device& device) {
    GpuMemory memory(device, GpuMemory::Kind::Ipc, kMemory);
    const UniqueFd file = open_data();
    auto request = std::make_unique<sluice_readv>();
    std::memset(request.get(), 0, sizeof *request);
    request->buffer = registered(file.get(), memory, 0, kMemory);
    request->count = SLUICE_MAX_SEGMENTS;
    for (std::size_t i = 0; i < SLUICE_MAX_SEGMENTS; ++i) {
      request->segments[i] = {i * 10'000, i * 190'001, 9'001};
    }
    expect(call(file.get(), SLUICE_IOC_READV, request.get()) == "ok", "READV");
    expect(request->done == SLUICE_MAX_SEGMENTS * 9'001, "short");
    for (std::size_t i = 0; i < SLUICE_MAX_SEGMENTS; ++i) {
      expect(memory.content(i * 10'000, 9'001) == content_.substr(i * 190'001, 9'001),
             "segment " + std::to_string(i));
    }
  });
}

TEST_F(RealGpuTest, GpuMemoryIsWrittenToTheFile) {
  in_client([&](Device& device) {
    GpuMemory memory(device, GpuMemory::Kind::Ipc, kMemory);
    const std::string news = pattern(20 * kMiB + 11, 9);
    memory.put(7, news);
    const UniqueFd file = open_data(O_RDWR);
    auto request = transfer(registered(file.get(), memory, 0, kMemory), 7, 4099, news.size());
    const std::string answer = call(file.get(), SLUICE_IOC_WRITE, &request);
    expect(answer == "ok" && request.done == news.size(), "write: " + answer);
    const UniqueFd reader = open_data();
    auto refused = transfer(registered(reader.get(), memory, 0, kMemory), 0, 0, 10);
    expect(call(reader.get(), SLUICE_IOC_WRITE, &refused) == "EBADF", "written, read-only");
    content_.replace(4099, news.size(), news);
    expect(read_file(*mount_ / "data") == content_, "the file has wrong bytes");
  });
}

TEST_F(RealGpuTest, WrongHandlesAreRefusedAndTheDaemonKeepsWorking) {
  in_client([&](Device& device) {
    GpuMemory memory(device, GpuMemory::Kind::Ipc, kMemory);
    const UniqueFd file = open_data();
    const auto refuse = [&](const char* what, auto change) {
      auto request = memory.registration(0, kMemory);
      change(request);
      expect(call(file.get(), SLUICE_IOC_BUFFER_REGISTER, &request) != "ok", what);
    };
    refuse("a handle of zeros", [](auto& r) { std::memset(r.ipc_handle, 0, 64); });
    refuse("a handle of garbage", [](auto& r) { std::memset(r.ipc_handle, 0x5a, 64); });
    refuse("another GPU", [](auto& r) { r.gpu_uuid[3] ^= 0xff; });
    refuse("more than the allocation", [](auto& r) { r.length = 10 * kMemory; });
    refuse("beyond the allocation", [](auto& r) { r.offset = kMemory; });
    refuse("an overflow", [](auto& r) { r.offset = ~std::uint64_t{0} - 10; });
    refuse("no descriptor", [](auto& r) { r.kind = SLUICE_BUFFER_CUDA_FD; });
    refuse("a descriptor of a file", [&](auto& r) {
      r.kind = SLUICE_BUFFER_CUDA_FD, r.fd = file.get(), r.allocation_length = kMemory;
    });
    auto unknown = transfer(12345, 0, 0, 10);
    expect(read_to(file.get(), unknown) != "ok", "an unknown buffer");
    auto good = transfer(registered(file.get(), memory, 0, kMemory), 0, 0, kFile);
    expect(read_to(file.get(), good) == "ok", "a read after all that");
    expect(memory.content(0, kFile) == content_, "wrong bytes");
  });
}

TEST_F(RealGpuTest, TwoConcurrentClientsGetTheirOwnBytes) {
  std::vector<std::unique_ptr<Client>> clients;
  for (const unsigned char mine : {1, 2}) {
    clients.push_back(client([this, mine](Device& device) {
      GpuMemory memory(device, GpuMemory::Kind::Ipc, kMemory);
      const UniqueFd file = open_data();
      const auto buffer = registered(file.get(), memory, 0, kMemory);
      for (unsigned round = 0; round < 20; ++round) {
        memory.fill(mine);
        const std::uint64_t from = round * 100'003 + mine;
        auto request = transfer(buffer, round, from, 50 * kMiB);
        expect(read_to(file.get(), request) == "ok" && request.done == 50 * kMiB, "read");
        expect(memory.content(round, 50 * kMiB) == content_.substr(from, 50 * kMiB), "bytes");
        expect(memory.content(60 * kMiB, kMiB) == std::string(kMiB, static_cast<char>(mine)),
               "bytes of another");
      }
    }));
  }
  for (auto& each : clients) EXPECT_EQ(each->join(), "");
  EXPECT_TRUE(eventually([&] { return buffers() == 0; }));
}

TEST_F(RealGpuTest, MemoryOfAKilledClientIsReleased) {
  constexpr std::size_t kLarge = std::size_t{8} << 30;
  // From now on, the daemon has its context and its staging memory.
  in_client([&](Device& device) {
    GpuMemory memory(device, GpuMemory::Kind::Ipc, kMemory);
    const UniqueFd file = open_data();
    auto request = transfer(registered(file.get(), memory, 0, kMemory), 0, 0, kFile);
    expect(read_to(file.get(), request) == "ok", "read");
  });
  ASSERT_TRUE(eventually([&] { return buffers() == 0; }));
  const long before = used_mib();
  for (unsigned round = 0; round < 3; ++round) {
    const std::string flag = base_ / ("reading" + std::to_string(round));
    auto victim = client([this, flag](Device& device) {
      GpuMemory memory(device, GpuMemory::Kind::Ipc, kLarge);
      const UniqueFd file = open_data();
      const auto buffer = registered(file.get(), memory, 0, kLarge);
      write_file(flag, "");
      for (;;) {  // killed during a read
        auto request = transfer(buffer, 0, 0, kFile);
        expect(read_to(file.get(), request) == "ok", "read");
      }
    });
    ASSERT_TRUE(eventually([&] { return exists(flag); }, std::chrono::seconds(60)));
    EXPECT_GT(used_mib(), before + 8000);
    victim->kill();
    EXPECT_TRUE(eventually([&] { return buffers() == 0; })) << "round " << round;
    EXPECT_TRUE(eventually([&] { return used_mib() < before + 500; }, std::chrono::seconds(30)))
        << used_mib() << " MiB are in use, " << before << " before";
  }
  in_client([&](Device& device) {
    GpuMemory memory(device, GpuMemory::Kind::Ipc, kMemory);
    const UniqueFd file = open_data();
    auto request = transfer(registered(file.get(), memory, 0, kMemory), 0, 0, kFile);
    expect(read_to(file.get(), request) == "ok", "the daemon no longer works");
    expect(memory.content(0, kFile) == content_, "wrong bytes");
  });
}

TEST_F(RealGpuTest, ProcessExecutesRequestsIfTheDaemonHasNoGpu) {
  start({}, {"CUDA_VISIBLE_DEVICES="});
  in_client([&](Device& device) {
    GpuMemory memory(device, GpuMemory::Kind::Ipc, kMemory);
    const UniqueFd file = open_data();
    auto request = memory.registration(0, kMemory);
    expect(call(file.get(), SLUICE_IOC_BUFFER_REGISTER, &request) == "ENODEV", "registered");
    Engine engine({});
    const auto borrowed = borrow_device(device, memory.address(), kMemory);
    const auto done = engine.read({.fd = file.get()}, *borrowed, std::array{Segment{3, 0, kFile}});
    expect(done && done->bytes == kFile, "the engine in this process");
    expect(memory.content(3, kFile) == content_, "wrong bytes");
  });
  const auto read = sluice({"gpu", "read", "--check", "--json", *mount_ / "data"});
  EXPECT_TRUE(read.ok()) << read.err;
  EXPECT_NE(read.out.find("\"process\""), std::string::npos) << read.out;
}

TEST_F(RealGpuTest, AttributeShowsTheRouteOfAFile) {
  const auto route = xattr_of(*mount_ / "data", "user.sluice.gpu");
  ASSERT_TRUE(route);
  EXPECT_NE(*route, "");
  const auto read = sluice({"gpu", "read", "--check", "--json", *mount_ / "data"});
  EXPECT_TRUE(read.ok()) << read.err;
  EXPECT_NE(read.out.find("\"daemon\""), std::string::npos) << read.out;
}

}  // namespace
}  // namespace sluice::test
