// SPDX-License-Identifier: BSD-2-Clause
// What a mount is told: from defaults, then the config file, then the environment, then flags; each
// later one wins. The same name everywhere: `small_file` in the file, SLUICE_SMALL_FILE in the
// environment, --small-file as a flag. packaging/sluice.toml is the commented reference. Threads:
// plain values.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

namespace sluice {

struct TierOptions {
  std::string name;
  std::string path;  // absolute once read
  std::optional<std::uint64_t>
      capacity;                  // bytes of the filesystem that may be filled; nothing: all of it
  unsigned high_watermark = 90;  // percent full above which new files go to the next tier
  unsigned low_watermark = 80;   // percent full down to which migration drains it
  // Free bytes below which files being written are served by the daemon, which can spill them to
  // the next tier; the kernel's passthrough writes can't be redirected. Nothing: 2% of the tier, at
  // most 4 GiB.
  std::optional<std::uint64_t> reserve;
};

struct MountOptions {
  std::string mountpoint;          // absolute once read
  std::vector<TierOptions> tiers;  // fastest first
  std::string state;          // directory of the database and log; empty: /var/lib/sluice/<pool id>
  std::string mount_options;  // -o: passed to the kernel (ro, noatime, noexec, nosuid, nodev, ...)
  std::uint64_t small_file =
      128 << 10;  // up to this size files are kept in the kernel's page cache between opens
  bool passthrough = true;
  bool io_uring = true;
  bool degraded = false;  // mount although a tier of the pool is missing
  bool foreground = false;
  std::string log_level = "info";  // trace debug info warn error
  std::string log_file;            // empty: <state>/sluice.log, or stderr in the foreground
};

inline constexpr std::size_t kMostTiers = 16;

// Why a configuration can't be used: one line for a person, saying what, where, why and what is
// allowed.
struct ConfigError {
  std::string message;
};
using MaybeConfigError = std::optional<ConfigError>;  // nothing: all is well

// One option that file, environment and flags share; `tier` is the only one that is not in this
// list.
struct OptionSpec {
  enum class Kind { Path, Text, Size, Switch };
  std::string_view name;  // as in the file: "small_file"
  Kind kind;
  std::variant<std::string MountOptions::*, std::uint64_t MountOptions::*, bool MountOptions::*>
      member;
  std::string_view allowed = {};  // for Text with few values: those, separated by spaces
};
std::span<const OptionSpec> option_specs();

// Each of these lays one source over what `options` already holds, and leaves it unspecified after
// an error.
//
// The TOML of `file`; relative paths in it start at its folder. Tiers in it replace those in
// `options`.
[[nodiscard]] MaybeConfigError apply_config_file(const std::string& file, MountOptions& options);
// The same for TOML at hand; `file` is for messages and relative paths.
[[nodiscard]] MaybeConfigError apply_config_text(std::string_view text, const std::string& file,
                                                 MountOptions& options);
// SLUICE_<NAME> for each option, and SLUICE_TIER: tiers as for --tier, separated by ';'. `variable`
// is getenv.
[[nodiscard]] MaybeConfigError apply_environment(
    const std::function<const char*(const char* name)>& variable, MountOptions& options);
// One option as text, said by `source` ("--small-file", "SLUICE_SMALL_FILE").
[[nodiscard]] MaybeConfigError apply_option(const OptionSpec& spec, const std::string& source,
                                            const std::string& value, MountOptions& options);
// --tier NAME=PATH[,capacity=SIZE][,reserve=SIZE][,high_watermark=N][,low_watermark=N], appended to
// the tiers.
[[nodiscard]] MaybeConfigError append_tier(const std::string& source, const std::string& text,
                                           MountOptions& options);

// What must hold of the whole and needs no look at the machine: a mount point, 1 to kMostTiers
// tiers of different names, -o words that the kernel takes. Words meant for fstab's other readers
// are dropped from mount_options.
[[nodiscard]] MaybeConfigError check_options(MountOptions& options);

// What must hold of the machine before a daemon is worth starting: the tiers are separate writable
// directories, the mount point is free, and none of these, nor the state directory, lies inside
// another.
[[nodiscard]] MaybeConfigError check_tiers(const MountOptions& options);

// The allowed word that `word` most likely meant, if one is close.
std::optional<std::string_view> closest_word(std::string_view word,
                                             std::span<const std::string_view> allowed);

}  // namespace sluice
