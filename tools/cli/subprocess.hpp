// SPDX-License-Identifier: BSD-2-Clause
// Running a program for what it prints. Threads: call it before any are started; it forks.
#pragma once

#include <chrono>
#include <string>
#include <vector>

namespace sluice {

struct ProgramOutput {
  int code = -1;  // its exit status; -1: it was killed, or took too long
  std::string out, err;
};

// Runs argv[0], found on PATH, with nothing to read and without colour. Killed after `limit`.
ProgramOutput run_program(const std::vector<std::string>& argv, std::chrono::seconds limit);

}  // namespace sluice
