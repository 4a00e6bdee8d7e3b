// SPDX-License-Identifier: BSD-2-Clause
// Runs a program and returns its output. Threads: forks, so call it before threads are started.
#pragma once

#include <chrono>
#include <string>
#include <vector>

namespace sluice::tools::cli {

struct ProgramOutput {
  int code = -1;  // its exit status; -1: it was killed, or took too long
  std::string out, err;
};

// Runs argv[0], found on PATH, with empty stdin and without colour. Killed after `limit`.
ProgramOutput run_program(const std::vector<std::string>& argv, std::chrono::seconds limit);

}  // namespace sluice::tools::cli
