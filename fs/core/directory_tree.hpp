// SPDX-License-Identifier: BSD-2-Clause
// DirectoryTree finds things across the tiers: the inode of an id, of a name or of a path, and the
// copies that a directory has. It makes missing copies of directories and keeps a bounded number of
// directory descriptors open.
//
// A directory can have a copy on each tier; the copies have one identity. A file is on one tier.
// What a name means is decided by identity, never by the name alone.
//
// Threads: every member may be called from any thread at once.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "base/mutex.hpp"
#include "base/result.hpp"
#include "fs/core/fd_cache.hpp"
#include "fs/core/inode_table.hpp"
#include "fs/core/namespace.hpp"
#include "fs/core/shown_times.hpp"
#include "tiering/pool.hpp"

namespace sluice {

// A copy of a directory, opened.
struct OpenCopy {
  Tier* tier;
  SharedFd fd;
  int get() const { return fd->get(); }
};

struct OpenCopies {
  std::vector<OpenCopy> reachable;  // fastest tier first
  bool complete = true;             // false: a copy is, or may be, on a tier that is offline
};

class DirectoryTree {
 public:
  DirectoryTree(Pool& pool, InodeTable& table, ShownTimes& times, Namespace& names);

  // The inode with this id. If the kernel forgot it (an NFS handle), it is looked for on its tier;
  // ESTALE if it is gone.
  Result<InodePtr> inode(InodeId id, NamesLock held = NamesLock::Free);

  Result<OpenCopies> open_copies(const InodePtr& directory);
  // ENOENT if the directory has no copy on that tier, EIO if the tier is offline.
  Result<OpenCopy> open_copy(const InodePtr& directory, TierIndex tier);
  // The same, but a missing copy is made, with its ancestors. ENAMETOOLONG if too many of them are
  // missing. REQUIRES: Namespace::lock is held.
  Result<OpenCopy> ensure_copy(const InodePtr& directory, TierIndex tier);

  // Every copy of `name`, fastest tier first; more than one only for directories. Empty if the name
  // does not exist.
  Result<std::vector<Located>> locate(const OpenCopies& directory, const char* name,
                                      NamesLock held);
  // What the kernel means by `name`. ESTALE if the file that the kernel was told of does not have
  // the name any more: the kernel then looks the name up, checks permissions and asks again.
  Result<std::vector<Located>> locate_told(const InodePtr& parent, const OpenCopies& directory,
                                           const char* name, NamesLock held);
  // The file that `name` means, if a move of it might be under way; nullptr otherwise.
  InodePtr moving_file(const InodePtr& directory, const char* name, NamesLock held);

  // The inode of a name, with one lookup more that the caller must take back with forget().
  struct Lookup {
    InodePtr inode;  // nullptr: there is no such name
    std::vector<Located> found;
    bool complete = true;        // false: the name may exist on a tier that is offline
    std::uint64_t switches = 0;  // Namespace::switches() before it was found
  };
  Result<Lookup> look_up(const InodePtr& directory, const char* name, NamesLock held,
                         InodeTable::Told told);
  // Looks up every name of `path`. Each inode on the way, the last included, has one lookup more;
  // `references` lists them.
  Result<InodePtr> walk(std::string_view path, std::vector<InodeId>& references,
                        NamesLock held = NamesLock::Free);

  // The path below a tier's root, from the names that the inodes remember. Empty if those do not
  // lead to the root.
  std::string path_of(const InodePtr& inode) const;
  // The parent that the inode remembers; nullptr if it is not in memory.
  InodePtr parent_of(const InodePtr& inode) const;

  // EEXIST if a file on a faster tier would hide `name` once that is on the tier `to`.
  Result<void> check_that_nothing_hides(const InodePtr& parent, const std::string& name,
                                        TierIndex from, TierIndex to);

  // Looks for copies of the known directories on a tier that came back. Returns the directories
  // that the kernel should ask about again. REQUIRES: Namespace::lock is held.
  std::vector<InodeId> rediscover_all(TierIndex tier);
  // The directory may have a copy on a tier that is offline.
  void set_partly_unknown(InodeId id);
  // Every directory may have a copy on this new tier.
  void tier_added(TierIndex tier);
  // Closes the descriptors on that tier, so that its disk can be unmounted.
  void tier_went(TierIndex tier);

 private:
  struct KnownName {
    InodePtr parent;
    std::string name;
  };
  Result<InodePtr> resolve_forgotten(InodeId id, NamesLock held);
  Result<std::vector<Located>> locate_once(const OpenCopies& directory, const char* name);
  Result<std::vector<Located>> merge(const OpenCopies& directory, const char* name);
  bool take_identity(const Located& copy, const Identity& identity, const char* name);
  Result<KnownName> current_name(const InodePtr& directory);
  Result<OpenCopy> replicate(const InodePtr& directory, TierIndex tier);
  Result<OpenCopy> copy_directory(const InodePtr& directory, const std::string& name,
                                  const InodePtr& parent, const OpenCopy& new_parent);
  void rediscover(const InodePtr& directory, TierIndex tier);

  Pool& pool_;
  InodeTable& table_;
  ShownTimes& times_;
  Namespace& names_;
  FdCache fd_cache_;
  Mutex replicate_;  // one directory copy is made at a time
};

// Whether what was found is a directory.
bool is_directory(const std::vector<Located>& found);
// Whether the name is that of Sluice's own directory on each tier, which the mount does not show.
bool is_private(const Inode& parent, const char* name);
// Whether the directory `name` in `parent` is empty.
Result<bool> is_empty(int parent, const char* name);

}  // namespace sluice
