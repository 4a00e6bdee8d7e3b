// SPDX-License-Identifier: BSD-2-Clause
#include "tools/common/progress.hpp"

#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstdio>

#include "base/units.hpp"
#include "tools/common/output.hpp"
#include "tools/common/text_width.hpp"

namespace sluice::tools {
namespace {

using std::chrono::duration;
using std::chrono::milliseconds;
using std::chrono::seconds;
using std::chrono::steady_clock;

constexpr seconds kMemory{10};             // of a RateMeter
constexpr milliseconds kFirstUpdate{500};  // work that ends earlier shows no progress
constexpr milliseconds kOnTerminal{100};
constexpr seconds kElsewhere{10};
constexpr std::size_t kBarWidth = 16;

}  // namespace

void RateMeter::add(Time now, std::uint64_t total) {
  // A lower count is a new count: start again.
  if (!samples_.empty() && total < samples_.back().second) samples_.clear();
  samples_.emplace_back(now, total);
  while (samples_.size() > 2 && now - samples_[1].first >= kMemory) samples_.pop_front();
}

double RateMeter::rate() const {
  if (samples_.size() < 2) return 0;
  const double elapsed = duration<double>(samples_.back().first - samples_.front().first).count();
  if (elapsed < 0.1) return 0;
  return static_cast<double>(samples_.back().second - samples_.front().second) / elapsed;
}

std::optional<seconds> RateMeter::time_to(std::uint64_t total) const {
  const double speed = rate();
  if (!(speed > 0) || samples_.back().second > total) return std::nullopt;
  const double left = std::ceil(static_cast<double>(total - samples_.back().second) / speed);
  if (left > 1e9) return std::nullopt;
  return seconds(static_cast<std::int64_t>(left));
}

std::string transfer_text(std::uint64_t bytes, std::uint64_t total_bytes, std::uint64_t files,
                          std::uint64_t total_files, const RateMeter& meter, bool with_bar) {
  // If there are no bytes to copy, the share is that of the files.
  const auto ratio = total_bytes > 0 ? static_cast<double>(bytes) / static_cast<double>(total_bytes)
                     : total_files > 0
                         ? static_cast<double>(files) / static_cast<double>(total_files)
                         : 0;
  const auto percent = static_cast<unsigned>(100 * std::min(ratio, 1.0));
  std::string text = std::to_string(percent) + "%";
  if (with_bar) text = fill_bar(percent, 100, kBarWidth) + std::string(5 - text.size(), ' ') + text;
  // The most important parts come first, because a narrow terminal cuts the rest off.
  text += "  ";
  if (meter.rate() > 0) text += format_size(static_cast<std::uint64_t>(meter.rate())) + "/s, ";
  if (const auto left = meter.time_to(total_bytes)) text += format_duration(*left) + " left, ";
  text += format_size(bytes) + " of " + format_size(total_bytes) + ", " + format_count(files) +
          " of " + format_count(total_files) + " files";
  return text;
}

ProgressLine::ProgressLine()
    : is_terminal_(::isatty(STDERR_FILENO) == 1),
      next_(steady_clock::now() + (is_terminal_ ? kFirstUpdate : milliseconds(kElsewhere))) {}

void ProgressLine::show(const std::string& text) {
  if (is_terminal_) {
    // One column is left free: a line that fills the last one wraps on some terminals.
    const std::string cut =
        cut_to(printable(text), terminal_size(STDERR_FILENO).value_or(FrameSize{}).columns - 1);
    std::fprintf(stderr, "\r%s\033[K", cut.c_str());
    shown_ = true;
  } else {
    std::fprintf(stderr, "%s\n", printable(text).c_str());
  }
  next_ = steady_clock::now() + (is_terminal_ ? kOnTerminal : milliseconds(kElsewhere));
}

void ProgressLine::clear() {
  if (shown_) std::fputs("\r\033[K", stderr);
  shown_ = false;
}

}  // namespace sluice::tools
