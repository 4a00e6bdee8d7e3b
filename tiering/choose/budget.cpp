// SPDX-License-Identifier: BSD-2-Clause
#include "tiering/choose/budget.hpp"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <functional>

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

DeletionOrder::DeletionOrder(std::span<const Expendable> files, double now) {
  heap_.reserve(files.size());
  for (std::uint32_t i = 0; i < files.size(); ++i) {
    const Expendable& file = files[i];
    if (file.bytes > 0) heap_.emplace_back(value_of(file, now), file.written, file.id, i);
  }
  std::make_heap(heap_.begin(), heap_.end(), std::greater<Rank>());
}

std::optional<std::uint32_t> DeletionOrder::next() {
  if (heap_.empty()) return std::nullopt;
  std::pop_heap(heap_.begin(), heap_.end(), std::greater<Rank>());
  const std::uint32_t first = std::get<3>(heap_.back());
  heap_.pop_back();
  return first;
}

std::vector<std::uint32_t> choose_victims(std::span<const Expendable> files, std::uint64_t bytes,
                                          double now) {
  DeletionOrder order(files, now);
  std::vector<std::uint32_t> victims;
  for (std::uint64_t freed = 0; freed < bytes;) {
    const auto next = order.next();
    if (!next) break;
    victims.push_back(*next);
    freed += files[*next].bytes;
  }
  return victims;
}

bool is_for_now(Kept why) {
  return why == Kept::InUse || why == Kept::Moving || why == Kept::Fresh || why == Kept::ReadOnly;
}

std::string_view name_of(Kept why) {
  switch (why) {
    case Kept::Pinned:
      return "pinned";
    case Kept::LinkedOutside:
      return "linked_outside";
    case Kept::OfOthers:
      return "of_others";
    case Kept::InUse:
      return "in_use";
    case Kept::Moving:
      return "moving";
    case Kept::Fresh:
      return "fresh";
    case Kept::ReadOnly:
      return "read_only";
  }
  return "";
}

std::optional<Kept> why_kept(const DeletionFacts& file, const Budget& budget, std::int64_t now,
                             std::chrono::seconds rest) {
  if (file.has_pin) return Kept::Pinned;
  if (file.links != file.names) return Kept::LinkedOutside;
  const bool is_limited = budget.user != 0 && file.owner != budget.user;
  const auto is_of_others = [&](uid_t owner) { return is_limited && owner != budget.user; };
  if (std::any_of(file.directory_owners.begin(), file.directory_owners.end(), is_of_others))
    return Kept::OfOthers;
  if (file.is_read_only) return Kept::ReadOnly;
  if (file.is_moving) return Kept::Moving;
  if (file.is_in_use) return Kept::InUse;
  if (file.written > now - rest.count() && file.written <= now) return Kept::Fresh;
  return std::nullopt;
}

}  // namespace sluice
