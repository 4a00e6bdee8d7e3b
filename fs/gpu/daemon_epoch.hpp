// SPDX-License-Identifier: BSD-2-Clause
// A DaemonEpoch makes the numbers that a daemon gives to clients: of buffers, rings and files of
// rings. The upper bits say which daemon of the mount gave a number out, so its successor
// recognises the numbers of its predecessors. Immutable.
#pragma once

#include <cstdint>

#include "base/result.hpp"
#include "client/include/sluice/ioctl.h"

namespace sluice {

class DaemonEpoch {
 public:
  // `value`: how many daemons served the mount before.
  explicit DaemonEpoch(std::uint32_t value) : value_(value) {}

  std::uint32_t value() const { return value_; }
  // REQUIRES: 0 < `count` < 2^SLUICE_EPOCH_SHIFT. Not checked: a user who registers buffers for
  // months could exceed it, which does less harm than to abort.
  std::uint64_t number(std::uint64_t count) const {
    return std::uint64_t{value_} << SLUICE_EPOCH_SHIFT | count;
  }
  // The error for a number that is not known here: ESTALE if a predecessor gave it out.
  Error unknown(std::uint64_t number, Operation what) const {
    constexpr std::uint64_t kCount = (std::uint64_t{1} << SLUICE_EPOCH_SHIFT) - 1;
    const bool was_given = (number & kCount) != 0;  // nobody gives out 0
    if (was_given && (number >> SLUICE_EPOCH_SHIFT) < value_)
      return {ESTALE, "it was registered with an earlier daemon: register it again"};
    return {ENOENT, what};
  }

 private:
  std::uint32_t value_;
};

}  // namespace sluice
