// SPDX-License-Identifier: BSD-2-Clause
// libsluice on files of a real mount, with GPU memory of the fake libcuda, which the daemon uses,
// too: what the daemon does, and when the process does the work instead.
#include "tests/unit/client/client.hpp"

#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <future>

#include "gpu/device.hpp"
#include "tests/mount/tiering.hpp"
#include "tests/support/fake_gpu_environment.hpp"
#include "tests/unit/client/gpu_memory.hpp"
#include "tests/unit/client/model.hpp"

namespace sluice::test {
namespace {

constexpr std::size_t kSize = 9'000'001;

class ClientMountTest : public TieringTest {
 protected:
  void SetUp() override {
    TieringTest::SetUp();
    if (IsSkipped() || HasFatalFailure()) return;
    content_ = random_bytes(kSize);
    put("nvme", "file", content_);
  }

  Device& device() { return *devices_.all()[0]; }
  std::uint64_t buffers() { return mount().status().at("gpu").at("buffers"); }
  long ioctls() { return mount().requests()["IOCTL"]; }

  // Reads the whole file and checks its bytes. Returns whether the process read it itself.
  bool is_read_in_process(const FileHandle& file, const BufferHandle& buffer,
                          const GpuMemory& memory, std::size_t offset = 0) {
    struct sluice_result result {};
    EXPECT_EQ(sluice_read(file.get(), buffer.get(), 0, kSize, 0, &result),
              static_cast<ssize_t>(kSize))
        << sluice_error();
    EXPECT_TRUE(memory.bytes(offset, kSize) == content_);
    return result.in_process == 1;
  }

  Devices devices_;
  std::string content_;
};

TEST_F(ClientMountTest, DaemonReadsIntoMemoryOfTheProcess) {
  start();
  const GpuMemory memory(device(), kSize + 10'000);
  const auto file = open_file(*this / "file");
  {
    const auto buffer = register_memory(memory.pointer(4321), kSize);
    EXPECT_EQ(buffers(), 0u) << "registered before it is needed";
    EXPECT_FALSE(is_read_in_process(file, buffer, memory, 4321));
    EXPECT_EQ(buffers(), 1u);
    EXPECT_FALSE(is_read_in_process(file, buffer, memory, 4321));
    EXPECT_EQ(buffers(), 1u);
    // Each open file registers the memory separately.
    EXPECT_FALSE(is_read_in_process(open_file(*this / "file"), buffer, memory, 4321));
    EXPECT_EQ(buffers(), 1u) << "a file that is closed keeps the memory";
  }
  EXPECT_EQ(buffers(), 0u) << "the daemon still has memory that was unregistered";
}

TEST_F(ClientMountTest, MemoryOfSeveralAllocationsIsOneBuffer) {
  start();
  const GpuMemory memory(device(), 5, 2 << 20);
  const auto file = open_file(*this / "file");
  const auto buffer = register_memory(memory.pointer(1000), kSize);
  EXPECT_FALSE(is_read_in_process(file, buffer, memory, 1000));
  EXPECT_EQ(buffers(), 5u);

  // Segments in arbitrary order; some cross the border of two allocations.
  std::vector<struct sluice_segment> segments;
  for (std::uint64_t i = 0; i < 900; ++i) {
    segments.push_back({i * 10'000, (899 - i) * 10'000, 9'000});
  }
  struct sluice_result result {};
  EXPECT_EQ(sluice_readv(file.get(), buffer.get(), segments.data(), segments.size(), &result),
            900 * 9'000)
      << sluice_error();
  EXPECT_EQ(result.in_process, 0u);
  const std::string bytes = memory.bytes(1000, kSize);
  for (std::uint64_t i = 0; i < 900; ++i) {
    ASSERT_TRUE(bytes.substr(i * 10'000, 9'000) == content_.substr((899 - i) * 10'000, 9'000)) << i;
  }
  // The file ends in the middle of an allocation.
  EXPECT_EQ(sluice_read(file.get(), buffer.get(), 0, kSize, 5'000'000, nullptr),
            static_cast<ssize_t>(kSize - 5'000'000));
}

TEST_F(ClientMountTest, DaemonLoadsAModelOfFilesOnSeveralTiers) {
  std::string map;
  std::vector<std::pair<std::string, std::string>> tensors;
  for (std::size_t i = 0; i < 6; ++i) {
    const std::string file = "model-" + std::to_string(i), name = "w" + std::to_string(i);
    tensors.emplace_back(name, random_bytes(3'000'001 + i));
    tensors.emplace_back(name + ".bias", random_bytes(77 + i));
    put(i % 2 == 0 ? "nvme" : "hdd", file, pack_tensors({tensors.end() - 2, tensors.end()}));
    for (const auto& key : {name, name + ".bias"}) {
      map += (map.empty() ? "\"" : ",\"") + key + "\":\"" + file + "\"";
    }
  }
  put("nvme", "model.safetensors.index.json", "{\"weight_map\":{" + map + "}}");
  start();
  const auto model = open_model(*this / "");
  const std::size_t size = sluice_model_arena(model.get());
  const GpuMemory memory(device(), size);
  {
    const auto buffer = register_memory(memory.pointer(), size);
    struct sluice_result result {};
    ASSERT_GT(sluice_model_load(model.get(), buffer.get(), 0, nullptr, nullptr, &result),
              18'000'000)
        << sluice_error();
    EXPECT_EQ(result.in_process, 0u);
    EXPECT_EQ(buffers(), 6u) << "one for each file";
  }
  EXPECT_EQ(buffers(), 0u);
  for (const auto& [name, bytes] : tensors) {
    const auto* tensor = sluice_model_find(model.get(), name.c_str());
    ASSERT_NE(tensor, nullptr) << name;
    EXPECT_TRUE(memory.bytes(tensor->arena_offset, tensor->bytes) == bytes) << name;
  }
}

TEST_F(ClientMountTest, DaemonWrites) {
  start();
  const std::string bytes = random_bytes(3'000'001);
  const GpuMemory memory(device(), bytes.size());
  memory.fill(bytes);
  const auto buffer = register_memory(memory.pointer(), bytes.size());
  const auto file = open_file(*this / "file", O_RDWR);
  struct sluice_result result {};
  EXPECT_EQ(sluice_write(file.get(), buffer.get(), 0, bytes.size(), 100, &result),
            static_cast<ssize_t>(bytes.size()))
      << sluice_error();
  EXPECT_EQ(result.in_process, 0u);
  EXPECT_TRUE(read_file(*this / "file").substr(100, bytes.size()) == bytes);
}

TEST_F(ClientMountTest, LargeRequestIsOneIoctl) {
  put("hdd", "large", "begin");
  constexpr std::size_t kLarge = 300 << 20;
  ASSERT_EQ(::truncate(on("hdd", "large").c_str(), kLarge), 0);
  start();
  const GpuMemory memory(device(), kLarge);
  const auto buffer = register_memory(memory.pointer(), kLarge);
  const auto file = open_file(*this / "large");
  ASSERT_EQ(sluice_read(file.get(), buffer.get(), 0, 1, 0, nullptr), 1);
  const long before = ioctls();
  struct sluice_result result {};
  EXPECT_EQ(sluice_read(file.get(), buffer.get(), 0, kLarge, 0, &result),
            static_cast<ssize_t>(kLarge))
      << sluice_error();
  EXPECT_EQ(ioctls() - before, 1);
  EXPECT_EQ(result.bytes, kLarge);
  EXPECT_EQ(result.in_process, 0u);
  EXPECT_EQ(memory.bytes(0, 6), std::string("begin\0", 6));
}

TEST_F(ClientMountTest, ProcessReadsIfTheDaemonHasNoGpu) {
  start({"--no-gpu"});
  const GpuMemory memory(device(), kSize);
  const auto buffer = register_memory(memory.pointer(), kSize);
  EXPECT_TRUE(is_read_in_process(open_file(*this / "file"), buffer, memory));
}

TEST_F(ClientMountTest, ProcessReadsIfMemoryCannotBeExported) {
  start();
  const auto file = open_file(*this / "file");
  const GpuMemory mapped(device(), 5, 2 << 20), allocated(device(), kSize);
  const auto first = register_memory(mapped.pointer(), kSize);
  const auto second = register_memory(allocated.pointer(), kSize);
  // Like memory that was created without a handle type, or by cudaMallocAsync().
  FakeGpu::fail_cuda("cuMemExportToShareableHandle:1+:801,cuIpcGetMemHandle:1+:1");
  EXPECT_TRUE(is_read_in_process(file, first, mapped));
  EXPECT_TRUE(is_read_in_process(file, second, allocated));
  FakeGpu::fail_cuda("");
  const long before = ioctls();
  EXPECT_TRUE(is_read_in_process(file, first, mapped));
  EXPECT_TRUE(is_read_in_process(file, second, allocated));
  EXPECT_EQ(ioctls(), before) << "the daemon was asked again";
}

TEST_F(ClientMountTest, ProcessReadsIfTheDaemonCannotImportMemory) {
  start();
  const GpuMemory memory(device(), kSize);
  const auto buffer = register_memory(memory.pointer(), kSize);
  const auto file = open_file(*this / "file");
  const GpuMemory first(device(), 1 << 20);  // makes the daemon load CUDA
  const auto known = register_memory(first.pointer(), 1 << 20);
  ASSERT_EQ(sluice_read(file.get(), known.get(), 0, 1, 0, nullptr), 1);
  ASSERT_TRUE(FakeGpu::fail_cuda("cuIpcOpenMemHandle:1+:101", mount().pid()));
  EXPECT_TRUE(is_read_in_process(file, buffer, memory));
  FakeGpu::fail_cuda("", mount().pid());
  EXPECT_TRUE(is_read_in_process(file, buffer, memory))
      << "the daemon must be asked again for each request";
}

TEST_F(ClientMountTest, GpuErrorOfTheDaemonIsReturned) {
  start();
  const GpuMemory memory(device(), kSize);
  const auto buffer = register_memory(memory.pointer(), kSize);
  const auto file = open_file(*this / "file");
  EXPECT_FALSE(is_read_in_process(file, buffer, memory));
  ASSERT_TRUE(FakeGpu::fail_cuda("cuMemcpyHtoDAsync:1+:999", mount().pid()));
  EXPECT_EQ(sluice_read(file.get(), buffer.get(), 0, kSize, 0, nullptr), -EIO);
  EXPECT_NE(std::string(sluice_error()).find(*this / "file"), std::string::npos) << sluice_error();
  FakeGpu::fail_cuda("", mount().pid());
  EXPECT_FALSE(is_read_in_process(file, buffer, memory));
}

TEST_F(ClientMountTest, HostMemoryIsReadByTheProcess) {
  start();
  std::string memory(kSize, '\0');
  const auto buffer = register_memory(memory.data(), kSize);
  const auto file = open_file(*this / "file");
  struct sluice_result result {};
  EXPECT_EQ(sluice_read(file.get(), buffer.get(), 0, kSize, 0, &result),
            static_cast<ssize_t>(kSize));
  EXPECT_TRUE(memory == content_);
  EXPECT_EQ(result.in_process, 1u);
  EXPECT_EQ(result.route, static_cast<unsigned>(SLUICE_ROUTE_HOST));
}

TEST_F(ClientMountTest, DaemonServesRequestsInAStream) {
  start();
  const GpuMemory memory(device(), kSize);
  const auto buffer = register_memory(memory.pointer(), kSize);
  const auto file = open_file(*this / "file");
  CUstream stream = nullptr;
  ASSERT_EQ(device().api().cuStreamCreate(&stream, kStreamNonBlocking), CUDA_SUCCESS);
  ssize_t done = 0;
  ASSERT_EQ(sluice_read_stream(file.get(), buffer.get(), 0, kSize, 0, stream, &done), 0)
      << sluice_error();
  EXPECT_EQ(buffers(), 1u);
  ASSERT_EQ(device().api().cuStreamSynchronize(stream), CUDA_SUCCESS);
  device().api().cuStreamDestroy(stream);
  EXPECT_EQ(done, static_cast<ssize_t>(kSize));
  EXPECT_TRUE(memory.bytes(0, kSize) == content_);
}

// The daemon can't wait for streams of this process.
TEST_F(ClientMountTest, DaemonReadsAfterTheDefaultStreamOfTheProcess) {
  start();
  const GpuMemory memory(device(), kSize);
  const auto file = open_file(*this / "file");
  const auto buffer = register_memory(memory.pointer(), kSize);
  EXPECT_FALSE(is_read_in_process(file, buffer, memory));
  // Lasts until the read has returned, or has had the time to be wrong.
  std::promise<void> is_read;
  auto wait = is_read.get_future();
  const auto hold = [](void* user) {
    static_cast<void>(
        static_cast<std::future<void>*>(user)->wait_for(std::chrono::milliseconds(50)));
  };
  ASSERT_EQ(device().api().cuLaunchHostFunc(nullptr, hold, &wait), CUDA_SUCCESS);
  ASSERT_EQ(device().api().cuMemsetD8Async(memory.address(), 'x', kSize, nullptr), CUDA_SUCCESS);
  struct sluice_result result {};
  EXPECT_EQ(sluice_read(file.get(), buffer.get(), 0, kSize, 0, &result),
            static_cast<ssize_t>(kSize))
      << sluice_error();
  is_read.set_value();
  ASSERT_EQ(device().api().cuCtxSynchronize(), CUDA_SUCCESS);
  EXPECT_EQ(result.in_process, 0u);
  EXPECT_TRUE(memory.bytes(0, kSize) == content_);
}

TEST_F(ClientMountTest, QueryAndPrefetchReachTheDaemon) {
  start();
  const auto file = open_file(*this / "file");
  struct sluice_query query {};
  ASSERT_EQ(sluice_query_file(file.get(), nullptr, &query), 0) << sluice_error();
  EXPECT_STREQ(query.tier, "nvme");
  EXPECT_EQ(query.gpus, 2u);
  EXPECT_EQ(query.file_size, kSize);
  EXPECT_EQ(sluice_prefetch(file.get(), 0, 0, SLUICE_PREFETCH_WARM), 0) << sluice_error();
  EXPECT_EQ(sluice_prefetch(file.get(), 0, 0, SLUICE_PREFETCH_PROMOTE), 0) << sluice_error();
}

TEST_F(ClientMountTest, CommandReportsWhoReadAndChecksTheBytes) {
  start();
  const auto by_daemon = sluice({"gpu", "read", "--check", "--checksum", "--json", *this / "file"});
  ASSERT_TRUE(by_daemon.ok()) << by_daemon.err;
  const auto json = Json::parse(by_daemon.out);
  EXPECT_EQ(json.at("bytes"), kSize);
  EXPECT_EQ(json.at("by"), "daemon");
  EXPECT_EQ(json.at("checked"), true);
  EXPECT_NE(json.at("gpu"), Json());
  const auto file = open_file(*this / "file");
  std::uint64_t sum = 0;
  ASSERT_EQ(sluice_checksum_file(file.get(), 0, kSize, &sum), 0) << sluice_error();
  EXPECT_EQ(std::stoull(json.at("checksum").get<std::string>(), nullptr, 16), sum);
  const auto second = sluice({"gpu", "read", "--gpu", "1", "--length", "1MiB", *this / "file"});
  EXPECT_TRUE(second.ok()) << second.err;
  EXPECT_NE(second.out.find("1.0 MiB in "), std::string::npos) << second.out;
  const auto none = sluice({"gpu", "read", "--gpu", "7", *this / "file"});
  EXPECT_EQ(none.exit_code, 1);
  EXPECT_NE(none.err.find("no GPU 7"), std::string::npos) << none.err;
}

}  // namespace
}  // namespace sluice::test
