// SPDX-License-Identifier: BSD-2-Clause
// Models and layers in memory of the fake libcuda. gpu_test.cpp installs it.
#include <future>

#include "gpu/device.hpp"
#include "tests/support/fake_gpu.hpp"
#include "tests/unit/client/gpu_memory.hpp"
#include "tests/unit/client/model.hpp"

namespace sluice {
namespace {

using test::GpuMemory;
using test::random_bytes;
using test::register_memory;

class LoaderGpuTest : public ::testing::Test {
 protected:
  Device& device() { return *devices_.all()[0]; }

  Devices devices_;
  test::TempDir dir_;
};

TEST_F(LoaderGpuTest, LoadsAModelIntoGpuMemory) {
  const auto first = random_bytes(9'000'001), second = random_bytes(70'000'000);
  const auto model =
      test::open_model(dir_.make_file("m", test::pack_tensors({{"1", first}, {"2", second}})));
  const std::size_t size = sluice_model_arena(model.get());
  const GpuMemory memory(device(), size);
  const auto buffer = register_memory(memory.pointer(), size);
  struct sluice_result result {};
  ASSERT_EQ(sluice_model_load(model.get(), buffer.get(), 0, nullptr, nullptr, &result), 79'000'001)
      << sluice_error();
  EXPECT_EQ(result.route, static_cast<unsigned>(SLUICE_ROUTE_STAGED));
  EXPECT_TRUE(memory.bytes(0, first.size()) == first);
  const auto* tensor = sluice_model_find(model.get(), "2");
  EXPECT_TRUE(memory.bytes(tensor->arena_offset, second.size()) == second);
}

TEST_F(LoaderGpuTest, SlotIsReusedOnlyAfterTheStreamHasReleasedIt) {
  const auto first = random_bytes(100'000), second = random_bytes(100'001);
  const auto model =
      test::open_model(dir_.make_file("m", test::pack_tensors({{"1", first}, {"2", second}})));
  const auto one = test::select(model, {"1"}), two = test::select(model, {"2"});
  sluice_model* const parts[] = {one.get(), two.get()};
  const std::size_t size = sluice_model_arena(two.get());
  const GpuMemory memory(device(), size);
  const auto buffer = register_memory(memory.pointer(), size);
  sluice_layers* opened = nullptr;
  ASSERT_EQ(sluice_layers_open(parts, 2, buffer.get(), 0, 1, 0, &opened), 0) << sluice_error();
  test::LayersHandle layers(opened);

  ASSERT_TRUE(device().enter());
  CUstream stream = nullptr;
  ASSERT_EQ(device().api().cuStreamCreate(&stream, kStreamNonBlocking), CUDA_SUCCESS);
  std::promise<void> go;
  ASSERT_EQ(sluice_layers_acquire(opened, 0), 0) << sluice_error();
  // Work in the stream that continues until the test ends it.
  std::shared_future<void> may_go = go.get_future().share();
  ASSERT_EQ(device().api().cuLaunchHostFunc(
                stream, [](void* user) { static_cast<std::shared_future<void>*>(user)->wait(); },
                &may_go),
            CUDA_SUCCESS);
  ASSERT_EQ(sluice_layers_release_stream(opened, 0, stream), 0) << sluice_error();
  auto next = std::async(std::launch::async, [&] { return sluice_layers_acquire(opened, 1); });
  EXPECT_EQ(next.wait_for(std::chrono::milliseconds(50)), std::future_status::timeout);
  EXPECT_TRUE(memory.bytes(0, first.size()) == first);
  go.set_value();
  EXPECT_EQ(next.get(), 0) << sluice_error();
  EXPECT_TRUE(memory.bytes(0, second.size()) == second);
  EXPECT_EQ(sluice_layers_release_stream(opened, 1, stream), 0);
  layers.reset();
  EXPECT_EQ(device().api().cuStreamDestroy(stream), CUDA_SUCCESS);
}

TEST_F(LoaderGpuTest, ReleaseIsRefusedWhileAGraphIsCaptured) {
  const auto model = test::open_model(dir_.make_file("m", test::pack_tensors({{"1", "content"}})));
  sluice_model* const parts[] = {model.get()};
  const GpuMemory memory(device(), 4096);
  const auto buffer = register_memory(memory.pointer(), 4096);
  sluice_layers* opened = nullptr;
  ASSERT_EQ(sluice_layers_open(parts, 1, buffer.get(), 0, 1, 0, &opened), 0) << sluice_error();
  const test::LayersHandle layers(opened);
  ASSERT_EQ(sluice_layers_acquire(opened, 0), 0) << sluice_error();
  ASSERT_TRUE(test::FakeGpu::fail_cuda("cuStreamIsCapturing:1+:1"));
  EXPECT_EQ(sluice_layers_release_stream(opened, 0, nullptr), -EOPNOTSUPP);
  ASSERT_TRUE(test::FakeGpu::fail_cuda(""));
  EXPECT_EQ(sluice_layers_release_stream(opened, 0, nullptr), 0) << "it is still acquired";
}

// In a separate process, because a lost GPU stays lost.
TEST_F(LoaderGpuTest, CloseDoesNotWaitForAReleaseOnALostGpu) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  const auto lose_it = [&] {
    const auto model =
        test::open_model(dir_.make_file("m", test::pack_tensors({{"1", "one"}, {"2", "two"}})));
    const auto one = test::select(model, {"1"}), two = test::select(model, {"2"});
    sluice_model* const parts[] = {one.get(), two.get()};
    const GpuMemory memory(device(), 4096);
    const auto buffer = register_memory(memory.pointer(), 4096);
    sluice_layers* opened = nullptr;
    ASSERT_EQ(sluice_layers_open(parts, 2, buffer.get(), 0, 1, 0, &opened), 0) << sluice_error();
    test::LayersHandle layers(opened);
    ASSERT_EQ(sluice_layers_acquire(opened, 0), 0) << sluice_error();
    std::promise<void> go;
    std::shared_future<void> may_go = go.get_future().share();
    ASSERT_EQ(device().api().cuLaunchHostFunc(
                  nullptr, [](void* user) { static_cast<std::shared_future<void>*>(user)->wait(); },
                  &may_go),
              CUDA_SUCCESS);
    ASSERT_EQ(sluice_layers_release_stream(opened, 0, nullptr), 0) << sluice_error();
    ASSERT_TRUE(test::FakeGpu::fail_cuda("cuCtxSynchronize:1:700"));
    EXPECT_NE(device().api().cuCtxSynchronize(), CUDA_SUCCESS);
    go.set_value();
    EXPECT_EQ(sluice_layers_acquire(opened, 1), -ENODEV);
    layers.reset();
    std::_Exit(HasFailure() ? 1 : 0);
  };
  EXPECT_EXIT(lose_it(), testing::ExitedWithCode(0), "");
}

}  // namespace
}  // namespace sluice
