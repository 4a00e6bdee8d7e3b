// SPDX-License-Identifier: BSD-2-Clause
// The user's settings for tiering as plain values. Thresholds are part of each tier's settings.
// docs/configuration.md describes the options. Threads: plain values and pure functions.
#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/ids.hpp"

namespace sluice {

// Sends the files that it matches to a tier, whatever their heat is.
struct Rule {
  std::string match;  // a glob, see glob_matches(); "" matches every file
  std::optional<std::uint64_t> larger, smaller;      // than this many bytes of content
  std::optional<std::chrono::seconds> older, newer;  // since the file was last written or opened
  TierIndex tier = kNoTier;                          // kNoTier: the files stay where they are

  bool operator==(const Rule&) const = default;
};

// What the planner maximises.
enum class Objective : std::uint8_t {
  Time,  // the time that users do not wait, because a file is on a faster tier
  Hits,  // the accesses that the fastest tier serves
};

// How the planner decides where a file wants to be.
enum class Method : std::uint8_t {
  Value,       // what a file is worth on a tier, against what room there is worth
  Thresholds,  // the score that each tier asks for
};

struct Policy {
  Method method = Method::Value;
  Objective objective = Objective::Time;
  std::chrono::seconds half_life = std::chrono::hours(7 * 24);  // of the score; 0: never
  // Minimum time on a tier before automatic migration.
  std::chrono::seconds min_stay = std::chrono::hours(1);
  std::vector<Rule> rules = {};  // the first rule that matches applies

  bool operator==(const Policy&) const = default;
};

// Whether `path` ("/a/b.bin", below the mount) matches `glob`. `*` and `?` do not match a slash,
// `**` does, and "a/**/b" also matches "a/b". [a-z] and [!a-z] are sets, \ makes the next character
// literal; characters are bytes. A glob that begins with a slash must match from the root of the
// mount, one with a slash elsewhere from any directory, and one without a slash must match the last
// name.
bool glob_matches(std::string_view glob, std::string_view path);

// The index of the first rule that matches, if any. `age` is the time since the last use.
std::optional<std::size_t> matching_rule(const std::vector<Rule>& rules, std::string_view path,
                                         std::uint64_t size, std::chrono::seconds age);

}  // namespace sluice
