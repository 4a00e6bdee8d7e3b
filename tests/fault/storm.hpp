// SPDX-License-Identifier: BSD-2-Clause
// A storm is many threads doing random things to files, each by its own plan: in a directory of its
// own, where every result is determined by the plan; under names of its own in a shared directory;
// and in a directory where all fight over the same names, of which nothing is expected but that it
// survives.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace sluice::test {

struct StormOptions {
  std::uint64_t seed = 1;
  int threads = 4;
  int steps = 2000;  // of each thread
  // False where the tiers fill up: then only what can go to another tier may need space. A file
  // with several names can't, nor can an attribute go without its file.
  bool roomy = true;
};

// Runs the storm below `root` (made: own<i>, shared, fight). Returns each thread's log of results,
// which depends on the plan alone: two filesystems that behave alike return the same.
std::vector<std::vector<std::string>> run_storm(const std::string& root,
                                                const StormOptions& options);

}  // namespace sluice::test
