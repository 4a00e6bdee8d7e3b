// SPDX-License-Identifier: BSD-2-Clause
// Batches and streams of our libcufile, with files of both kinds.
#include <atomic>
#include <cerrno>
#include <future>
#include <set>
#include <utility>
#include <vector>

#include "tests/support/wait.hpp"
#include "tests/unit/client/compat/cufile_fixture.hpp"

namespace sluice::dropin {
namespace {

class CufileBatchTest : public CufileTest {
 protected:
  static constexpr std::size_t kPiece = 10'000;

  CufileBatchTest() { EXPECT_EQ(cuFileBatchIOSetUp(&batch_, 64).err, CU_FILE_SUCCESS); }
  ~CufileBatchTest() override { cuFileBatchIODestroy(batch_); }

  // Piece `number` of the file, to the same offset in memory. The number is the cookie.
  static CUfileIOParams_t piece(const File& file, const GpuMemory& memory, std::size_t number) {
    CUfileIOParams_t request{};
    request.mode = CUFILE_BATCH;
    request.fh = file.handle;
    request.opcode = CUFILE_READ;
    request.cookie = reinterpret_cast<void*>(number);
    request.u.batch = {memory.pointer(), static_cast<off_t>(number * kPiece),
                       static_cast<off_t>(number * kPiece), kPiece};
    return request;
  }
  CUfileOpError submit(std::vector<CUfileIOParams_t> requests) {
    return cuFileBatchIOSubmit(batch_, static_cast<unsigned>(requests.size()), requests.data(), 0)
        .err;
  }
  std::vector<CUfileIOEvents_t> status(unsigned at_least, unsigned room,
                                       timespec* timeout = nullptr) {
    std::vector<CUfileIOEvents_t> events(room);
    EXPECT_EQ(cuFileBatchIOGetStatus(batch_, at_least, &room, events.data(), timeout).err,
              CU_FILE_SUCCESS);
    events.resize(room);
    return events;
  }

  CUfileBatchHandle_t batch_ = nullptr;
};

TEST_F(CufileBatchTest, OneBatchMayContainFilesOfBothKinds) {
  const File mine = ours(), other = others();
  const GpuMemory memory(device(), 40 * kPiece);
  const auto before = transfers();
  std::vector<CUfileIOParams_t> requests;
  for (std::size_t i = 0; i < 40; ++i) {
    requests.push_back(piece(i % 4 == 0 ? other : mine, memory, i));
  }
  ASSERT_EQ(submit(requests), CU_FILE_SUCCESS);
  std::set<void*> seen;
  while (seen.size() < 40) {
    const auto events = status(7, 20);
    ASSERT_FALSE(events.empty());
    ASSERT_LE(events.size(), 20u);
    for (const auto& event : events) {
      EXPECT_EQ(event.status, CUFILE_COMPLETE);
      EXPECT_EQ(event.ret, kPiece);
      EXPECT_TRUE(seen.insert(event.cookie).second) << "reported twice";
    }
  }
  EXPECT_EQ(transfers(), before + 10);
  EXPECT_TRUE(memory.bytes(0, 40 * kPiece) == content_.substr(0, 40 * kPiece));
  EXPECT_TRUE(status(1, 5).empty()) << "nothing is in progress, so there is nothing to wait for";
}

TEST_F(CufileBatchTest, BatchIsFullUntilItsResultsAreFetched) {
  const File file = ours();
  const GpuMemory memory(device(), 64 * kPiece);
  std::vector<CUfileIOParams_t> requests;
  for (std::size_t i = 0; i < 64; ++i) requests.push_back(piece(file, memory, i));
  ASSERT_EQ(submit(requests), CU_FILE_SUCCESS);
  EXPECT_EQ(submit({piece(file, memory, 0)}), CU_FILE_BATCH_FULL);
  EXPECT_EQ(status(64, 64).size(), 64u);
  EXPECT_EQ(submit({piece(file, memory, 0)}), CU_FILE_SUCCESS);
  EXPECT_EQ(status(1, 1).size(), 1u);
}

TEST_F(CufileBatchTest, FailedRequestHasItsOwnEvent) {
  const File unwritable = ours(O_RDONLY);
  const GpuMemory memory(device(), 2 * kPiece);
  auto write = piece(unwritable, memory, 0);
  write.opcode = CUFILE_WRITE;
  ASSERT_EQ(submit({write, piece(unwritable, memory, 1)}), CU_FILE_SUCCESS);
  for (const auto& event : status(2, 2)) {
    const bool is_write = event.cookie == nullptr;
    EXPECT_EQ(event.status, is_write ? CUFILE_FAILED : CUFILE_COMPLETE);
    EXPECT_EQ(static_cast<ssize_t>(event.ret), is_write ? -EBADF : ssize_t{kPiece});
  }
  auto wrong = piece(unwritable, memory, 0);
  wrong.u.batch.file_offset = -1;
  EXPECT_EQ(submit({piece(unwritable, memory, 0), wrong}), CU_FILE_INVALID_VALUE);
  wrong = piece(unwritable, memory, 0);
  wrong.u.batch.size = 1'000 * kPiece;
  EXPECT_EQ(submit({wrong}), CU_FILE_CUDA_POINTER_INVALID) << "beyond the allocation";
  EXPECT_TRUE(status(0, 2).empty()) << "a refused batch was started";

  unsigned count = 1;
  CUfileIOEvents_t event;
  EXPECT_EQ(cuFileBatchIOGetStatus(batch_, 2, &count, &event, nullptr).err, CU_FILE_INVALID_VALUE);
  EXPECT_EQ(cuFileBatchIOGetStatus(&count, 0, &count, &event, nullptr).err, CU_FILE_INVALID_VALUE);
  EXPECT_EQ(cuFileBatchIOSetUp(nullptr, 1).err, CU_FILE_INVALID_VALUE);
}

TEST_F(CufileBatchTest, ErrorOfTheOtherLibraryIsReturnedIfThereAreNoEvents) {
  const File mine = ours(), other = others();
  const GpuMemory memory(device(), 2 * kPiece);
  ASSERT_EQ(submit({piece(mine, memory, 0), piece(other, memory, 1)}), CU_FILE_SUCCESS);
  FakeGpu::fail_cufile("cuFileBatchIOGetStatus:1+:5011");
  unsigned count = 2;
  CUfileIOEvents_t events[2];
  EXPECT_EQ(cuFileBatchIOGetStatus(batch_, 1, &count, events, nullptr).err, CU_FILE_SUCCESS);
  ASSERT_EQ(count, 1u);
  EXPECT_EQ(events[0].cookie, nullptr);
  for (const unsigned at_least : {0u, 1u}) {
    count = 2;
    EXPECT_EQ(cuFileBatchIOGetStatus(batch_, at_least, &count, events, nullptr).err,
              CU_FILE_CUDA_DRIVER_ERROR);
    EXPECT_EQ(count, 0u);
  }
  FakeGpu::fail_cufile("");
  EXPECT_EQ(status(1, 2).size(), 1u);
}

// Keeps all threads of libsluice busy until it is destroyed.
class BusyThreads {
 public:
  explicit BusyThreads(const std::string& path) : file_(test::open_file(path)) {
    for (std::size_t i = 0; i < kThreads; ++i) {
      EXPECT_EQ(sluice_read_async(file_.get(), buffer_.get(), i, 1, 0, &BusyThreads::wait, this),
                0);
    }
  }
  ~BusyThreads() {
    go_on();
    EXPECT_TRUE(test::eventually([&] { return through_ == kThreads; }));
  }
  void go_on() {
    if (!std::exchange(is_over_, true)) over_.set_value();
  }

 private:
  static constexpr std::size_t kThreads = 8;

  static void wait(void* user, ssize_t, const struct sluice_result*) {
    auto& self = *static_cast<BusyThreads*>(user);
    self.until_.wait();
    ++self.through_;
  }

  const test::FileHandle file_;
  char memory_[kThreads] = {};
  const test::BufferHandle buffer_ = test::register_memory(memory_, sizeof memory_);
  std::promise<void> over_;
  const std::shared_future<void> until_ = over_.get_future().share();
  bool is_over_ = false;
  std::atomic<std::size_t> through_{0};
};

TEST_F(CufileBatchTest, CancelDropsWaitingRequestsAndWaitsForTheRest) {
  const File file = ours();
  const GpuMemory memory(device(), 64 * kPiece);
  std::vector<CUfileIOParams_t> requests;
  for (std::size_t i = 0; i < 64; ++i) requests.push_back(piece(file, memory, i));
  BusyThreads busy(file.path);
  ASSERT_EQ(submit(requests), CU_FILE_SUCCESS);
  timespec short_time{0, 1'000'000};
  EXPECT_TRUE(status(1, 64, &short_time).empty()) << "all threads were busy, but it was done";
  EXPECT_EQ(cuFileBatchIOCancel(batch_).err, CU_FILE_SUCCESS);
  const auto cancelled = status(64, 64, &short_time);
  EXPECT_EQ(cancelled.size(), 56u);
  for (const auto& event : cancelled) EXPECT_EQ(event.status, CUFILE_CANCELED);
  busy.go_on();
  const auto rest = status(8, 64);
  EXPECT_EQ(rest.size(), 8u);
  for (const auto& event : rest) EXPECT_EQ(event.status, CUFILE_COMPLETE);
}

TEST_F(CufileBatchTest, DestroyedBatchHasReleasedItsMemory) {
  const File file = ours();
  CUfileBatchHandle_t batch = nullptr;
  ASSERT_EQ(cuFileBatchIOSetUp(&batch, 64).err, CU_FILE_SUCCESS);
  const GpuMemory memory(device(), 64 * kPiece);
  std::vector<CUfileIOParams_t> requests;
  for (std::size_t i = 0; i < 64; ++i) requests.push_back(piece(file, memory, i));
  ASSERT_EQ(cuFileBatchIOSubmit(batch, 64, requests.data(), 0).err, CU_FILE_SUCCESS);
  cuFileBatchIODestroy(batch);
  memory.fill(std::string(64 * kPiece, 'x'));
  EXPECT_TRUE(memory.bytes(0, 64 * kPiece) == std::string(64 * kPiece, 'x'));
  EXPECT_EQ(cuFileBatchIOSubmit(batch, 64, requests.data(), 0).err, CU_FILE_INVALID_VALUE);
}

// Blocks a stream, and all work that waits for it.
struct Gate {
  std::promise<void> opened;
  static void wait(void* user) { static_cast<Gate*>(user)->opened.get_future().wait(); }
};

class CufileStreamTest : public CufileTest {
 protected:
  CufileStreamTest() {
    EXPECT_TRUE(device().enter());
    EXPECT_EQ(device().api().cuStreamCreate(&stream_, kStreamNonBlocking), CUDA_SUCCESS);
  }
  ~CufileStreamTest() override { device().api().cuStreamDestroy(stream_); }
  void hold() {
    ASSERT_EQ(device().api().cuLaunchHostFunc(stream_, &Gate::wait, &gate_), CUDA_SUCCESS);
  }
  void go_on() {
    gate_.opened.set_value();
    ASSERT_EQ(device().api().cuStreamSynchronize(stream_), CUDA_SUCCESS);
  }

  CUstream stream_ = nullptr;
  Gate gate_;
  std::size_t size_ = 5'000;
  off_t file_offset_ = 100, base_offset_ = 0;
  ssize_t done_ = -1234;
};

TEST_F(CufileStreamTest, ArgumentsAreReadWhenTheStreamReachesTheCall) {
  const File mine = ours(), other = others();
  for (const File* file : {&mine, &other}) {
    const GpuMemory memory(device(), 10'000);
    gate_ = {};
    size_ = 5'000, file_offset_ = 100, base_offset_ = 0, done_ = -1234;
    hold();
    ASSERT_EQ(cuFileReadAsync(file->handle, memory.pointer(), &size_, &file_offset_, &base_offset_,
                              &done_, stream_)
                  .err,
              CU_FILE_SUCCESS);
    size_ = 3'000, file_offset_ = 777, base_offset_ = 55;
    go_on();
    EXPECT_EQ(done_, 3'000);
    EXPECT_TRUE(memory.bytes(55, 3'000) == content_.substr(777, 3'000));
    EXPECT_EQ(memory.bytes(3'055, 1), std::string(1, '\0'));
  }
}

TEST_F(CufileStreamTest, FixedArgumentsOfAStreamAreReadAtOnce) {
  const File file = ours();
  const GpuMemory memory(device(), 10'000);
  ASSERT_EQ(cuFileStreamRegister(stream_, 0xf).err, CU_FILE_SUCCESS);
  hold();
  ASSERT_EQ(cuFileReadAsync(file.handle, memory.pointer(), &size_, &file_offset_, &base_offset_,
                            &done_, stream_)
                .err,
            CU_FILE_SUCCESS);
  size_ = 1, file_offset_ = 1, base_offset_ = 1;
  go_on();
  EXPECT_EQ(done_, 5'000);
  EXPECT_TRUE(memory.bytes(0, 5'000) == content_.substr(100, 5'000));
  EXPECT_EQ(cuFileStreamDeregister(stream_).err, CU_FILE_SUCCESS);
}

TEST_F(CufileStreamTest, RequestOutlivesTheHandleAndTheDescriptor) {
  const GpuMemory memory(device(), 10'000);
  hold();
  {
    const File file = ours();
    ASSERT_EQ(cuFileReadAsync(file.handle, memory.pointer(), &size_, &file_offset_, &base_offset_,
                              &done_, stream_)
                  .err,
              CU_FILE_SUCCESS);
  }
  // It may get the descriptor number that is now free.
  const UniqueFd other(::open("/dev/zero", O_RDONLY | O_CLOEXEC));
  go_on();
  EXPECT_EQ(done_, 5'000);
  EXPECT_TRUE(memory.bytes(0, 5'000) == content_.substr(100, 5'000));
}

TEST_F(CufileStreamTest, WriteUsesTheBytesOfEarlierStreamWork) {
  const File file = ours();
  const GpuMemory memory(device(), 10'000);
  hold();
  ASSERT_EQ(device().api().cuMemsetD8Async(memory.address(), 'z', 10'000, stream_), CUDA_SUCCESS);
  ASSERT_EQ(cuFileWriteAsync(file.handle, memory.pointer(), &size_, &file_offset_, &base_offset_,
                             &done_, stream_)
                .err,
            CU_FILE_SUCCESS);
  go_on();
  EXPECT_EQ(done_, 5'000);
  EXPECT_EQ(test::read_file(file.path).substr(100, 5'000), std::string(5'000, 'z'));
}

TEST_F(CufileStreamTest, WrongArgumentsFailAtOnceOrInTheResult) {
  const File file = ours(O_RDONLY);
  const GpuMemory memory(device(), 10'000);
  EXPECT_EQ(cuFileReadAsync(file.handle, memory.pointer(), nullptr, &file_offset_, &base_offset_,
                            &done_, stream_)
                .err,
            CU_FILE_INVALID_VALUE);
  EXPECT_EQ(cuFileWriteAsync(file.handle, memory.pointer(), &size_, &file_offset_, &base_offset_,
                             &done_, stream_)
                .err,
            CU_FILE_INVALID_FILE_OPEN_FLAG);
  EXPECT_EQ(done_, -1234);
  hold();
  ASSERT_EQ(cuFileReadAsync(file.handle, memory.pointer(), &size_, &file_offset_, &base_offset_,
                            &done_, stream_)
                .err,
            CU_FILE_SUCCESS);
  base_offset_ = 9'000;  // beyond the memory
  go_on();
  EXPECT_EQ(done_, -1);
}

}  // namespace
}  // namespace sluice::dropin
