// SPDX-License-Identifier: BSD-2-Clause
// Reads one value of the configuration into a member of MountOptions, TierOptions or RuleOptions,
// and checks its type and range. For fs/control/option*.cpp only. Threads: pure functions.
#pragma once

#include <chrono>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "base/result.hpp"
#include "gpu/hbm_limits.hpp"
#include "tiering/move/window.hpp"

namespace sluice {

struct OptionSpec;
struct TierOptions;
struct RuleOptions;

struct OtherType {
  std::string_view name;
};
using OptionValue = std::variant<std::string, std::int64_t, bool, double, OtherType>;

// Converts the text of a flag or a variable to the type of `spec`; if that fails, it stays text.
OptionValue typed_value(const OptionSpec& spec, const std::string& text);

// EINVAL; the caller adds where the value came from (Error::at).
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
Result<void> read_value(const OptionSpec& spec, const OptionValue& value, const std::string& base,
                        GpuShare& out);

// The value as it is written in the file, without quotes. Exact: read_value() reads the same again.
std::string value_text(const OptionSpec& spec, const std::string& value);
std::string value_text(const OptionSpec& spec, std::uint64_t value);
std::string value_text(const OptionSpec& spec, unsigned value);
std::string value_text(const OptionSpec& spec, bool value);
std::string value_text(const OptionSpec& spec, double value);
std::string value_text(const OptionSpec& spec, std::chrono::seconds value);
std::string value_text(const OptionSpec& spec, const Windows& value);
std::string value_text(const OptionSpec& spec, const GpuShare& value);

// Checks a whole tier or rule. `has_low_watermark`: the key was given; otherwise low_watermark is
// derived from high_watermark.
Result<void> finish_tier(TierOptions& tier, bool has_low_watermark);
Result<void> finish_rule(const RuleOptions& rule);

// Returns "; did you mean 'size'?", or "; allowed: " with all words.
std::string did_you_mean(std::string_view word, std::span<const std::string_view> allowed);

std::string in_quotes(std::string_view text);
std::vector<std::string_view> split(std::string_view text, char separator);  // no empty parts
bool is_word_of(std::string_view word, std::string_view words);  // words have spaces between

}  // namespace sluice
