// SPDX-License-Identifier: BSD-2-Clause
// One value of the configuration on its way into MountOptions: its type, its range, and the words
// of the error. For fs/control/options*.cpp alone, which know where the value came from. Threads:
// pure functions.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "base/result.hpp"
#include "fs/control/options.hpp"

namespace sluice {

// A value that can't be used; the caller says where it came from (Error::at).
Error bad_option(std::string text);

struct OtherType {
  std::string_view name;
};
using Value = std::variant<std::string, std::int64_t, bool, double, OtherType>;

// Text from a flag or a variable, which has no types of its own, as what it looks like; still text
// if it looks like nothing of the kind.
Value switch_value(const std::string& text);
Value number_value(const std::string& text);

const OptionSpec* find_option(std::string_view name);  // nullptr if there is none
// Relative paths start at `base`.
Result<void> set_option(const OptionSpec& spec, const Value& value, const std::string& base,
                        MountOptions& options);
Result<void> set_path(std::string_view name, const Value& value, const std::string& base,
                      std::string& out);

// A tier as it is being read. Its watermarks are known as a pair only at the end.
struct TierDraft {
  TierOptions tier;
  bool has_low_watermark = false;
};
std::span<const std::string_view> tier_keys();  // the first two are name and path
// REQUIRES: `key` is one of tier_keys().
Result<void> set_tier_key(std::string_view key, const Value& value, const std::string& base,
                          TierDraft& draft);
Result<void> finish_tier(TierDraft& draft);

std::span<const std::string_view> rule_keys();
// REQUIRES: `key` is one of rule_keys().
Result<void> set_rule_key(std::string_view key, const Value& value, RuleOptions& rule);
Result<void> finish_rule(const RuleOptions& rule);

// "; did you mean 'size'?", or "; allowed: " and all of them.
std::string did_you_mean(std::string_view word, std::span<const std::string_view> allowed);

std::string in_quotes(std::string_view text);
std::vector<std::string_view> split(std::string_view text, char separator);  // no empty parts
bool is_word_of(std::string_view word, std::string_view words);  // words have spaces between

}  // namespace sluice
