// SPDX-License-Identifier: BSD-2-Clause
// Random tests that can be run again. Thread-safe.
#pragma once

#include <cstdint>
#include <cstdio>
#include <cstdlib>

namespace sluice::test {

// $SLUICE_SEED, else a fixed number; printed, so that a failure can be repeated.
inline std::uint64_t test_seed() {
  const char* given = std::getenv("SLUICE_SEED");
  const std::uint64_t seed = given ? std::strtoull(given, nullptr, 0) : 20260101;
  std::printf("SLUICE_SEED=%llu\n", static_cast<unsigned long long>(seed));
  return seed;
}

// How often to repeat: `usual` times, or `often` when SLUICE_LONG=1 asks for a long run.
inline int rounds(int usual, int often) {
  const char* given = std::getenv("SLUICE_LONG");
  return given && *given == '1' ? often : usual;
}

// The same for loops over processes: a quarter of `usual` where a sanitizer makes each slow.
inline int samples(int usual, int often) {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  usual = (usual + 3) / 4;
#endif
  return rounds(usual, often);
}

}  // namespace sluice::test
