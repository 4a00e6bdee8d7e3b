// SPDX-License-Identifier: BSD-2-Clause
// What the user wants of tiering, as plain values: thresholds are each tier's, the rest is here.
// docs/configuration.md describes the words. Threads: plain values and pure functions.
#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/ids.hpp"

namespace sluice {

// Sends the files it matches to a tier, whatever their heat.
struct Rule {
  std::string match;                                 // a glob, see glob_matches(); "": every file
  std::optional<std::uint64_t> larger, smaller;      // than this many bytes of content
  std::optional<std::chrono::seconds> older, newer;  // since the file was last written or opened
  TierIndex tier = kNoTier;                          // kNoTier: it stays where it is
};

struct Policy {
  std::chrono::seconds min_stay = std::chrono::hours(1);  // on a tier before heat may move it again
  std::vector<Rule> rules;                                // the first that matches counts
};

// Whether `path` ("/a/b.bin", below the mount) matches `glob`. `*` and `?` stop at a slash, `**`
// does not, and "a/**/b" also means "a/b". [a-z] and [!a-z] are sets, \ takes the next character as
// it is; characters are bytes. A glob that begins with a slash is matched from the mount's root,
// one that holds a slash elsewhere from any directory, one without against the last name only.
bool glob_matches(std::string_view glob, std::string_view path);

// The index of the first rule that matches, or nothing. `age` is the time since the last use.
std::optional<std::size_t> matching_rule(const std::vector<Rule>& rules, std::string_view path,
                                         std::uint64_t size, std::chrono::seconds age);

}  // namespace sluice
