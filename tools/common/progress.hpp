// SPDX-License-Identifier: BSD-2-Clause
// What verbs that take long show meanwhile, on stderr: one line that is rewritten on a terminal, a
// line now and then elsewhere. Threads: caller locks.
#pragma once

#include <chrono>
#include <cstdint>
#include <deque>
#include <optional>
#include <string>
#include <utility>

namespace sluice {

// How fast a count grows, from what it was in the last seconds.
class RateMeter {
 public:
  using Time = std::chrono::steady_clock::time_point;

  void add(Time now, std::uint64_t total);
  // In a second; 0 as long as it can't be told.
  double rate() const;
  // Until `total` is reached, at this rate.
  std::optional<std::chrono::seconds> time_to(std::uint64_t total) const;

 private:
  std::deque<std::pair<Time, std::uint64_t>> samples_;
};

// "[######......]  50%  100.0 MiB/s, 10 s left, 1.0 GiB of 2.0 GiB, 3 of 7 files".
std::string transfer_text(std::uint64_t bytes, std::uint64_t total_bytes, std::uint64_t files,
                          std::uint64_t total_files, const RateMeter& meter, bool with_bar);

// The line itself. Its last text is wiped away when it ends, so that results stand alone.
class ProgressLine {
 public:
  ProgressLine();
  ~ProgressLine() { clear(); }
  ProgressLine(const ProgressLine&) = delete;
  ProgressLine& operator=(const ProgressLine&) = delete;

  bool is_terminal() const { return is_terminal_; }
  // Whether it is time for another text: several times a second on a terminal, else every ten
  // seconds.
  bool is_due() const { return std::chrono::steady_clock::now() >= next_; }
  // Control characters in `text` are escaped; what does not fit the terminal is cut off.
  void show(const std::string& text);
  // Before something else is printed.
  void clear();

 private:
  const bool is_terminal_;
  bool shown_ = false;
  std::chrono::steady_clock::time_point next_;
};

}  // namespace sluice
