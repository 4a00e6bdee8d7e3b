// SPDX-License-Identifier: BSD-2-Clause
// A mount with a few files for clients that read them.
#pragma once

#include <fcntl.h>

#include "tests/mount/gpu_client.hpp"
#include "tests/mount/tiering.hpp"

namespace sluice::test {

inline constexpr std::size_t kSmall = 10'000;
inline constexpr std::size_t kBig = 5'000'001;

inline std::string named(int code) { return errno_name(code); }

class GpuMountTest : public TieringTest {
 protected:
  void SetUp() override {
    TieringTest::SetUp();
    if (IsSkipped() || HasFatalFailure()) return;
    put("nvme", "small", pattern(kSmall, 1));
    put("nvme", "big", pattern(kBig, 2));
    put("hdd", "slow", pattern(kSmall, 3));
  }

  UniqueFd open_file(const std::string& name, int flags = O_RDONLY) const {
    return UniqueFd(::open((*this / name).c_str(), flags | O_CLOEXEC, 0644));
  }
  Json gpu() { return mount().status().at("gpu"); }
  // RELEASE arrives some time after close().
  bool is_free_of_buffers() {
    return eventually([&] { return gpu().at("buffers") == 0 && gpu().at("buffer_bytes") == 0; });
  }
};

}  // namespace sluice::test
