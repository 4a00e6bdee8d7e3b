// SPDX-License-Identifier: BSD-2-Clause
#include "tiering/choose/rate.hpp"

#include <algorithm>
#include <bit>
#include <cmath>

#include "metadata/decay.hpp"
#include "tiering/choose/planner.hpp"

namespace sluice {
namespace {

constexpr double kDay = 86'400;
// Longer than counts remember.
constexpr double kLongAgo = 100 * kDay;
// What is usual counts at least as much as this time of observation.
constexpr double kLeastCaution = kDay / 4;
// The share of files whose habits are expected to have changed within the memory of the score,
// before looking at them.
constexpr double kChanged = 0.25;

// A decayed count as a plain one: what it would be worth if `accesses` had been counted in
// `seconds`.
//
// At a constant rate r, a count with half-life h that has run for a time t is r*h/ln2*(1-2^(-t/h)).
// Its variance is less than that of a plain count of this mean, by the factor (1+2^(-t/h))/2, so
// both are divided by it.
struct Evidence {
  double accesses = 0, seconds = 0;
};

// The access that began the observation is left out: there is always one, however rare they are.
Evidence evidence(double count, double time, double half_life) {
  if (half_life <= 0) return {std::max(0.0, count - 1), time};
  const double left = std::exp2(-time / half_life);
  count = std::max(0.0, count - left);
  const double calm = (1 + left) / 2;
  return {count / calm, half_life / std::log(2.0) * (1 - left) / calm};
}

double sane(float count) { return count > 0 && std::isfinite(count) ? count : 0; }

}  // namespace

std::size_t RateModel::class_of(const FileFacts& file) {
  return static_cast<std::size_t>(std::bit_width(file.bytes)) / 2;
}

// How long the file's accesses have been counted. A file without any was there, or could have been,
// as long as the others were watched. It must not depend on where the file is: moving it would
// change its value.
double RateModel::observed(const FileFacts& file, std::int64_t now) const {
  const std::int64_t start = file.opens > 0 ? file.since : since_;
  if (start == 0) return kLongAgo;
  return std::clamp(static_cast<double>(now) - static_cast<double>(start), 0.0, kLongAgo);
}

RateModel::RateModel(std::span<const FileFacts> files, std::chrono::seconds half_life,
                     std::int64_t now)
    : half_life_(static_cast<double>(half_life.count())), since_(now) {
  for (const FileFacts& file : files) {
    if (file.since > 0) since_ = std::min(since_, file.since);
  }
  std::array<Evidence, kClasses> classes{};
  double count = 0, time = 0, squares = 0, products = 0, time_squares = 0;
  for (const FileFacts& file : files) {
    const Evidence seen = evidence(sane(file.score), observed(file, now), half_life_);
    classes[class_of(file)].accesses += seen.accesses;
    classes[class_of(file)].seconds += seen.seconds;
    count += seen.accesses;
    time += seen.seconds;
    squares += seen.accesses * seen.accesses;
    products += seen.accesses * seen.seconds;
    time_squares += seen.seconds * seen.seconds;
  }
  // A day without an access is added: otherwise a pool with one file that was seen for a minute
  // would give an extreme rate.
  const double usual = count / (time + kDay);
  for (std::size_t i = 0; i < kClasses; ++i) {
    const double trust = 100 * kDay;
    usual_[i] = (classes[i].accesses + trust * usual) / (classes[i].seconds + trust);
  }
  // How much the rates of files differ, beyond what chance explains. The more they differ, the less
  // the usual rate says about a single file.
  const double spread = squares - 2 * usual * products + usual * usual * time_squares - count;
  caution_ = spread > 0 ? usual * time_squares / spread : 100 * kDay;
  caution_ = std::clamp(caution_, kLeastCaution, 100 * kDay);
}

double RateModel::rate_of(const FileFacts& file, std::int64_t now) const {
  const double usual = usual_[class_of(file)];
  const double time = observed(file, now);
  const auto estimate = [&](const Evidence& seen) {
    return (seen.accesses + usual * caution_) / (seen.seconds + caution_);
  };
  const double steady = estimate(evidence(sane(file.score), time, half_life_));
  constexpr auto kRecent = static_cast<double>(kRecentHalfLife.count());
  const Evidence lately = evidence(sane(file.recent), time, kRecent);
  const double expected = steady * lately.seconds;
  if (expected <= 0) return steady;
  // How unlikely the recent count is at the steady rate (the deviance of a Poisson distribution).
  const double seen = lately.accesses;
  const double surprise = (seen > 0 ? seen * std::log(seen / expected) : 0) - (seen - expected);
  const double changed = kChanged / (kChanged + (1 - kChanged) * std::exp(-surprise));
  return steady + changed * (estimate(lately) - steady);
}

}  // namespace sluice
