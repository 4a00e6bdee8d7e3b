// SPDX-License-Identifier: BSD-2-Clause
// A storm is many threads that make random changes to files. Each thread works in its own
// directory, where its plan determines every result; under its own names in a shared directory; and
// in a directory where all threads use the same names, whose results are not compared.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace sluice::test {

struct StormOptions {
  std::uint64_t seed = 1;
  int threads = 4;
  int steps = 2000;  // per thread
  // False if the tiers fill up. Then only operations that can move a file to another tier may need
  // space: a file with several names cannot move, and an attribute cannot move without its file.
  bool roomy = true;
};

// Runs the storm below `root`, where it creates own<i>, shared and fight. Returns each thread's log
// of results, which depends only on the plan: two filesystems that behave the same return the same.
std::vector<std::vector<std::string>> run_storm(const std::string& root,
                                                const StormOptions& options);

}  // namespace sluice::test
