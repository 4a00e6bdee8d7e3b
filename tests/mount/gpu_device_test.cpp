// SPDX-License-Identifier: BSD-2-Clause
// The ioctls with buffers in GPU memory of the fake libcuda. The daemon imports them as a different
// process, and must release each.
#include <fcntl.h>
#include <signal.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <sys/xattr.h>
#include <unistd.h>

#include <cstring>

#include "gpu/device.hpp"
#include "tests/mount/gpu_client.hpp"
#include "tests/mount/tiering.hpp"
#include "tests/support/fake_control.hpp"
#include "tests/support/fake_gpu.hpp"
#include "tests/support/user.hpp"

namespace sluice::test {
namespace {

constexpr std::size_t kSize = 8'000'001;
constexpr std::size_t kAllocation = 8 << 20;

std::string named(int code) { return errno_name(code); }

// Memory of the first GPU, allocated by this process. CUDA does not survive a fork, so tests
// allocate it only in a child.
class DeviceMemory {
 public:
  enum class Kind { Ipc, Descriptor };

  explicit DeviceMemory(Kind kind, std::size_t gpu = 0) : device_(*devices_.all().at(gpu)) {
    request_.length = kAllocation;
    std::memcpy(request_.gpu_uuid, device_.uuid().data(), device_.uuid().size());
    if (!device_.enter() || !(kind == Kind::Ipc ? allocate() : create())) std::abort();
  }

  sluice_buffer_register registration() const { return request_; }
  std::string bytes(std::size_t size) const {
    std::string out(size, '\0');
    if (device_.api().cuMemcpyDtoH(out.data(), address_, size) != CUDA_SUCCESS) std::abort();
    return out;
  }
  void fill(const std::string& bytes) {
    // From pageable memory, the first call may return before the bytes have arrived.
    if (device_.api().cuMemcpyHtoD(address_, bytes.data(), bytes.size()) != CUDA_SUCCESS ||
        device_.api().cuStreamSynchronize(nullptr) != CUDA_SUCCESS) {
      std::abort();
    }
  }

 private:
  bool allocate() {
    CUipcMemHandle handle{};
    if (device_.api().cuMemAlloc(&address_, kAllocation) != CUDA_SUCCESS ||
        device_.api().cuIpcGetMemHandle(&handle, address_) != CUDA_SUCCESS)
      return false;
    request_.kind = SLUICE_BUFFER_CUDA_IPC;
    std::memcpy(request_.ipc_handle, handle.reserved, sizeof request_.ipc_handle);
    return true;
  }
  bool create() {
    const CudaApi& api = device_.api();
    CUmemAllocationProp properties{};
    properties.type = CU_MEM_ALLOCATION_TYPE_PINNED;
    properties.requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
    properties.location = {CU_MEM_LOCATION_TYPE_DEVICE, device_.ordinal()};
    const CUmemAccessDesc access{properties.location, CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
    CUmemGenericAllocationHandle handle = 0;
    request_.kind = SLUICE_BUFFER_CUDA_FD;
    request_.allocation_length = kAllocation;
    return api.cuMemCreate(&handle, kAllocation, &properties, 0) == CUDA_SUCCESS &&
           api.cuMemAddressReserve(&address_, kAllocation, 0, 0, 0) == CUDA_SUCCESS &&
           api.cuMemMap(address_, kAllocation, 0, handle, 0) == CUDA_SUCCESS &&
           api.cuMemSetAccess(address_, kAllocation, &access, 1) == CUDA_SUCCESS &&
           api.cuMemExportToShareableHandle(
               &request_.fd, handle, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0) == CUDA_SUCCESS;
  }

  Devices devices_;
  Device& device_;
  CUdeviceptr address_ = 0;
  sluice_buffer_register request_{};
};

class GpuDeviceTest : public TieringTest {
 protected:
  using Kind = DeviceMemory::Kind;

  void SetUp() override {
    FakeGpu::install();
    TieringTest::SetUp();
    if (IsSkipped() || HasFatalFailure()) return;
    put("nvme", "model", pattern(kSize, 1));
    start(flags());
  }
  virtual Strings flags() const { return {}; }

  UniqueFd open_file(int flags = O_RDONLY) const {
    return UniqueFd(::open((*this / "model").c_str(), flags | O_CLOEXEC));
  }
  std::uint64_t held(FakeCount which) { return FakeGpu::count(which, mount().pid()); }
  bool is_free_of_imports() {
    return eventually([&] { return held(FakeCount::Imports) == 0; }) &&
           eventually([&] { return mount().status().at("gpu").at("buffers") == 0; });
  }

  // Runs a client: it allocates, registers, calls `work`, and ends. Returns "" if everything
  // succeeded.
  std::string client(Kind kind, int flags,
                     const std::function<std::string(int, DeviceMemory&, std::uint64_t)>& work) {
    return in_child([&]() -> std::string {
      DeviceMemory memory(kind);
      const UniqueFd file = open_file(flags);
      auto request = memory.registration();
      if (const int code = ioctl_code(file.get(), SLUICE_IOC_BUFFER_REGISTER, &request); code != 0)
        return "register: " + named(code);
      return work(file.get(), memory, request.buffer);
    });
  }
};

TEST_F(GpuDeviceTest, ReadsArriveInTheMemoryOfAnotherProcess) {
  const std::string content = pattern(kSize, 1);
  for (const Kind kind : {Kind::Ipc, Kind::Descriptor}) {
    const auto outcome = client(
        kind, O_RDONLY, [&](int file, DeviceMemory& memory, std::uint64_t buffer) -> std::string {
          for (const std::uint32_t route : {SLUICE_ROUTE_AUTO, SLUICE_ROUTE_STAGED}) {
            memory.fill(std::string(kAllocation, '\0'));
            auto request = transfer(buffer, 0, 0, kSize);
            request.route = route;
            if (const int code = ioctl_code(file, SLUICE_IOC_READ, &request)) return named(code);
            if (request.done != kSize || memory.bytes(kSize) != content) return "other bytes";
            if (request.route == SLUICE_ROUTE_HOST || request.route == SLUICE_ROUTE_AUTO)
              return "route " + std::to_string(request.route);
          }
          auto odd = transfer(buffer, 11, 4097, 4099);
          if (const int code = ioctl_code(file, SLUICE_IOC_READ, &odd)) return named(code);
          return memory.bytes(5000).substr(11, 4099) == content.substr(4097, 4099) ? ""
                                                                                   : "odd bytes";
        });
    EXPECT_EQ(outcome, "");
    EXPECT_TRUE(is_free_of_imports());
  }
  const Json gpu = mount().status().at("gpu");
  EXPECT_FALSE(gpu.at("devices").empty());
  EXPECT_GE(gpu.at("devices").at(0).at("routes").at("all").at("operations"), 6);
  EXPECT_NE(tell({"status"}).out.find("gpu  "), std::string::npos);
}

TEST_F(GpuDeviceTest, WritesComeFromTheMemoryOfAnotherProcess) {
  const std::string data = pattern(kSize, 5);
  const auto outcome =
      client(Kind::Ipc, O_RDWR, [&](int file, DeviceMemory& memory, std::uint64_t buffer) {
        memory.fill(data);
        auto request = transfer(buffer, 0, 100, kSize);
        return named(ioctl_code(file, SLUICE_IOC_WRITE, &request));
      });
  EXPECT_EQ(outcome, "ok");
  EXPECT_EQ(lstat_of(*this / "model").st_size, static_cast<off_t>(kSize + 100));
  EXPECT_TRUE(read_file(*this / "model").substr(100) == data);
}

TEST_F(GpuDeviceTest, ClientKilledDuringAReadLeavesNoImportedMemory) {
  for (const Kind kind : {Kind::Ipc, Kind::Descriptor}) {
    int ready[2];
    ASSERT_EQ(::pipe(ready), 0);
    const pid_t child = ::fork();
    if (child == 0) {
      DeviceMemory memory(kind);
      const UniqueFd file = open_file();
      auto request = memory.registration();
      ioctl_code(file.get(), SLUICE_IOC_BUFFER_REGISTER, &request);
      for (;;) {
        auto read = transfer(request.buffer, 0, 0, kSize);
        ioctl_code(file.get(), SLUICE_IOC_READ, &read);
        ::write(ready[1], "x", 1);
      }
    }
    char byte;
    ASSERT_EQ(::read(ready[0], &byte, 1), 1);
    EXPECT_EQ(held(FakeCount::Imports), 1u);
    ::kill(child, SIGKILL);
    ::waitpid(child, nullptr, 0);
    EXPECT_TRUE(is_free_of_imports());
    for (const int fd : ready) ::close(fd);
  }
}

TEST_F(GpuDeviceTest, WrongHandlesAreRefused) {
  const auto outcome = in_child([&]() -> std::string {
    DeviceMemory memory(Kind::Ipc);
    const UniqueFd file = open_file();
    const auto code = [&](auto change) {
      auto request = memory.registration();
      change(request);
      return named(ioctl_code(file.get(), SLUICE_IOC_BUFFER_REGISTER, &request)) + " ";
    };
    using Registration = sluice_buffer_register;
    return code([](Registration& r) { r.ipc_handle[0] ^= 1; }) +
           code([](Registration& r) { r.gpu_uuid[0] ^= 1; }) +
           code([](Registration& r) { r.length = kAllocation + 1; }) +
           code([](Registration& r) { r.offset = kAllocation; }) + code([](Registration& r) {
             r.kind = SLUICE_BUFFER_CUDA_FD;
             r.allocation_length = kAllocation;
             r.fd = 0;
           }) +
           code([](Registration&) {});
  });
  EXPECT_EQ(outcome, "EINVAL ENODEV ERANGE ERANGE EINVAL ok ");
  EXPECT_TRUE(is_free_of_imports());
}

TEST_F(GpuDeviceTest, FailingGpuFailsTheRequestButNotTheMount) {
  const auto outcome =
      client(Kind::Ipc, O_RDONLY, [&](int file, DeviceMemory&, std::uint64_t buffer) {
        auto request = transfer(buffer, 0, 0, kSize);
        request.route = SLUICE_ROUTE_STAGED;
        const std::string first = named(ioctl_code(file, SLUICE_IOC_READ, &request));
        FakeGpu::fail_cuda("async:1+:700", mount().pid());  // an illegal address: sticky
        request = transfer(buffer, 0, 0, kSize);
        request.route = SLUICE_ROUTE_STAGED;
        const bool failed = ioctl_code(file, SLUICE_IOC_READ, &request) != 0;
        return first + (failed ? " failed" : " went on");
      });
  EXPECT_EQ(outcome, "ok failed");
  EXPECT_TRUE(read_file(*this / "model") == pattern(kSize, 1));
  EXPECT_TRUE(mount().status().at("gpu").at("devices").at(0).at("lost").get<bool>());
}

TEST_F(GpuDeviceTest, AttributeNamesTheRouteOfAGpu) {
  const auto words = xattr_of(*this / "model", "user.sluice.gpu");
  ASSERT_TRUE(words);
  EXPECT_EQ(words->find("host:"), std::string::npos) << *words;
}

TEST_F(GpuDeviceTest, RegisteredFileCanBeMovedAndDeleted) {
  const auto read_mapped = [&] {
    return client(Kind::Ipc, O_RDONLY, [&](int file, DeviceMemory& memory, std::uint64_t buffer) {
      auto request = transfer(buffer, 0, 0, kSize);
      request.route = SLUICE_ROUTE_MAPPED;
      if (const int code = ioctl_code(file, SLUICE_IOC_READ, &request)) return named(code);
      return memory.bytes(kSize) == pattern(kSize, 1) ? std::string("ok") : "other bytes";
    });
  };
  const auto mapped = [&] { return mount().status().at("gpu").at("mapped_bytes"); };
  // A file that was created recently is not registered.
  EXPECT_TRUE(eventually([&] { return read_mapped() == "ok"; }));
  EXPECT_GE(mapped(), kSize);
  move("model", "hdd");
  EXPECT_EQ(mapped(), 0);
  EXPECT_TRUE(eventually([&] { return read_mapped() == "ok"; }));
  EXPECT_GE(mapped(), kSize);
  ASSERT_EQ(::unlink((*this / "model").c_str()), 0);
  EXPECT_EQ(mapped(), 0) << "a deleted file would keep its blocks";
}

// A mount that keeps files in the memory of the GPUs.
class HbmMountTest : public GpuDeviceTest {
 protected:
  Strings flags() const override { return {"--hbm", "64MiB", "--debug", "gpu_rest=100"}; }

  // Reads the whole file in a process of its own. Returns the number of the route, or what is
  // wrong.
  std::string read(const std::string& content) {
    return client(Kind::Ipc, O_RDONLY, [&](int file, DeviceMemory& memory, std::uint64_t buffer) {
      return read_whole(file, memory, buffer, content);
    });
  }
  static std::string read_whole(int file, DeviceMemory& memory, std::uint64_t buffer,
                                const std::string& content) {
    auto request = transfer(buffer, 0, 0, content.size());
    if (const int code = ioctl_code(file, SLUICE_IOC_READ, &request)) return named(code);
    if (request.done != content.size() || memory.bytes(content.size()) != content)
      return "other bytes";
    return std::to_string(request.route);
  }
  // Reads until the file comes from the GPU's memory. A file that changed must rest before.
  bool is_kept(const std::string& content) {
    std::string last;
    const bool kept = eventually([&] {
      last = read(content);
      return last == kHbm || last.size() > 1;
    });
    EXPECT_EQ(last, kHbm);
    return kept && last == kHbm;
  }
  Json hbm() { return mount().status().at("gpu").at("devices").at(0).at("hbm"); }

  const std::string kHbm = std::to_string(SLUICE_ROUTE_HBM);
};

TEST_F(HbmMountTest, FileIsReadFromTheGpusMemory) {
  const std::string content = pattern(kSize, 1);
  EXPECT_NE(read(content), kHbm);
  EXPECT_TRUE(is_kept(content));
  EXPECT_GE(hbm().at("bytes"), kSize);
  EXPECT_EQ(hbm().at("files"), 1);
  EXPECT_GE(hbm().at("hits"), 1);
  EXPECT_EQ(hbm().at("limit"), 64 * kMiB);
  EXPECT_NE(tell({"status"}).out.find("\nhbm  "), std::string::npos);
  EXPECT_NE(xattr_of(*this / "model", "user.sluice.gpu").value_or("").find("hbm: "),
            std::string::npos);
  EXPECT_EQ(tell({"gpu", "release"}).out.find("freed 8.0 MiB"), 0u);
  EXPECT_EQ(hbm().at("bytes"), 0);
  EXPECT_EQ(read(content).size(), 1u);
}

TEST_F(HbmMountTest, RecordsAreGatheredFromTheGpusMemory) {
  const std::string content = pattern(kSize, 1);
  constexpr std::uint32_t kRecord = 512, kCount = 1000;
  // Every third record from the end, and then one that does not exist.
  std::vector<std::uint64_t> numbers;
  std::string wanted;
  for (std::uint64_t i = 0; i < kCount; ++i) {
    numbers.push_back(kSize / kRecord - 1 - 3 * i);
    wanted += content.substr(numbers.back() * kRecord, kRecord);
  }
  const auto gather = [&] {
    return client(Kind::Ipc, O_RDONLY, [&](int file, DeviceMemory& memory, std::uint64_t buffer) {
      // The index is behind the records in the same buffer.
      const std::uint64_t at = kCount * kRecord;
      memory.fill(std::string(at, '\0') +
                  std::string(reinterpret_cast<const char*>(numbers.data()), kCount * 8));
      sluice_records request{};
      request.buffer = request.index = buffer;
      request.index_offset = at;
      request.count = kCount;
      request.record_bytes = kRecord;
      if (const int code = ioctl_code(file, SLUICE_IOC_GATHER, &request)) return named(code);
      if (request.done != wanted.size() || memory.bytes(wanted.size()) != wanted)
        return std::string("other bytes");
      return std::to_string(request.route);
    });
  };
  EXPECT_EQ(gather(), "EOPNOTSUPP");
  ASSERT_TRUE(is_kept(content));
  EXPECT_EQ(gather(), kHbm);
  numbers[500] = kSize / kRecord;
  EXPECT_EQ(gather(), "ERANGE");
}

TEST_F(HbmMountTest, ChangesOfOthersAreSeen) {
  std::string content = pattern(kSize, 1);
  ASSERT_TRUE(is_kept(content));
  {
    const UniqueFd file = open_file(O_WRONLY);
    content.replace(kMiB, 1000, pattern(1000, 2));
    ASSERT_EQ(::pwrite(file.get(), content.data() + kMiB, 1000, kMiB), 1000);
  }
  EXPECT_NE(read(content), kHbm);
  ASSERT_TRUE(is_kept(content));
  move("model", "hdd");
  EXPECT_NE(read(content), kHbm) << "the copy was that of the old place";
  ASSERT_TRUE(is_kept(content));
  content = pattern(kSize, 3);
  write_file(*this / "new", content);
  ASSERT_EQ(::rename((*this / "new").c_str(), (*this / "model").c_str()), 0);
  EXPECT_NE(read(content), kHbm);
  ASSERT_TRUE(is_kept(content));
  ASSERT_EQ(::truncate((*this / "model").c_str(), kSize / 2), 0);
  content.resize(kSize / 2);
  EXPECT_NE(read(content), kHbm);
}

TEST_F(HbmMountTest, SuccessorOfACrashedDaemonBeginsAnew) {
  const std::string content = pattern(kSize, 1);
  ASSERT_TRUE(is_kept(content));
  mount().crash_daemon();
  EXPECT_NE(read(content), kHbm);
  EXPECT_TRUE(is_kept(content));
}

TEST_F(HbmMountTest, OnlyThoseWhoMayReadTheFileGetItsBytes) {
  const std::string content = pattern(kSize, 1);
  const User other = kAlice;
  const auto read_as_other = [&] {
    return as_user(other, [&]() -> std::string {
      ::unsetenv(FakeControl::kDirectory);  // only root can create files there
      DeviceMemory memory(Kind::Descriptor);
      const UniqueFd file = open_file();
      if (!file) return named(errno);
      auto request = memory.registration();
      if (const int code = ioctl_code(file.get(), SLUICE_IOC_BUFFER_REGISTER, &request); code != 0)
        return "register: " + named(code);
      return read_whole(file.get(), memory, request.buffer, content);
    });
  };
  ASSERT_EQ(::chmod((*this / "model").c_str(), 0600), 0);
  ASSERT_TRUE(is_kept(content));
  EXPECT_EQ(read_as_other(), "EACCES");
  ASSERT_EQ(::chmod((*this / "model").c_str(), 0644), 0);
  ASSERT_TRUE(is_kept(content));
  EXPECT_EQ(read_as_other(), kHbm);
}

TEST_F(HbmMountTest, PinnedFileIsThereBeforeTheFirstRead) {
  std::string content = pattern(kSize, 1);
  const auto is_there = [&] {
    return eventually([&] {
      const Json devices = mount().status().at("gpu").at("devices");
      return !devices.empty() && devices.at(0).at("hbm").at("pinned") == 1 &&
             explain("model").at("hbm").at("copies").dump().find(std::to_string(kSize)) !=
                 std::string::npos;
    });
  };
  ASSERT_EQ(test::sluice({"pin", "hdd", *this / "model"}).exit_code, 0);
  ASSERT_EQ(test::sluice({"pin", "hbm", *this / "model"}).err, "");
  EXPECT_EQ(xattr_of(*this / "model", "user.sluice.pin"), "hdd") << "they are independent";
  EXPECT_EQ(xattr_of(*this / "model", "user.sluice.hbm"), "pinned");
  ASSERT_TRUE(is_there());
  EXPECT_EQ(read(content), kHbm);
  {
    const UniqueFd file = open_file(O_WRONLY);
    content.replace(0, 1000, pattern(1000, 2));
    ASSERT_EQ(::pwrite(file.get(), content.data(), 1000, 0), 1000);
  }
  ASSERT_TRUE(is_there()) << "after a change";
  EXPECT_EQ(read(content), kHbm);
  ASSERT_EQ(::rename((*this / "model").c_str(), (*this / "other").c_str()), 0);
  ASSERT_EQ(::rename((*this / "other").c_str(), (*this / "model").c_str()), 0);
  mount().remount();
  ASSERT_TRUE(is_there()) << "after a mount";
  EXPECT_EQ(read(content), kHbm);
  EXPECT_EQ(test::sluice({"unpin", "--hbm", *this / "model"}).exit_code, 0);
  EXPECT_EQ(xattr_of(*this / "model", "user.sluice.hbm"), std::nullopt);
  EXPECT_EQ(xattr_of(*this / "model", "user.sluice.pin"), "hdd");
  EXPECT_EQ(hbm().at("pinned"), 0);
  EXPECT_NE(test::sluice({"unpin", "--hbm", *this / "model"}).exit_code, 0);
  EXPECT_NE(test::sluice({"pin", "hbm", root()}).exit_code, 0) << "a directory";
}

TEST_F(HbmMountTest, PinOutlivesARenamedFolderAndAListThatIsWrong) {
  ASSERT_EQ(::mkdir((*this / "folder").c_str(), 0755), 0);
  ASSERT_EQ(::rename((*this / "model").c_str(), (*this / "folder/model").c_str()), 0);
  write_file(*this / "never", pattern(kSize, 3));
  ASSERT_EQ(test::sluice({"pin", "hbm", *this / "folder/model"}).err, "");
  ASSERT_EQ(test::sluice({"pin", "hbm", *this / "never"}).err, "");
  const auto list = [&] { return read_file(mount().pool().state + "/hbm-pins"); };
  const auto pinned = [&] {
    const Json devices = mount().status().at("gpu").at("devices");
    return devices.empty() ? Json(0) : devices.at(0).at("hbm").at("pinned");
  };
  ASSERT_TRUE(eventually([&] { return pinned() == 2; }));
  mount().umount();
  // As if the daemon had been killed before the file got its xattr.
  for (const char* tier : {"nvme", "ssd", "hdd"})
    ::removexattr(on(tier, "never").c_str(), "trusted.sluice.hbm");
  mount().mount();
  ASSERT_EQ(::rename((*this / "folder").c_str(), (*this / "renamed").c_str()), 0);
  EXPECT_TRUE(eventually([&] {
    const UniqueFd file(::open((*this / "renamed/model").c_str(), O_RDONLY | O_CLOEXEC));
    return file && pinned() == 1 && list().find("never") == std::string::npos &&
           list().find("renamed/model") != std::string::npos;
  })) << list();
  EXPECT_EQ(xattr_of(*this / "renamed/model", "user.sluice.hbm"), "pinned");
  EXPECT_EQ(xattr_of(*this / "never", "user.sluice.hbm"), std::nullopt);
}

TEST_F(HbmMountTest, NoMoreThan256FilesCanBePinnedAndByAUser64) {
  const auto pin = [&](int i) {
    const std::string path = *this / ("f" + std::to_string(i));
    return named(::setxattr(path.c_str(), "user.sluice.hbm", "pinned", 6, 0) < 0 ? errno : 0);
  };
  for (int i = 0; i < 257; ++i) {
    const std::string path = *this / ("f" + std::to_string(i));
    write_file(path, "x");
    const uid_t owner = i <= 64 ? kAlice.uid : 0;
    ASSERT_EQ(::chown(path.c_str(), owner, owner), 0);
  }
  EXPECT_EQ(as_user(kAlice,
                    [&] {
                      std::string said;
                      for (int i = 0; i < 64 && (i == 0 || said == "ok"); ++i) said = pin(i);
                      return said + " " + pin(64);
                    }),
            "ok EDQUOT");
  bool is_shown = false;
  const Json limits = mount().status().at("limits");
  for (const Json& limit : limits) {
    is_shown = is_shown || (limit.at("what") == "files pinned to GPU memory" &&
                            limit.at("per") == "user" && limit.at("used") == 64);
  }
  EXPECT_TRUE(is_shown) << limits;
  for (int i = 0; i < 256; ++i) ASSERT_EQ(pin(i), "ok") << i;
  const CommandResult refused = test::sluice({"pin", "hbm", *this / "f256"});
  EXPECT_EQ(refused.exit_code, 1);
  EXPECT_NE(refused.err.find("256"), std::string::npos) << refused.err;
  ASSERT_EQ(test::sluice({"unpin", "--hbm", *this / "f0"}).exit_code, 0);
  EXPECT_EQ(test::sluice({"pin", "hbm", *this / "f256"}).err, "");
  // Deleted files make room.
  EXPECT_NE(test::sluice({"pin", "hbm", *this / "f0"}).exit_code, 0);
  ASSERT_EQ(::unlink((*this / "f1").c_str()), 0);
  EXPECT_TRUE(eventually([&] {
    return test::sluice({"pin", "hbm", *this / "f0"}).exit_code == 0;
  }));
}

TEST_F(HbmMountTest, PrefetchCopiesTheFile) {
  const std::string content = pattern(kSize, 1);
  const auto prefetch = [&](const std::string& how) {
    return ::setxattr((*this / "model").c_str(), "user.sluice.prefetch", how.data(), how.size(), 0)
               ? named(errno)
               : "ok";
  };
  EXPECT_EQ(prefetch("hbm:GPU-none"), "ENODEV");
  EXPECT_EQ(prefetch("hbm"), "ok");
  EXPECT_TRUE(eventually([&] { return hbm().at("files") == 1; }));
  EXPECT_EQ(read(content), kHbm);
}

}  // namespace
}  // namespace sluice::test
