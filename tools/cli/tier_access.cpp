// SPDX-License-Identifier: BSD-2-Clause
#include "tools/cli/tier_access.hpp"

#include <sys/stat.h>
#include <sys/xattr.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstring>
#include <string_view>

#include "base/log.hpp"
#include "base/path.hpp"
#include "tools/cli/machine.hpp"
#include "tools/common/mounts.hpp"
#include "tools/common/output.hpp"

namespace sluice::tools::cli {
namespace {

// Whether an ACL lets a user or group other than root search the directory, ignoring the mask.
bool acl_lets_in(const std::string& directory) {
  // The format of linux/posix_acl_xattr.h: a version, then tag, permissions and id of each entry.
  struct Entry {
    std::uint16_t tag, permissions;
    std::uint32_t id;
  };
  constexpr std::uint16_t kUser = 0x02, kGroup = 0x08, kSearch = 1;
  std::array<char, 4096> value{};
  const ssize_t size =
      ::getxattr(directory.c_str(), "system.posix_acl_access", value.data(), value.size());
  if (size < 0) return errno == ERANGE;  // so long that it has entries for users
  for (std::size_t at = sizeof(std::uint32_t); at + sizeof(Entry) <= static_cast<std::size_t>(size);
       at += sizeof(Entry)) {
    Entry entry{};
    std::memcpy(&entry, value.data() + at, sizeof entry);
    if ((entry.tag == kUser || entry.tag == kGroup) && (entry.permissions & kSearch) != 0 &&
        entry.id != 0) {
      return true;
    }
  }
  return false;
}

bool lets_others_in(const std::string& directory, const struct stat& st) {
  if ((st.st_mode & S_IXOTH) != 0) return true;
  if ((st.st_mode & S_IXGRP) != 0 && st.st_gid != 0) return true;
  // The owner can add the permission at any time.
  return st.st_uid != 0 || ((st.st_mode & S_IXGRP) != 0 && acl_lets_in(directory));
}

// Whether users other than root can search every directory of the path.
bool is_reachable(const std::string& path) {
  for (std::string at = path;; at = parent_path(at)) {
    struct stat st {};
    if (::stat(at.c_str(), &st) < 0 || !lets_others_in(at, st)) return false;
    if (at == "/") return true;
  }
}

// Whether a directory contains only tiers, so that closing it affects nothing else.
bool holds_tiers_only(const std::string& directory, const std::vector<std::string>& tiers) {
  const MachineView machine;
  const auto names = machine.listing(directory);
  return names && std::all_of(names->begin(), names->end(), [&](const std::string& name) {
           const std::string path = directory + "/" + name;
           return name == "lost+found" || machine.has(path + "/.sluice") ||
                  std::find(tiers.begin(), tiers.end(), path) != tiers.end();
         });
}

// Directories that other programs use, now or later.
bool is_for_all(const std::string& directory) {
  constexpr std::array<std::string_view, 12> kShared{"/",    "/home", "/media", "/mnt",
                                                     "/opt", "/root", "/run",   "/srv",
                                                     "/tmp", "/usr",  "/var",   "/var/lib"};
  return std::find(kShared.begin(), kShared.end(), directory) != kShared.end();
}

bool is_mount_point(const std::string& path) {
  const auto mounts = mount_table();
  return std::any_of(mounts.begin(), mounts.end(),
                     [&](const MountEntry& mount) { return mount.point == path; });
}

}  // namespace

std::optional<std::string> closing_command(const std::string& path,
                                           const std::vector<std::string>& tiers) {
  const std::string real = real_path(path);
  if (real.empty() || real == "/" || !is_reachable(real)) return std::nullopt;
  std::vector<std::string> resolved;
  for (const auto& tier : tiers) resolved.push_back(real_path(tier));
  const std::string parent = parent_path(real);
  struct stat above {};
  if (!is_for_all(parent) && ::stat(parent.c_str(), &above) == 0 &&
      holds_tiers_only(parent, resolved)) {
    return (above.st_uid == 0 ? "" : "chown root: " + shell_word(parent) + " && ") + "chmod 700 " +
           shell_word(parent);
  }
  // A new directory beside it; a symbolic link keeps the configuration and fstab valid.
  const std::string name = real.substr(real.rfind('/') + 1);
  const std::string closed = real + ".private", inside = closed + "/" + name;
  if (!is_mount_point(real)) {
    return "install -d -m 700 " + shell_word(closed) + " && mv " + shell_word(real) + " " +
           shell_word(closed) + " && ln -s " + shell_word(inside) + " " + shell_word(real);
  }
  return "install -d -m 700 " + shell_word(closed) + " " + shell_word(inside) +
         " && mount --rbind " + shell_word(real) + " " + shell_word(inside) + " && umount -l " +
         shell_word(real) + " && mv " + shell_word(real) + " " + shell_word(closed + "/below") +
         " && ln -s " + shell_word(inside) + " " + shell_word(real);
}

std::string open_tiers_warning(const std::vector<NamedTier>& tiers) {
  std::vector<std::string> paths;
  for (const auto& tier : tiers) paths.push_back(tier.path);
  std::string names, words;
  for (const auto& tier : tiers) {
    if (!closing_command(tier.path, paths)) continue;
    names += (names.empty() ? "" : ", ") + tier.name + " (" + log::escaped(tier.path) + ")";
    words += " " + shell_word(tier.path);
  }
  if (names.empty()) return {};
  return "users can enter these tiers directly and bypass the mount; Sluice does not see what they "
         "change there: " +
         names + "; to close them: sluice tier close" + words;
}

}  // namespace sluice::tools::cli
