// SPDX-License-Identifier: BSD-2-Clause
// Attributes implements stat, chmod, chown, utimes, truncate, lsattr and chattr, and the xattrs
// that the tiers store. A directory has the attributes of its fastest copy; a change is applied to
// all copies.
//
// Threads: thread-safe.
#pragma once

#include <sys/stat.h>
#include <sys/statvfs.h>

#include <functional>
#include <optional>
#include <string>
#include <string_view>

#include "base/result.hpp"
#include "fs/core/budget/budgets.hpp"
#include "fs/core/inodes/caller.hpp"
#include "fs/core/inodes/kernel_request.hpp"
#include "fs/core/inodes/kernel_side.hpp"
#include "fs/core/inodes/shown_times.hpp"
#include "fs/core/tree/away_tiers.hpp"
#include "fs/core/tree/descriptors.hpp"
#include "fs/core/tree/directory_tree.hpp"
#include "fs/core/tree/page_watch.hpp"
#include "metadata/store.hpp"
#include "tiering/pool/pool.hpp"

namespace sluice {

// How long the kernel may cache names and attributes. They change only through the mount, so the
// kernel could cache them for ever. One day limits the effect of changes that are made directly on
// a tier.
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
  // The caller, if setuid and setgid bits must be cleared.
  std::optional<Caller> strip_suid;
};

class Attributes {
 public:
  struct Parts {
    Pool& pool;
    Store& store;
    KernelSide& kernel;
    NamesLock& names_lock;
    DirectoryTree& tree;
    Descriptors& descriptors;
    ShownTimes& times;
    PageWatch& pages;
    AwayTiers& away;
    Budgets& budgets;
  };
  explicit Attributes(const Parts& parts) : parts_(parts) {}

  Result<FileAttributes> get(InodeId id);
  Result<FileAttributes> set(InodeId id, const AttributeChange& change,
                             const KernelRequest& request = {});
  Result<struct statx> statx(InodeId id);
  // lsattr and chattr, as the ioctls FS_IOC_GETFLAGS, _SETFLAGS, _FSGETXATTR and _FSSETXATTR:
  // `data` is the argument, changed in place. ENOTTY for any other command.
  Result<void> flags(InodeId id, unsigned command, std::string& data,
                     const KernelRequest& request = {});
  Result<struct statvfs> statfs();
  // Root counts as the owner of everything.
  Result<bool> is_owner(InodeId id, const Caller& caller);

  // Xattrs as the tiers store them.
  Result<std::string> xattr(const InodePtr& file, const char* name);
  Result<std::string> xattr_names(const InodePtr& file);
  Result<void> set_xattr(const InodePtr& file, const char* name, std::string_view value, int flags,
                         const Caller& caller, const KernelRequest& request = {});
  Result<void> remove_xattr(const InodePtr& file, const char* name,
                            const KernelRequest& request = {});

  Result<struct stat> stat_of(const InodePtr& inode);
  // The same, but avoids a system call if `found`, from a lookup just now, is still right.
  // `switches` is NamesLock::switches() before that lookup.
  struct stat stat_of(const InodePtr& inode, const Located& found, std::uint64_t switches);
  // What the tier reports, without the changes that ShownTimes makes.
  Result<struct statx> statx_on_tier(const InodePtr& inode);
  // How long the kernel may cache the attributes: not at all while a mapping may change them.
  double cache_seconds(const InodePtr& inode);

 private:
  void note_kernel_attributes(Inode& inode, const struct stat& st);
  Result<struct stat> stat_of_file(const InodePtr& file);
  Result<struct stat> stat_of_directory(const InodePtr& directory);
  std::optional<timespec> born_at(const InodePtr& inode);
  Result<void> change_copies(const InodePtr& directory,
                             const std::function<Result<void>(const SharedFd&)>& change);

  const Parts parts_;
};

}  // namespace sluice
