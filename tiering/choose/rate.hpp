// SPDX-License-Identifier: BSD-2-Clause
// How often a file will be accessed, as far as its past and that of the other files tell.
//
// A decayed count becomes a rate only with the time in which it was collected: five accesses in an
// hour are more than ten in a month. Few accesses say little: a file that was read once, a minute
// ago, will hardly be read 1,440 times a day. So an estimate begins with what is usual for files of
// that size in the pool, and moves towards the file's own count as its observation grows (a gamma
// prior, learned from the pool). The long count (the score) is steadier, the recent one quicker:
// the recent one counts as far as the long one can't explain it.
// Threads: immutable values and pure functions.
#pragma once

#include <array>
#include <chrono>
#include <cstdint>
#include <span>

namespace sluice {

struct FileFacts;

class RateModel {
 public:
  RateModel() = default;
  // Learns from all files what is usual. `half_life` is the score's.
  RateModel(std::span<const FileFacts> files, std::chrono::seconds half_life, std::int64_t now);

  // Accesses per second.
  double rate_of(const FileFacts& file, std::int64_t now) const;

 private:
  static constexpr std::size_t kClasses = 33;  // of sizes, each four times the one before
  static std::size_t class_of(const FileFacts& file);
  double observed(const FileFacts& file, std::int64_t now) const;

  std::array<double, kClasses> usual_{};  // accesses per second, by class
  // The usual rate of a class counts as much as an observation of this many seconds. The value is
  // high until something was learned, because a new file has not been observed at all.
  double caution_ = 100.0 * 86'400;
  double half_life_ = 0;
  std::int64_t since_ = 0;  // the first access that was seen in the pool
};

}  // namespace sluice
