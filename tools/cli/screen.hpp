// SPDX-License-Identifier: BSD-2-Clause
// A Screen is the terminal in full-screen mode: the alternate screen, no cursor, keys delivered one
// by one and not echoed. The terminal is restored by the destructor, when a signal other than
// SIGKILL ends the process, and while the process is stopped.
//
// Threads: one Screen at a time in a process, used by the thread that created it.
#pragma once

#include <chrono>
#include <string>
#include <vector>

#include "tools/common/output.hpp"

namespace sluice::tools::cli {

class Screen {
 public:
  // REQUIRES: stdout is a terminal, and there is no other Screen.
  Screen();
  ~Screen();
  Screen(const Screen&) = delete;
  Screen& operator=(const Screen&) = delete;

  FrameSize size() const;  // the current size; it may change at any time
  void draw(const std::vector<std::string>& lines);

  enum class Event { Time, Key, Resize, End };
  struct Wait {
    Event event;
    char key = 0;
  };
  // Waits for a key, a change of size, a signal to end (INT, TERM, HUP, QUIT), or until
  // `deadline`.
  Wait wait(std::chrono::steady_clock::time_point deadline);
  // Whether such a signal has arrived.
  bool is_over() const;

 private:
  bool reads_keys_;
};

}  // namespace sluice::tools::cli
