// SPDX-License-Identifier: BSD-2-Clause
#include "fs/control/option_values.hpp"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <charconv>
#include <cmath>
#include <cstdio>
#include <utility>

#include "base/log.hpp"
#include "base/path.hpp"
#include "base/units.hpp"
#include "fs/control/option_table.hpp"
#include "fs/control/options.hpp"

namespace sluice {
namespace {

using Kind = OptionSpec::Kind;
using std::chrono::seconds;

// Whoever asks for less has forgotten the unit: a file of 1 GiB would take weeks.
constexpr std::uint64_t kLeastRate = 1 << 10;

OptionValue switch_value(const std::string& text) {
  if (is_word_of(text, "true yes on 1")) return true;
  if (is_word_of(text, "false no off 0")) return false;
  return text;
}

OptionValue number_value(const std::string& text) {
  const char* end = text.data() + text.size();
  std::int64_t number = 0;
  const auto whole = std::from_chars(text.data(), end, number);
  if (whole.ec == std::errc{} && whole.ptr == end) return number;
  double fraction = 0;
  const auto parsed = std::from_chars(text.data(), end, fraction, std::chars_format::fixed);
  if (parsed.ec == std::errc{} && parsed.ptr == end) return fraction;
  return text;
}

std::string with_commas(std::string_view words) {
  std::string out;
  for (const auto word : split(words, ' ')) out.append(out.empty() ? "" : ", ").append(word);
  return out;
}

std::string shown(const OptionValue& value) {
  if (const auto* text = std::get_if<std::string>(&value)) return in_quotes(*text);
  if (const auto* number = std::get_if<std::int64_t>(&value)) return std::to_string(*number);
  if (const auto* flag = std::get_if<bool>(&value)) return *flag ? "true" : "false";
  if (const auto* fraction = std::get_if<double>(&value)) {
    std::array<char, 32> out{};
    std::snprintf(out.data(), out.size(), "%g", *fraction);
    return out.data();
  }
  return std::string(std::get<OtherType>(value).name);
}

Error must_be(const OptionSpec& spec, std::string_view allowed, const OptionValue& value) {
  return bad_option(std::string(spec.name).append(" must be ").append(allowed).append(", not ") +
                    shown(value));
}

std::optional<std::uint64_t> size_of(const OptionValue& value) {
  if (const auto* number = std::get_if<std::int64_t>(&value); number != nullptr && *number >= 0) {
    return static_cast<std::uint64_t>(*number);
  }
  const auto* text = std::get_if<std::string>(&value);
  return text == nullptr ? std::nullopt : parse_size(*text);
}

// A size per second; the suffix "/s" is optional.
std::optional<std::uint64_t> rate_of(OptionValue value) {
  if (auto* text = std::get_if<std::string>(&value); text != nullptr && text->ends_with("/s")) {
    text->resize(text->size() - 2);
  }
  return size_of(value);
}

// A size, or percent of some memory.
std::optional<GpuShare> share_of(const OptionValue& value) {
  const auto* text = std::get_if<std::string>(&value);
  if (text == nullptr || !text->ends_with('%')) {
    const auto size = size_of(value);
    return size ? std::optional(GpuShare{.bytes = *size}) : std::nullopt;
  }
  const OptionValue percent = number_value(text->substr(0, text->size() - 1));
  const auto* number = std::get_if<std::int64_t>(&percent);
  if (number == nullptr || *number < 0 || *number > 100) return std::nullopt;
  return GpuShare{.percent = static_cast<unsigned>(*number)};
}

std::optional<std::uint64_t> count_of(const OptionValue& value, std::int64_t least,
                                      std::int64_t most) {
  const auto* number = std::get_if<std::int64_t>(&value);
  if (number == nullptr || *number < least || *number > most) return std::nullopt;
  return static_cast<std::uint64_t>(*number);
}

}  // namespace

OptionValue typed_value(const OptionSpec& spec, const std::string& text) {
  switch (spec.kind) {
    case Kind::Switch:
      return switch_value(text);
    case Kind::Count:
    case Kind::Percent:
    case Kind::Score:
      return number_value(text);
    default:
      return text;
  }
}

Error bad_option(std::string text) { return {EINVAL, "read options", std::move(text)}; }

Result<void> read_value(const OptionSpec& spec, const OptionValue& value, const std::string& base,
                        std::string& out) {
  const auto* text = std::get_if<std::string>(&value);
  const std::string name(spec.name);
  if (text == nullptr) return must_be(spec, "a text in quotes", value);
  if (text->find('\0') != std::string::npos) return bad_option(name + " holds a NUL byte");
  if (!spec.words.empty() && !is_word_of(*text, spec.words)) {
    return must_be(spec, "one of " + with_commas(spec.words), value);
  }
  if (spec.kind == Kind::Path && text->empty()) {
    return bad_option(name + " is empty; give the path of a file or directory");
  }
  out = spec.kind == Kind::Path ? absolute_path(*text, base) : *text;
  return {};
}

Result<void> read_value(const OptionSpec& spec, const OptionValue& value, const std::string&,
                        std::uint64_t& out) {
  std::optional<std::uint64_t> read;
  std::string allowed;
  switch (spec.kind) {
    case Kind::Count:
      read = count_of(value, spec.least, spec.most);
      allowed =
          "a whole number from " + std::to_string(spec.least) + " to " + std::to_string(spec.most);
      break;
    case Kind::Percent:
      read = count_of(value, 0, 100);
      allowed = "a whole number of percent from 0 to 100";
      break;
    case Kind::Rate:
      read = rate_of(value);
      allowed = R"(a size per second like "200MiB", or 0 for no limit)";
      if (read && *read > 0 && *read < kLeastRate) {
        return bad_option(must_be(spec, allowed, value).text() + ", which is " +
                          std::to_string(*read) + (*read == 1 ? " byte" : " bytes") +
                          " per second");
      }
      break;
    case Kind::Share:
      if (const auto share = share_of(value)) read = share->bytes + share_of_memory(share->percent);
      allowed = R"(a part of memory like "25%", or a size like "16GiB")";
      break;
    default:
      read = size_of(value);
      allowed = R"(a size like "800GiB" or "1.5T", or a number of bytes)";
  }
  if (!read) return must_be(spec, allowed, value);
  out = *read;
  return {};
}

Result<void> read_value(const OptionSpec& spec, const OptionValue& value, const std::string& base,
                        unsigned& out) {
  std::uint64_t number = 0;
  SLUICE_TRY(read_value(spec, value, base, number));
  out = static_cast<unsigned>(number);
  return {};
}

Result<void> read_value(const OptionSpec& spec, const OptionValue& value, const std::string&,
                        bool& out) {
  const auto* flag = std::get_if<bool>(&value);
  if (flag == nullptr) return must_be(spec, "true or false", value);
  out = *flag;
  return {};
}

Result<void> read_value(const OptionSpec& spec, const OptionValue& value, const std::string&,
                        double& out) {
  out = -1;
  if (const auto* number = std::get_if<std::int64_t>(&value)) out = static_cast<double>(*number);
  if (const auto* fraction = std::get_if<double>(&value)) out = *fraction;
  if (out >= 0 && std::isfinite(out)) return {};
  return must_be(spec, "a score: a number of accesses, 0 or more", value);
}

Result<void> read_value(const OptionSpec& spec, const OptionValue& value, const std::string&,
                        seconds& out) {
  const auto* text = std::get_if<std::string>(&value);
  if (text != nullptr && !spec.words.empty() && *text == spec.words) {
    out = seconds(0);
    return {};
  }
  const auto duration = text == nullptr ? std::nullopt : parse_duration(*text);
  if (duration && duration->count() >= spec.least) {
    out = *duration;
    return {};
  }
  std::string allowed = R"(a number with its unit (s, min, h, d or w), like "90s" or "7d")";
  if (spec.least > 0) allowed += ", of " + std::to_string(spec.least) + " s or more";
  if (!spec.words.empty()) allowed += ", or " + in_quotes(spec.words);
  return must_be(spec, allowed, value);
}

Result<void> read_value(const OptionSpec& spec, const OptionValue& value, const std::string&,
                        Windows& out) {
  const auto* text = std::get_if<std::string>(&value);
  auto windows = text == nullptr ? std::nullopt : parse_windows(*text);
  if (!windows) {
    return must_be(
        spec, R"(times of day like "22:00-06:00" or "22:00-06:00,12:00-13:00", or "" for always)",
        value);
  }
  out = *std::move(windows);
  return {};
}

Result<void> read_value(const OptionSpec& spec, const OptionValue& value, const std::string&,
                        GpuShare& out) {
  const auto read = share_of(value);
  if (!read)
    return must_be(spec, R"(a part of the GPU's memory like "20%", or a size like "24GiB")", value);
  out = *read;
  return {};
}

std::string value_text(const OptionSpec&, const std::string& value) { return value; }

std::string value_text(const OptionSpec& spec, std::uint64_t value) {
  const bool is_number = spec.kind == Kind::Count || spec.kind == Kind::Percent;
  constexpr std::array kUnits{"", "KiB", "MiB", "GiB", "TiB", "PiB"};
  std::size_t unit = 0;
  while (!is_number && value > 0 && value % 1024 == 0 && unit + 1 < kUnits.size()) {
    value /= 1024;
    ++unit;
  }
  return std::to_string(value) + kUnits[unit];
}

std::string value_text(const OptionSpec& spec, unsigned value) {
  return value_text(spec, std::uint64_t{value});
}

std::string value_text(const OptionSpec&, bool value) { return value ? "true" : "false"; }

std::string value_text(const OptionSpec&, double value) {
  std::array<char, 32> out{};
  return {out.data(), std::to_chars(out.data(), out.data() + out.size(), value).ptr};
}

std::string value_text(const OptionSpec& spec, seconds value) {
  if (value.count() == 0) return spec.words.empty() ? "0s" : std::string(spec.words);
  constexpr std::array kUnits{std::pair{86400, "d"}, std::pair{3600, "h"}, std::pair{60, "min"},
                              std::pair{1, "s"}};
  const auto unit = std::find_if(kUnits.begin(), kUnits.end(),
                                 [&](const auto& each) { return value.count() % each.first == 0; });
  return std::to_string(value.count() / unit->first) + unit->second;
}

std::string value_text(const OptionSpec& spec, const GpuShare& value) {
  return value.percent > 0 ? std::to_string(value.percent) + "%" : value_text(spec, value.bytes);
}

std::string value_text(const OptionSpec&, const Windows& value) { return format_windows(value); }

std::uint64_t share_of_memory(unsigned percent) {
  const auto pages = static_cast<std::uint64_t>(::sysconf(_SC_PHYS_PAGES));
  return pages * static_cast<std::uint64_t>(::sysconf(_SC_PAGESIZE)) / 100 * percent;
}

std::vector<std::string_view> split(std::string_view text, char separator) {
  std::vector<std::string_view> parts;
  while (!text.empty()) {
    const auto end = std::min(text.find(separator), text.size());
    if (end > 0) parts.push_back(text.substr(0, end));
    text.remove_prefix(std::min(end + 1, text.size()));
  }
  return parts;
}

bool is_word_of(std::string_view word, std::string_view words) {
  const auto all = split(words, ' ');
  return std::find(all.begin(), all.end(), word) != all.end();
}

std::string in_quotes(std::string_view text) { return '"' + log::escaped(text) + '"'; }

Result<void> finish_tier(TierOptions& tier, bool has_low_watermark) {
  if (tier.name.empty()) return bad_option(R"(a tier has no name; give one, like name = "nvme")");
  const bool is_plain = std::all_of(tier.name.begin(), tier.name.end(), [](unsigned char c) {
    return (c < 0x80 && std::isalnum(c) != 0) || c == '_' || c == '-';
  });
  if (!is_plain || tier.name.size() > 32) {
    return bad_option("tier " + in_quotes(tier.name) +
                      ": a name has 1 to 32 letters, digits, '_' or '-', and nothing else");
  }
  const std::string who = "tier " + tier.name + ": ";
  if (tier.name == kStay)
    return bad_option(who + "that word has a meaning in rules; choose another name");
  if (tier.name == "hbm")
    return bad_option(who + "that word means the memory of GPUs; choose another name");
  if (tier.path.empty())
    return bad_option(who + "it has no path; give the directory that holds its files");
  // A number without a unit is in bytes, which is seldom meant.
  if (tier.capacity && *tier.capacity < (1 << 20)) {
    return bad_option(who + "capacity must be 1 MiB or more, not " +
                      std::to_string(*tier.capacity) +
                      " bytes; give a unit, like 800GiB, or leave it out to use the whole "
                      "filesystem");
  }
  if (!has_low_watermark) {
    tier.low_watermark = tier.high_watermark - std::min(tier.high_watermark, 10u);
  }
  if (tier.low_watermark >= tier.high_watermark) {
    return bad_option(who + "low_watermark (" + std::to_string(tier.low_watermark) +
                      ") must be below high_watermark (" + std::to_string(tier.high_watermark) +
                      ")");
  }
  return {};
}

Result<void> finish_rule(const RuleOptions& rule) {
  if (rule.match.empty()) {
    return bad_option(R"(a rule has no match; say which files it is for, like match = "*.iso")");
  }
  const std::string who = "rule " + in_quotes(rule.match) + ": ";
  if (rule.budget && *rule.budget == 0) return bad_option(who + "a budget must be more than 0");
  if (rule.tier.empty() && !rule.budget) {
    return bad_option(who +
                      "it has no tier; say where the files belong, like tier = \"hdd\", or "
                      "\"stay\", or give the directories a budget");
  }
  if (rule.larger && rule.smaller && *rule.larger >= *rule.smaller) {
    return bad_option(who + "no file is both larger than " + format_size(*rule.larger) +
                      " and smaller than " + format_size(*rule.smaller));
  }
  if (rule.older && rule.newer && *rule.older >= *rule.newer) {
    return bad_option(who + "no file is both older than " + format_duration(*rule.older) +
                      " and newer than " + format_duration(*rule.newer));
  }
  return {};
}

std::string did_you_mean(std::string_view word, std::span<const std::string_view> allowed) {
  if (const auto close = closest_word(word, allowed)) {
    return "; did you mean '" + std::string(*close) + "'?";
  }
  std::string list;
  for (const auto name : allowed) list.append(list.empty() ? "" : ", ").append(name);
  return "; allowed: " + list;
}

std::optional<std::string_view> closest_word(std::string_view word,
                                             std::span<const std::string_view> allowed) {
  std::optional<std::string_view> best;
  std::size_t best_distance = word.size() / 3 + 2;  // further than this is a guess, not a help
  for (const auto candidate : allowed) {
    // The Levenshtein distance, one row at a time.
    std::vector<std::size_t> row(candidate.size() + 1);
    for (std::size_t j = 0; j < row.size(); ++j) row[j] = j;
    for (std::size_t i = 0; i < word.size(); ++i) {
      std::size_t diagonal = std::exchange(row[0], i + 1);
      for (std::size_t j = 0; j < candidate.size(); ++j) {
        const std::size_t swap = diagonal + (word[i] == candidate[j] ? 0 : 1);
        diagonal = row[j + 1];
        row[j + 1] = std::min({swap, row[j] + 1, row[j + 1] + 1});
      }
    }
    if (row.back() < best_distance) {
      best_distance = row.back();
      best = candidate;
    }
  }
  return best;
}

}  // namespace sluice
