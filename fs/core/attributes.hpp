// SPDX-License-Identifier: BSD-2-Clause
// Attributes reads and changes what stat, chmod, chown, utimes, truncate, lsattr and the stored
// xattrs are about. A directory's attributes are those of its fastest copy; a change goes to all
// copies.
//
// Threads: every member may be called from any thread at once.
#pragma once

#include <sys/stat.h>
#include <sys/statvfs.h>

#include <functional>
#include <optional>
#include <string>
#include <string_view>

#include "base/result.hpp"
#include "fs/core/away_tiers.hpp"
#include "fs/core/caller.hpp"
#include "fs/core/descriptors.hpp"
#include "fs/core/directory_tree.hpp"
#include "fs/core/kernel_side.hpp"
#include "fs/core/page_watch.hpp"
#include "fs/core/shown_times.hpp"
#include "metadata/store.hpp"
#include "tiering/pool.hpp"

namespace sluice {

// How long the kernel may keep names and attributes. They change only through the mount, so it
// could keep them for ever; a day bounds the effect of changes made on a tier past the mount.
inline constexpr double kCacheSeconds = 86400;

struct FileAttributes {
  struct stat st {};
  double seconds = kCacheSeconds;
};

// The fields of a setattr request that are to be set.
struct AttributeChange {
  std::optional<mode_t> mode;
  std::optional<uid_t> uid;
  std::optional<gid_t> gid;
  std::optional<off_t> size;
  std::optional<timespec> atime, mtime;  // tv_nsec may be UTIME_NOW
  // The caller, if setuid and setgid bits must go.
  std::optional<Caller> strip_suid;
};

class Attributes {
 public:
  struct Parts {
    Pool& pool;
    Store& store;
    KernelSide& kernel;
    Namespace& names;
    DirectoryTree& tree;
    Descriptors& descriptors;
    ShownTimes& times;
    PageWatch& pages;
    AwayTiers& away;
  };
  explicit Attributes(const Parts& parts) : parts_(parts) {}

  Result<FileAttributes> get(InodeId id);
  Result<FileAttributes> set(InodeId id, const AttributeChange& change);
  Result<struct statx> statx(InodeId id);
  // lsattr and chattr, as the ioctls FS_IOC_GETFLAGS, _SETFLAGS, _FSGETXATTR and _FSSETXATTR:
  // `data` is the argument, changed in place. ENOTTY for any other command.
  Result<void> flags(InodeId id, unsigned command, std::string& data);
  Result<struct statvfs> statfs();
  // Root owns everything.
  Result<bool> is_owner(InodeId id, const Caller& caller);

  // Xattrs as the tiers store them.
  Result<std::string> xattr(const InodePtr& file, const char* name);
  Result<std::string> xattr_names(const InodePtr& file);
  Result<void> set_xattr(const InodePtr& file, const char* name, std::string_view value, int flags,
                         const Caller& caller);
  Result<void> remove_xattr(const InodePtr& file, const char* name);

  Result<struct stat> stat_of(const InodePtr& inode);
  // The same for an inode that was just found; asks the tier again only if it must. `switches` is
  // Namespace::switches() before the inode was found.
  struct stat stat_of(const InodePtr& inode, const Located& found, std::uint64_t switches);
  // What the tier that has the inode says, without what is shown in its place.
  Result<struct statx> statx_on_tier(const InodePtr& inode);
  // How long the kernel may keep the attributes: not at all while a mapping may change them.
  double cache_seconds(const InodePtr& inode);

 private:
  void note_told(Inode& inode, const struct stat& st);
  Result<struct stat> stat_of_file(const InodePtr& file);
  Result<struct stat> stat_of_directory(const InodePtr& directory);
  std::optional<timespec> born_at(const InodePtr& inode);
  Result<void> change_copies(const InodePtr& directory,
                             const std::function<Result<void>(const SharedFd&)>& change);

  const Parts parts_;
};

}  // namespace sluice
