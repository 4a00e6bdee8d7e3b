// SPDX-License-Identifier: BSD-2-Clause
// The only home of toml++.
#include "fs/options.hpp"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <charconv>
#include <cstring>
#include <utility>

#include "base/log.hpp"
#include "base/path.hpp"
#include "base/unique_fd.hpp"
#include "base/units.hpp"

#define TOML_EXCEPTIONS 0
#include <toml++/toml.h>

namespace sluice {
namespace {

using Kind = OptionSpec::Kind;
using Problem =
    std::optional<std::string>;  // a ConfigError's message before its source is put in front

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
    OptionSpec{"log_file", Kind::Path, &MountOptions::log_file},
};

constexpr std::array<std::string_view, 6> kTierKeys{"name",           "path",          "capacity",
                                                    "high_watermark", "low_watermark", "reserve"};

// What libfuse hands to the kernel, and what fstab holds for others to read.
constexpr std::string_view kKernelWords =
    "ro rw suid nosuid dev nodev exec noexec sync async dirsync noatime nodiratime symfollow "
    "nosymfollow fsname=NAME";
constexpr std::string_view kForeignWords =
    "defaults auto noauto nofail user users nouser owner group _netdev relatime allow_other "
    "default_permissions";

struct OtherType {
  std::string_view name;
};
using Value = std::variant<std::string, std::int64_t, bool, OtherType>;

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

std::string with_commas(std::string_view words) {
  std::string out;
  for (const auto word : split(words, ' ')) out.append(out.empty() ? "" : ", ").append(word);
  return out;
}

const OptionSpec* find_option(std::string_view name) {
  const auto found = std::find_if(kOptions.begin(), kOptions.end(),
                                  [&](const OptionSpec& each) { return each.name == name; });
  return found == kOptions.end() ? nullptr : &*found;
}

std::string quoted(std::string_view text) { return '"' + log::escaped(text) + '"'; }

std::string shown(const Value& value) {
  if (const auto* text = std::get_if<std::string>(&value)) return quoted(*text);
  if (const auto* number = std::get_if<std::int64_t>(&value)) return std::to_string(*number);
  if (const auto* flag = std::get_if<bool>(&value)) return *flag ? "true" : "false";
  return std::string(std::get<OtherType>(value).name);
}

std::string must_be(std::string_view name, std::string_view allowed, const Value& value) {
  return std::string(name).append(" must be ").append(allowed).append(", not ") + shown(value);
}

// Text from a flag or a variable, which has no types of its own.
Value switch_value(const std::string& text) {
  if (is_word_of(text, "true yes on 1")) return true;
  if (is_word_of(text, "false no off 0")) return false;
  return text;
}

Value number_value(const std::string& text) {
  std::int64_t number = 0;
  const char* end = text.data() + text.size();
  const auto [rest, error] = std::from_chars(text.data(), end, number);
  if (error == std::errc{} && rest == end) return number;
  return text;
}

Problem set_size(std::string_view name, const Value& value, std::uint64_t& out) {
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

Problem set_text(std::string_view name, const Value& value, std::string& out) {
  const auto* text = std::get_if<std::string>(&value);
  if (text == nullptr) return must_be(name, "a text in quotes", value);
  if (text->find('\0') != std::string::npos) return std::string(name) + " holds a NUL byte";
  out = *text;
  return {};
}

Problem set_path(std::string_view name, const Value& value, const std::string& base,
                 std::string& out) {
  if (auto problem = set_text(name, value, out)) return problem;
  if (out.empty()) return std::string(name) + " is empty; give the path of a file or directory";
  out = absolute_path(out, base);
  return {};
}

Problem set_option(const OptionSpec& spec, const Value& value, const std::string& base,
                   MountOptions& options) {
  switch (spec.kind) {
    case Kind::Size:
      return set_size(spec.name, value, options.*std::get<1>(spec.member));
    case Kind::Path:
      return set_path(spec.name, value, base, options.*std::get<0>(spec.member));
    case Kind::Switch:
      if (const auto* flag = std::get_if<bool>(&value)) {
        options.*std::get<2>(spec.member) = *flag;
        return {};
      }
      return must_be(spec.name, "true or false", value);
    case Kind::Text: {
      std::string& text = options.*std::get<0>(spec.member);
      if (auto problem = set_text(spec.name, value, text)) return problem;
      if (spec.allowed.empty() || is_word_of(text, spec.allowed)) return {};
      return must_be(spec.name, "one of " + with_commas(spec.allowed), value);
    }
  }
  return {};
}

// A tier as it is being read. Its watermarks are known as a pair only at the end.
struct TierDraft {
  TierOptions tier;
  bool has_low_watermark = false;
};

Problem set_percent(std::string_view name, const Value& value, unsigned& out) {
  const auto* number = std::get_if<std::int64_t>(&value);
  if (number == nullptr || *number < 0 || *number > 100) {
    return must_be(name, "a whole number of percent from 0 to 100", value);
  }
  out = static_cast<unsigned>(*number);
  return {};
}

// REQUIRES: `key` is one of kTierKeys.
Problem set_tier_key(std::string_view key, const Value& value, const std::string& base,
                     TierDraft& draft) {
  TierOptions& tier = draft.tier;
  if (key == "name") return set_text(key, value, tier.name);
  if (key == "path") return set_path(key, value, base, tier.path);
  if (key == "capacity") return set_size(key, value, tier.capacity.emplace());
  if (key == "reserve") return set_size(key, value, tier.reserve.emplace());
  if (key == "high_watermark") return set_percent(key, value, tier.high_watermark);
  draft.has_low_watermark = true;
  return set_percent(key, value, tier.low_watermark);
}

Problem finish_tier(TierDraft& draft) {
  TierOptions& tier = draft.tier;
  if (tier.name.empty()) return R"(a tier has no name; give one, like name = "nvme")";
  const bool is_plain = std::all_of(tier.name.begin(), tier.name.end(), [](unsigned char c) {
    return (c < 0x80 && std::isalnum(c) != 0) || c == '_' || c == '-';
  });
  if (!is_plain || tier.name.size() > 32) {
    return "tier " + quoted(tier.name) +
           ": a name has 1 to 32 letters, digits, '_' or '-', and nothing else";
  }
  const std::string who = "tier " + tier.name + ": ";
  if (tier.path.empty()) return who + "it has no path; give the directory that holds its files";
  if (tier.capacity && *tier.capacity == 0) {
    return who + "capacity must be more than 0; leave it out to use the whole filesystem";
  }
  if (!draft.has_low_watermark) {
    tier.low_watermark = tier.high_watermark - std::min(tier.high_watermark, 10u);
  }
  if (tier.low_watermark >= tier.high_watermark) {
    return who + "low_watermark (" + std::to_string(tier.low_watermark) +
           ") must be below high_watermark (" + std::to_string(tier.high_watermark) + ")";
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

Value toml_value(const toml::node& node) {
  if (const auto* text = node.as_string()) return text->get();
  if (const auto* number = node.as_integer()) return number->get();
  if (const auto* flag = node.as_boolean()) return flag->get();
  if (node.is_floating_point()) return OtherType{"a fraction"};
  if (node.is_array()) return OtherType{"a list"};
  if (node.is_table()) return OtherType{"a table"};
  return OtherType{"a date or time"};
}

// Reads one TOML document into a MountOptions. Lives for one apply_config_text().
class TomlReader {
 public:
  TomlReader(const std::string& file, MountOptions& options)
      : file_(file), base_(parent_path(file)), options_(options) {}

  MaybeConfigError read(const toml::table& root) {
    std::vector<std::string_view> allowed{"tier"};
    for (const auto& spec : kOptions) allowed.push_back(spec.name);
    for (const auto& [line, key, node] : in_file_order(root)) {
      if (key == "tier") {
        if (auto error = read_tiers(line, *node)) return error;
        continue;
      }
      const OptionSpec* spec = find_option(key);
      if (spec == nullptr) {
        return at(line, "unknown key '" + log::escaped(key) + "'" + did_you_mean(key, allowed));
      }
      if (auto problem = set_option(*spec, toml_value(*node), base_, options_)) {
        return at(line, *problem);
      }
    }
    return {};
  }

  ConfigError at(std::size_t line, const std::string& what) const {
    return {log::escaped(file_) + ":" + std::to_string(line) + ": " + what};
  }

 private:
  struct Entry {
    std::size_t line;
    std::string_view key;
    const toml::node* node;
  };

  // The first mistake is the one nearest to the top; toml++ sorts by name.
  static std::vector<Entry> in_file_order(const toml::table& table) {
    std::vector<Entry> entries;
    for (const auto& [key, node] : table) {
      entries.push_back({key.source().begin.line, key.str(), &node});
    }
    std::stable_sort(entries.begin(), entries.end(),
                     [](const Entry& a, const Entry& b) { return a.line < b.line; });
    return entries;
  }

  MaybeConfigError read_tiers(std::size_t line, const toml::node& node) {
    const auto* list = node.as_array();
    if (list == nullptr) {
      return at(line, "tiers are a list: head each one with [[tier]], in double brackets");
    }
    options_.tiers.clear();
    std::vector<std::size_t> lines;
    for (const toml::node& element : *list) {
      const std::size_t here = element.source().begin.line;
      const auto* table = element.as_table();
      if (table == nullptr) return at(here, "a tier must be a table: head it with [[tier]]");
      TierDraft draft;
      if (auto error = read_tier(*table, draft)) return error;
      if (auto problem = finish_tier(draft)) return at(here, *problem);
      for (std::size_t i = 0; i < options_.tiers.size(); ++i) {
        if (options_.tiers[i].name == draft.tier.name) {
          return at(here, "tier " + draft.tier.name + ": the tier of line " +
                              std::to_string(lines[i]) +
                              " has that name already; names must differ");
        }
      }
      options_.tiers.push_back(std::move(draft.tier));
      lines.push_back(here);
    }
    return {};
  }

  MaybeConfigError read_tier(const toml::table& table, TierDraft& draft) const {
    for (const auto& [line, key, node] : in_file_order(table)) {
      if (std::find(kTierKeys.begin(), kTierKeys.end(), key) == kTierKeys.end()) {
        return at(line, "unknown key '" + log::escaped(key) + "' in a tier" +
                            (find_option(key) != nullptr
                                 ? "; it belongs to the mount: put it above the first [[tier]]"
                                 : did_you_mean(key, kTierKeys)));
      }
      if (auto problem = set_tier_key(key, toml_value(*node), base_, draft)) {
        return at(line, *problem);
      }
    }
    return {};
  }

  const std::string& file_;
  const std::string base_;
  MountOptions& options_;
};

MaybeConfigError said_by(const std::string& source, const Problem& problem) {
  if (!problem) return {};
  return ConfigError{source + ": " + *problem};
}

}  // namespace

std::span<const OptionSpec> option_specs() { return kOptions; }

MaybeConfigError apply_config_file(const std::string& file, MountOptions& options) {
  const UniqueFd fd(::open(file.c_str(), O_RDONLY | O_CLOEXEC));
  std::string text;
  std::array<char, 16384> piece{};
  ssize_t got = fd ? 1 : -1;
  while (got > 0) {
    got = ::read(fd.get(), piece.data(), piece.size());
    if (got > 0) text.append(piece.data(), static_cast<std::size_t>(got));
  }
  if (got < 0) return ConfigError{log::escaped(file) + ": can't be read: " + std::strerror(errno)};
  return apply_config_text(text, file, options);
}

MaybeConfigError apply_config_text(std::string_view text, const std::string& file,
                                   MountOptions& options) {
  TomlReader reader(file, options);
  const toml::parse_result parsed = toml::parse(text);
  if (parsed) return reader.read(parsed.table());
  return reader.at(parsed.error().source().begin.line,
                   "not TOML: " + log::escaped(parsed.error().description()));
}

MaybeConfigError apply_environment(const std::function<const char*(const char* name)>& variable,
                                   MountOptions& options) {
  for (const auto& spec : kOptions) {
    std::string name = "SLUICE_";
    for (const char c : spec.name) name += static_cast<char>(std::toupper(c));
    const char* value = variable(name.c_str());
    if (value == nullptr) continue;
    if (auto error = apply_option(spec, name, value, options)) return error;
  }
  const char* tiers = variable("SLUICE_TIER");
  if (tiers == nullptr) return {};
  options.tiers.clear();
  for (const auto tier : split(tiers, ';')) {
    if (auto error = append_tier("SLUICE_TIER", std::string(tier), options)) return error;
  }
  return {};
}

MaybeConfigError apply_option(const OptionSpec& spec, const std::string& source,
                              const std::string& value, MountOptions& options) {
  const Value typed = spec.kind == Kind::Switch ? switch_value(value) : Value(value);
  return said_by(source, set_option(spec, typed, {}, options));
}

MaybeConfigError append_tier(const std::string& source, const std::string& text,
                             MountOptions& options) {
  const std::string who = source + " " + quoted(text);
  const auto equals = text.find('=');
  if (equals == std::string::npos || equals == 0) {
    return ConfigError{who + ": must be NAME=PATH, like nvme=/nvme or nvme=/nvme,capacity=800GiB"};
  }
  // Only ",key=" with a known key ends the path, so that a path may hold commas.
  TierDraft draft;
  draft.tier.name = text.substr(0, equals);
  std::string rest = text.substr(equals + 1);
  for (;;) {
    const auto comma = rest.rfind(',');
    if (comma == std::string::npos) break;
    const std::string setting = rest.substr(comma + 1);
    const auto sign = setting.find('=');
    if (sign == std::string::npos) break;
    const std::string key = setting.substr(0, sign);
    constexpr std::span kSettings = std::span(kTierKeys).subspan(2);
    if (std::find(kSettings.begin(), kSettings.end(), key) == kSettings.end()) {
      return ConfigError{who + ": unknown setting '" + log::escaped(key) + "'" +
                         did_you_mean(key, kSettings)};
    }
    const std::string value = setting.substr(sign + 1);
    const bool is_percent = key.ends_with("_watermark");
    const Value typed = is_percent ? number_value(value) : Value(value);
    if (auto problem = set_tier_key(key, typed, {}, draft)) return said_by(who, problem);
    rest.resize(comma);
  }
  if (auto problem = set_path("path", rest, {}, draft.tier.path)) return said_by(who, problem);
  if (auto problem = finish_tier(draft)) return said_by(who, problem);
  options.tiers.push_back(std::move(draft.tier));
  return {};
}

MaybeConfigError check_options(MountOptions& options) {
  if (options.mountpoint.empty()) return ConfigError{"no mount point is given"};
  if (options.tiers.empty()) {
    return ConfigError{
        "no tiers are given; name at least one with --tier NAME=PATH or in the config file"};
  }
  if (options.tiers.size() > kMostTiers) {
    return ConfigError{std::to_string(options.tiers.size()) + " tiers are given; allowed: 1 to " +
                       std::to_string(kMostTiers)};
  }
  for (std::size_t i = 0; i < options.tiers.size(); ++i) {
    for (std::size_t j = 0; j < i; ++j) {
      if (options.tiers[i].name != options.tiers[j].name) continue;
      return ConfigError{"tier " + options.tiers[i].name +
                         ": two tiers have that name; names must differ"};
    }
  }
  std::string kept;
  for (const auto word : split(options.mount_options, ',')) {
    if (is_word_of(word, kForeignWords) || word.starts_with("x-") || word.starts_with("comment=")) {
      continue;
    }
    if (!is_word_of(word, kKernelWords) && !word.starts_with("fsname=")) {
      return ConfigError{"-o " + log::escaped(word) + ": unknown mount option" +
                         did_you_mean(word, split(kKernelWords, ' '))};
    }
    kept.append(kept.empty() ? "" : ",").append(word);
  }
  options.mount_options = std::move(kept);
  return {};
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
