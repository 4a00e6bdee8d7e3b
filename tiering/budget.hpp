// SPDX-License-Identifier: BSD-2-Clause
// A budget makes a directory expendable: if the files below it take more bytes than the budget,
// those of least value are deleted. It is stored as an xattr on the directory itself, like a pin,
// so it survives the loss of the database. This file holds the choice of what is deleted; the
// daemon and the simulator share it. Threads: plain values and pure functions.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace sluice {

// On disk. Users see it as user.sluice.budget. On the tiers, only root can set it under this name.
inline constexpr const char* kBudgetXattr = "trusted.sluice.budget";

struct Budget {
  std::uint64_t bytes = 0;
  // Who set it. The daemon deletes only what this user could delete, so that the budget of a
  // user's directory does not reach files that others keep in directories of their own below it.
  uid_t user = 0;

  bool operator==(const Budget&) const = default;
};

// The value of the xattr: "214748364800 1000".
std::string encode_budget(const Budget& budget);
std::optional<Budget> decode_budget(std::string_view text);

// A [[rule]] that gives a budget to each directory that its glob matches.
struct BudgetRule {
  std::string match;
  std::uint64_t bytes = 0;

  bool operator==(const BudgetRule&) const = default;
};

// A file that may be deleted, as the choice sees it. Times are in seconds since the epoch.
struct Expendable {
  std::uint64_t bytes = 0;  // what deleting it frees
  double uses = 1;          // accesses, older ones counting less; making the file is one
  double last_use = 0;
  double written = 0;  // its generation: when it was last written
};

// What it is worth to keep a byte of the file: the longer it was left alone, the later its next use
// is expected; many uses make up for some of that.
double value_of(const Expendable& file, double now);

// Indexes of the files to delete, first to go first, until `bytes` are freed or no file is left.
// Least value goes first; among equals, the oldest generation.
std::vector<std::uint32_t> choose_victims(std::span<const Expendable> files, std::uint64_t bytes,
                                          double now);

// How many bytes to free at a time for writers that wait for room: a little more than they need,
// because each choice looks at every file of the tree.
constexpr std::uint64_t budget_step(std::uint64_t budget) { return budget / 256; }

}  // namespace sluice
