// SPDX-License-Identifier: BSD-2-Clause
#include "tools/common/option_texts.hpp"

#include <algorithm>
#include <array>
#include <cstdio>
#include <span>
#include <utility>

#include "fs/control/option_table.hpp"
#include "tools/common/manual.hpp"
#include "tools/common/verbs.hpp"

namespace sluice::tools {
namespace {

using Group = OptionSpec::Group;
using Kind = OptionSpec::Kind;

constexpr std::size_t kHelpIndent = 27;
constexpr std::size_t kHelpWidth = 80;
constexpr std::size_t kFileWidth = 118;

constexpr std::array kGroups{
    std::pair{"mount", Group::Mount}, std::pair{"heat", Group::Heat},
    std::pair{"gpu", Group::Gpu},     std::pair{"debug", Group::Debug},
    std::pair{"tier", Group::Tier},   std::pair{"rule", Group::Rule},
};

std::span<const OptionSpec> rows_of(std::string_view name) {
  for (const auto& [each, group] : kGroups) {
    if (name == each) return options_in(group);
  }
  return {};
}

std::string_view placeholder(const OptionSpec& spec) {
  if (!spec.placeholder.empty()) return spec.placeholder;
  switch (spec.kind) {
    case Kind::Path:
      return "PATH";
    case Kind::Size:
    case Kind::Rate:
      return "SIZE";
    case Kind::Share:
      return "SHARE";
    case Kind::Count:
    case Kind::Percent:
    case Kind::Score:
      return "N";
    case Kind::Duration:
      return "DURATION";
    case Kind::Times:
      return "TIMES";
    case Kind::Text:
    case Kind::Switch:
      break;
  }
  return "TEXT";
}

// What the manual calls the type of the value; empty for switches and numbers, whose default shows
// it.
std::string_view type_name(Kind kind) {
  switch (kind) {
    case Kind::Path:
      return "path";
    case Kind::Text:
    case Kind::Times:
      return "text";
    case Kind::Size:
    case Kind::Rate:
      return "size";
    case Kind::Share:
      return "share";
    case Kind::Duration:
      return "duration";
    default:
      return "";
  }
}

// The words of `text` in lines of at most `width`, each after `prefix`; the first line lacks it.
std::string wrapped(std::string_view text, std::size_t width, const std::string& prefix) {
  std::string out;
  std::size_t column = prefix.size();
  while (!text.empty()) {
    const auto end = std::min(text.find(' '), text.size());
    const std::string_view word = text.substr(0, end);
    text.remove_prefix(std::min(end + 1, text.size()));
    const bool is_first = column == prefix.size();
    if (!is_first && column + 1 + word.size() > width) {
      out += "\n" + prefix;
      column = prefix.size();
    } else if (!is_first) {
      out += " ";
      ++column;
    }
    out += word;
    column += word.size();
  }
  return out + "\n";
}

std::string without_backticks(std::string_view text) {
  std::string out(text);
  std::erase(out, '`');
  return out;
}

// Whether the default is a value that could be written down.
bool has_value(const OptionSpec& spec) { return spec.example.empty(); }

std::string help_of(const OptionSpec& spec) {
  const bool is_on = spec.kind == Kind::Switch && spec.fallback == "true";
  std::string text = (is_on ? "do not " : "") + without_backticks(spec.help);
  if (spec.kind != Kind::Switch) text += " (default " + std::string(spec.fallback) + ")";
  return text;
}

std::string roff_text(std::string_view text) {
  std::string out = painted(text);
  constexpr std::string_view kBacktick = "\\(ga";
  bool is_begin = true;
  for (auto at = out.find(kBacktick); at != std::string::npos; at = out.find(kBacktick, at)) {
    out.replace(at, kBacktick.size(), is_begin ? "\\fB" : "\\fR");
    is_begin = !is_begin;
  }
  return out;
}

std::string toml_line(const OptionSpec& spec) {
  const bool is_bare = spec.kind == Kind::Switch || spec.kind == Kind::Count ||
                       spec.kind == Kind::Percent || spec.kind == Kind::Score;
  const std::string value(has_value(spec) ? spec.fallback : spec.example);
  return std::string(spec.name) + " = " + (is_bare ? value : '"' + value + '"') + "\n";
}

// The rows of a group with their descriptions as comments. What is not required is commented out.
std::string toml_rows(Group group, bool all_commented = false) {
  std::string out;
  for (const OptionSpec& spec : options_in(group)) {
    const bool is_required = spec.fallback == "required";
    std::string text(spec.details);
    if (!has_value(spec) && !is_required) text += " Default: " + std::string(spec.fallback) + ".";
    out += "# " + wrapped(text, kFileWidth, "# ");
    out += (is_required && !all_commented ? "" : "#") + toml_line(spec) + "\n";
  }
  return out;
}

}  // namespace

std::string mount_option_lines() {
  std::string out;
  const std::string indent(kHelpIndent, ' ');
  for (const OptionSpec& spec : option_table()) {
    if (!is_of_mount(spec) || spec.name == "mountpoint") continue;
    const bool is_on = spec.kind == Kind::Switch && spec.fallback == "true";
    const std::string letter = spec.name == "foreground"      ? "-f, "
                               : spec.name == "mount_options" ? "-o, "
                                                              : "    ";
    std::string head =
        "  " + letter + (is_on ? "--no-" + flag_name(spec).substr(2) : flag_name(spec));
    if (spec.kind != Kind::Switch) head += " " + std::string(placeholder(spec));
    if (head.size() + 1 > kHelpIndent) {
      out += head + "\n" + indent;
    } else {
      out += head + indent.substr(head.size());
    }
    out += wrapped(help_of(spec), kHelpWidth, indent);
  }
  return out;
}

std::string tier_setting_lines() {
  std::string text;
  for (const OptionSpec& spec : options_in(Group::Tier).subspan(2)) {
    text.append(text.empty() ? "keys: " : ", ").append(spec.name);
  }
  const std::string indent(kHelpIndent, ' ');
  return indent + wrapped(text, kHelpWidth, indent);
}

std::string options_in_roff(std::string_view group) {
  std::string out;
  for (const OptionSpec& spec : rows_of(group)) {
    const std::string type(type_name(spec.kind));
    const bool shows_default = has_value(spec) || spec.fallback == "required";
    std::string note = type;
    if (shows_default) note += (note.empty() ? "" : ", ") + std::string(spec.fallback);
    out += ".TP\n\\fB" + std::string(spec.name) + "\\fR" + (spec.is_live ? " *" : "");
    if (!note.empty()) out += " (" + roff_text(note) + ")";
    std::string text(spec.details);
    if (!shows_default) text += " Default: " + std::string(spec.fallback) + ".";
    out += "\n" + roff_text(text) + "\n";
  }
  return out;
}

std::string options_in_markdown(std::string_view group) {
  std::string out = "| option | default | meaning |\n|---|---|---|\n";
  for (const OptionSpec& spec : rows_of(group)) {
    const std::string fallback(spec.fallback);
    const bool is_code = has_value(spec) || fallback.find('<') != std::string::npos;
    out += "| `" + std::string(spec.name) + "`" + (spec.is_live ? " *" : "") + " | " +
           (is_code ? "`" + fallback + "`" : fallback) + " | " + std::string(spec.help) + " |\n";
  }
  return out;
}

std::string reference_file() {
  std::string text =
      R"(# Sluice's configuration: every option with its default. Lines that begin with # and no space show the default, or an
# example where the default is not a value. 'sluice manual options toml' writes this file.
#
#   sluice mount --config /etc/sluice/pool.toml /mnt/pool
#
# Every option has one name: small_file here, SLUICE_SMALL_FILE in the environment, --small-file as a flag. Flags override
# the environment, which overrides this file. Relative paths start at the folder of this file. Sizes are strings like
# "64KiB", "1.5T" (K is 1024), or numbers of bytes. Durations are numbers with a unit: s, min, h, d or w.
#
# While the pool is mounted, 'sluice reload' applies changes. It lists what takes effect only at the next mount.

)" + toml_rows(Group::Mount) +
      "# Heat and migration.\n\n" + toml_rows(Group::Heat) +
      "# GPUs. Sluice finds the alignment that each disk needs; there is no option for it.\n\n" +
      toml_rows(Group::Gpu) +
      R"(# The tiers, fastest first: 1 to 16. Each is an ordinary directory of ordinary files. Users should not be able to enter
# them except through the mount: create them below a directory that only root can enter (install -d -m 700 /nvme/sluice).
# Tables come last: a key below [[tier]] belongs to that tier.

[[tier]]
)" + toml_rows(Group::Tier) +
      R"([[tier]]
name = "ssd"
path = "/ssd/sluice/tier"

[[tier]]
name = "hdd"
path = "/hdd/sluice/tier"

# Rules send files to a tier regardless of their heat. The first rule that matches applies; a pin overrides all rules.

#[[rule]]
)" + toml_rows(Group::Rule, true) +
      R"(# Settings for comparisons and measurements. A mount needs none of them.

#[debug]
)" + toml_rows(Group::Debug, true);
  text.pop_back();  // the empty line after the last option
  return text;
}

int print_options(std::string_view format, std::string_view group) {
  const std::string text = format == "toml"       ? reference_file()
                           : format == "roff"     ? options_in_roff(group)
                           : format == "markdown" ? options_in_markdown(group)
                                                  : "";
  std::fputs(text.c_str(), stdout);
  return text.empty() ? kUsage : kDone;
}

}  // namespace sluice::tools
