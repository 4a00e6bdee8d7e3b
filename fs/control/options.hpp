// SPDX-License-Identifier: BSD-2-Clause
// The options of a mount: from defaults, then the config file, then the environment, then flags; a
// later source overrides an earlier one. An option has the same name everywhere: `small_file` in
// the file, SLUICE_SMALL_FILE in the environment, --small-file as a flag. option_table.cpp says how
// each is read and described. Threads: plain values.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.hpp"
#include "gpu/hbm_limits.hpp"
#include "tiering/choose/budget.hpp"
#include "tiering/choose/policy.hpp"
#include "tiering/move/window.hpp"

namespace sluice {

struct OptionSpec;

struct TierOptions {
  std::string name;
  std::string path;  // absolute once read
  std::optional<std::uint64_t>
      capacity;                  // bytes of the filesystem that may be filled; nothing: all of it
  unsigned high_watermark = 90;  // percent full above which new files go to the next tier
  unsigned low_watermark = 80;   // percent full down to which migration drains it
  // Free bytes below which files being written are served by the daemon, which can spill them to
  // the next tier; passthrough writes cannot be redirected. Absent: 2% of the tier, at most 4 GiB.
  std::optional<std::uint64_t> reserve;
  // The score that a file needs for this tier with policy "thresholds". Absent: see
  // tier_threshold().
  std::optional<double> threshold;
  unsigned moves = 2;  // that may read from it or write to it at once

  bool operator==(const TierOptions&) const = default;
};

// A [[rule]] of the file. It sends matching files to a tier, independent of their heat, or gives
// matching directories a budget.
struct RuleOptions {
  std::string match;                                 // a glob, see glob_matches()
  std::optional<std::uint64_t> larger, smaller;      // than this many bytes
  std::optional<std::chrono::seconds> older, newer;  // since the last use
  std::string tier;                                  // a tier's name, or kStay; may be empty
  std::optional<std::uint64_t> budget;               // bytes, for directories that match
  std::string place;                                 // "/etc/sluice.toml:12", for messages

  bool operator==(const RuleOptions&) const = default;
};
inline constexpr std::string_view kStay = "stay";  // in place of a tier: leave it where it is

// That percentage of this machine's memory, in bytes.
std::uint64_t share_of_memory(unsigned percent);

struct MountOptions {
  std::string mountpoint;          // absolute once read
  std::string source = "sluice";   // what mount tables show: the config file, if there is one
  std::vector<TierOptions> tiers;  // fastest first
  std::string state;          // directory of the database and log; empty: /var/lib/sluice/<pool id>
  std::string mount_options;  // -o: passed to the kernel (ro, noatime, noexec, nosuid, nodev, ...)
  std::uint64_t small_file =
      128 << 10;          // up to this size files are kept in the kernel's page cache between opens
  bool degraded = false;  // mount although a tier of the pool is missing
  bool over = false;      // mount although the mount point is not empty
  bool foreground = false;
  std::string log_level = "info";   // trace debug info warn error
  std::string log_format = "text";  // text json
  std::string log_file;             // empty: <state>/sluice.log, or stderr in the foreground
  std::string metrics = "off";  // unix: a socket in the state directory; or a loopback HOST:PORT

  // Heat and migration.
  std::string policy = "value";   // value thresholds: how files are chosen; see Method
  std::string optimize = "time";  // time hits: what is maximised; see Objective
  std::chrono::seconds half_life = std::chrono::days(7);     // of the score; 0: never, it counts up
  std::chrono::seconds interval = std::chrono::minutes(15);  // between two passes
  std::chrono::seconds min_stay = std::chrono::hours(1);     // on a tier before automatic migration
  bool migrate = true;          // move files automatically; off: only on request
  Windows windows;              // local times at which they may move automatically
  std::uint64_t bandwidth = 0;  // bytes a second that moves may write; 0: no limit
  bool verify = false;          // read each copy back and compare its checksum
  bool twins = true;            // leave promoted files' old copies behind while there is room
  // Opens by these programs do not count as accesses: names, or prefixes of cgroup paths, separated
  // by spaces. Absent: the built-in list.
  std::optional<std::string> heat_ignore;
  // How often a file that stays open and in use counts as accessed; 0: never.
  std::chrono::seconds heat_sample = std::chrono::minutes(10);
  std::vector<RuleOptions> rules;  // the first that matches counts

  // Reads into GPUs; see Engine::Settings.
  bool gpu = true;                                        // off: host memory only
  std::uint64_t gpu_mapped_memory = share_of_memory(25);  // page cache that GPUs may read, in bytes
  std::uint64_t gpu_host_memory = share_of_memory(50);    // clients' memfds, in bytes
  GpuShare hbm;                                           // memory of each GPU for copies of files
  GpuShare hbm_reserve = {.percent = 10};  // memory of each GPU that stays free for programs

  // The group `debug`: for comparisons and measurements.
  bool passthrough = true;
  bool keeper = true;             // a process of its own that survives crashes of the daemon
  std::uint64_t crash_limit = 5;  // in a row; the keeper then waits before the next start
  std::chrono::seconds budget_rest = std::chrono::minutes(1);  // see BudgetTrees
  std::uint64_t gpu_max_concurrent_ops = 32;                   // requests in progress at once
  std::uint64_t gpu_chunk = 4 << 20;                           // one piece of a large request
  std::uint64_t gpu_threads = 0;                               // 0: as many as fill the bus
  std::uint64_t gpu_rest = 2000;                               // in milliseconds
  bool gpu_cufile = true;                                      // use libcufile if it is installed

  bool operator==(const MountOptions&) const = default;
};

inline constexpr std::size_t kMostTiers = 16;

// Each of these functions applies one source to `options`, over what is set already. After an
// error, the content of `options` is unspecified. The error's text is one line for a person: what,
// where, why, and what is allowed.
//
// Applies the TOML file `file`. Relative paths in it are relative to its directory. Its tiers and
// rules replace those in `options`.
Result<void> apply_config_file(const std::string& file, MountOptions& options);
Result<std::string> read_config_file(const std::string& file);
// The same for TOML text; `file` is used for messages and relative paths.
Result<void> apply_config_text(std::string_view text, const std::string& file,
                               MountOptions& options);
// Applies SLUICE_<NAME> for each option, SLUICE_DEBUG like --debug, and SLUICE_TIER like --tier,
// with tiers separated by ';'. `variable` is getenv. Here and below, relative paths start at
// `base`, or at the current directory if it is empty.
Result<void> apply_environment(const std::function<const char*(const char* name)>& variable,
                               MountOptions& options, const std::string& base = {});
// Applies one option given as text. `source` is for messages: "--small-file", "SLUICE_SMALL_FILE".
Result<void> apply_option(const OptionSpec& spec, const std::string& source,
                          const std::string& value, MountOptions& options,
                          const std::string& base = {});
// Applies --debug NAME=VALUE[,NAME=VALUE]...
Result<void> apply_debug(const std::string& source, const std::string& text, MountOptions& options);
// Adds the tier of --tier NAME=PATH[,KEY=VALUE]...; the keys are those of [[tier]].
Result<void> append_tier(const std::string& source, const std::string& text, MountOptions& options,
                         const std::string& base = {});

// Checks the options as a whole, without looking at the machine: there are a mount point and 1 to
// kMostTiers tiers with different names; thresholds, where they are used, do not rise towards
// slower tiers; rules name an existing tier; the kernel knows the -o options; the chunk is a power
// of two; metrics are on a loopback address. Removes options that fstab has for other programs from
// mount_options.
Result<void> check_options(MountOptions& options);

// The threshold of the tier at `index`: the configured one, or else 0 for the last tier, 10 for the
// one before it, and 100 for faster ones.
double tier_threshold(const std::vector<TierOptions>& tiers, std::size_t index);

// A sentence for users whose thresholds are not used, because the policy is "value"; else empty.
std::string unused_thresholds(const MountOptions& options);

// The options that the planner needs. REQUIRES: check_options() succeeded.
Policy make_policy(const MountOptions& options);

// The rules that give budgets to directories.
std::vector<BudgetRule> budget_rules(const MountOptions& options);

// Checks the machine: the tiers are writable directories, the mount point is free and empty, and
// none of these and the state directory is inside another. An empty mount point is not checked.
// MayBeMissing: the directories may not exist yet,
// and need not be accessible to this user.
enum class Directories { Exist, MayBeMissing };
Result<void> check_tiers(const MountOptions& options, Directories directories = Directories::Exist);
// Checks a tier `name` that will be added to the running mount at `mount`: its directory is not
// inside another tier, a tier of another pool, the mount or its state directory, and contains none
// of them.
Result<void> check_new_tier(const MountOptions& options, const std::string& name,
                            const std::string& mount, const std::string& state);

// The allowed word that is closest to `word`, if one is close enough.
std::optional<std::string_view> closest_word(std::string_view word,
                                             std::span<const std::string_view> allowed);

}  // namespace sluice
