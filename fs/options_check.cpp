// SPDX-License-Identifier: BSD-2-Clause
// The part of options that looks at the machine: check_tiers().
#include <fcntl.h>
#include <linux/magic.h>
#include <sys/stat.h>
#include <sys/statfs.h>
#include <sys/xattr.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "base/log.hpp"
#include "base/path.hpp"
#include "fs/options.hpp"

namespace sluice {
namespace {

using Problem = std::optional<std::string>;  // a ConfigError's message

struct FileId {
  dev_t device;
  ino_t inode;
  bool operator==(const FileId&) const = default;
};

std::optional<FileId> file_id(const std::string& path) {
  struct stat status {};
  if (::stat(path.c_str(), &status) < 0) return std::nullopt;
  return FileId{status.st_dev, status.st_ino};
}

enum class Relation { Apart, Same, Inside };

// How `inner` lies to `outer`: by resolved name, and by identity for what bind mounts hide from
// names.
Relation relation(const std::string& inner, const std::string& outer) {
  if (real_path(inner) == real_path(outer)) return Relation::Same;
  const auto outer_id = file_id(outer);
  if (outer_id && file_id(inner) == outer_id) return Relation::Same;
  if (is_inside(outer, inner)) return Relation::Inside;
  if (!outer_id) return Relation::Apart;
  for (std::string path = real_path(inner); path != "/";) {
    path = parent_path(path);
    if (file_id(path) == outer_id) return Relation::Inside;
  }
  return Relation::Apart;
}

Problem overlap(const std::string& inner_who, const std::string& inner,
                const std::string& outer_who, const std::string& outer, std::string_view advice) {
  const Relation how = relation(inner, outer);
  if (how == Relation::Apart) return {};
  return inner_who + ": " + log::escaped(inner) +
         (how == Relation::Same ? " is the same directory as " : " is inside ") + outer_who + " (" +
         log::escaped(outer) + "); " + std::string(advice);
}

Problem check_mountpoint(const std::string& path) {
  const std::string who = "mount point " + log::escaped(path);
  struct stat status {};
  struct statfs filesystem {};
  // Both are asked: the kernel answers stat for a dead mount from its cache, but never statfs.
  if (::stat(path.c_str(), &status) < 0 || ::statfs(path.c_str(), &filesystem) < 0) {
    if (errno == ENOENT) return who + " does not exist; create it: mkdir -p " + log::escaped(path);
    if (errno == ENOTCONN) {
      return who + ": the daemon of the mount there has died; run 'sluice umount " +
             log::escaped(path) + "', then mount again";
    }
    return who + " can't be reached: " + std::strerror(errno);
  }
  if (!S_ISDIR(status.st_mode)) return who + " is not a directory";

  struct stat parent {};
  const bool is_mount_of_fuse = filesystem.f_type == FUSE_SUPER_MAGIC &&
                                ::stat(parent_path(path).c_str(), &parent) == 0 &&
                                parent.st_dev != status.st_dev;
  if (!is_mount_of_fuse) return {};
  if (::getxattr(path.c_str(), "user.sluice.status", nullptr, 0) > 0) {
    return who + " is in use: a sluice is mounted there; see 'sluice status " + log::escaped(path) +
           "'";
  }
  return who + " is in use: another FUSE filesystem is mounted there; unmount it or choose another";
}

Problem check_tier(const TierOptions& tier, bool may_be_missing) {
  const std::string who = "tier " + tier.name + ": " + log::escaped(tier.path);
  struct stat status {};
  if (::stat(tier.path.c_str(), &status) < 0) {
    if (may_be_missing) return {};
    if (errno == ENOENT) {
      return who + " does not exist; create it, or mount the other tiers alone with --degraded";
    }
    return who + " can't be reached: " + std::strerror(errno) +
           "; mount the other tiers alone with --degraded";
  }
  if (!S_ISDIR(status.st_mode)) return who + " is not a directory";
  if (::faccessat(AT_FDCWD, tier.path.c_str(), R_OK | W_OK | X_OK, AT_EACCESS) < 0) {
    return who + " is not writable: " + std::strerror(errno);
  }
  return {};
}

}  // namespace

MaybeConfigError check_tiers(const MountOptions& options) {
  const auto problem = [&]() -> Problem {
    if (auto found = check_mountpoint(options.mountpoint)) return found;
    for (std::size_t i = 0; i < options.tiers.size(); ++i) {
      const TierOptions& tier = options.tiers[i];
      const std::string who = "tier " + tier.name;
      if (auto found = check_tier(tier, options.degraded)) return found;
      constexpr std::string_view kMove = "choose a mount point outside the tiers";
      if (auto found = overlap(who, tier.path, "the mount point", options.mountpoint, kMove)) {
        return found;
      }
      if (auto found = overlap("mount point", options.mountpoint, who, tier.path, kMove)) {
        return found;
      }
      constexpr std::string_view kOwn = "give each tier a directory of its own";
      for (std::size_t j = 0; j < i; ++j) {
        const TierOptions& other = options.tiers[j];
        const std::string other_who = "tier " + other.name;
        if (auto found = overlap(who, tier.path, other_who, other.path, kOwn)) return found;
        if (auto found = overlap(other_who, other.path, who, tier.path, kOwn)) return found;
      }
    }
    if (options.state.empty()) return {};
    const std::string who = "state directory";
    constexpr std::string_view kElsewhere = "choose a --state outside it";
    if (auto found =
            overlap(who, options.state, "the mount point", options.mountpoint, kElsewhere)) {
      return found;
    }
    for (const auto& tier : options.tiers) {
      // .sluice is hidden from the mount; anywhere else the database would be among the user's
      // files.
      if (is_inside(tier.path + "/.sluice", options.state)) continue;
      if (auto found = overlap(who, options.state, "tier " + tier.name, tier.path, kElsewhere)) {
        return found;
      }
    }
    return {};
  }();
  if (!problem) return {};
  return ConfigError{*problem};
}

}  // namespace sluice
