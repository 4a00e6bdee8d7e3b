// SPDX-License-Identifier: BSD-2-Clause
// Our libcufile in the process of the test, with ordinary files. Files whose name ends in ".mount"
// count as files of a Sluice mount. NVIDIA's library and the GPU are fakes.
#pragma once

#include <fcntl.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <string>

#include "base/unique_fd.hpp"
#include "gpu/device.hpp"
#include "tests/support/fake_gpu.hpp"
#include "tests/support/files.hpp"
#include "tests/support/temp_dir.hpp"
#include "tests/unit/client/client.hpp"
#include "tests/unit/client/compat/cufile_calls.hpp"
#include "tests/unit/client/gpu_memory.hpp"

namespace sluice::dropin {

using test::FakeCount;
using test::FakeGpu;
using test::GpuMemory;

class CufileTest : public ::testing::Test {
 protected:
  static constexpr std::size_t kSize = 3'000'001;

  CufileTest() : content_(test::random_bytes(kSize)) {
    // Ignores what NVIDIA's library has registered before this test.
    EXPECT_EQ(cuFileDriverOpen().err, CU_FILE_SUCCESS);
  }
  ~CufileTest() override {
    FakeGpu::fail_cuda("");
    FakeGpu::fail_cufile("");
    EXPECT_EQ(cuFileDriverClose_v2().err, CU_FILE_SUCCESS);
    EXPECT_EQ(FakeGpu::count(FakeCount::Handles), 0u);
    EXPECT_EQ(FakeGpu::count(FakeCount::Buffers), 0u);
  }

  // A file with the content, open and registered.
  struct File {
    File(const std::string& name, int flags)
        : path(name), fd(::open(path.c_str(), flags | O_CLOEXEC)) {
      CUfileDescr_t description{};
      description.type = CU_FILE_HANDLE_TYPE_OPAQUE_FD;
      description.handle.fd = fd.get();
      error = cuFileHandleRegister(&handle, &description).err;
    }
    ~File() {
      if (error == CU_FILE_SUCCESS) cuFileHandleDeregister(handle);
    }
    File(const File&) = delete;
    File& operator=(const File&) = delete;

    const std::string path;
    const UniqueFd fd;
    CUfileHandle_t handle = nullptr;
    CUfileOpError error = CU_FILE_SUCCESS;
  };
  std::string make(const std::string& name) { return dir_.make_file(name, content_); }
  File ours(int flags = O_RDWR) { return {make("file.mount"), flags}; }
  File others(int flags = O_RDWR) { return {make("file"), flags}; }

  Device& device() { return *devices_.all()[0]; }
  static std::uint64_t transfers() { return FakeGpu::count(FakeCount::Transfers); }

  Devices devices_;
  test::TempDir dir_;
  const std::string content_;
};

}  // namespace sluice::dropin
