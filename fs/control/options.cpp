// SPDX-License-Identifier: BSD-2-Clause
// Where options come from: the file, the environment, flags. The only home of toml++.
#include "fs/control/options.hpp"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <cstring>
#include <utility>

#include "base/log.hpp"
#include "base/path.hpp"
#include "base/unique_fd.hpp"
#include "fs/control/option_values.hpp"

#define TOML_EXCEPTIONS 0
#include <toml++/toml.h>

namespace sluice {
namespace {

Value toml_value(const toml::node& node) {
  if (const auto* text = node.as_string()) return text->get();
  if (const auto* number = node.as_integer()) return number->get();
  if (const auto* flag = node.as_boolean()) return flag->get();
  if (const auto* fraction = node.as_floating_point()) return fraction->get();
  if (node.is_array()) return OtherType{"a list"};
  if (node.is_table()) return OtherType{"a table"};
  return OtherType{"a date or time"};
}

// Reads one TOML document into a MountOptions. Lives for one apply_config_text().
class TomlReader {
 public:
  TomlReader(const std::string& file, MountOptions& options)
      : file_(file), base_(parent_path(file)), options_(options) {}

  Result<void> read(const toml::table& root) {
    std::vector<std::string_view> allowed{"tier", "rule"};
    for (const auto& spec : option_specs()) allowed.push_back(spec.name);
    for (const auto& [line, key, node] : in_file_order(root)) {
      if (key == "tier") {
        SLUICE_TRY(read_tiers(line, *node));
        continue;
      }
      if (key == "rule") {
        SLUICE_TRY(read_rules(line, *node));
        continue;
      }
      const OptionSpec* spec = find_option(key);
      if (spec == nullptr) {
        return at(line, "unknown key '" + log::escaped(key) + "'" + did_you_mean(key, allowed));
      }
      if (const auto set = set_option(*spec, toml_value(*node), base_, options_); !set)
        return set.error().at(place(line));
    }
    return {};
  }

  Error at(std::size_t line, const std::string& what) const {
    return bad_option(place(line) + ": " + what);
  }

 private:
  std::string place(std::size_t line) const {
    return log::escaped(file_) + ":" + std::to_string(line);
  }

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

  Result<void> read_tiers(std::size_t line, const toml::node& node) {
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
      SLUICE_TRY(read_tier(*table, draft));
      if (const auto done = finish_tier(draft); !done) return done.error().at(place(here));
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

  Result<void> read_tier(const toml::table& table, TierDraft& draft) const {
    for (const auto& [line, key, node] : in_file_order(table)) {
      SLUICE_TRY(check_key(line, key, "tier", tier_keys()));
      if (const auto set = set_tier_key(key, toml_value(*node), base_, draft); !set)
        return set.error().at(place(line));
    }
    return {};
  }

  Result<void> read_rules(std::size_t line, const toml::node& node) {
    const auto* list = node.as_array();
    if (list == nullptr) {
      return at(line, "rules are a list: head each one with [[rule]], in double brackets");
    }
    options_.rules.clear();
    for (const toml::node& element : *list) {
      const std::size_t here = element.source().begin.line;
      const auto* table = element.as_table();
      if (table == nullptr) return at(here, "a rule must be a table: head it with [[rule]]");
      RuleOptions rule;
      rule.place = place(here);
      for (const auto& [key_line, key, value] : in_file_order(*table)) {
        SLUICE_TRY(check_key(key_line, key, "rule", rule_keys()));
        if (const auto set = set_rule_key(key, toml_value(*value), rule); !set)
          return set.error().at(place(key_line));
      }
      if (const auto done = finish_rule(rule); !done) return done.error().at(place(here));
      options_.rules.push_back(std::move(rule));
    }
    return {};
  }

  // That `key` is one of a table's.
  Result<void> check_key(std::size_t line, std::string_view key, const std::string& table,
                         std::span<const std::string_view> allowed) const {
    if (std::find(allowed.begin(), allowed.end(), key) != allowed.end()) return {};
    return at(line, "unknown key '" + log::escaped(key) + "' in a " + table +
                        (find_option(key) != nullptr
                             ? "; it belongs to the mount: put it above the first [[" + table + "]]"
                             : did_you_mean(key, allowed)));
  }

  const std::string& file_;
  const std::string base_;
  MountOptions& options_;
};

Result<void> said_by(const std::string& source, const Result<void>& set) {
  if (set) return {};
  return set.error().at(source);
}

}  // namespace

Result<void> apply_config_file(const std::string& file, MountOptions& options) {
  const UniqueFd fd(::open(file.c_str(), O_RDONLY | O_CLOEXEC));
  std::string text;
  std::array<char, 16384> piece{};
  ssize_t got = fd ? 1 : -1;
  while (got > 0) {
    got = ::read(fd.get(), piece.data(), piece.size());
    if (got > 0) text.append(piece.data(), static_cast<std::size_t>(got));
  }
  if (got < 0) {
    const int code = errno;
    return Error{code, "read the config file",
                 log::escaped(file) + ": can't be read: " + std::strerror(code)};
  }
  return apply_config_text(text, file, options);
}

Result<void> apply_config_text(std::string_view text, const std::string& file,
                               MountOptions& options) {
  TomlReader reader(file, options);
  const toml::parse_result parsed = toml::parse(text);
  if (parsed) return reader.read(parsed.table());
  return reader.at(parsed.error().source().begin.line,
                   "not TOML: " + log::escaped(parsed.error().description()));
}

Result<void> apply_environment(const std::function<const char*(const char* name)>& variable,
                               MountOptions& options) {
  for (const auto& spec : option_specs()) {
    std::string name = "SLUICE_";
    for (const char c : spec.name) name += static_cast<char>(std::toupper(c));
    const char* value = variable(name.c_str());
    if (value == nullptr) continue;
    SLUICE_TRY(apply_option(spec, name, value, options));
  }
  const char* tiers = variable("SLUICE_TIER");
  if (tiers == nullptr) return {};
  options.tiers.clear();
  for (const auto tier : split(tiers, ';')) {
    SLUICE_TRY(append_tier("SLUICE_TIER", std::string(tier), options));
  }
  return {};
}

Result<void> apply_option(const OptionSpec& spec, const std::string& source,
                          const std::string& value, MountOptions& options) {
  const Value typed = spec.kind == OptionSpec::Kind::Switch  ? switch_value(value)
                      : spec.kind == OptionSpec::Kind::Count ? number_value(value)
                                                             : Value(value);
  return said_by(source, set_option(spec, typed, {}, options));
}

Result<void> append_tier(const std::string& source, const std::string& text,
                         MountOptions& options) {
  const std::string who = source + " " + in_quotes(text);
  const auto equals = text.find('=');
  if (equals == std::string::npos || equals == 0) {
    return bad_option(who + ": must be NAME=PATH, like nvme=/nvme or nvme=/nvme,capacity=800GiB");
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
    const auto settings = tier_keys().subspan(2);
    if (std::find(settings.begin(), settings.end(), key) == settings.end()) {
      return bad_option(who + ": unknown setting '" + log::escaped(key) + "'" +
                        did_you_mean(key, settings));
    }
    const std::string value = setting.substr(sign + 1);
    const bool is_number = key.ends_with("_watermark") || key == "threshold" || key == "moves";
    const Value typed = is_number ? number_value(value) : Value(value);
    SLUICE_TRY(said_by(who, set_tier_key(key, typed, {}, draft)));
    rest.resize(comma);
  }
  SLUICE_TRY(said_by(who, set_path("path", rest, {}, draft.tier.path)));
  SLUICE_TRY(said_by(who, finish_tier(draft)));
  options.tiers.push_back(std::move(draft.tier));
  return {};
}

}  // namespace sluice
