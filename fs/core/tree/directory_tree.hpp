// SPDX-License-Identifier: BSD-2-Clause
// DirectoryTree finds things across the tiers: the inode of an id, of a name or of a path, and the
// copies of a directory. It makes missing copies of directories. It owns the cache of open
// directory descriptors, whose size is bounded.
//
// A directory can have a copy on each tier; all copies have the same identity. A file is on one
// tier. Two directories with the same name are one directory only if their identities are equal.
//
// Threads: thread-safe.
#pragma once

#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "base/mutex.hpp"
#include "base/result.hpp"
#include "fs/core/inodes/fd_cache.hpp"
#include "fs/core/inodes/inode_table.hpp"
#include "fs/core/inodes/lock_order.hpp"
#include "fs/core/inodes/names_lock.hpp"
#include "fs/core/inodes/shown_times.hpp"
#include "tiering/heat/file_lists.hpp"
#include "tiering/pool/pool.hpp"

namespace sluice {

// An open copy of a directory.
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
  DirectoryTree(Pool& pool, InodeTable& table, ShownTimes& times, NamesLock& names_lock);

  // For those whose callers must hold NamesLock::mutex; see SharedMutex::assert_held_shared().
  void assert_names_held() { names_lock_.mutex.assert_held_shared(); }

  // The inode with this id. If the kernel has forgotten it (an NFS handle), it is searched for on
  // its tier. ESTALE if the file no longer exists.
  Result<InodePtr> inode(InodeId id, NamesHeld held = NamesHeld::No);

  Result<OpenCopies> open_copies(const InodePtr& directory);
  // ENOENT if the directory has no copy on that tier, EIO if the tier is offline.
  Result<OpenCopy> open_copy(const InodePtr& directory, TierIndex tier);
  // Like open_copy(), but makes a missing copy, together with its ancestors. ENAMETOOLONG if too
  // many of them are missing. If the tier is full, spare directories may be used, for a file that
  // exists already and only gets another name. CHECKED: NamesLock::mutex is held.
  enum class Spares { Keep, Use };
  Result<OpenCopy> ensure_copy(const InodePtr& directory, TierIndex tier,
                               Spares spares = Spares::Keep);
  // While one exists, no directory gets a copy on another tier.
  class SCOPED_CAPABILITY NoNewCopies {
   public:
    explicit NoNewCopies(DirectoryTree& tree) ACQUIRE(tree.replicate_) : tree_(tree) {
      tree_.replicate_.lock();
    }
    ~NoNewCopies() RELEASE() { tree_.replicate_.unlock(); }
    NoNewCopies(const NoNewCopies&) = delete;
    NoNewCopies& operator=(const NoNewCopies&) = delete;

   private:
    DirectoryTree& tree_;
  };
  // Makes the spare directories of the tiers that may become full. Called every second, by one
  // thread.
  void keep_spares();

  // Every copy of `name`, fastest tier first; more than one only for directories. Empty if the name
  // does not exist.
  Result<std::vector<Located>> locate(const OpenCopies& directory, const char* name,
                                      NamesHeld held);
  struct KernelName {
    std::vector<Located> found;  // empty: there is no such name
    InodePtr inode;              // of what was found
  };
  // Like locate(), but finds the file that the kernel knows under `name`, for operations that
  // remove or replace it. ESTALE if that file no longer has the name: the kernel then looks the
  // name up again, checks permissions and repeats its request.
  Result<KernelName> locate_for_kernel(const InodePtr& parent, const OpenCopies& directory,
                                       const char* name, NamesHeld held);
  // The file that the kernel knows under `name`, if it may be moving; nullptr otherwise.
  InodePtr moving_file(const InodePtr& directory, const char* name, NamesHeld held);

  // The inode of a name. Adds a reference, which the caller must return with InodeTable::forget().
  struct Lookup {
    InodePtr inode;  // nullptr: there is no such name
    std::vector<Located> found;
    bool complete = true;        // false: the name may exist on a tier that is offline
    std::uint64_t switches = 0;  // NamesLock::switches() before it was found
  };
  Result<Lookup> look_up(const InodePtr& directory, const char* name, NamesHeld held,
                         InodeTable::LookupBy who);
  // Looks up every name of `path`. Adds a reference to each inode on the way, including the last,
  // and lists their ids in `references`.
  Result<InodePtr> walk(std::string_view path, std::vector<InodeId>& references,
                        NamesHeld held = NamesHeld::No);

  // The path of the inode below a tier's root, made from the last known names. Empty if they do not
  // lead to the root.
  std::string path_of(const InodePtr& inode);
  // The parent in the inode's last known name; nullptr if it is not in memory.
  InodePtr parent_of(const InodePtr& inode) const;

  // EEXIST if a file on a faster tier would hide `name` once the file is on the tier `to`.
  Result<void> check_not_hidden(const InodePtr& parent, const std::string& name, TierIndex from,
                                TierIndex to);

  // Searches a tier that came online for copies of the known directories. Returns the directories
  // whose cached listings the kernel must drop. CHECKED: NamesLock::mutex is held.
  std::vector<InodeId> rediscover_all(TierIndex tier);
  // Records that the directory may have a copy on a tier that is offline.
  void set_partly_unknown(InodeId id);
  // Records that every directory may have a copy on this new tier.
  void tier_added(TierIndex tier);
  // Closes the descriptors on that tier, so that its disk can be unmounted.
  void tier_went_offline(TierIndex tier);
  // Forgets what was on the disk that another one has replaced. Requests for what was only there
  // then fail with ESTALE.
  // CHECKED: NamesLock::mutex is held exclusively, and the tier is offline.
  void tier_replaced(TierIndex tier);
  // The files on the tier that are in memory, by their last known names.
  std::vector<FileLists::File> files_on(TierIndex tier);

 private:
  struct KnownName {
    InodePtr parent;
    std::string name;
  };
  Result<InodePtr> resolve_forgotten(InodeId id, NamesHeld held);
  void learn_name(const InodePtr& inode);
  Result<std::vector<Located>> locate_once(const OpenCopies& directory, const char* name);
  Result<std::vector<Located>> merge(const OpenCopies& directory, const char* name);
  bool take_identity(const Located& copy, const Identity& identity, const char* name);
  Result<KnownName> current_name(const InodePtr& directory) REQUIRES(replicate_);
  Result<OpenCopy> replicate(const InodePtr& directory, TierIndex tier, Spares spares)
      REQUIRES(replicate_);
  Result<OpenCopy> copy_directory(const InodePtr& directory, const std::string& name,
                                  const InodePtr& parent, const OpenCopy& new_parent, Spares spares)
      REQUIRES(replicate_);
  Result<std::string> empty_directory(const Tier& tier, int temp, Spares spares)
      REQUIRES(replicate_);
  void rediscover(const InodePtr& directory, TierIndex tier) REQUIRES(replicate_);

  Pool& pool_;
  InodeTable& table_;
  ShownTimes& times_;
  NamesLock& names_lock_;
  FdCache fd_cache_;
  // One directory copy is made at a time.
  Mutex replicate_ ACQUIRED_AFTER(lock_order::copies) ACQUIRED_BEFORE(lock_order::table);
  // Names in spares_directory() of each tier.
  std::map<TierIndex, std::vector<std::string>> spares_ GUARDED_BY(replicate_);
};

// Whether what was found is a directory.
bool is_directory(const std::vector<Located>& found);
// Whether the name is that of Sluice's own directory on each tier, which the mount does not show.
bool is_private(const Inode& parent, const char* name);
// Whether the directory `name` in `parent` is empty.
Result<bool> is_empty(int parent, const char* name);

}  // namespace sluice
