// SPDX-License-Identifier: BSD-2-Clause
// Checks the options as a whole, check_options(), and the machine, check_tiers().
#include <dirent.h>
#include <fcntl.h>
#include <linux/magic.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/statfs.h>
#include <sys/xattr.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <memory>
#include <utility>

#include "base/http_server.hpp"
#include "base/log.hpp"
#include "base/mount_lines.hpp"
#include "base/nesting.hpp"
#include "base/path.hpp"
#include "base/unique_fd.hpp"
#include "base/units.hpp"
#include "fs/control/option_table.hpp"
#include "fs/control/option_values.hpp"
#include "fs/control/options.hpp"

namespace sluice {
namespace {

// Options that libfuse passes to the kernel, and options that fstab has for other programs.
constexpr std::string_view kKernelWords =
    "ro rw suid nosuid dev nodev exec noexec sync async dirsync noatime nodiratime symfollow "
    "nosymfollow fsname=NAME";
constexpr std::string_view kForeignWords =
    "defaults auto noauto nofail user users nouser owner group _netdev relatime allow_other "
    "default_permissions";

std::string format_score(double score) {
  std::array<char, 32> out{};
  std::snprintf(out.data(), out.size(), "%g", score);
  return out.data();
}

Result<void> check_names(const std::vector<TierOptions>& tiers) {
  for (std::size_t i = 0; i < tiers.size(); ++i) {
    for (std::size_t j = 0; j < i; ++j) {
      if (tiers[i].name != tiers[j].name) continue;
      return bad_option("tier " + tiers[i].name + ": two tiers have that name; names must differ");
    }
  }
  return {};
}

Method method_of(const MountOptions& options) {
  return options.policy == "thresholds" ? Method::Thresholds : Method::Value;
}

// The last tier must accept files that are too cold for all others.
Result<void> check_thresholds(const std::vector<TierOptions>& tiers) {
  for (std::size_t i = 0; i < tiers.size(); ++i) {
    const double threshold = tier_threshold(tiers, i);
    const std::string who = "tier " + tiers[i].name + ": threshold " + format_score(threshold) +
                            (tiers[i].threshold ? "" : " (its default)");
    if (i + 1 == tiers.size() && threshold != 0) {
      return bad_option(
          who + " must be 0, or left out: the last tier takes what is too cold for the others");
    }
    if (i > 0 && threshold > tier_threshold(tiers, i - 1)) {
      return bad_option(who + " must not be above " + format_score(tier_threshold(tiers, i - 1)) +
                        ", that of tier " + tiers[i - 1].name + ", which is faster");
    }
  }
  return {};
}

std::size_t tier_named(const std::vector<TierOptions>& tiers, std::string_view name) {
  const auto found = std::find_if(tiers.begin(), tiers.end(),
                                  [&](const TierOptions& each) { return each.name == name; });
  return static_cast<std::size_t>(found - tiers.begin());
}

Result<void> check_rules(const MountOptions& options) {
  for (const auto& rule : options.rules) {
    if (rule.budget || rule.tier == kStay ||
        tier_named(options.tiers, rule.tier) < options.tiers.size())
      continue;
    std::vector<std::string_view> names;
    std::string list;
    for (const auto& tier : options.tiers) {
      names.push_back(tier.name);
      list += (list.empty() ? "" : ", ") + tier.name;
    }
    names.push_back(kStay);
    const auto close = closest_word(rule.tier, names);
    return bad_option(rule.place + ": rule " + in_quotes(rule.match) + ": there is no tier " +
                      in_quotes(rule.tier) + " (there are " + list +
                      "; \"stay\" leaves files where they are)" +
                      (close ? "; did you mean '" + std::string(*close) + "'?" : ""));
  }
  return {};
}

// Each thread of the engine pins several chunks.
Result<void> check_chunk(std::uint64_t chunk) {
  constexpr std::uint64_t kLeast = 64 << 10, kMost = 64 << 20;
  if (chunk >= kLeast && chunk <= kMost && (chunk & (chunk - 1)) == 0) return {};
  return bad_option("gpu_chunk must be a power of two from " + format_size(kLeast) + " to " +
                    format_size(kMost) + ", not " + format_size(chunk));
}

// Metrics have no password, so only this machine may connect.
Result<void> check_metrics(const std::string& where) {
  if (where == "off" || where == "unix" || loopback_address(where)) return {};
  return bad_option(
      "metrics must be \"off\", \"unix\" or an address of this machine alone with its port, "
      "like "
      "\"127.0.0.1:9464\" or \"[::1]:9464\", not " +
      in_quotes(where));
}

// Keeps only the options for the kernel.
Result<void> sort_mount_options(std::string& words) {
  std::string kept;
  for (const auto word : split(words, ',')) {
    if (is_word_of(word, kForeignWords) || word.starts_with("x-") || word.starts_with("comment=")) {
      continue;
    }
    if (!is_word_of(word, kKernelWords) && !word.starts_with("fsname=")) {
      return bad_option("-o " + log::escaped(word) + ": unknown mount option" +
                        did_you_mean(word, split(kKernelWords, ' ')));
    }
    kept.append(kept.empty() ? "" : ",").append(word);
  }
  words = std::move(kept);
  return {};
}

Error unusable(int code, std::string text) { return {code, "check the machine", std::move(text)}; }

Result<void> check_apart(const std::string& inner_who, const std::string& inner,
                         const std::string& outer_who, const std::string& outer,
                         std::string_view advice) {
  const Nesting how = nesting(inner, outer);
  if (how == Nesting::Apart) return {};
  return unusable(EINVAL,
                  inner_who + ": " + log::escaped(inner) +
                      (how == Nesting::Same ? " is the same directory as " : " is inside ") +
                      outer_who + " (" + log::escaped(outer) + "); " + std::string(advice));
}

using DeviceNumber = std::pair<unsigned, unsigned>;  // major and minor

// Asks no daemon: this one may be about to.
std::optional<DeviceNumber> device_of(int directory, const char* path) {
  struct statx st {};
  constexpr int kHow = AT_EMPTY_PATH | AT_STATX_DONT_SYNC;
  if (::statx(directory, path, kHow, STATX_INO, &st) < 0) return std::nullopt;
  return DeviceNumber{st.stx_dev_major, st.stx_dev_minor};
}

// The files and directories that the filesystem is stored in: the image of a loop device, the
// layers of an overlay. None for a disk.
std::vector<std::string> stored_in(const DeviceNumber& device,
                                   const std::vector<MountLine>& lines) {
  std::vector<std::string> out;
  const std::string block =
      "/sys/dev/block/" + std::to_string(device.first) + ":" + std::to_string(device.second);
  for (const char* where : {"/loop/backing_file", "/../loop/backing_file"}) {  // a partition of it
    std::ifstream in(block + where);
    std::string path;
    if (std::getline(in, path)) out.push_back(std::move(path));
  }
  for (const MountLine& line : lines) {
    if (line.type != "overlay" || DeviceNumber(line.major, line.minor) != device) continue;
    for (const auto word : split(line.options, ',')) {
      for (const std::string_view key : {"lowerdir=", "lowerdir+=", "upperdir="}) {
        if (!word.starts_with(key)) continue;
        for (const auto layer : split(word.substr(key.size()), ':')) out.emplace_back(layer);
      }
    }
  }
  return out;
}

// The device, and those of what it is stored in, also of an image inside another one.
std::vector<DeviceNumber> devices_below(const DeviceNumber& device,
                                        const std::vector<MountLine>& lines) {
  std::vector<DeviceNumber> out{device};
  for (std::size_t i = 0; i < out.size(); ++i) {
    for (const std::string& path : stored_in(out[i], lines)) {
      const auto below = device_of(AT_FDCWD, path.c_str());
      if (below && std::find(out.begin(), out.end(), *below) == out.end()) out.push_back(*below);
    }
  }
  return out;
}

// A daemon that uses a directory of its own mount as a tier waits for itself. One that uses another
// pool's mount may wait for itself, too, if that one has a tier in this one. `mount` is the pool's
// own, while it is mounted.
Result<void> check_outside_mounts(const TierOptions& tier, const std::string& mount) {
  const std::string who = "tier " + tier.name + ": " + log::escaped(tier.path);
  constexpr std::string_view kDisk = "; give a directory on a disk, outside of the mount";
  const UniqueFd directory(::open(tier.path.c_str(), O_PATH | O_DIRECTORY | O_CLOEXEC));
  const auto device = directory ? device_of(directory.get(), "") : std::nullopt;
  if (!device) return {};
  const auto lines = mount_lines();
  const auto own = mount.empty() ? std::nullopt : device_of(AT_FDCWD, mount.c_str());
  const auto below = devices_below(*device, lines);
  for (const MountLine& line : lines) {
    if (line.type != "fuse.sluice") continue;
    const DeviceNumber served{line.major, line.minor};
    const bool is_own = served == own;
    const std::string whose =
        (is_own ? "the mount itself (" : "a mount of Sluice (") + log::escaped(line.point) + ")";
    const auto found = std::find(below.begin(), below.end(), served);
    if (found != below.end()) {
      const std::string how =
          found == below.begin() ? " is inside " : " is on a disk image or an overlay inside ";
      return unusable(ELOOP, who + how + whose + std::string(kDisk));
    }
    if (is_own && nesting(line.point, tier.path) != Nesting::Apart)
      return unusable(ELOOP, who + " contains " + whose + std::string(kDisk));
  }
  return {};
}

// Whether a daemon has the tier at `root`.
bool is_tier_in_use(const std::string& root) {
  const UniqueFd lock(::open((root + "/.sluice/lock").c_str(), O_RDONLY | O_CLOEXEC));
  if (!lock) return false;
  const bool is_taken = ::flock(lock.get(), LOCK_SH | LOCK_NB) < 0 && errno == EWOULDBLOCK;
  return is_taken;
}

// A tier in use at most two levels below `path`, where `sluice init` puts one on a disk; or "".
std::string tier_below(const std::string& path) {
  constexpr int kDepth = 2;
  std::size_t left = 1000;  // entries: each may be a seek, and a large directory is not worth that
  const auto device = device_of(AT_FDCWD, path.c_str());
  std::vector<std::string> level{path}, next;
  for (int depth = 0; depth < kDepth; ++depth) {
    for (const std::string& directory : level) {
      const auto close = [](DIR* stream) { ::closedir(stream); };
      const std::unique_ptr<DIR, decltype(close)> stream(::opendir(directory.c_str()), close);
      while (const dirent* entry = stream && left > 0 ? ::readdir(stream.get()) : nullptr) {
        --left;
        const std::string_view name = entry->d_name;
        if (entry->d_type != DT_DIR || name == "." || name == ".." || name == ".sluice") continue;
        // Another filesystem may be that of a daemon that does not answer.
        if (device_of(::dirfd(stream.get()), entry->d_name) != device) continue;
        next.push_back(directory + "/" + std::string(name));
        if (is_tier_in_use(next.back())) return next.back();
      }
    }
    level = std::exchange(next, {});
  }
  return "";
}

// The other pool would show the files of this one, and move them away.
Result<void> check_outside_pools(const TierOptions& tier) {
  const std::string path = real_path(tier.path);
  // A tier that was one before has been looked through, and nobody makes a tier inside of it.
  const bool is_new = ::access((path + "/.sluice/tier.json").c_str(), F_OK) < 0;
  if (const std::string below = is_new ? tier_below(path) : ""; !below.empty()) {
    return unusable(EINVAL, "tier " + tier.name + ": " + log::escaped(tier.path) +
                                " contains a tier of a pool that is mounted (" +
                                log::escaped(below) + "); give a directory without it");
  }
  for (std::string above = parent_path(path); above != "/"; above = parent_path(above)) {
    if (::access((above + "/.sluice/tier.json").c_str(), F_OK) < 0) continue;
    return unusable(EINVAL,
                    "tier " + tier.name + ": " + log::escaped(tier.path) +
                        " is inside a tier of a pool (" + log::escaped(above) +
                        "); give a directory outside of it, or, if that pool is not used any more, "
                        "remove " +
                        log::escaped(above) + "/.sluice");
  }
  return {};
}

// Its database would be visible to users of the mount, which shows everything but .sluice.
Result<void> check_state(const std::string& state, const TierOptions& tier,
                         std::string_view advice) {
  if (is_inside(tier.path + "/.sluice", state)) return {};
  return check_apart("state directory", state, "tier " + tier.name, tier.path, advice);
}

Result<void> check_mountpoint(const std::string& path, Directories directories) {
  const std::string who = "mount point " + log::escaped(path);
  struct stat status {};
  struct statfs filesystem {};
  // statfs too: for a dead mount, the kernel may answer stat from its cache.
  if (::stat(path.c_str(), &status) < 0 || ::statfs(path.c_str(), &filesystem) < 0) {
    const int code = errno;
    if (code == ENOENT && directories == Directories::MayBeMissing) return {};
    if (code == ENOENT)
      return unusable(code, who + " does not exist; create it: mkdir -p " + log::escaped(path));
    if (code == ENOTCONN) {
      return unusable(code, who + ": the daemon of the mount there has died; run 'sluice umount " +
                                log::escaped(path) + "', then mount again");
    }
    return unusable(code, who + " can't be reached: " + std::strerror(code));
  }
  if (!S_ISDIR(status.st_mode)) return unusable(ENOTDIR, who + " is not a directory");

  struct stat parent {};
  const bool is_mount_of_fuse = filesystem.f_type == FUSE_SUPER_MAGIC &&
                                ::stat(parent_path(path).c_str(), &parent) == 0 &&
                                parent.st_dev != status.st_dev;
  if (!is_mount_of_fuse) return {};
  if (::getxattr(path.c_str(), "user.sluice.status", nullptr, 0) > 0) {
    return unusable(EBUSY, who + " is in use: a sluice is mounted there; see 'sluice status " +
                               log::escaped(path) + "'");
  }
  return unusable(
      EBUSY,
      who + " is in use: another FUSE filesystem is mounted there; unmount it or choose another");
}

// Files in the mount point would be hidden, as if they were lost.
Result<void> check_empty(const MountOptions& options) {
  if (options.over) return {};
  const auto close = [](DIR* stream) { ::closedir(stream); };
  const std::unique_ptr<DIR, decltype(close)> stream(::opendir(options.mountpoint.c_str()), close);
  while (const dirent* entry = stream ? ::readdir(stream.get()) : nullptr) {
    const std::string_view name = entry->d_name;
    if (name == "." || name == "..") continue;
    return unusable(ENOTEMPTY, "mount point " + log::escaped(options.mountpoint) +
                                   " is not empty: " + log::escaped(name) +
                                   " would be hidden while the pool is mounted there; move it away "
                                   "or choose an empty directory, or mount with --over");
  }
  return {};
}

// What the kernel shows there is not stored on a disk.
Result<void> check_is_storage(const TierOptions& tier) {
  struct statfs filesystem {};
  if (::statfs(tier.path.c_str(), &filesystem) < 0) return {};
  switch (static_cast<unsigned long>(filesystem.f_type)) {
    case PROC_SUPER_MAGIC:
    case SYSFS_MAGIC:
    case CGROUP_SUPER_MAGIC:
    case CGROUP2_SUPER_MAGIC:
    case DEBUGFS_MAGIC:
    case TRACEFS_MAGIC:
    case SECURITYFS_MAGIC:
    case DEVPTS_SUPER_MAGIC:
      return unusable(EINVAL, "tier " + tier.name + ": " + log::escaped(tier.path) +
                                  " shows the state of the kernel and stores nothing; give a "
                                  "directory on a disk");
    default:
      return {};
  }
}

Result<void> check_tier(const TierOptions& tier, bool may_be_missing, Directories directories) {
  const std::string who = "tier " + tier.name + ": " + log::escaped(tier.path);
  struct stat status {};
  if (::stat(tier.path.c_str(), &status) < 0) {
    const int code = errno;
    if (may_be_missing || (directories == Directories::MayBeMissing && code == ENOENT)) return {};
    if (code == ENOENT) {
      return unusable(code, who +
                                " does not exist; is its disk mounted? A new tier needs its "
                                "directory first: mkdir -p " +
                                log::escaped(tier.path) +
                                "; --degraded mounts a pool without its missing tiers");
    }
    return unusable(code, who + " can't be reached: " + std::strerror(code) +
                              "; mount the other tiers alone with --degraded");
  }
  if (!S_ISDIR(status.st_mode)) return unusable(ENOTDIR, who + " is not a directory");
  SLUICE_TRY(check_is_storage(tier));
  if (::faccessat(AT_FDCWD, tier.path.c_str(), R_OK | W_OK | X_OK, AT_EACCESS) < 0) {
    const int code = errno;
    if (directories == Directories::MayBeMissing && code == EACCES) return {};
    return unusable(
        code, who + " is not writable: " + std::strerror(code) +
                  (code == EROFS ? "; remount it writable, or unmount its disk and mount the pool "
                                   "with --degraded, without the files on it"
                                 : "; give a directory on a disk"));
  }
  return {};
}

}  // namespace

Result<void> check_options(MountOptions& options) {
  if (options.mountpoint.empty()) return bad_option("no mount point is given");
  if (options.tiers.empty()) {
    return bad_option(
        "no tiers are given; name at least one with --tier NAME=PATH or in the config file");
  }
  if (options.tiers.size() > kMostTiers) {
    return bad_option(std::to_string(options.tiers.size()) + " tiers are given; allowed: 1 to " +
                      std::to_string(kMostTiers));
  }
  SLUICE_TRY(check_names(options.tiers));
  if (method_of(options) == Method::Thresholds) SLUICE_TRY(check_thresholds(options.tiers));
  SLUICE_TRY(check_rules(options));
  SLUICE_TRY(check_chunk(options.gpu_chunk));
  SLUICE_TRY(check_metrics(options.metrics));
  return sort_mount_options(options.mount_options);
}

double tier_threshold(const std::vector<TierOptions>& tiers, std::size_t index) {
  if (tiers[index].threshold) return *tiers[index].threshold;
  switch (tiers.size() - 1 - index) {
    case 0:
      return 0;
    case 1:
      return 10;
    default:
      return 100;
  }
}

std::string unused_thresholds(const MountOptions& options) {
  if (method_of(options) == Method::Thresholds) return {};
  std::string names;
  for (const TierOptions& tier : options.tiers) {
    if (tier.threshold) names += (names.empty() ? "" : ", ") + tier.name;
  }
  if (names.empty()) return {};
  return "the threshold of " + names +
         " is not used: files are chosen by their value now; remove it, or set policy = "
         "\"thresholds\" to go on with thresholds";
}

Policy make_policy(const MountOptions& options) {
  Policy policy;
  policy.method = method_of(options);
  policy.objective = options.optimize == "hits" ? Objective::Hits : Objective::Time;
  policy.min_stay = options.min_stay;
  for (const auto& rule : options.rules) {
    if (rule.tier.empty()) continue;  // see budget_rules()
    const auto tier =
        rule.tier == kStay ? kNoTier : static_cast<TierIndex>(tier_named(options.tiers, rule.tier));
    policy.rules.push_back({rule.match, rule.larger, rule.smaller, rule.older, rule.newer, tier});
  }
  return policy;
}

std::vector<BudgetRule> budget_rules(const MountOptions& options) {
  std::vector<BudgetRule> out;
  for (const auto& rule : options.rules) {
    if (rule.budget) out.push_back({rule.match, *rule.budget});
  }
  return out;
}

Result<void> check_new_tier(const MountOptions& options, const std::string& name,
                            const std::string& mount, const std::string& state) {
  const TierOptions& tier = options.tiers[tier_named(options.tiers, name)];
  const std::string who = "tier " + tier.name;
  SLUICE_TRY(check_outside_mounts(tier, mount));
  constexpr std::string_view kOwn = "give each tier a directory of its own";
  for (const TierOptions& other : options.tiers) {
    if (&other == &tier) continue;
    const std::string other_who = "tier " + other.name;
    SLUICE_TRY(check_apart(who, tier.path, other_who, other.path, kOwn));
    SLUICE_TRY(check_apart(other_who, other.path, who, tier.path, kOwn));
  }
  SLUICE_TRY(check_outside_pools(tier));
  return check_state(state, tier, "give a directory that does not contain it");
}

Result<void> check_tiers(const MountOptions& options, Directories directories) {
  const bool has_mountpoint = !options.mountpoint.empty();
  if (has_mountpoint) SLUICE_TRY(check_mountpoint(options.mountpoint, directories));
  for (std::size_t i = 0; i < options.tiers.size(); ++i) {
    const TierOptions& tier = options.tiers[i];
    const std::string who = "tier " + tier.name;
    SLUICE_TRY(check_tier(tier, options.degraded, directories));
    SLUICE_TRY(check_outside_mounts(tier, ""));
    constexpr std::string_view kMove = "choose a mount point outside the tiers";
    if (has_mountpoint) {
      SLUICE_TRY(check_apart(who, tier.path, "the mount point", options.mountpoint, kMove));
      SLUICE_TRY(check_apart("mount point", options.mountpoint, who, tier.path, kMove));
    }
    constexpr std::string_view kOwn = "give each tier a directory of its own";
    for (std::size_t j = 0; j < i; ++j) {
      const TierOptions& other = options.tiers[j];
      const std::string other_who = "tier " + other.name;
      SLUICE_TRY(check_apart(who, tier.path, other_who, other.path, kOwn));
      SLUICE_TRY(check_apart(other_who, other.path, who, tier.path, kOwn));
    }
    SLUICE_TRY(check_outside_pools(tier));
  }
  if (has_mountpoint) SLUICE_TRY(check_empty(options));
  if (options.state.empty()) return {};
  const std::string who = "state directory";
  constexpr std::string_view kElsewhere = "choose a --state outside it";
  SLUICE_TRY(check_apart(who, options.state, "the mount point", options.mountpoint, kElsewhere));
  for (const auto& tier : options.tiers) SLUICE_TRY(check_state(options.state, tier, kElsewhere));
  return {};
}

}  // namespace sluice
