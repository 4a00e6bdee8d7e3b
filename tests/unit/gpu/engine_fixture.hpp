// SPDX-License-Identifier: BSD-2-Clause
// Shared by the tests of the engine: files with known bytes, memory to read to, and the counters of
// the fake GPU. Threads: caller locks.
#pragma once

#include <fcntl.h>
#include <gtest/gtest.h>

#include <array>
#include <cstdint>
#include <memory>
#include <string>

#include "base/unique_fd.hpp"
#include "gpu/engine.hpp"
#include "tests/support/fake_gpu.hpp"
#include "tests/support/temp_dir.hpp"

namespace sluice {

inline constexpr std::uint64_t kMiB = 1 << 20;

// Small pieces, so that small files have many of them, and times that are short enough to wait for.
inline Engine::Settings test_settings() {
  Engine::Settings settings;
  settings.threads = 4;
  settings.chunk = 256 << 10;
  settings.mapped_after = std::chrono::milliseconds(50);
  return settings;
}

// For a read of one segment.
inline std::array<Segment, 1> one(const Segment& segment) { return {segment}; }

// Memory of one kind, filled with kUntouched.
class Target {
 public:
  static constexpr char kUntouched = '\x5a';
  Target(Device* device, std::uint64_t length);  // null: host memory
  ~Target();
  Target(const Target&) = delete;
  Target& operator=(const Target&) = delete;

  Memory& operator*() { return *memory_; }
  std::string bytes() const;
  void fill(const std::string& bytes);

 private:
  Device* const device_;
  std::string host_;
  CUdeviceptr address_ = 0;
  std::unique_ptr<Memory> memory_;
};

class EngineTest : public testing::Test {
 protected:
  void SetUp() override;
  // Checks that the fake has released everything.
  void TearDown() override;

  void start(const Engine::Settings& settings = test_settings());
  Device& gpu(std::size_t index = 0) { return *engine->devices().all().at(index); }
  // The memory that a route reads to: host memory or memory of the first GPU.
  std::unique_ptr<Target> target(Route route, std::uint64_t length);

  UniqueFd make_file(const std::string& name, const std::string& content);
  // Waits until the file has been unchanged for long enough to be registered.
  static void wait_until_registrable(const UniqueFd& fd);
  // False if the kernel keeps the pages.
  static bool drop_cache(const UniqueFd& fd);

  // Selects the driver calls that fail from now on, see tests/support/fake_control.hpp.
  static void fail(const std::string& faults);
  // What the engine has allocated or done in this test.
  std::uint64_t count(test::FakeCount which) const;

  test::TempDir dir;
  std::unique_ptr<Engine> engine;

 private:
  // Keeps the contexts of the GPUs; otherwise they would end with the engine, and hide what it has
  // not released.
  Devices others_;
  std::array<std::uint64_t, static_cast<std::size_t>(test::FakeCount::kEnd)> before_{};
};

// EXPECTs that file[offset, +length) is read completely to memory_offset, and that nothing around
// it changes. `content` is the content of the file. Returns the result.
Transfer expect_read(Engine& engine, const UniqueFd& fd, const std::string& content, Target& target,
                     const Segment& segment, Route wanted);

}  // namespace sluice
