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

namespace sluice {
namespace {

using Kind = OptionSpec::Kind;
using std::chrono::seconds;

constexpr std::array kOptions{
    OptionSpec{"mountpoint", Kind::Path, &MountOptions::mountpoint},
    OptionSpec{"state", Kind::Path, &MountOptions::state},
    OptionSpec{"mount_options", Kind::Text, &MountOptions::mount_options},
    OptionSpec{"small_file", Kind::Size, &MountOptions::small_file},
    OptionSpec{"passthrough", Kind::Switch, &MountOptions::passthrough},
    OptionSpec{"io_uring", Kind::Switch, &MountOptions::io_uring},
    OptionSpec{"degraded", Kind::Switch, &MountOptions::degraded},
    OptionSpec{"foreground", Kind::Switch, &MountOptions::foreground},
    OptionSpec{"log_level", Kind::Text, &MountOptions::log_level, "trace debug info warn error"},
    OptionSpec{"log_format", Kind::Text, &MountOptions::log_format, "text json"},
    OptionSpec{"log_file", Kind::Path, &MountOptions::log_file},
    OptionSpec{"metrics", Kind::Text, &MountOptions::metrics},
    OptionSpec{"half_life", Kind::Duration, &MountOptions::half_life, "never", 1},
    OptionSpec{"interval", Kind::Duration, &MountOptions::interval, "", 1},
    OptionSpec{"min_stay", Kind::Duration, &MountOptions::min_stay},
    OptionSpec{"migrate", Kind::Switch, &MountOptions::migrate},
    OptionSpec{"windows", Kind::Times, &MountOptions::windows},
    OptionSpec{"bandwidth", Kind::Rate, &MountOptions::bandwidth},
    OptionSpec{"verify", Kind::Switch, &MountOptions::verify},
    OptionSpec{"heat_ignore", Kind::Text, &MountOptions::heat_ignore},
    OptionSpec{"heat_sample", Kind::Duration, &MountOptions::heat_sample, "never", 1},
    OptionSpec{"gpu", Kind::Switch, &MountOptions::gpu},
    OptionSpec{
        "gpu_max_concurrent_ops", Kind::Count, &MountOptions::gpu_max_concurrent_ops, {}, 1, 4096},
    OptionSpec{"gpu_chunk", Kind::Size, &MountOptions::gpu_chunk},
    OptionSpec{"gpu_threads", Kind::Count, &MountOptions::gpu_threads, {}, 0, 64},
    OptionSpec{"gpu_mapped_memory", Kind::Share, &MountOptions::gpu_mapped_memory},
    OptionSpec{"gpu_host_memory", Kind::Share, &MountOptions::gpu_host_memory},
    OptionSpec{"gpu_cufile", Kind::Switch, &MountOptions::gpu_cufile},
};

constexpr std::array<std::string_view, 8> kTierKeys{
    "name", "path", "capacity", "high_watermark", "low_watermark", "reserve", "threshold", "moves"};
constexpr std::array<std::string_view, 6> kRuleKeys{"match", "larger", "smaller",
                                                    "older", "newer",  "tier"};

constexpr std::int64_t kMostMoves = 64;

std::string with_commas(std::string_view words) {
  std::string out;
  for (const auto word : split(words, ' ')) out.append(out.empty() ? "" : ", ").append(word);
  return out;
}

std::string shown(const Value& value) {
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

Error must_be(std::string_view name, std::string_view allowed, const Value& value) {
  return bad_option(std::string(name).append(" must be ").append(allowed).append(", not ") +
                    shown(value));
}

Result<void> set_size(std::string_view name, const Value& value, std::uint64_t& out) {
  constexpr std::string_view kAllowed = R"(a size like "800GiB" or "1.5T", or a number of bytes)";
  if (const auto* number = std::get_if<std::int64_t>(&value); number != nullptr && *number >= 0) {
    out = static_cast<std::uint64_t>(*number);
    return {};
  }
  if (const auto* text = std::get_if<std::string>(&value)) {
    if (const auto size = parse_size(*text)) {
      out = *size;
      return {};
    }
  }
  return must_be(name, kAllowed, value);
}

// A size in a second; "/s" may say so.
Result<void> set_rate(std::string_view name, const Value& value, std::uint64_t& out) {
  Value size = value;
  if (auto* text = std::get_if<std::string>(&size); text != nullptr && text->ends_with("/s")) {
    text->resize(text->size() - 2);
  }
  if (set_size(name, size, out)) return {};
  return must_be(name, R"(a size in a second like "200MiB", or 0 for no limit)", value);
}

// A size, or a part of this machine's memory.
Result<void> set_share(std::string_view name, const Value& value, std::uint64_t& out) {
  if (const auto* text = std::get_if<std::string>(&value);
      text != nullptr && text->ends_with('%')) {
    const Value percent = number_value(text->substr(0, text->size() - 1));
    if (const auto* number = std::get_if<std::int64_t>(&percent);
        number != nullptr && *number >= 0 && *number <= 100) {
      out = share_of_memory(static_cast<unsigned>(*number));
      return {};
    }
  } else if (set_size(name, value, out)) {
    return {};
  }
  return must_be(name, R"(a part of memory like "25%", or a size like "16GiB")", value);
}

Result<void> set_count(std::string_view name, const Value& value, std::int64_t least,
                       std::int64_t most, std::uint64_t& out) {
  const auto* number = std::get_if<std::int64_t>(&value);
  if (number == nullptr || *number < least || *number > most) {
    return must_be(name,
                   "a whole number from " + std::to_string(least) + " to " + std::to_string(most),
                   value);
  }
  out = static_cast<std::uint64_t>(*number);
  return {};
}

Result<void> set_duration(std::string_view name, const Value& value, std::string_view word_for_zero,
                          std::int64_t least, seconds& out) {
  const auto* text = std::get_if<std::string>(&value);
  if (text != nullptr && !word_for_zero.empty() && *text == word_for_zero) {
    out = seconds(0);
    return {};
  }
  const auto duration = text == nullptr ? std::nullopt : parse_duration(*text);
  if (duration && duration->count() >= least) {
    out = *duration;
    return {};
  }
  std::string allowed = R"(a number with its unit (s, min, h, d or w), like "90s" or "7d")";
  if (least > 0) allowed += ", of " + std::to_string(least) + " s or more";
  if (!word_for_zero.empty()) allowed += ", or " + in_quotes(word_for_zero);
  return must_be(name, allowed, value);
}

Result<void> set_times(std::string_view name, const Value& value, Windows& out) {
  if (const auto* text = std::get_if<std::string>(&value)) {
    if (auto windows = parse_windows(*text)) {
      out = *std::move(windows);
      return {};
    }
  }
  return must_be(
      name, R"(times of day like "22:00-06:00" or "22:00-06:00,12:00-13:00", or "" for always)",
      value);
}

Result<void> set_text(std::string_view name, const Value& value, std::string& out) {
  const auto* text = std::get_if<std::string>(&value);
  if (text == nullptr) return must_be(name, "a text in quotes", value);
  if (text->find('\0') != std::string::npos)
    return bad_option(std::string(name) + " holds a NUL byte");
  out = *text;
  return {};
}

Result<void> set_percent(std::string_view name, const Value& value, unsigned& out) {
  const auto* number = std::get_if<std::int64_t>(&value);
  if (number == nullptr || *number < 0 || *number > 100) {
    return must_be(name, "a whole number of percent from 0 to 100", value);
  }
  out = static_cast<unsigned>(*number);
  return {};
}

Result<void> set_score(std::string_view name, const Value& value, double& out) {
  if (const auto* number = std::get_if<std::int64_t>(&value)) {
    out = static_cast<double>(*number);
  } else if (const auto* fraction = std::get_if<double>(&value)) {
    out = *fraction;
  } else {
    out = -1;
  }
  if (out >= 0 && std::isfinite(out)) return {};
  return must_be(name, "a score: a number of accesses, 0 or more", value);
}

}  // namespace

std::uint64_t share_of_memory(unsigned percent) {
  const auto pages = static_cast<std::uint64_t>(::sysconf(_SC_PHYS_PAGES));
  return pages * static_cast<std::uint64_t>(::sysconf(_SC_PAGESIZE)) / 100 * percent;
}

std::span<const OptionSpec> option_specs() { return kOptions; }
std::span<const std::string_view> tier_keys() { return kTierKeys; }
std::span<const std::string_view> rule_keys() { return kRuleKeys; }

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

Error bad_option(std::string text) { return {EINVAL, "read options", std::move(text)}; }

std::string in_quotes(std::string_view text) { return '"' + log::escaped(text) + '"'; }

const OptionSpec* find_option(std::string_view name) {
  const auto found = std::find_if(kOptions.begin(), kOptions.end(),
                                  [&](const OptionSpec& each) { return each.name == name; });
  return found == kOptions.end() ? nullptr : &*found;
}

Value switch_value(const std::string& text) {
  if (is_word_of(text, "true yes on 1")) return true;
  if (is_word_of(text, "false no off 0")) return false;
  return text;
}

Value number_value(const std::string& text) {
  const char* end = text.data() + text.size();
  std::int64_t number = 0;
  const auto whole = std::from_chars(text.data(), end, number);
  if (whole.ec == std::errc{} && whole.ptr == end) return number;
  double fraction = 0;
  const auto parsed = std::from_chars(text.data(), end, fraction, std::chars_format::fixed);
  if (parsed.ec == std::errc{} && parsed.ptr == end) return fraction;
  return text;
}

Result<void> set_path(std::string_view name, const Value& value, const std::string& base,
                      std::string& out) {
  SLUICE_TRY(set_text(name, value, out));
  if (out.empty())
    return bad_option(std::string(name) + " is empty; give the path of a file or directory");
  out = absolute_path(out, base);
  return {};
}

Result<void> set_option(const OptionSpec& spec, const Value& value, const std::string& base,
                        MountOptions& options) {
  switch (spec.kind) {
    case Kind::Size:
      return set_size(spec.name, value, options.*std::get<1>(spec.member));
    case Kind::Rate:
      return set_rate(spec.name, value, options.*std::get<1>(spec.member));
    case Kind::Share:
      return set_share(spec.name, value, options.*std::get<1>(spec.member));
    case Kind::Count:
      return set_count(spec.name, value, spec.least, spec.most, options.*std::get<1>(spec.member));
    case Kind::Path:
      return set_path(spec.name, value, base, options.*std::get<0>(spec.member));
    case Kind::Duration:
      return set_duration(spec.name, value, spec.allowed, spec.least,
                          options.*std::get<3>(spec.member));
    case Kind::Times:
      return set_times(spec.name, value, options.*std::get<4>(spec.member));
    case Kind::Switch:
      if (const auto* flag = std::get_if<bool>(&value)) {
        options.*std::get<2>(spec.member) = *flag;
        return {};
      }
      return must_be(spec.name, "true or false", value);
    case Kind::Text: {
      const auto* plain = std::get_if<0>(&spec.member);
      std::string& text =
          plain != nullptr ? options.**plain : (options.*std::get<5>(spec.member)).emplace();
      SLUICE_TRY(set_text(spec.name, value, text));
      if (spec.allowed.empty() || is_word_of(text, spec.allowed)) return {};
      return must_be(spec.name, "one of " + with_commas(spec.allowed), value);
    }
  }
  return {};
}

Result<void> set_tier_key(std::string_view key, const Value& value, const std::string& base,
                          TierDraft& draft) {
  TierOptions& tier = draft.tier;
  if (key == "name") return set_text(key, value, tier.name);
  if (key == "path") return set_path(key, value, base, tier.path);
  if (key == "capacity") return set_size(key, value, tier.capacity.emplace());
  if (key == "reserve") return set_size(key, value, tier.reserve.emplace());
  if (key == "threshold") return set_score(key, value, tier.threshold.emplace());
  if (key == "moves") {
    std::uint64_t moves = 0;
    SLUICE_TRY(set_count(key, value, 1, kMostMoves, moves));
    tier.moves = static_cast<unsigned>(moves);
    return {};
  }
  if (key == "high_watermark") return set_percent(key, value, tier.high_watermark);
  draft.has_low_watermark = true;
  return set_percent(key, value, tier.low_watermark);
}

Result<void> finish_tier(TierDraft& draft) {
  TierOptions& tier = draft.tier;
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
  if (tier.path.empty())
    return bad_option(who + "it has no path; give the directory that holds its files");
  if (tier.capacity && *tier.capacity == 0) {
    return bad_option(who +
                      "capacity must be more than 0; leave it out to use the whole filesystem");
  }
  if (!draft.has_low_watermark) {
    tier.low_watermark = tier.high_watermark - std::min(tier.high_watermark, 10u);
  }
  if (tier.low_watermark >= tier.high_watermark) {
    return bad_option(who + "low_watermark (" + std::to_string(tier.low_watermark) +
                      ") must be below high_watermark (" + std::to_string(tier.high_watermark) +
                      ")");
  }
  return {};
}

Result<void> set_rule_key(std::string_view key, const Value& value, RuleOptions& rule) {
  if (key == "match") return set_text(key, value, rule.match);
  if (key == "larger") return set_size(key, value, rule.larger.emplace());
  if (key == "smaller") return set_size(key, value, rule.smaller.emplace());
  if (key == "older") return set_duration(key, value, {}, 0, rule.older.emplace());
  if (key == "newer") return set_duration(key, value, {}, 0, rule.newer.emplace());
  return set_text(key, value, rule.tier);
}

Result<void> finish_rule(const RuleOptions& rule) {
  if (rule.match.empty()) {
    return bad_option(R"(a rule has no match; say which files it is for, like match = "*.iso")");
  }
  const std::string who = "rule " + in_quotes(rule.match) + ": ";
  if (rule.tier.empty()) {
    return bad_option(
        who + R"(it has no tier; say where the files belong, like tier = "hdd", or "stay")");
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
    // Levenshtein's distance, one row at a time.
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
