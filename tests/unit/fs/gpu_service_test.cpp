// SPDX-License-Identifier: BSD-2-Clause
// Permissions that can't be tested on a mount: callers in other PID namespaces, shares of other
// users. The rest is in tests/mount/gpu_buffer_test.cpp.
#include "fs/gpu/gpu_service.hpp"

#include <sys/mman.h>
#include <sys/wait.h>

#include "tests/unit/fs/quiet_kernel.hpp"
#include "tests/unit/tiering/pools.hpp"

namespace sluice {
namespace {

class GpuServiceTest : public test::PoolTest {
 protected:
  void prepare() override {
    pool_ = open(make_tiers("ab"));
    fs_ = std::make_unique<Filesystem>(*pool_, store_, kernel_, Filesystem::Settings{}, &engine_);
    service_ = std::make_unique<GpuService>(engine_, *fs_, kHostMemory);
    dir_.make_file("a/f", "content");
    file_ = fs_->names().lookup(kRootId, "f")->id;
    memory_ = make_memory(4096);
  }
  static UniqueFd make_memory(off_t size) {
    UniqueFd memory(::memfd_create("buffer", MFD_CLOEXEC | MFD_ALLOW_SEALING));
    ::ftruncate(memory.get(), size);
    ::fcntl(memory.get(), F_ADD_SEALS, F_SEAL_SHRINK);
    return memory;
  }

  OpenId open_file() { return {++last_open_, O_RDONLY}; }

  template <typename Structure>
  int ask(OpenId open, unsigned command, Structure& structure, const Caller& caller) {
    const std::span in(reinterpret_cast<const std::byte*>(&structure), sizeof structure);
    GpuReply reply(in);
    const auto done = service_->answer(file_, open, command, in, sizeof structure, caller, reply);
    if (done) std::memcpy(&structure, reply.data(), reply.size());
    return done ? 0 : done.error().code;
  }
  int add(OpenId open, const Caller& caller, std::uint64_t* buffer = nullptr) {
    sluice_buffer_register request{};
    request.kind = SLUICE_BUFFER_MEMFD;
    request.fd = memory_.get();
    request.length = 4096;
    const int code = ask(open, SLUICE_IOC_BUFFER_REGISTER, request, caller);
    if (buffer != nullptr) *buffer = request.buffer;
    return code;
  }
  int read(OpenId open, const Caller& caller, std::uint64_t buffer) {
    sluice_transfer request{};
    request.buffer = buffer;
    request.length = 7;
    return ask(open, SLUICE_IOC_READ, request, caller);
  }
  static Caller me(uid_t uid = 0) { return {uid, uid, 0, ::getpid()}; }

  static constexpr std::uint64_t kHostMemory = 16384;
  test::MemoryStore store_;
  QuietKernel kernel_;
  std::unique_ptr<Pool> pool_;
  Engine engine_{{}};
  std::unique_ptr<Filesystem> fs_;
  std::unique_ptr<GpuService> service_;
  std::uint64_t last_open_ = 0;
  InodeId file_{};
  UniqueFd memory_;
};

TEST(OpenIdTest, RemembersTheOpenMode) {
  const auto rights = [](int flags) {
    const OpenId open = OpenId::from_wire(OpenId(12345, flags).to_wire());
    return std::string(open.reads() ? "r" : "") + (open.writes() ? "w" : "") +
           (open.appends() ? "a" : "");
  };
  EXPECT_EQ(rights(O_RDONLY), "r");
  EXPECT_EQ(rights(O_WRONLY | O_CREAT | O_TRUNC), "w");
  EXPECT_EQ(rights(O_RDWR | O_APPEND), "rwa");
  EXPECT_EQ(rights(O_ACCMODE), "") << "for ioctls of devices; neither reads nor writes";
  EXPECT_NE(OpenId(1, O_RDONLY).to_wire(), OpenId(2, O_RDONLY).to_wire());
}

TEST_F(GpuServiceTest, BufferEndsWithItsOpenFile) {
  const OpenId open = open_file(), other = open_file();
  std::uint64_t buffer = 0;
  ASSERT_EQ(add(open, me(), &buffer), 0);
  EXPECT_EQ(service_->buffers(), 1u);
  EXPECT_EQ(service_->buffer_bytes(), 4096u);
  EXPECT_EQ(read(open, me(), buffer), 0);
  EXPECT_EQ(read(other, me(), buffer), ENOENT);
  service_->released(other);
  EXPECT_EQ(read(open, me(), buffer), 0);
  service_->released(open);
  EXPECT_EQ(read(open, me(), buffer), ENOENT);
  EXPECT_EQ(service_->buffers(), 0u);
  EXPECT_EQ(service_->buffer_bytes(), 0u);
}

TEST_F(GpuServiceTest, NumbersOfAnEarlierDaemonAreStale) {
  const OpenId open = open_file();
  std::uint64_t old = 0;
  ASSERT_EQ(add(open, me(), &old), 0);
  service_.reset();
  service_ = std::make_unique<GpuService>(
      engine_, *fs_, kHostMemory, [] { return 1u; }, DaemonEpoch(3));
  EXPECT_EQ(read(open, me(), old), ESTALE);
  sluice_buffer_unregister end{old};
  EXPECT_EQ(ask(open, SLUICE_IOC_BUFFER_UNREGISTER, end, me()), ESTALE);
  sluice_ring_file ring{old, old};
  EXPECT_EQ(ask(open, SLUICE_IOC_RING_ADD_FILE, ring, me()), ESTALE);
  EXPECT_EQ(ask(open, SLUICE_IOC_RING_DROP_FILE, ring, me()), ESTALE);
  EXPECT_EQ(ask(open, SLUICE_IOC_RING_DESTROY, end, me()), ESTALE);

  std::uint64_t now = 0;
  ASSERT_EQ(add(open, me(), &now), 0);
  EXPECT_EQ(now >> SLUICE_EPOCH_SHIFT, 3u);
  EXPECT_EQ(read(open, me(), now), 0);
  EXPECT_EQ(read(open, me(), now + 1), ENOENT) << "never given out";
  EXPECT_EQ(read(open, me(), now + (std::uint64_t{1} << SLUICE_EPOCH_SHIFT)), ENOENT);
  EXPECT_EQ(read(open, me(), 0), ENOENT);
  sluice_query query{};
  ASSERT_EQ(ask(open, SLUICE_IOC_QUERY, query, me()), 0);
  EXPECT_EQ(query.epoch, 3u);
}

TEST_F(GpuServiceTest, HostMemoryHasALimitAndCountsOnce) {
  const OpenId open = open_file(), other = open_file();
  const auto add_part = [&](OpenId to, const UniqueFd& memory, std::uint64_t offset,
                            std::uint64_t length) {
    sluice_buffer_register request{};
    request.kind = SLUICE_BUFFER_MEMFD;
    request.fd = memory.get();
    request.offset = offset;
    request.length = length;
    return ask(to, SLUICE_IOC_BUFFER_REGISTER, request, me());
  };
  const auto used = [&] { return service_->host_memory().used(); };
  for (int i = 0; i < 10; ++i) ASSERT_EQ(add(i % 2 == 0 ? open : other, me()), 0);
  EXPECT_EQ(used(), 4096u) << "one memfd counts once for all open files";
  const UniqueFd sparse = make_memory(1 << 30);
  EXPECT_EQ(add_part(open, sparse, 1 << 20, 8192), 0);
  EXPECT_EQ(used(), 12288u) << "the registered part counts, not the size";
  EXPECT_EQ(add_part(other, sparse, 0, 4097), ENOSPC);
  EXPECT_EQ(used(), 12288u);
  EXPECT_EQ(add_part(other, sparse, 0, 4096), 0);
  EXPECT_EQ(used(), kHostMemory);
  EXPECT_EQ(add(other, me()), 0) << "this needs no additional memory";
  service_->released(open);
  EXPECT_EQ(used(), 8192u);
  EXPECT_EQ(add_part(other, sparse, 0, 8192), 0);
  service_->released(other);
  EXPECT_EQ(used(), 0u);
}

TEST_F(GpuServiceTest, DescriptorsOfAnotherPidNamespaceCannotBeTaken) {
  const Caller nobody_we_see{0, 0, 0, 0};
  EXPECT_EQ(add(open_file(), nobody_we_see), EOPNOTSUPP);
  EXPECT_EQ(service_->buffers(), 0u);
}

TEST_F(GpuServiceTest, EndedProcessRegistersNothing) {
  const pid_t child = ::fork();
  if (child == 0) ::_exit(0);
  ::waitpid(child, nullptr, 0);
  EXPECT_EQ(add(open_file(), {0, 0, 0, child}), ESRCH);
}

TEST_F(GpuServiceTest, OneUserCannotUseTheShareOfOthers) {
  std::vector<OpenId> opens;
  for (std::size_t i = 0; i < GpuService::kMostOfUser; ++i) {
    if (i % GpuService::kMostOfFile == 0) opens.push_back(open_file());
    ASSERT_EQ(add(opens.back(), me(1000)), 0) << i;
  }
  const OpenId more = open_file();
  EXPECT_EQ(add(more, me(1000)), ENOSPC);
  EXPECT_EQ(add(more, me(1001)), 0);
  service_->released(opens[0]);
  EXPECT_EQ(add(more, me(1000)), 0);
}

// The mount is handed over all the time, so long requests end early.
class GpuServiceEndingTest : public GpuServiceTest {
 protected:
  static constexpr std::size_t kSize = 72 << 20;
  void prepare() override {
    GpuServiceTest::prepare();
    service_ = std::make_unique<GpuService>(engine_, *fs_, 2 * kSize, [] { return true; });
    content_ = std::string(kSize, 'x');
    for (std::size_t i = 0; i < kSize; i += 4096) content_[i] = static_cast<char>(i >> 12);
    dir_.make_file("a/large", content_);
    file_ = fs_->names().lookup(kRootId, "large")->id;
    large_ = make_memory(kSize);
    sluice_buffer_register request{};
    request.kind = SLUICE_BUFFER_MEMFD;
    request.fd = large_.get();
    request.length = kSize;
    ASSERT_EQ(ask(open_, SLUICE_IOC_BUFFER_REGISTER, request, me()), 0);
    buffer_ = request.buffer;
  }
  std::string memory() const {
    std::string out(kSize, '\0');
    EXPECT_EQ(::pread(large_.get(), out.data(), kSize, 0), static_cast<ssize_t>(kSize));
    return out;
  }

  std::string content_;
  UniqueFd large_;
  const OpenId open_{77, O_RDWR};
  std::uint64_t buffer_ = 0;
};

TEST_F(GpuServiceEndingTest, LongReadEndsEarlyAndLosesNothing) {
  std::uint64_t done = 0;
  unsigned parts = 0;
  for (; done < kSize; ++parts) {
    sluice_transfer request{};
    request.buffer = buffer_;
    request.buffer_offset = request.file_offset = done;
    request.length = kSize - done;
    ASSERT_EQ(ask(open_, SLUICE_IOC_READ, request, me()), 0);
    ASSERT_GT(request.done, 0u);
    done += request.done;
  }
  EXPECT_GT(parts, 3u);
  EXPECT_EQ(memory(), content_);
  sluice_transfer request{};
  request.buffer = buffer_;
  request.file_offset = kSize;
  request.length = kSize;
  ASSERT_EQ(ask(open_, SLUICE_IOC_READ, request, me()), 0);
  EXPECT_EQ(request.done, 0u) << "the end of the file";
}

TEST_F(GpuServiceEndingTest, OnlyTheFirstSegmentsOfALongReadAreRead) {
  constexpr unsigned kSegments = 24;
  constexpr std::size_t kSegment = kSize / kSegments;
  unsigned next = 0, parts = 0;
  for (; next < kSegments; ++parts) {
    auto request = std::make_unique<sluice_readv>();
    request->buffer = buffer_;
    request->count = kSegments - next;
    for (unsigned i = 0; i < request->count; ++i) {
      const std::uint64_t at = (next + i) * kSegment;
      request->segments[i] = {at, at, kSegment};
    }
    ASSERT_EQ(ask(open_, SLUICE_IOC_READV, *request, me()), 0);
    ASSERT_GT(request->count, 0u);
    EXPECT_EQ(request->done, request->count * kSegment);
    next += request->count;
  }
  EXPECT_GT(parts, 3u);
  EXPECT_EQ(memory(), content_);
}

TEST_F(GpuServiceEndingTest, LongWriteEndsEarly) {
  ASSERT_EQ(::pwrite(large_.get(), content_.data(), kSize, 0), static_cast<ssize_t>(kSize));
  sluice_transfer request{};
  request.buffer = buffer_;
  request.length = kSize;
  ASSERT_EQ(ask(open_, SLUICE_IOC_WRITE, request, me()), 0);
  EXPECT_GT(request.done, 0u);
  EXPECT_LT(request.done, kSize);
}

TEST_F(GpuServiceEndingTest, RangeOutsideTheBufferIsRefusedBeforeAnythingIsDone) {
  sluice_transfer request{};
  request.buffer = buffer_;
  request.length = kSize + 1;
  EXPECT_EQ(ask(open_, SLUICE_IOC_READ, request, me()), ERANGE);
  EXPECT_EQ(memory(), std::string(kSize, '\0'));
}

}  // namespace
}  // namespace sluice
