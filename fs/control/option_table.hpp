// SPDX-License-Identifier: BSD-2-Clause
// The table of all options: those of a mount, the keys of a [[tier]], of a [[rule]] and of [debug].
// The parser, the environment, the flags, `sluice mount --help`, the completions, the man page
// sluice.toml(5), packaging/sluice.toml and the tables in docs/configuration.md are made from it.
// To add an option, add a member in options.hpp and a row in option_table.cpp. Threads: immutable.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "base/result.hpp"
#include "fs/control/option_values.hpp"
#include "fs/control/options.hpp"

namespace sluice {

// The structure that a value is stored into.
using OptionTarget = std::variant<MountOptions*, TierOptions*, RuleOptions*>;
using OptionSource = std::variant<const MountOptions*, const TierOptions*, const RuleOptions*>;

struct OptionSpec;

// Access to the member that stores an option.
struct OptionMember {
  // Reads the value into the member. Relative paths start at `base`. The error does not say where
  // the value came from; the caller adds that (Error::at).
  Result<void> (*set)(const OptionSpec& spec, const OptionValue& value, const std::string& base,
                      OptionTarget target);
  // The value as it is written in the file, without quotes; `fallback` if it is absent.
  std::string (*text)(const OptionSpec& spec, OptionSource source);
  // Copies the value. Returns whether it has changed.
  bool (*copy)(OptionSource source, OptionTarget target);
};

struct OptionSpec {
  // Debug: for comparisons and measurements; not in --help. Its own table [debug] in the file,
  // --debug NAME=VALUE as a flag, SLUICE_DEBUG="NAME=VALUE,..." in the environment.
  enum class Group { Mount, Heat, Gpu, Debug, Tier, Rule };
  enum class Kind {
    Path,
    Text,      // if `words` is not empty, one of them
    Size,      // bytes
    Rate,      // bytes per second
    Share,     // bytes, or percent of this machine's memory
    Count,     // `least` to `most`
    Percent,   // 0 to 100
    Score,     // a number of accesses
    Switch,    // true or false
    Duration,  // `least` seconds or more; if `words` is not empty, it is a word that means 0
    Times,     // windows of the day
  };

  Group group;
  std::string_view name;  // as in the file: "small_file"
  Kind kind;
  OptionMember member;
  bool is_live = false;  // it can change while the pool is mounted: see LiveOptions
  // The default as people read it. A value, unless there is an `example`.
  std::string_view fallback;
  std::string_view help;     // one line: for --help and docs/configuration.md; code in `backticks`
  std::string_view details;  // whole sentences: for the man page and packaging/sluice.toml
  std::string_view words = {};
  std::int64_t least = 0;
  std::int64_t most = 0;
  std::string_view example = {};      // a value, where `fallback` is none
  std::string_view placeholder = {};  // in --help, where the kind's own is too vague: "LEVEL"
};

std::span<const OptionSpec> option_table();
std::span<const OptionSpec> options_in(OptionSpec::Group group);
// Nullptr if there is none. The groups of the mount are Mount, Heat and Gpu.
const OptionSpec* find_option(OptionSpec::Group group, std::string_view name);
const OptionSpec* find_mount_option(std::string_view name);

std::vector<std::string_view> names_of(std::span<const OptionSpec> specs);

// "--small-file" and "SLUICE_SMALL_FILE".
std::string flag_name(const OptionSpec& spec);
std::string variable_name(const OptionSpec& spec);
// Whether it is an option of `sluice mount`: flags and variables exist for these.
bool is_of_mount(const OptionSpec& spec);

}  // namespace sluice
