// SPDX-License-Identifier: BSD-2-Clause
// Requests come after the work that the program has put into the default stream. Nothing here is
// special to the fake libcuda: tests/gpu runs the same tests on a real GPU.
#include <dlfcn.h>

#include <atomic>
#include <chrono>
#include <functional>
#include <future>
#include <thread>

#include "client/include/sluice/loader.h"
#include "gpu/device.hpp"
#include "tests/support/files.hpp"
#include "tests/support/requirement.hpp"
#include "tests/support/wait.hpp"
#include "tests/unit/client/client.hpp"
#include "tests/unit/client/gpu_memory.hpp"
#include "tests/unit/client/model.hpp"
#include "tests/unit/client/ring.hpp"

namespace sluice {
namespace {

using test::GpuMemory;
using test::open_file;
using test::random_bytes;
using test::register_memory;

constexpr std::size_t kFileSize = 3'000'001;
constexpr std::size_t kRow = 1000;
constexpr int kRuns = 20;
constexpr ssize_t kAll = kFileSize;

// Keeps a stream busy until it is opened, or until a call has had the time to be wrong.
class Gate {
 public:
  explicit Gate(std::chrono::milliseconds most) : most_(most) {}
  static void run(void* user) {
    auto& self = *static_cast<Gate*>(user);
    static_cast<void>(self.opened_.get_future().wait_for(self.most_));
  }
  void open() { opened_.set_value(); }

 private:
  const std::chrono::milliseconds most_;
  std::promise<void> opened_;
};

constexpr std::chrono::milliseconds kSoon{20};
constexpr std::chrono::minutes kNever{5};

class ClientOrderTest : public ::testing::Test {
 protected:
  void SetUp() override {
    if (!test::require("gpu", !devices_.all().empty(), devices_.why_none())) return;
    content_ = random_bytes(kFileSize);
    path_ = dir_.make_file("file", content_);
    file_ = open_file(path_, O_RDWR);
    memory_ = std::make_unique<GpuMemory>(device(), kFileSize);
    buffer_ = register_memory(memory_->pointer(), kFileSize);
  }

  Device& device() { return *devices_.all()[0]; }
  const CudaApi& api() { return device().api(); }
  // A function of CUDA that only tests need.
  template <typename Function>
  static Function* cuda(const char* name) {
    void* const library = ::dlopen("libcuda.so.1", RTLD_NOW);
    return reinterpret_cast<Function*>(::dlsym(library, name));
  }

  // Calls `call` while the default stream (or another) has `work` to do, which begins after the
  // call has returned, unless the call waits for it.
  void during(const std::function<void()>& work, const std::function<void()>& call,
              CUstream stream = nullptr) {
    Gate gate(kSoon);
    ASSERT_EQ(api().cuLaunchHostFunc(stream, &Gate::run, &gate), CUDA_SUCCESS);
    work();
    call();
    gate.open();
    ASSERT_EQ(api().cuCtxSynchronize(), CUDA_SUCCESS);
  }
  void set(CUstream stream = nullptr) {
    ASSERT_EQ(api().cuMemsetD8Async(memory_->address(), 'x', kFileSize, stream), CUDA_SUCCESS);
  }
  // A memset and then a read that has to come after it.
  void expect_read(const std::function<ssize_t()>& read) {
    for (int i = 0; i < kRuns; ++i) {
      during([&] { set(); }, [&] { ASSERT_EQ(read(), kAll) << sluice_error(); });
      ASSERT_TRUE(memory_->bytes(0, kFileSize) == content_) << "run " << i;
    }
  }

  Devices devices_;
  test::TempDir dir_;
  std::string content_, path_;
  test::FileHandle file_;
  std::unique_ptr<GpuMemory> memory_;
  test::BufferHandle buffer_;
};

TEST_F(ClientOrderTest, ReadComesAfterTheDefaultStream) {
  expect_read([&] { return sluice_read(file_.get(), buffer_.get(), 0, kFileSize, 0, nullptr); });
}

TEST_F(ClientOrderTest, SegmentsComeAfterTheDefaultStream) {
  const struct sluice_segment halves[] = {{0, 0, 1000}, {1000, 1000, kFileSize - 1000}};
  expect_read([&] { return sluice_readv(file_.get(), buffer_.get(), halves, 2, nullptr); });
}

TEST_F(ClientOrderTest, AsynchronousReadComesAfterTheDefaultStream) {
  expect_read([&]() -> ssize_t {
    std::promise<ssize_t> done;
    const auto callback = [](void* user, ssize_t bytes, const struct sluice_result*) {
      static_cast<std::promise<ssize_t>*>(user)->set_value(bytes);
    };
    const int code =
        sluice_read_async(file_.get(), buffer_.get(), 0, kFileSize, 0, callback, &done);
    return code < 0 ? code : done.get_future().get();
  });
}

TEST_F(ClientOrderTest, RingComesAfterTheDefaultStream) {
  const auto ring = test::make_ring(8);
  const int file = sluice_ring_add_file(ring.get(), file_.get());
  const int buffer = sluice_ring_add_buffer(ring.get(), buffer_.get());
  expect_read([&]() -> ssize_t {
    EXPECT_EQ(sluice_ring_read(ring.get(), file, buffer, 0, kFileSize, 0, 7), 0) << sluice_error();
    EXPECT_EQ(sluice_ring_submit(ring.get()), 1) << sluice_error();
    return test::wait_for(ring, 1)[7].result;
  });
}

TEST_F(ClientOrderTest, GatherComesAfterTheDefaultStream) {
  std::vector<std::uint64_t> index(kFileSize / kRow);
  for (std::size_t i = 0; i < index.size(); ++i) index[i] = index.size() - 1 - i;
  std::string expected;
  for (const auto number : index) expected += content_.substr(number * kRow, kRow);
  const std::size_t index_bytes = index.size() * sizeof index[0];
  const GpuMemory there(device(), index_bytes);
  struct sluice_result result {};
  const auto gather = [&] {
    return sluice_gather(file_.get(), buffer_.get(), 0,
                         static_cast<const std::uint64_t*>(there.pointer()), index.size(), kRow, 0,
                         &result);
  };
  // Only a kernel uses the index where it is.
  const auto is_by_kernel = [&] { return gather() > 0 && result.route == SLUICE_ROUTE_MAPPED; };
  ASSERT_TRUE(test::eventually(is_by_kernel, std::chrono::seconds(60))) << sluice_error();
  for (int i = 0; i < kRuns; ++i) {
    there.fill(std::string(index_bytes, '\xff'));
    const auto work = [&] {
      set();
      // From pageable memory: the call returns before the bytes have arrived.
      ASSERT_EQ(api().cuMemcpyHtoDAsync(there.address(), index.data(), index_bytes, nullptr),
                CUDA_SUCCESS);
    };
    during(work,
           [&] { ASSERT_EQ(gather(), static_cast<ssize_t>(expected.size())) << sluice_error(); });
    ASSERT_TRUE(memory_->bytes(0, expected.size()) == expected) << "run " << i;
  }
}

TEST_F(ClientOrderTest, IndexOfAGatherToHostMemoryComesAfterTheDefaultStream) {
  // The buffer is in host memory, so only the index is in the order of the stream.
  std::vector<char> host(2 * kRow);
  const auto buffer = register_memory(host.data(), host.size());
  const GpuMemory there(device(), 16);
  const std::uint64_t index[] = {3, 1};
  during(
      [&] {
        ASSERT_EQ(api().cuMemcpyHtoDAsync(there.address(), index, sizeof index, nullptr),
                  CUDA_SUCCESS);
      },
      [&] {
        ASSERT_EQ(
            sluice_gather(file_.get(), buffer.get(), 0,
                          static_cast<const std::uint64_t*>(there.pointer()), 2, kRow, 0, nullptr),
            static_cast<ssize_t>(host.size()))
            << sluice_error();
      });
  EXPECT_EQ(std::string(host.data(), host.size()),
            content_.substr(3 * kRow, kRow) + content_.substr(kRow, kRow));
}

TEST_F(ClientOrderTest, WriteAndScatterUseTheBytesOfTheDefaultStream) {
  const std::uint64_t index[] = {2};
  during([&] { set(); },
         [&] {
           ASSERT_EQ(sluice_write(file_.get(), buffer_.get(), 0, kRow, 0, nullptr),
                     static_cast<ssize_t>(kRow));
         });
  memory_->fill(std::string(kFileSize, 'a'));
  during([&] { set(); },
         [&] {
           ASSERT_EQ(sluice_scatter(file_.get(), buffer_.get(), 0, index, 1, kRow, 0, nullptr),
                     static_cast<ssize_t>(kRow));
         });
  const std::string expected(kRow, 'x');
  const std::string now = test::read_file(path_);
  EXPECT_TRUE(now.substr(0, kRow) == expected);
  EXPECT_TRUE(now.substr(2 * kRow, kRow) == expected);
}

TEST_F(ClientOrderTest, ModelAndLayersComeAfterTheDefaultStream) {
  const std::string bytes = content_.substr(0, 1 << 20);
  const auto model =
      test::open_model(dir_.make_file("m.safetensors", test::pack_tensors({{"a", bytes}})));
  during([&] { set(); },
         [&] {
           ASSERT_EQ(sluice_model_load(model.get(), buffer_.get(), 0, nullptr, nullptr, nullptr),
                     static_cast<ssize_t>(bytes.size()))
               << sluice_error();
         });
  EXPECT_TRUE(memory_->bytes(0, bytes.size()) == bytes);

  test::LayersHandle layers;
  sluice_model* const models[] = {model.get(), model.get()};
  during([&] { set(); },
         [&] {
           sluice_layers* made = nullptr;
           ASSERT_EQ(sluice_layers_open(models, 2, buffer_.get(), 0, 1, 0, &made), 0)
               << sluice_error();
           layers.reset(made);
           ASSERT_EQ(sluice_layers_acquire(made, 0), 0) << sluice_error();
         });
  EXPECT_TRUE(memory_->bytes(0, bytes.size()) == bytes);
  during([&] { set(); },
         [&] {
           ASSERT_EQ(sluice_layers_release(layers.get(), 0), 0) << sluice_error();
           ASSERT_EQ(sluice_layers_acquire(layers.get(), 1), 0) << sluice_error();
         });
  EXPECT_TRUE(memory_->bytes(0, bytes.size()) == bytes);
}

TEST_F(ClientOrderTest, ReadComesAfterAStreamThatTheDefaultStreamWaitsFor) {
  CUstream stream = nullptr;
  ASSERT_EQ(api().cuStreamCreate(&stream, 0), CUDA_SUCCESS);
  during(
      [&] { set(stream); },
      [&] { ASSERT_EQ(sluice_read(file_.get(), buffer_.get(), 0, kFileSize, 0, nullptr), kAll); },
      stream);
  EXPECT_TRUE(memory_->bytes(0, kFileSize) == content_);
  ASSERT_EQ(api().cuStreamDestroy(stream), CUDA_SUCCESS);
}

// If the request itself waited for the default stream, both would wait forever.
TEST_F(ClientOrderTest, ReadInAStreamDoesNotWaitForTheDefaultStream) {
  CUstream blocking = nullptr;
  ASSERT_EQ(api().cuStreamCreate(&blocking, 0), CUDA_SUCCESS);
  for (CUstream stream : {CUstream{}, blocking}) {
    set(stream);
    ssize_t done = 0;
    ASSERT_EQ(sluice_read_stream(file_.get(), buffer_.get(), 0, kFileSize, 0, stream, &done), 0)
        << sluice_error();
    // In front of the default stream's next work is our request.
    ASSERT_EQ(api().cuMemsetD8Async(memory_->address(), 'y', 1, nullptr), CUDA_SUCCESS);
    ASSERT_EQ(api().cuCtxSynchronize(), CUDA_SUCCESS);
    EXPECT_EQ(done, kAll);
    EXPECT_TRUE(memory_->bytes(0, kFileSize) == "y" + content_.substr(1));
  }
  ASSERT_EQ(api().cuStreamDestroy(blocking), CUDA_SUCCESS);
}

TEST_F(ClientOrderTest, BufferThatIsNotOrderedDoesNotWait) {
  Gate gate(kNever);
  // Nothing is set up during the request: that would wait for the GPU, too.
  ASSERT_EQ(sluice_read(file_.get(), buffer_.get(), 0, kFileSize, 0, nullptr), kAll);
  sluice_buffer_unordered(buffer_.get());
  ASSERT_EQ(api().cuLaunchHostFunc(nullptr, &Gate::run, &gate), CUDA_SUCCESS);
  EXPECT_EQ(sluice_read(file_.get(), buffer_.get(), 0, kFileSize, 0, nullptr), kAll)
      << sluice_error();
  EXPECT_EQ(api().cuStreamQuery(nullptr), CUDA_ERROR_NOT_READY);
  gate.open();
  ASSERT_EQ(api().cuCtxSynchronize(), CUDA_SUCCESS);
}

using Begin = CUresult(CUstream, CUstreamCaptureMode);
using End = CUresult(CUstream, void**);

// A stream that is captured in the strictest mode, by another thread.
class Captured {
 public:
  Captured(Device& device, unsigned flags, Begin* begin, End* end) : api_(device.api()), end_(end) {
    EXPECT_EQ(api_.cuStreamCreate(&stream_, flags), CUDA_SUCCESS);
    thread_ = std::thread([&, begin] {
      EXPECT_TRUE(device.enter());
      auto mode = CU_STREAM_CAPTURE_MODE_GLOBAL;
      EXPECT_EQ(api_.cuThreadExchangeStreamCaptureMode(&mode), CUDA_SUCCESS);
      EXPECT_EQ(begin(stream_, CU_STREAM_CAPTURE_MODE_GLOBAL), CUDA_SUCCESS);
      begun_.set_value();
      finished_.get_future().wait();
      void* graph = nullptr;
      result_ = end_(stream_, &graph);
    });
    begun_.get_future().wait();
  }
  CUstream stream() const { return stream_; }
  // CUDA_SUCCESS: nobody has spoilt the graph.
  CUresult finish() {
    finished_.set_value();
    thread_.join();
    EXPECT_EQ(api_.cuStreamDestroy(stream_), CUDA_SUCCESS);
    return result_;
  }

 private:
  const CudaApi& api_;
  End* const end_;
  CUstream stream_ = nullptr;
  std::promise<void> begun_, finished_;
  CUresult result_ = CUDA_SUCCESS;
  std::thread thread_;
};

class ClientCaptureTest : public ClientOrderTest {
 protected:
  Captured capture(unsigned flags) {
    return {device(), flags, cuda<Begin>("cuStreamBeginCapture_v2"),
            cuda<End>("cuStreamEndCapture")};
  }
  CUstreamCaptureMode mode() {
    auto mode = CU_STREAM_CAPTURE_MODE_RELAXED;
    api().cuThreadExchangeStreamCaptureMode(&mode);
    const auto found = mode;
    api().cuThreadExchangeStreamCaptureMode(&mode);
    return found;
  }
};

TEST_F(ClientCaptureTest, CallsWorkWhileAnotherThreadCapturesAGraph) {
  std::thread([&] {  // a thread of the program, whose mode is CUDA's own
    ASSERT_TRUE(device().enter());
    auto strict = CU_STREAM_CAPTURE_MODE_GLOBAL;
    api().cuThreadExchangeStreamCaptureMode(&strict);
    auto captured = capture(kStreamNonBlocking);
    const auto buffer = register_memory(memory_->pointer(), kFileSize);
    EXPECT_EQ(sluice_read(file_.get(), buffer.get(), 0, kFileSize, 0, nullptr), kAll)
        << sluice_error();
    const std::uint64_t index[] = {1};
    EXPECT_EQ(sluice_gather(file_.get(), buffer.get(), 0, index, 1, kRow, 0, nullptr),
              static_cast<ssize_t>(kRow))
        << sluice_error();
    EXPECT_EQ(mode(), CU_STREAM_CAPTURE_MODE_GLOBAL) << "the mode of the caller was not restored";
    EXPECT_EQ(captured.finish(), CUDA_SUCCESS) << "the graph is spoilt";
  })
      .join();
  EXPECT_TRUE(memory_->bytes(kRow, kRow) == content_.substr(kRow, kRow));
}

TEST_F(ClientCaptureTest, CallsAreRefusedIfTheDefaultStreamCannotBeUsed) {
  auto captured = capture(0);
  EXPECT_EQ(sluice_read(file_.get(), buffer_.get(), 0, kFileSize, 0, nullptr), -EBUSY);
  EXPECT_NE(std::string(sluice_error()).find("captured into a graph"), std::string::npos)
      << sluice_error();
  ssize_t done = 0;
  EXPECT_EQ(sluice_read_stream(file_.get(), buffer_.get(), 0, kFileSize, 0, nullptr, &done),
            -EOPNOTSUPP);
  sluice_buffer_unordered(buffer_.get());
  EXPECT_EQ(sluice_read(file_.get(), buffer_.get(), 0, kFileSize, 0, nullptr), kAll)
      << sluice_error();
  EXPECT_EQ(captured.finish(), CUDA_SUCCESS) << "the graph is spoilt";
  EXPECT_TRUE(memory_->bytes(0, kFileSize) == content_);
}

TEST_F(ClientCaptureTest, ReadInACapturedStreamIsRefused) {
  auto captured = capture(kStreamNonBlocking);
  ssize_t done = 5;
  EXPECT_EQ(
      sluice_read_stream(file_.get(), buffer_.get(), 0, kFileSize, 0, captured.stream(), &done),
      -EOPNOTSUPP);
  EXPECT_NE(std::string(sluice_error()).find("captured into a graph"), std::string::npos)
      << sluice_error();
  EXPECT_EQ(done, 5);
  EXPECT_EQ(captured.finish(), CUDA_SUCCESS) << "the graph is spoilt";
}

}  // namespace
}  // namespace sluice
