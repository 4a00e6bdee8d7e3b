// SPDX-License-Identifier: BSD-2-Clause
// One value of the configuration on its way into a member of MountOptions, TierOptions or
// RuleOptions: its type, its range, and the text of the error. For fs/control/option*.cpp only.
// Threads: pure functions.
#pragma once

#include <chrono>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "base/result.hpp"
#include "tiering/window.hpp"

namespace sluice {

struct OptionSpec;
struct TierOptions;
struct RuleOptions;

struct OtherType {
  std::string_view name;
};
using OptionValue = std::variant<std::string, std::int64_t, bool, double, OtherType>;

// Text of a flag or a variable as the type that `spec` wants; text if it can't be read as that.
OptionValue typed_value(const OptionSpec& spec, const std::string& text);

// EINVAL; the caller says where the value came from (Error::at).
Error bad_option(std::string text);

// Reads `value` as spec.kind into `out`.
Result<void> read_value(const OptionSpec& spec, const OptionValue& value, const std::string& base,
                        std::string& out);
Result<void> read_value(const OptionSpec& spec, const OptionValue& value, const std::string& base,
                        std::uint64_t& out);
Result<void> read_value(const OptionSpec& spec, const OptionValue& value, const std::string& base,
                        unsigned& out);
Result<void> read_value(const OptionSpec& spec, const OptionValue& value, const std::string& base,
                        bool& out);
Result<void> read_value(const OptionSpec& spec, const OptionValue& value, const std::string& base,
                        double& out);
Result<void> read_value(const OptionSpec& spec, const OptionValue& value, const std::string& base,
                        std::chrono::seconds& out);
Result<void> read_value(const OptionSpec& spec, const OptionValue& value, const std::string& base,
                        Windows& out);

// What must hold of a whole tier or rule. `has_low_watermark`: the key was given; else
// low_watermark follows high_watermark.
Result<void> finish_tier(TierOptions& tier, bool has_low_watermark);
Result<void> finish_rule(const RuleOptions& rule);

// "; did you mean 'size'?", or "; allowed: " and all of them.
std::string did_you_mean(std::string_view word, std::span<const std::string_view> allowed);

std::string in_quotes(std::string_view text);
std::vector<std::string_view> split(std::string_view text, char separator);  // no empty parts
bool is_word_of(std::string_view word, std::string_view words);  // words have spaces between

}  // namespace sluice
