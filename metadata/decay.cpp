// SPDX-License-Identifier: BSD-2-Clause
#include "metadata/decay.hpp"

#include <algorithm>
#include <cmath>
#include <limits>

namespace sluice {
namespace {

std::uint64_t saturating_sum(std::uint64_t a, std::uint64_t b) {
  return a > std::numeric_limits<std::uint64_t>::max() - b
             ? std::numeric_limits<std::uint64_t>::max()
             : a + b;
}

}  // namespace

double decayed(double score, std::int64_t from, std::int64_t to, std::chrono::seconds half_life) {
  if (half_life.count() <= 0 || to <= from) return score;
  // As doubles: the difference of two times read from a disk could overflow an integer.
  const double elapsed = static_cast<double>(to) - static_cast<double>(from);
  return score * std::exp2(-elapsed / static_cast<double>(half_life.count()));
}

Heat sum(const Heat& a, const Heat& b, std::chrono::seconds half_life) {
  const std::int64_t at = std::max(a.last_access, b.last_access);
  const double score = decayed(a.score, a.last_access, at, half_life) +
                       decayed(b.score, b.last_access, at, half_life);
  return {.score = std::min(score, std::numeric_limits<double>::max()),
          .last_access = at,
          .opens = saturating_sum(a.opens, b.opens),
          .gpu_bytes = saturating_sum(a.gpu_bytes, b.gpu_bytes)};
}

bool is_storable(const Heat& heat) { return std::isfinite(heat.score) && heat.score >= 0; }

}  // namespace sluice
