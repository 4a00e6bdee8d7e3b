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

bool is_nothing(const Heat& heat) {
  return heat.opens == 0 && heat.gpu_bytes == 0 && heat.score == 0 && heat.recent == 0;
}

std::int64_t earlier_since(const Heat& a, const Heat& b) {
  if (is_nothing(a)) return b.since;
  if (is_nothing(b)) return a.since;
  return std::min(a.since, b.since);
}

bool is_count(double value) { return std::isfinite(value) && value >= 0; }

}  // namespace

double decayed(double score, std::int64_t from, std::int64_t to, std::chrono::seconds half_life) {
  if (half_life.count() <= 0 || to <= from) return score;
  // As doubles: the difference of two times read from a disk could overflow an integer.
  const double elapsed = static_cast<double>(to) - static_cast<double>(from);
  return score * std::exp2(-elapsed / static_cast<double>(half_life.count()));
}

Heat sum(const Heat& a, const Heat& b, std::chrono::seconds half_life) {
  const std::int64_t at = std::max(a.last_access, b.last_access);
  const auto total = [&](double Heat::*count, std::chrono::seconds life) {
    const double both =
        decayed(a.*count, a.last_access, at, life) + decayed(b.*count, b.last_access, at, life);
    return std::min(both, std::numeric_limits<double>::max());
  };
  return {.score = total(&Heat::score, half_life),
          .last_access = at,
          .opens = saturating_sum(a.opens, b.opens),
          .gpu_bytes = saturating_sum(a.gpu_bytes, b.gpu_bytes),
          .recent = total(&Heat::recent, kRecentHalfLife),
          .since = earlier_since(a, b)};
}

bool is_storable(const Heat& heat) { return is_count(heat.score) && is_count(heat.recent); }

}  // namespace sluice
