// SPDX-License-Identifier: BSD-2-Clause
#include "tiering/move/move_rate.hpp"

#include <algorithm>
#include <cmath>

namespace sluice {
namespace {

using std::chrono::duration;
using std::chrono::seconds;

constexpr seconds kWindow{60};
constexpr seconds kSlice{1};
constexpr seconds kRest{10};     // a pause of this length ends a period of work
constexpr seconds kShortest{1};  // less work says nothing about the rest
// A file takes about as long as this many bytes, for its syncs and its names.
constexpr double kPerFile = 256 << 10;
constexpr double kLongest = 1e9;  // seconds

double work_of(std::uint64_t files, std::uint64_t bytes) {
  return static_cast<double>(files) * kPerFile + static_cast<double>(bytes);
}

}  // namespace

void MoveRate::begin(Time now) {
  if (last_ != Time{} && now - last_ < kRest) return;
  slices_.clear();
  begun_ = last_ = now;
}

void MoveRate::add(Time now, std::uint64_t files, std::uint64_t bytes) {
  begin(now);
  last_ = now;
  if (slices_.empty() || now - slices_.back().begin >= kSlice) slices_.push_back({now, 0});
  slices_.back().work += work_of(files, bytes);
  while (now - slices_.front().begin > kWindow) {
    slices_.pop_front();
    begun_ = std::max(begun_, slices_.front().begin);
  }
}

std::optional<seconds> MoveRate::time_for(Time now, std::uint64_t files,
                                          std::uint64_t bytes) const {
  if (files == 0 && bytes == 0) return seconds(0);
  double done = 0;
  for (const Slice& slice : slices_) done += slice.work;
  if (!(done > 0) || now - begun_ < kShortest) return std::nullopt;
  const double left =
      std::ceil(work_of(files, bytes) / done * duration<double>(now - begun_).count());
  if (left > kLongest) return std::nullopt;
  return seconds(static_cast<std::int64_t>(left));
}

}  // namespace sluice
