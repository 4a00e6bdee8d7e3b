// SPDX-License-Identifier: BSD-2-Clause
// A test program that includes this uses the fake libcuda and libcufile from its first test on.
#pragma once

#include <gtest/gtest.h>

#include "tests/support/fake_gpu.hpp"

namespace sluice::test {

struct FakeGpuEnvironment : testing::Environment {
  void SetUp() override { FakeGpu::install(); }
};
inline const auto* const g_fake_gpu = testing::AddGlobalTestEnvironment(new FakeGpuEnvironment);

}  // namespace sluice::test
