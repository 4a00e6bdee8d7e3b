// SPDX-License-Identifier: BSD-2-Clause
// Runs a program and waits for it. Thread-safe.
#pragma once

#include <chrono>
#include <string>
#include <vector>

namespace sluice::test {

struct CommandResult {
  int exit_code;  // 128 + signal if a signal ended it; 127 if it could not be started
  std::string out;
  std::string err;

  bool ok() const { return exit_code == 0; }
};

// Runs argv[0], found on PATH, with empty stdin. After `limit`, kills it and adds a note to `err`.
CommandResult run_command(const std::vector<std::string>& argv,
                          std::chrono::seconds limit = std::chrono::seconds(60));

}  // namespace sluice::test
