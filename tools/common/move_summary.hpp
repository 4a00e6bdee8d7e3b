// SPDX-License-Identifier: BSD-2-Clause
// Combines a burst of small moves in one line, so that a list of moves stays short.
// Threads: caller locks.
#pragma once

#include <cstddef>
#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

namespace sluice::tools {

// One line of a list: a move, or several.
struct MoveRow {
  std::uint64_t files = 1;
  std::int64_t time = 0;           // of the newest
  std::string tiers;               // "ssd -> nvme"; one tier if a file was deleted
  std::uint64_t bytes = 0;         // of all
  std::uint64_t milliseconds = 0;  // from the first to the last of several
  std::string result;              // "moved", "failed", "yielded", "cancelled", "deleted"
  std::string reason;              // empty if those of several differ
  std::string path;                // of several: the directory that they have in common
};
// "1,234 files, 5.6 MiB, ssd -> nvme in 3 s".
std::string summary_of(const MoveRow& row);
// "12 ms", "3 min".
std::string took_text(std::uint64_t milliseconds);

class MoveSummary {
 public:
  // Receipts in the order of their time, oldest or newest first.
  void add(const nlohmann::ordered_json& receipt);
  // How many rows there are.
  std::size_t size() const { return size_; }
  std::vector<MoveRow> rows() const;

 private:
  std::vector<std::vector<nlohmann::ordered_json>> groups_;  // of moves that may be summed up
  std::size_t size_ = 0;
};

}  // namespace sluice::tools
