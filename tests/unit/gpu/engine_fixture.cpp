// SPDX-License-Identifier: BSD-2-Clause
#include "tests/unit/gpu/engine_fixture.hpp"

#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <ctime>

#include "gpu/residency.hpp"
#include "tests/support/fake_gpu_environment.hpp"
#include "tests/support/wait.hpp"

namespace sluice {
namespace {

using test::FakeCount;
using test::FakeGpu;

}  // namespace

Target::Target(Device* device, std::uint64_t length) : device_(device), host_(length, kUntouched) {
  if (!device_) {
    memory_ = borrow_host(host_.data(), length);
    return;
  }
  EXPECT_TRUE(device_->enter());
  EXPECT_EQ(device_->api().cuMemAlloc(&address_, std::max<std::uint64_t>(length, 1)), CUDA_SUCCESS);
  memory_ = borrow_device(*device_, address_, length);
  fill(host_);
}

Target::~Target() {
  if (device_ && device_->enter()) device_->api().cuMemFree(address_);
}

std::string Target::bytes() const {
  if (!device_) return host_;
  std::string bytes(host_.size(), 0);
  EXPECT_TRUE(device_->enter());
  EXPECT_EQ(device_->api().cuMemcpyDtoH(bytes.data(), address_, bytes.size()), CUDA_SUCCESS);
  return bytes;
}

void Target::fill(const std::string& bytes) {
  if (!device_) {
    std::copy(bytes.begin(), bytes.end(), host_.begin());
    return;
  }
  EXPECT_TRUE(device_->enter());
  EXPECT_EQ(device_->api().cuMemcpyHtoD(address_, bytes.data(), bytes.size()), CUDA_SUCCESS);
  // From pageable memory, the call may return before the bytes have arrived.
  EXPECT_EQ(device_->api().cuStreamSynchronize(nullptr), CUDA_SUCCESS);
}

void EngineTest::SetUp() {
  ASSERT_EQ(others_.all().size(), 2u) << others_.why_none();
  for (const auto& gpu : others_.all()) ASSERT_TRUE(gpu->enter());
  for (std::size_t i = 0; i < before_.size(); ++i) {
    before_[i] = FakeGpu::count(static_cast<FakeCount>(i));
  }
  start();
}

void EngineTest::TearDown() {
  FakeGpu::fail_cuda("");
  FakeGpu::fail_cufile("");
  engine.reset();
  for (const FakeCount held :
       {FakeCount::Registrations, FakeCount::RegisteredBytes, FakeCount::Streams, FakeCount::Events,
        FakeCount::Modules, FakeCount::Drivers, FakeCount::Handles}) {
    EXPECT_EQ(count(held), 0u) << static_cast<int>(held);
  }
}

void EngineTest::start(const Engine::Settings& settings) {
  engine = std::make_unique<Engine>(settings);
}

std::unique_ptr<Target> EngineTest::target(Route route, std::uint64_t length) {
  return std::make_unique<Target>(route == Route::Host ? nullptr : &gpu(), length);
}

UniqueFd EngineTest::make_file(const std::string& name, const std::string& content) {
  dir.make_file(name, content);
  return UniqueFd(::open((dir / name).c_str(), O_RDWR | O_CLOEXEC));
}

void EngineTest::wait_until_registrable(const UniqueFd& fd) {
  EXPECT_TRUE(test::eventually([&] {
    struct stat stat {};
    timespec now{};
    ::fstat(fd.get(), &stat);
    ::clock_gettime(CLOCK_REALTIME, &now);
    const double age = static_cast<double>(now.tv_sec - stat.st_ctim.tv_sec) +
                       1e-9 * static_cast<double>(now.tv_nsec - stat.st_ctim.tv_nsec);
    return age > 0.06;
  }));
}

bool EngineTest::drop_cache(const UniqueFd& fd) {
  struct stat stat {};
  ::fsync(fd.get());
  ::posix_fadvise(fd.get(), 0, 0, POSIX_FADV_DONTNEED);
  ::fstat(fd.get(), &stat);
  const auto share = cached_share(fd.get(), 0, static_cast<std::uint64_t>(stat.st_size));
  return share && *share < 0.01;
}

void EngineTest::fail(const std::string& faults) { FakeGpu::fail_cuda(faults); }

std::uint64_t EngineTest::count(FakeCount which) const {
  return FakeGpu::count(which) - before_[static_cast<std::size_t>(which)];
}

Transfer expect_read(Engine& engine, const UniqueFd& fd, const std::string& content, Target& target,
                     const Segment& segment, Route wanted) {
  std::string expected = target.bytes();
  const std::uint64_t there =
      segment.file_offset >= content.size()
          ? 0
          : std::min<std::uint64_t>(segment.length, content.size() - segment.file_offset);
  if (there > 0) {
    content.copy(expected.data() + segment.memory_offset, there, segment.file_offset);
  }
  const auto transfer = engine.read({fd.get()}, *target, one(segment), wanted);
  if (!transfer) {
    ADD_FAILURE() << transfer.error().operation << ": " << std::strerror(transfer.error().code);
    return {};
  }
  EXPECT_EQ(transfer->bytes, there);
  if (wanted != Route::Auto) {
    EXPECT_EQ(transfer->route, wanted);
  }
  // Not EXPECT_EQ, which would print both strings.
  EXPECT_TRUE(target.bytes() == expected)
      << name_of(wanted) << " offset=" << segment.file_offset << " length=" << segment.length
      << " memory=" << segment.memory_offset;
  return *transfer;
}

}  // namespace sluice
