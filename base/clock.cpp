// SPDX-License-Identifier: BSD-2-Clause
#include "base/clock.hpp"

#include <ctime>

namespace sluice {
namespace {

class RealClock final : public Clock {
 public:
  std::int64_t seconds() const override { return std::time(nullptr); }
  std::chrono::steady_clock::time_point monotonic() const override {
    return std::chrono::steady_clock::now();
  }
};

}  // namespace

const Clock& real_clock() {
  static const RealClock s_clock;
  return s_clock;
}

}  // namespace sluice
