// SPDX-License-Identifier: BSD-2-Clause
// Requests with GPU memory of the fake libcuda on ordinary files, executed by the engine of the
// process. tests/mount/client_test.cpp tests the daemon.
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <future>
#include <thread>

#include "client/include/sluice/hf3fs_usrbio.h"
#include "client/include/sluice/ring.h"
#include "gpu/device.hpp"
#include "tests/support/child.hpp"
#include "tests/support/fake_gpu_environment.hpp"
#include "tests/support/files.hpp"
#include "tests/support/wait.hpp"
#include "tests/unit/client/client.hpp"
#include "tests/unit/client/gpu_memory.hpp"

namespace sluice {
namespace {

using test::FakeGpu;
using test::GpuMemory;
using test::open_file;
using test::random_bytes;
using test::register_memory;

constexpr std::size_t kSize = 9'000'001;

class ClientGpuTest : public ::testing::Test {
 protected:
  ClientGpuTest()
      : content_(random_bytes(kSize)),
        path_(dir_.make_file("file", content_)),
        file_(open_file(path_, O_RDWR)) {}

  ~ClientGpuTest() override { FakeGpu::fail_cuda(""); }

  Device& device() { return *devices_.all()[0]; }
  const CudaApi& api() { return device().api(); }

  Devices devices_;
  test::TempDir dir_;
  const std::string content_;
  const std::string path_;
  const test::FileHandle file_;
};

TEST_F(ClientGpuTest, ReadsIntoAllocatedMemory) {
  const GpuMemory memory(device(), kSize);
  const auto buffer = register_memory(memory.pointer(), kSize);
  struct sluice_result result {};
  ASSERT_EQ(sluice_read(file_.get(), buffer.get(), 0, kSize, 0, &result),
            static_cast<ssize_t>(kSize))
      << sluice_error();
  EXPECT_TRUE(memory.bytes(0, kSize) == content_);
  EXPECT_EQ(result.route, static_cast<unsigned>(SLUICE_ROUTE_STAGED));
  EXPECT_EQ(result.in_process, 1u);
}

TEST_F(ClientGpuTest, ChildHasHostMemoryButNoGpu) {
#ifdef __SANITIZE_THREAD__
  GTEST_SKIP() << "ThreadSanitizer does not support threads in a forked child";
#endif
  const GpuMemory memory(device(), kSize);
  const auto buffer = register_memory(memory.pointer(), kSize);
  ASSERT_EQ(sluice_read(file_.get(), buffer.get(), 0, kSize, 0, nullptr),
            static_cast<ssize_t>(kSize));
  test::Child child([&] {
    struct sluice_query query {};
    ssize_t done = 0;
    std::vector<char> own(kSize);
    std::string said;
    const auto note = [&](ssize_t code) {
      said += test::errno_name(static_cast<int>(-code)) + " ";
    };
    note(sluice_query_file(file_.get(), buffer.get(), &query));
    note(sluice_query_file(file_.get(), nullptr, &query));
    note(sluice_read_stream(file_.get(), buffer.get(), 0, kSize, 0, nullptr, &done));
    const auto unreachable = register_memory(memory.pointer(), kSize);
    note(sluice_read(file_.get(), unreachable.get(), 0, kSize, 0, nullptr));
    note(sluice_read(file_.get(), buffer.get(), 0, kSize, 0, nullptr));
    said += sluice_error();
    const auto host = register_memory(own.data(), kSize);
    const ssize_t bytes = sluice_read(file_.get(), host.get(), 0, kSize, 0, nullptr);
    if (bytes != static_cast<ssize_t>(kSize) || std::string(own.data(), kSize) != content_)
      ::abort();
    dir_.make_file("said", said);
  });
  EXPECT_TRUE(child.join()) << "the child hangs";
  EXPECT_EQ(test::read_file(dir_ / "said"), "ENODEV ENODEV ENODEV EFAULT ENODEV read " + path_ +
                                                ": the GPU memory belongs to the parent: CUDA does "
                                                "not work after fork(): No such device; see "
                                                "'sluice doctor'");
}

TEST_F(ClientGpuTest, ReopenedFileIsStillRegisteredUnlessItChanged) {
  constexpr std::size_t kLarge = 17 << 20;
  const auto registrations = [] { return FakeGpu::count(test::FakeCount::Registrations); };
  const GpuMemory memory(device(), kLarge);
  const auto buffer = register_memory(memory.pointer(), kLarge);
  const std::string path = dir_.make_file("large", random_bytes(kLarge));
  // Opens, reads and closes the file; returns the route.
  const auto route = [&](const std::string& content) {
    const auto file = open_file(path);
    struct sluice_result result {};
    EXPECT_EQ(sluice_read(file.get(), buffer.get(), 0, kLarge, 0, &result),
              static_cast<ssize_t>(content.size()))
        << sluice_error();
    EXPECT_TRUE(memory.bytes(0, content.size()) == content);
    return std::string(sluice_route_name(result.route));
  };
  std::string content = test::read_file(path);
  EXPECT_EQ(route(content), "staged");
  const auto before = registrations();
  // The file must not have changed for two seconds.
  const auto becomes_mapped = [&] {
    return test::eventually([&] { return route(content) == "mapped"; }, std::chrono::seconds(60));
  };
  EXPECT_TRUE(becomes_mapped());
  EXPECT_EQ(route(content), "mapped");
  EXPECT_EQ(registrations(), before + 1);

  content.replace(5000, 3, "xyz");
  test::write_file(path, content);
  EXPECT_EQ(route(content), "staged") << "changed";
  EXPECT_TRUE(becomes_mapped());
  content.assign(kLarge, 'r');
  dir_.make_file("new", content);
  ASSERT_EQ(::rename((dir_ / "new").c_str(), path.c_str()), 0);
  EXPECT_EQ(route(content), "staged") << "replaced";
  EXPECT_TRUE(becomes_mapped());

  const auto with = registrations();
  auto file = open_file(path);
  ASSERT_EQ(::unlink(path.c_str()), 0);
  EXPECT_EQ(registrations(), with);
  file.reset();
  EXPECT_EQ(registrations(), with - 1) << "a deleted file can't be opened again";
}

TEST_F(ClientGpuTest, BufferMayBeginInTheMiddleOfAnAllocation) {
  const GpuMemory memory(device(), kSize + 5000);
  const auto buffer = register_memory(memory.pointer(1234), kSize);
  ASSERT_EQ(sluice_read(file_.get(), buffer.get(), 77, kSize - 77, 33, nullptr),
            static_cast<ssize_t>(kSize - 77))
      << sluice_error();
  EXPECT_TRUE(memory.bytes(1234 + 77, kSize - 77) == content_.substr(33, kSize - 77));
  EXPECT_EQ(memory.bytes(1234 + 76, 1), std::string(1, '\0'));
  EXPECT_EQ(sluice_read(file_.get(), buffer.get(), 0, 100, kSize - 3, nullptr), 3);
}

TEST_F(ClientGpuTest, MemoryThatEndsBeforeTheBufferIsRefused) {
  const GpuMemory memory(device(), 1 << 20);
  sluice_buffer* buffer = nullptr;
  EXPECT_EQ(sluice_buffer_register(memory.pointer(), std::size_t{64} << 20, &buffer), -EINVAL);
  EXPECT_STREQ(sluice_error(),
               "register memory: the memory is not completely allocated: Invalid argument");
}

TEST_F(ClientGpuTest, BufferMaySpanAdjacentAllocations) {
  const GpuMemory memory(device(), 5, 2 << 20);
  const auto buffer = register_memory(memory.pointer(100), kSize);
  struct sluice_result result {};
  ASSERT_EQ(sluice_read(file_.get(), buffer.get(), 0, kSize, 0, &result),
            static_cast<ssize_t>(kSize))
      << sluice_error();
  EXPECT_TRUE(memory.bytes(100, kSize) == content_);
}

TEST_F(ClientGpuTest, MemoryOfTheVirtualMemoryApiIsNotShared) {
  const GpuMemory memory(device(), 1, 2 << 20);
  const auto buffer = register_memory(memory.pointer(), 2 << 20);
  struct sluice_shared_buffer shared {};
  EXPECT_EQ(sluice_buffer_export(buffer.get(), &shared), -EOPNOTSUPP);
  struct hf3fs_iov iov {};
  const std::uint8_t id[16] = {};
  ASSERT_EQ(hf3fs_iovwrap_gpu(&iov, memory.pointer(), id, "/", 2 << 20, 0, 0), 0) << sluice_error();
  hf3fs_gpu_ipc_handle_t handle;
  EXPECT_EQ(hf3fs_iov_export_gpu(&iov, &handle), -EOPNOTSUPP);
  hf3fs_iovdestroy_gpu(&iov);

  const GpuMemory allocated(device(), 4096);
  const auto other = register_memory(allocated.pointer(), 4096);
  EXPECT_EQ(sluice_buffer_export(other.get(), &shared), 0) << sluice_error();
  EXPECT_EQ(shared.kind, static_cast<unsigned>(SLUICE_BUFFER_CUDA_IPC));
}

TEST_F(ClientGpuTest, PinnedMemoryIsHostMemory) {
  auto* page = static_cast<char*>(std::aligned_alloc(4096, 4096));
  ASSERT_EQ(api().cuMemHostRegister(page, 4096, kHostRegisterPortable), CUDA_SUCCESS);
  {
    const auto buffer = register_memory(page, 4096);
    struct sluice_result result {};
    EXPECT_EQ(sluice_read(file_.get(), buffer.get(), 0, 4096, 5, &result), 4096);
    EXPECT_EQ(result.route, static_cast<unsigned>(SLUICE_ROUTE_HOST));
    EXPECT_EQ(std::string(page, 4096), content_.substr(5, 4096));
  }
  ASSERT_EQ(api().cuMemHostUnregister(page), CUDA_SUCCESS);
  std::free(page);
}

TEST_F(ClientGpuTest, WritesGpuMemoryToTheFile) {
  const std::string bytes = random_bytes(5'000'003);
  const GpuMemory memory(device(), bytes.size());
  memory.fill(bytes);
  const auto buffer = register_memory(memory.pointer(), bytes.size());
  EXPECT_EQ(sluice_write(file_.get(), buffer.get(), 0, bytes.size(), 1'000'001, nullptr),
            static_cast<ssize_t>(bytes.size()))
      << sluice_error();
  EXPECT_TRUE(test::read_file(path_) ==
              content_.substr(0, 1'000'001) + bytes + content_.substr(1'000'001 + bytes.size()));
}

TEST_F(ClientGpuTest, SegmentsArriveAtTheirOffsets) {
  const GpuMemory memory(device(), 1 << 20);
  const auto buffer = register_memory(memory.pointer(), 1 << 20);
  std::vector<struct sluice_segment> segments;
  for (std::uint64_t i = 0; i < 700; ++i) segments.push_back({i * 1000, (699 - i) * 9999, 777});
  EXPECT_EQ(sluice_readv(file_.get(), buffer.get(), segments.data(), segments.size(), nullptr),
            700 * 777)
      << sluice_error();
  const std::string bytes = memory.bytes(0, 1 << 20);
  for (std::uint64_t i = 0; i < 700; ++i) {
    ASSERT_EQ(bytes.substr(i * 1000, 777), content_.substr((699 - i) * 9999, 777)) << i;
  }
}

TEST_F(ClientGpuTest, RequestedRouteIsTakenOrRefused) {
  const GpuMemory memory(device(), kSize);
  const auto buffer = register_memory(memory.pointer(), kSize);
  for (const auto route : {SLUICE_ROUTE_STAGED, SLUICE_ROUTE_PAGEABLE}) {
    struct sluice_result result {};
    EXPECT_EQ(sluice_read_route(file_.get(), buffer.get(), 0, kSize, 0, route, &result),
              static_cast<ssize_t>(kSize))
        << sluice_error();
    EXPECT_EQ(result.route, static_cast<unsigned>(route));
    EXPECT_EQ(result.why, static_cast<unsigned>(SLUICE_WHY_ASKED));
    EXPECT_TRUE(memory.bytes(0, kSize) == content_);
  }
  EXPECT_EQ(sluice_read_route(file_.get(), buffer.get(), 0, 10, 0, SLUICE_ROUTE_HOST, nullptr),
            -EOPNOTSUPP);
}

TEST_F(ClientGpuTest, QueryDescribesTheGpu) {
  const GpuMemory memory(device(), kSize);
  const auto buffer = register_memory(memory.pointer(), kSize);
  struct sluice_query query {};
  ASSERT_EQ(sluice_query_file(file_.get(), buffer.get(), &query), 0) << sluice_error();
  EXPECT_GE(query.gpus, 1u);
  EXPECT_NE(query.route, static_cast<unsigned>(SLUICE_ROUTE_HOST));
  struct sluice_query any {};
  ASSERT_EQ(sluice_query_file(file_.get(), nullptr, &any), 0) << sluice_error();
  EXPECT_EQ(any.route, query.route);
}

TEST_F(ClientGpuTest, ContextOfTheCallerIsRestored) {
  const GpuMemory memory(device(), kSize);
  // As if the program were using its second GPU.
  CUcontext other = nullptr, now = nullptr;
  ASSERT_EQ(api().cuDevicePrimaryCtxRetain(&other, 1), CUDA_SUCCESS);
  ASSERT_EQ(api().cuCtxSetCurrent(other), CUDA_SUCCESS);
  {
    const auto buffer = register_memory(memory.pointer(), kSize);
    api().cuCtxGetCurrent(&now);
    EXPECT_EQ(now, other);
    EXPECT_EQ(sluice_read(file_.get(), buffer.get(), 0, kSize, 0, nullptr),
              static_cast<ssize_t>(kSize));
    api().cuCtxGetCurrent(&now);
    EXPECT_EQ(now, other);
    sluice_file* file = nullptr;
    ASSERT_EQ(sluice_open(path_.c_str(), O_RDONLY, 0, &file), 0);
    sluice_close(file);
  }
  api().cuCtxGetCurrent(&now);
  EXPECT_EQ(now, other);
  ASSERT_TRUE(device().enter());
  api().cuDevicePrimaryCtxRelease(1);
}

TEST_F(ClientGpuTest, GpuErrorIsReturnedAndTheNextRequestWorks) {
  const GpuMemory memory(device(), kSize);
  const auto buffer = register_memory(memory.pointer(), kSize);
  FakeGpu::fail_cuda("cuMemcpyHtoDAsync:1+:1");  // CUDA_ERROR_INVALID_VALUE
  EXPECT_LT(sluice_read(file_.get(), buffer.get(), 0, kSize, 0, nullptr), 0);
  EXPECT_NE(std::string(sluice_error()).find(path_), std::string::npos) << sluice_error();
  FakeGpu::fail_cuda("");
  EXPECT_EQ(sluice_read(file_.get(), buffer.get(), 0, kSize, 0, nullptr),
            static_cast<ssize_t>(kSize))
      << sluice_error();
  EXPECT_TRUE(memory.bytes(0, kSize) == content_);
}

// Work in a stream before and after our request, which must run in order.
class ClientStreamTest : public ClientGpuTest, public ::testing::WithParamInterface<bool> {
 protected:
  ClientStreamTest() {
    // Without this function the stream waits in a host function instead.
    if (!GetParam()) FakeGpu::fail_cuda("cuStreamWaitValue32:1+:801");  // CUDA_ERROR_NOT_SUPPORTED
    EXPECT_TRUE(device().enter());
    EXPECT_EQ(api().cuStreamCreate(&stream_, kStreamNonBlocking), CUDA_SUCCESS);
  }
  ~ClientStreamTest() override {
    api().cuStreamDestroy(stream_);
    FakeGpu::fail_cuda("");
  }

  CUstream stream_ = nullptr;
};

struct Step {
  std::promise<void> allowed;
  std::atomic<bool> reached{false};
  static void run(void* user) {
    auto& self = *static_cast<Step*>(user);
    self.reached = true;
    self.allowed.get_future().wait();
  }
};

TEST_P(ClientStreamTest, RequestKeepsItsPlaceInTheStream) {
  const GpuMemory memory(device(), kSize);
  const auto buffer = register_memory(memory.pointer(), kSize);
  Step before;
  ssize_t done = -1234;
  std::string after(kSize, '\0');
  // A copy to memory that is not pinned waits for the stream.
  ASSERT_EQ(api().cuMemHostRegister(after.data(), kSize, 0), CUDA_SUCCESS);
  ASSERT_EQ(api().cuLaunchHostFunc(stream_, &Step::run, &before), CUDA_SUCCESS);
  ASSERT_EQ(sluice_read_stream(file_.get(), buffer.get(), 0, kSize, 0, stream_, &done), 0)
      << sluice_error();
  ASSERT_EQ(api().cuMemcpyDtoHAsync(after.data(), memory.address(), kSize, stream_), CUDA_SUCCESS);
  EXPECT_EQ(done, -1234) << "the request did not wait for the work before it";
  before.allowed.set_value();
  ASSERT_EQ(api().cuStreamSynchronize(stream_), CUDA_SUCCESS);
  EXPECT_EQ(done, static_cast<ssize_t>(kSize));
  ASSERT_EQ(api().cuMemHostUnregister(after.data()), CUDA_SUCCESS);
  EXPECT_TRUE(after == content_) << "the work after the request did not wait for it";
}

// Numbers of a request that are set while it waits in its stream.
struct Late {
  std::size_t buffer_offset = 0, length = 0;
  std::uint64_t file_offset = 0;
  ssize_t done = -1234;
  struct sluice_result result {};

  static void ask(void* user, size_t* buffer_offset, size_t* length, uint64_t* file_offset) {
    const auto& self = *static_cast<Late*>(user);
    *buffer_offset = self.buffer_offset;
    *length = self.length;
    *file_offset = self.file_offset;
  }
  static void tell(void* user, ssize_t done, const struct sluice_result* result) {
    static_cast<Late*>(user)->done = done;
    static_cast<Late*>(user)->result = *result;
  }
};

TEST_P(ClientStreamTest, LateNumbersAreComputedWhenTheStreamReachesTheCall) {
  const GpuMemory memory(device(), kSize);
  const auto buffer = register_memory(memory.pointer(), kSize);
  Step before;
  Late late, beyond, unread;
  ASSERT_EQ(api().cuLaunchHostFunc(stream_, &Step::run, &before), CUDA_SUCCESS);
  for (Late* each : {&late, &beyond}) {
    ASSERT_EQ(
        sluice_read_stream_late(file_.get(), buffer.get(), &Late::ask, &Late::tell, each, stream_),
        0)
        << sluice_error();
  }
  late.buffer_offset = 77, late.length = 5'000, late.file_offset = 1'001;
  beyond.buffer_offset = kSize, beyond.length = 1;
  before.allowed.set_value();
  ASSERT_EQ(api().cuStreamSynchronize(stream_), CUDA_SUCCESS);
  EXPECT_EQ(late.done, 5'000);
  EXPECT_EQ(late.result.bytes, 5'000u);
  EXPECT_TRUE(memory.bytes(77, 5'000) == content_.substr(1'001, 5'000));
  EXPECT_EQ(beyond.done, -ERANGE);
  EXPECT_EQ(
      sluice_write_stream_late(file_.get(), buffer.get(), nullptr, &Late::tell, &unread, stream_),
      -EINVAL);
  EXPECT_EQ(unread.done, -1234);
}

TEST_P(ClientStreamTest, ErrorIsTheResultAndTheStreamContinues) {
  const GpuMemory memory(device(), 1000);
  const auto buffer = register_memory(memory.pointer(), 1000);
  ssize_t done = 0, next = 0;
  FakeGpu::fail_cuda(GetParam() ? "cuMemcpyHtoDAsync:1+:1"
                                : "cuMemcpyHtoDAsync:1+:1,cuStreamWaitValue32:1+:801");
  ASSERT_EQ(::truncate(path_.c_str(), 500), 0);
  ASSERT_EQ(sluice_read_stream(file_.get(), buffer.get(), 0, 1000, 0, stream_, &done), 0);
  ASSERT_EQ(api().cuStreamSynchronize(stream_), CUDA_SUCCESS);
  EXPECT_LT(done, 0);
  FakeGpu::fail_cuda(GetParam() ? "" : "cuStreamWaitValue32:1+:801");
  ASSERT_EQ(sluice_read_stream(file_.get(), buffer.get(), 0, 1000, 0, stream_, &next), 0);
  ASSERT_EQ(api().cuStreamSynchronize(stream_), CUDA_SUCCESS);
  EXPECT_EQ(next, 500);
}

TEST_P(ClientStreamTest, WrongArgumentsFailAtOnce) {
  const GpuMemory memory(device(), 1000);
  const auto buffer = register_memory(memory.pointer(), 1000);
  ssize_t done = 77;
  EXPECT_EQ(sluice_read_stream(file_.get(), buffer.get(), 0, 1001, 0, stream_, &done), -ERANGE);
  const auto unwritable = open_file(path_);
  EXPECT_EQ(sluice_write_stream(unwritable.get(), buffer.get(), 0, 10, 0, stream_, &done), -EBADF);
  FakeGpu::fail_cuda("cuLaunchHostFunc:1:1");
  EXPECT_EQ(sluice_read_stream(file_.get(), buffer.get(), 0, 10, 0, stream_, &done), -EINVAL);
  EXPECT_EQ(done, 77);
}

TEST_P(ClientStreamTest, StreamIsUnchangedIfItCannotBeMadeToWait) {
  const GpuMemory memory(device(), 1000);
  const auto buffer = register_memory(memory.pointer(), 1000);
  Step before;
  ssize_t done = 77;
  ASSERT_EQ(api().cuLaunchHostFunc(stream_, &Step::run, &before), CUDA_SUCCESS);
  // The first call starts the request. The second makes the stream wait, and is made only without
  // cuStreamWaitValue32.
  FakeGpu::fail_cuda(GetParam() ? "cuLaunchHostFunc:2+:1"
                                : "cuLaunchHostFunc:2+:1,cuStreamWaitValue32:1+:801");
  EXPECT_EQ(sluice_read_stream(file_.get(), buffer.get(), 0, 10, 0, stream_, &done),
            GetParam() ? 0 : -EIO);
  before.allowed.set_value();
  ASSERT_EQ(api().cuStreamSynchronize(stream_), CUDA_SUCCESS);
  EXPECT_EQ(done, GetParam() ? 10 : 77);
}

TEST_P(ClientStreamTest, ManyRequestsInSeveralStreamsAllArrive) {
  const GpuMemory memory(device(), kSize);
  const auto buffer = register_memory(memory.pointer(), kSize);
  CUstream streams[3] = {};
  for (auto& stream : streams) {
    ASSERT_EQ(api().cuStreamCreate(&stream, kStreamNonBlocking), CUDA_SUCCESS);
  }
  constexpr std::size_t kPiece = 10'000;
  std::vector<ssize_t> done(kSize / kPiece);
  for (std::size_t i = 0; i < done.size(); ++i) {
    ASSERT_EQ(sluice_read_stream(file_.get(), buffer.get(), i * kPiece, kPiece, i * kPiece,
                                 streams[i % 3], &done[i]),
              0)
        << sluice_error();
  }
  for (auto& stream : streams) {
    ASSERT_EQ(api().cuStreamSynchronize(stream), CUDA_SUCCESS);
    api().cuStreamDestroy(stream);
  }
  EXPECT_EQ(done, std::vector<ssize_t>(done.size(), kPiece));
  EXPECT_TRUE(memory.bytes(0, done.size() * kPiece) == content_.substr(0, done.size() * kPiece));
}

TEST_P(ClientStreamTest, WriteUsesTheBytesOfEarlierStreamWork) {
  const std::string bytes = random_bytes(1'000'000);
  const GpuMemory memory(device(), bytes.size());
  const auto buffer = register_memory(memory.pointer(), bytes.size());
  ssize_t done = 0;
  ASSERT_EQ(api().cuMemcpyHtoDAsync(memory.address(), bytes.data(), bytes.size(), stream_),
            CUDA_SUCCESS);
  ASSERT_EQ(sluice_write_stream(file_.get(), buffer.get(), 0, bytes.size(), 0, stream_, &done), 0);
  ASSERT_EQ(api().cuStreamSynchronize(stream_), CUDA_SUCCESS);
  EXPECT_EQ(done, static_cast<ssize_t>(bytes.size()));
  EXPECT_TRUE(test::read_file(path_).substr(0, bytes.size()) == bytes);
}

INSTANTIATE_TEST_SUITE_P(Wait, ClientStreamTest, ::testing::Bool(),
                         [](const auto& each) { return each.param ? "OnAWord" : "InAFunction"; });

}  // namespace
}  // namespace sluice
