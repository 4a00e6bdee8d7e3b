// SPDX-License-Identifier: BSD-2-Clause
// The progress of verbs that take long, on stderr: one line that is rewritten on a terminal, an
// occasional line elsewhere. Threads: caller locks.
#pragma once

#include <chrono>
#include <cstdint>
#include <deque>
#include <optional>
#include <string>
#include <utility>

namespace sluice::tools {

// The rate at which a count has grown in the last seconds.
class RateMeter {
 public:
  using Time = std::chrono::steady_clock::time_point;

  void add(Time now, std::uint64_t total);
  // Per second; 0 while it is unknown.
  double rate() const;
  // The time until `total` is reached at this rate.
  std::optional<std::chrono::seconds> time_to(std::uint64_t total) const;

 private:
  std::deque<std::pair<Time, std::uint64_t>> samples_;
};

// "[######......]  50%  100.0 MiB/s, 10 s left, 1.0 GiB of 2.0 GiB, 3 of 7 files".
std::string transfer_text(std::uint64_t bytes, std::uint64_t total_bytes, std::uint64_t files,
                          std::uint64_t total_files, const RateMeter& meter, bool with_bar);

// The progress line. The destructor erases it, so that only results remain.
class ProgressLine {
 public:
  ProgressLine();
  ~ProgressLine() { clear(); }
  ProgressLine(const ProgressLine&) = delete;
  ProgressLine& operator=(const ProgressLine&) = delete;

  bool is_terminal() const { return is_terminal_; }
  // Whether it is time for an update: several times a second on a terminal, every ten seconds
  // elsewhere.
  bool is_due() const { return std::chrono::steady_clock::now() >= next_; }
  // Control characters in `text` are escaped; what does not fit the terminal is cut off.
  void show(const std::string& text);
  // Erases the line; call it before printing something else.
  void clear();

 private:
  const bool is_terminal_;
  bool shown_ = false;
  std::chrono::steady_clock::time_point next_;
};

}  // namespace sluice::tools
