// SPDX-License-Identifier: BSD-2-Clause
#include "tiering/budget.hpp"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <functional>
#include <tuple>

namespace sluice {

std::string encode_budget(const Budget& budget) {
  return std::to_string(budget.bytes) + " " + std::to_string(budget.user);
}

std::optional<Budget> decode_budget(std::string_view text) {
  Budget budget;
  const char* const end = text.data() + text.size();
  const auto bytes = std::from_chars(text.data(), end, budget.bytes);
  if (bytes.ec != std::errc() || bytes.ptr == end || *bytes.ptr != ' ') return std::nullopt;
  const auto user = std::from_chars(bytes.ptr + 1, end, budget.user);
  if (user.ec != std::errc() || user.ptr != end) return std::nullopt;
  return budget;
}

double value_of(const Expendable& file, double now) {
  // What each doubling of the uses adds. Caches are used in bursts: how long ago the last use was
  // says more than how many there were. On traces of KV caches, a weight of 0.1 is already worse
  // than LRU at some sizes.
  constexpr double kWeightOfUses = 0.05;
  const double worth = 1 + kWeightOfUses * std::log2(std::max(file.uses, 1.0));
  // A second more, so that files used just now do not all have infinite value.
  const double idle = std::max(now - file.last_use, 0.0) + 1;
  return worth / idle / static_cast<double>(std::max<std::uint64_t>(file.bytes, 1));
}

std::vector<std::uint32_t> choose_victims(std::span<const Expendable> files, std::uint64_t bytes,
                                          double now) {
  using Rank = std::tuple<double, double, std::uint32_t>;
  std::vector<Rank> heap;
  heap.reserve(files.size());
  for (std::uint32_t i = 0; i < files.size(); ++i) {
    if (files[i].bytes > 0) heap.emplace_back(value_of(files[i], now), files[i].written, i);
  }
  // A heap and not a sort: usually a small part of the files goes.
  const auto goes_later = std::greater<Rank>();
  std::make_heap(heap.begin(), heap.end(), goes_later);
  std::vector<std::uint32_t> victims;
  for (std::uint64_t freed = 0; freed < bytes && !heap.empty();) {
    std::pop_heap(heap.begin(), heap.end(), goes_later);
    victims.push_back(std::get<2>(heap.back()));
    freed += files[victims.back()].bytes;
    heap.pop_back();
  }
  return victims;
}

}  // namespace sluice
