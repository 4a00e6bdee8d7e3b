// SPDX-License-Identifier: BSD-2-Clause
#include "tools/common/move_summary.hpp"

#include <algorithm>
#include <chrono>
#include <cstdlib>

#include "base/units.hpp"
#include "tools/common/mount_status.hpp"
#include "tools/common/output.hpp"

namespace sluice::tools {
namespace {

using Json = nlohmann::ordered_json;

constexpr std::size_t kFewest = 5;             // fewer moves are listed one by one
constexpr std::uint64_t kSmallMove = 4 << 20;  // larger ones are of interest themselves
constexpr std::int64_t kGap = 2;               // seconds between two moves of a burst

std::int64_t time_of(const Json& receipt) {
  return static_cast<std::int64_t>(number_of(receipt, "time"));
}

std::string tiers_of(const Json& receipt) {
  const std::string to = text_of(receipt, "to");
  return text_of(receipt, "from") + (to.empty() ? "" : " -> " + to);
}

bool may_join(const Json& last, const Json& next) {
  return number_of(last, "bytes") < kSmallMove && number_of(next, "bytes") < kSmallMove &&
         text_of(last, "result") == text_of(next, "result") && tiers_of(last) == tiers_of(next) &&
         std::abs(time_of(last) - time_of(next)) <= kGap;
}

// The longest directory that both paths are in.
std::string common_directory(const std::string& a, const std::string& b) {
  const auto differ = std::mismatch(a.begin(), a.end(), b.begin(), b.end());
  const auto slash = a.rfind('/', static_cast<std::size_t>(differ.first - a.begin()));
  return slash == std::string::npos ? "" : a.substr(0, slash + 1);
}

MoveRow row_of(const Json& receipt) {
  return {.files = 1,
          .time = time_of(receipt),
          .tiers = tiers_of(receipt),
          .bytes = number_of(receipt, "bytes"),
          .milliseconds = number_of(receipt, "ms"),
          .result = text_of(receipt, "result"),
          .reason = text_of(receipt, "reason"),
          .path = text_of(receipt, "path")};
}

MoveRow sum_of(const std::vector<Json>& receipts) {
  MoveRow sum = row_of(receipts[0]);
  sum.files = receipts.size();
  sum.bytes = 0;
  std::int64_t first = sum.time;
  for (const Json& each : receipts) {
    const MoveRow row = row_of(each);
    sum.bytes += row.bytes;
    sum.time = std::max(sum.time, row.time);
    first = std::min(first, row.time);
    sum.milliseconds = std::max(sum.milliseconds, row.milliseconds);
    if (row.reason != sum.reason) sum.reason.clear();
    sum.path = common_directory(sum.path, row.path);
  }
  sum.milliseconds =
      std::max(sum.milliseconds, 1000 * static_cast<std::uint64_t>(sum.time - first));
  return sum;
}

}  // namespace

std::string took_text(std::uint64_t milliseconds) {
  return milliseconds < 1000 ? std::to_string(milliseconds) + " ms"
                             : format_duration(std::chrono::seconds(milliseconds / 1000));
}

std::string summary_of(const MoveRow& row) {
  return format_files(row.files) + ", " + format_size(row.bytes) + ", " + row.tiers + " in " +
         took_text(row.milliseconds);
}

void MoveSummary::add(const Json& receipt) {
  if (groups_.empty() || !may_join(groups_.back().back(), receipt)) groups_.emplace_back();
  groups_.back().push_back(receipt);
  const std::size_t size = groups_.back().size();
  if (size < kFewest) ++size_;
  if (size == kFewest) size_ -= kFewest - 2;  // one row instead of one for each
}

std::vector<MoveRow> MoveSummary::rows() const {
  std::vector<MoveRow> out;
  for (const auto& group : groups_) {
    if (group.size() >= kFewest) {
      out.push_back(sum_of(group));
    } else {
      for (const Json& each : group) out.push_back(row_of(each));
    }
  }
  return out;
}

}  // namespace sluice::tools
