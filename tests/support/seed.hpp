// SPDX-License-Identifier: BSD-2-Clause
// Seeds and repetitions of random tests. Thread-safe.
#pragma once

#include <cstdint>
#include <cstdio>
#include <cstdlib>

namespace sluice::test {

// $SLUICE_SEED, or a fixed number. It is printed, so that a failure can be reproduced.
inline std::uint64_t test_seed() {
  const char* given = std::getenv("SLUICE_SEED");
  const std::uint64_t seed = given ? std::strtoull(given, nullptr, 0) : 20260101;
  std::printf("SLUICE_SEED=%llu\n", static_cast<unsigned long long>(seed));
  return seed;
}

// The number of repetitions: `usual`, or `often` if SLUICE_LONG=1 asks for a long run.
inline int rounds(int usual, int often) {
  const char* given = std::getenv("SLUICE_LONG");
  return given && *given == '1' ? often : usual;
}

// The same for loops over processes: a quarter of `usual` if a sanitizer makes each slow.
inline int samples(int usual, int often) {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  usual = (usual + 3) / 4;
#endif
  return rounds(usual, often);
}

}  // namespace sluice::test
