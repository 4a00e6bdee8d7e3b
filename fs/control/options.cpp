// SPDX-License-Identifier: BSD-2-Clause
// Reads options from the file, the environment and flags. Only this file uses toml++.
#include "fs/control/options.hpp"

#include <algorithm>
#include <cstring>
#include <utility>

#include "base/log.hpp"
#include "base/path.hpp"
#include "base/small_file.hpp"
#include "fs/control/option_table.hpp"
#include "fs/control/option_values.hpp"

#define TOML_EXCEPTIONS 0
#include <toml++/toml.h>

namespace sluice {
namespace {

using Group = OptionSpec::Group;

OptionValue toml_value(const toml::node& node) {
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
    for (const auto& [line, key, node] : in_file_order(root)) {
      if (key == "tier") {
        SLUICE_TRY(read_tiers(line, *node));
      } else if (key == "rule") {
        SLUICE_TRY(read_rules(line, *node));
      } else if (key == "debug") {
        const auto* table = node->as_table();
        if (table == nullptr) return at(line, "debug is a table: head it with [debug]");
        SLUICE_TRY(read_table(*table, Group::Debug, &options_));
      } else if (const OptionSpec* spec = find_mount_option(key)) {
        SLUICE_TRY(set(*spec, line, *node, &options_));
      } else if (find_option(Group::Debug, key) != nullptr) {
        return at(line, std::string(key) + " belongs to [debug]: put it below a line [debug], " +
                            "after the options of the mount");
      } else {
        return at(line, "unknown key '" + log::escaped(key) + "'" + did_you_mean(key, top_keys()));
      }
    }
    return {};
  }

  Error at(std::size_t line, const std::string& what) const {
    return bad_option(place(line) + ": " + what);
  }

 private:
  struct Entry {
    std::size_t line;
    std::string_view key;
    const toml::node* node;
  };

  std::string place(std::size_t line) const {
    return log::escaped(file_) + ":" + std::to_string(line);
  }

  static std::vector<std::string_view> top_keys() {
    std::vector<std::string_view> keys{"tier", "rule", "debug"};
    for (const auto& spec : option_table()) {
      if (is_of_mount(spec)) keys.push_back(spec.name);
    }
    return keys;
  }

  // So that the first mistake in the file is reported. toml++ sorts by name.
  static std::vector<Entry> in_file_order(const toml::table& table) {
    std::vector<Entry> entries;
    for (const auto& [key, node] : table) {
      entries.push_back({key.source().begin.line, key.str(), &node});
    }
    std::stable_sort(entries.begin(), entries.end(),
                     [](const Entry& a, const Entry& b) { return a.line < b.line; });
    return entries;
  }

  Result<void> set(const OptionSpec& spec, std::size_t line, const toml::node& node,
                   OptionTarget target) const {
    if (const auto done = spec.member.set(spec, toml_value(node), base_, target); !done) {
      return done.error().at(place(line));
    }
    return {};
  }

  // The keys of one [[tier]], [[rule]] or [debug].
  Result<void> read_table(const toml::table& table, Group group, OptionTarget target) const {
    for (const auto& [line, key, node] : in_file_order(table)) {
      const OptionSpec* spec = find_option(group, key);
      if (spec == nullptr) return unknown_key(line, key, group);
      SLUICE_TRY(set(*spec, line, *node, target));
    }
    return {};
  }

  Error unknown_key(std::size_t line, std::string_view key, Group group) const {
    const std::string where = group == Group::Debug  ? "[debug]"
                              : group == Group::Tier ? "a tier"
                                                     : "a rule";
    const std::string head = group == Group::Debug  ? "[debug]"
                             : group == Group::Tier ? "the first [[tier]]"
                                                    : "the first [[rule]]";
    return at(line, "unknown key '" + log::escaped(key) + "' in " + where +
                        (find_mount_option(key) != nullptr
                             ? "; it belongs to the mount: put it above " + head
                             : did_you_mean(key, names_of(options_in(group)))));
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
      TierOptions tier;
      SLUICE_TRY(read_table(*table, Group::Tier, &tier));
      if (const auto done = finish_tier(tier, table->contains("low_watermark")); !done) {
        return done.error().at(place(here));
      }
      for (std::size_t i = 0; i < options_.tiers.size(); ++i) {
        if (options_.tiers[i].name == tier.name) {
          return at(here, "tier " + tier.name + ": the tier of line " + std::to_string(lines[i]) +
                              " has that name already; names must differ");
        }
      }
      options_.tiers.push_back(std::move(tier));
      lines.push_back(here);
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
      SLUICE_TRY(read_table(*table, Group::Rule, &rule));
      if (const auto done = finish_rule(rule); !done) return done.error().at(place(here));
      options_.rules.push_back(std::move(rule));
    }
    return {};
  }

  const std::string& file_;
  const std::string base_;
  MountOptions& options_;
};

std::string_view line_of(std::string_view text, std::size_t number) {
  for (; number > 1; --number) text.remove_prefix(std::min(text.find('\n') + 1, text.size()));
  return text.substr(0, text.find('\n'));
}

std::string_view trimmed(std::string_view text) {
  const auto begin = text.find_first_not_of(" \t\r");
  if (begin == std::string_view::npos) return {};
  return text.substr(begin, text.find_last_not_of(" \t\r") + 1 - begin);
}

// What is wrong with a line that is not TOML, in our words: those of toml++ are about its grammar.
std::string syntax_mistake(std::string_view line, std::string_view words) {
  line = trimmed(line);
  const auto equals = line.find('=');
  const std::string_view name = trimmed(line.substr(0, equals));
  const std::string_view value =
      equals == std::string_view::npos ? "" : trimmed(line.substr(equals + 1));
  if (words.find("utf-8") != std::string_view::npos) return "the file is not text in UTF-8";
  if (words.find("redefine") != std::string_view::npos)
    return log::escaped(name) + " is set twice; remove one of the two";
  if (line.starts_with('['))
    return in_quotes(line) +
           ": a table is headed by [[tier]], [[rule]] or [debug], alone on a line";
  const std::string form = "a line is NAME = VALUE, like bandwidth = \"200MiB\"";
  if (equals == std::string_view::npos || name.find_first_of(" \t\"'") != std::string_view::npos)
    return in_quotes(line) + " is not understood; " + form;
  if (value.empty() || value.starts_with('#')) return log::escaped(name) + " has no value; " + form;
  if (value.starts_with('"') || value.starts_with('\''))
    return log::escaped(name) +
           ": the text is not closed, or something follows it; put a quote at its end";
  return log::escaped(name) + ": " + in_quotes(trimmed(value.substr(0, value.find('#')))) +
         " must be in quotes; only numbers, true and false need none";
}

// Sets an option from text.
Result<void> set_text(const OptionSpec& spec, const std::string& source, const std::string& text,
                      OptionTarget target, const std::string& base = {}) {
  if (const auto done = spec.member.set(spec, typed_value(spec, text), base, target); !done) {
    return done.error().at(source);
  }
  return {};
}

}  // namespace

Result<std::string> read_config_file(const std::string& file) {
  auto text = read_small_file(file);
  if (text) return text;
  const int code = text.error().code;
  return Error{code, "read the config file",
               log::escaped(file) + ": can't be read: " + std::strerror(code)};
}

Result<void> apply_config_file(const std::string& file, MountOptions& options) {
  return apply_config_text(SLUICE_TRY(read_config_file(file)), file, options);
}

Result<void> apply_config_text(std::string_view text, const std::string& file,
                               MountOptions& options) {
  TomlReader reader(file, options);
  const toml::parse_result parsed = toml::parse(text);
  if (parsed) return reader.read(parsed.table());
  const std::size_t line = parsed.error().source().begin.line;
  return reader.at(line, syntax_mistake(line_of(text, line), parsed.error().description()));
}

Result<void> apply_environment(const std::function<const char*(const char* name)>& variable,
                               MountOptions& options, const std::string& base) {
  for (const auto& spec : option_table()) {
    if (!is_of_mount(spec)) continue;
    const std::string name = variable_name(spec);
    const char* value = variable(name.c_str());
    if (value == nullptr) continue;
    SLUICE_TRY(apply_option(spec, name, value, options, base));
  }
  if (const char* debug = variable("SLUICE_DEBUG")) {
    SLUICE_TRY(apply_debug("SLUICE_DEBUG", debug, options));
  }
  const char* tiers = variable("SLUICE_TIER");
  if (tiers == nullptr) return {};
  options.tiers.clear();
  for (const auto tier : split(tiers, ';')) {
    SLUICE_TRY(append_tier("SLUICE_TIER", std::string(tier), options, base));
  }
  return {};
}

Result<void> apply_option(const OptionSpec& spec, const std::string& source,
                          const std::string& value, MountOptions& options,
                          const std::string& base) {
  return set_text(spec, source, value, &options, base);
}

Result<void> apply_debug(const std::string& source, const std::string& text,
                         MountOptions& options) {
  for (const auto part : split(text, ',')) {
    const std::string who = source + " " + in_quotes(part);
    const auto equals = part.find('=');
    if (equals == std::string_view::npos) {
      return bad_option(who + ": must be NAME=VALUE, like passthrough=off");
    }
    const std::string_view name = part.substr(0, equals);
    const OptionSpec* spec = find_option(Group::Debug, name);
    if (spec == nullptr) {
      return bad_option(who + ": unknown name '" + log::escaped(name) + "'" +
                        did_you_mean(name, names_of(options_in(Group::Debug))));
    }
    SLUICE_TRY(set_text(*spec, who, std::string(part.substr(equals + 1)), &options));
  }
  return {};
}

Result<void> append_tier(const std::string& source, const std::string& text, MountOptions& options,
                         const std::string& base) {
  const std::string who = source + " " + in_quotes(text);
  const auto equals = text.find('=');
  if (equals == std::string::npos || equals == 0) {
    return bad_option(who + ": must be NAME=PATH, like nvme=/nvme or nvme=/nvme,capacity=800GiB");
  }
  // Only ",key=" with a known key ends the path, so a path may contain commas.
  TierOptions tier;
  bool has_low_watermark = false;
  tier.name = text.substr(0, equals);
  std::string rest = text.substr(equals + 1);
  for (;;) {
    const auto comma = rest.rfind(',');
    if (comma == std::string::npos) break;
    const std::string setting = rest.substr(comma + 1);
    const auto sign = setting.find('=');
    if (sign == std::string::npos) break;
    const std::string key = setting.substr(0, sign);
    const auto settings = options_in(Group::Tier).subspan(2);  // not name and path
    const auto spec = std::find_if(settings.begin(), settings.end(),
                                   [&](const OptionSpec& each) { return each.name == key; });
    if (spec == settings.end()) {
      return bad_option(who + ": unknown setting '" + log::escaped(key) + "'" +
                        did_you_mean(key, names_of(settings)));
    }
    SLUICE_TRY(set_text(*spec, who, setting.substr(sign + 1), &tier));
    has_low_watermark = has_low_watermark || key == "low_watermark";
    rest.resize(comma);
  }
  SLUICE_TRY(set_text(*find_option(Group::Tier, "path"), who, rest, &tier, base));
  if (const auto done = finish_tier(tier, has_low_watermark); !done) return done.error().at(who);
  options.tiers.push_back(std::move(tier));
  return {};
}

}  // namespace sluice
