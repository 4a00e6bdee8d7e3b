// SPDX-License-Identifier: BSD-2-Clause
// Interrupt lets a verb that waits say what goes on without it before Ctrl-C ends it. During its
// life the first SIGINT or SIGTERM only sets a flag; a second one ends the process at once.
//
// Threads: one object at a time.
#pragma once

#include <string>

namespace sluice::tools {

class Interrupt {
 public:
  Interrupt();
  ~Interrupt();
  Interrupt(const Interrupt&) = delete;
  Interrupt& operator=(const Interrupt&) = delete;

  // Whether a signal came. It also ends a poll() early.
  bool came() const;
  // Prints "sluice: VERB: interrupted; MESSAGE" and ends the process by the signal that came, so
  // that a shell sees it. CHECKED: came().
  [[noreturn]] void end(const std::string& verb, const std::string& message) const;
};

}  // namespace sluice::tools
