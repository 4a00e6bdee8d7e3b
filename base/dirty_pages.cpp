// SPDX-License-Identifier: BSD-2-Clause
#include "base/dirty_pages.hpp"

#include <fcntl.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <charconv>
#include <chrono>
#include <cstdint>
#include <string>

#include "base/unique_fd.hpp"

namespace sluice {
namespace {

// The number after `name` and a space at the beginning of a line; 0 if there is none.
std::uint64_t field(std::string_view text, const std::string& name) {
  const auto at = text.find("\n" + name + " ");
  if (at == std::string_view::npos) return 0;
  std::uint64_t value = 0;
  std::from_chars(text.data() + at + name.size() + 2, text.data() + text.size(), value);
  return value;
}

bool ask_kernel() {
  static const UniqueFd file(::open("/proc/vmstat", O_RDONLY | O_CLOEXEC));
  std::array<char, 16384> text{'\n'};
  const ssize_t got = ::pread(file.get(), text.data() + 1, text.size() - 1, 0);
  return got > 0 && has_many_dirty_pages({text.data(), static_cast<std::size_t>(got) + 1});
}

}  // namespace

bool has_many_dirty_pages(std::string_view vmstat) {
  // The kernel starts to slow writes halfway between its two thresholds. Using the lower one leaves
  // time to react.
  const std::uint64_t limit = field(vmstat, "nr_dirty_background_threshold");
  return limit > 0 && field(vmstat, "nr_dirty") + field(vmstat, "nr_writeback") > limit;
}

bool writes_may_be_slowed() {
  constexpr std::int64_t kPause = 50'000'000;
  static std::atomic<std::int64_t> next{0};
  static std::atomic<bool> slowed{false};
  const std::int64_t now = std::chrono::steady_clock::now().time_since_epoch().count();
  std::int64_t due = next.load(std::memory_order_relaxed);
  if (now >= due && next.compare_exchange_strong(due, now + kPause)) slowed = ask_kernel();
  return slowed.load(std::memory_order_relaxed);
}

}  // namespace sluice
