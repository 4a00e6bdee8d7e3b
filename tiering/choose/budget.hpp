// SPDX-License-Identifier: BSD-2-Clause
// A budget makes a directory expendable: if the files below it take more bytes than the budget,
// those of least value are deleted. It is stored as an xattr on the directory itself, like a pin,
// so it survives the loss of the database. This file holds the choice of what is deleted, which the
// daemon and the simulator share, and the rule that protects files. Threads: plain values and pure
// functions.
#pragma once

#include <sys/types.h>

#include <chrono>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <tuple>
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
  double written = 0;    // its generation: when it was last written
  std::uint64_t id = 0;  // decides if nothing else does, so that the order is always the same
};

// The value of keeping a byte of the file: the longer the file was not used, the later its next use
// is expected; many uses make up for some of that.
double value_of(const Expendable& file, double now);

// Gives out files in the order in which they are deleted: least value first; among equals, the
// oldest generation. Files that free nothing are left out.
class DeletionOrder {
 public:
  DeletionOrder(std::span<const Expendable> files, double now);
  // The index of the next file.
  std::optional<std::uint32_t> next();

 private:
  using Rank = std::tuple<double, double, std::uint64_t, std::uint32_t>;
  std::vector<Rank> heap_;  // and not a sorted list: usually a small part of the files goes
};

// Indexes of the files to delete, first to go first, until `bytes` are freed or no file is left.
std::vector<std::uint32_t> choose_victims(std::span<const Expendable> files, std::uint64_t bytes,
                                          double now);

// Why a file is not deleted although it would be next.
enum class Kept {
  Pinned,         // it, or a directory inside the tree that it is in
  LinkedOutside,  // deleting its names in the tree would free nothing
  OfOthers,       // the user who set the budget could not delete it
  InUse,          // open, mapped for writing, or used by a request of the GPU
  Moving,         // to another tier
  Fresh,          // written just now
  ReadOnly,       // its tier is
};
// Whether the file will be deleted later if nobody uses it again.
bool is_for_now(Kept why);
std::string_view name_of(Kept why);

// What decides whether a file may be deleted.
struct DeletionFacts {
  bool has_pin = false;
  bool is_in_use = false;
  bool is_moving = false;
  bool is_read_only = false;  // its tier
  std::uint64_t names = 0;    // in the tree
  std::uint64_t links = 0;    // in all
  uid_t owner = 0;
  std::vector<uid_t> directory_owners;  // of the directories that its names are in
  std::int64_t written = 0;             // seconds since the epoch; one in the future says nothing
};

// The rule: why the file stays; nothing if it may be deleted. A lasting reason takes precedence
// over a temporary one.
std::optional<Kept> why_kept(const DeletionFacts& file, const Budget& budget, std::int64_t now,
                             std::chrono::seconds rest);

// How many bytes to free at a time for writers that wait for room: a little more than they need,
// because each choice looks at every file of the tree.
constexpr std::uint64_t budget_step(std::uint64_t budget) { return budget / 256; }

}  // namespace sluice
