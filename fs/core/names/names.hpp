// SPDX-License-Identifier: BSD-2-Clause
// Names looks up, makes, links, renames and removes the names of the mount. It relies on the kernel
// to check permissions, to serialise changes of one directory, and to send only ids that it has
// learned and not forgotten.
//
// Threads: thread-safe.
#pragma once

#include <sys/stat.h>

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "base/result.hpp"
#include "fs/core/budget/budgets.hpp"
#include "fs/core/inodes/caller.hpp"
#include "fs/core/inodes/engine_link.hpp"
#include "fs/core/inodes/inode_table.hpp"
#include "fs/core/inodes/kernel_request.hpp"
#include "fs/core/inodes/names_lock.hpp"
#include "fs/core/inodes/shown_times.hpp"
#include "fs/core/names/attributes.hpp"
#include "fs/core/tree/away_tiers.hpp"
#include "fs/core/tree/descriptors.hpp"
#include "fs/core/tree/directory_stream.hpp"
#include "fs/core/tree/directory_tree.hpp"
#include "fs/core/tree/pins.hpp"
#include "tiering/move/intent.hpp"
#include "tiering/pool/twins.hpp"

namespace sluice {

// The reply to a lookup. If `id` is 0, the name does not exist; the kernel may cache that, too.
struct Entry {
  InodeId id{};
  std::uint32_t generation = 0;
  struct stat st {};
  double entry_seconds = kCacheSeconds;
  double attribute_seconds = kCacheSeconds;
};

class Names {
 public:
  struct Parts {
    Pool& pool;
    Store& store;
    InodeTable& table;
    NamesLock& names_lock;
    DirectoryTree& tree;
    Descriptors& descriptors;
    ShownTimes& times;
    AwayTiers& away;
    Attributes& attributes;
    Pins& pins;
    EngineLink& engine;
    Budgets& budgets;
    BudgetTrees& budget_trees;
    std::function<void(InodeId)> file_is_gone;  // called when a file loses its last name
  };
  explicit Names(const Parts& parts) : parts_(parts) {}

  Result<Entry> lookup(InodeId parent, const char* name);
  void forget(InodeId id, std::uint64_t count) { parts_.table.forget(id, count); }
  Result<Entry> mknod(InodeId parent, const char* name, mode_t mode, dev_t device,
                      const Caller& caller, const KernelRequest& request = {});
  Result<Entry> mkdir(InodeId parent, const char* name, mode_t mode, const Caller& caller,
                      const KernelRequest& request = {});
  Result<Entry> symlink(const char* target, InodeId parent, const char* name, const Caller& caller,
                        const KernelRequest& request = {});
  Result<Entry> link(InodeId id, InodeId new_parent, const char* new_name,
                     const KernelRequest& request = {});
  Result<void> unlink(InodeId parent, const char* name, const KernelRequest& request = {});
  // Removes all names of a file, for a budget, not for a user. `agree` is called for each name with
  // what was found and the copy of the directory, before the first name is removed. ESTALE if a
  // name is not that of the file any more. The kernel must be told afterwards. REQUIRES: nobody can
  // open the file (InodeState::is_doomed); it has no other names.
  struct Place {
    InodePtr parent;
    std::string name;
  };
  using Agree = std::function<Result<void>(const Located& found, const OpenCopy& directory)>;
  Result<void> remove_unused(const InodePtr& file, const std::vector<Place>& names,
                             const Agree& agree);
  Result<void> rmdir(InodeId parent, const char* name, const KernelRequest& request = {});
  Result<void> rename(InodeId parent, const char* name, InodeId new_parent, const char* new_name,
                      unsigned flags, const KernelRequest& request = {});
  Result<std::string> readlink(InodeId id);
  Result<std::unique_ptr<DirectoryStream>> open_directory(InodeId id);
  Result<void> sync_directory(InodeId id);

  // Gives the twin of a file that was on a lost tier the names that the file had when it was moved
  // there, and its owner and mode of that time. Returns one of its paths. EEXIST if other files
  // have the names, ESTALE if the directories are gone.
  Result<std::string> bring_back(const Twins::Survivor& twin);

  // A file to be made. An empty name means that it gets none.
  struct NewFile {
    const char* name;
    mode_t type;  // S_IF*
    uid_t owner;
  };
  // Creates a file in `parent`: calls `make(copy)` for one tier after the other, best first, until
  // one has room. If the request is repeated and the first attempt has made the file, returns that
  // one. CHECKED: NamesLock::mutex is held.
  Result<Located> place_new(const InodePtr& parent, const NewFile& file,
                            const KernelRequest& request,
                            const std::function<Result<Located>(const OpenCopy&)>& make);
  // The entry for what was found. Adds a reference, because the kernel counts each entry as a
  // lookup.
  Result<Entry> entry_with_reference(const std::vector<Located>& found, const InodePtr& parent,
                                     const char* name);

 private:
  using Spares = DirectoryTree::Spares;
  Result<Entry> lookup_self_or_parent(InodeId id, bool parent);
  Entry entry_of(const InodePtr& inode, const Located& found, std::uint64_t switches);
  Result<Entry> make(InodeId parent, const NewFile& file, const KernelRequest& request,
                     const std::function<Result<void>(int directory)>& make_it);
  Result<Entry> try_link(InodeId id, InodeId new_parent, const char* new_name,
                         const KernelRequest& request);
  // `file` is the inode of `victim`.
  void keep_open_after_unlink(const Located& victim, const InodePtr& file);
  // The file `victim` has lost its last name.
  void last_name_gone(const Located& victim, const InodePtr& file);
  void set_removed(const std::vector<Located>& directory, bool removed);
  void set_removed(const InodePtr& directory, bool removed);
  // After a directory was removed. Does nothing for other files.
  void end_budget(InodeId directory);
  // Whether the first attempt at this request has removed `name`.
  Result<bool> was_removed(const OpenCopies& parent, const char* name,
                           const KernelRequest& request);
  Result<void> unlink_locked(const InodePtr& directory, const char* name,
                             const KernelRequest& request) REQUIRES_SHARED(parts_.names_lock.mutex);

  // names_rename.cpp
  struct RenameAttempt;
  Result<void> rename_locked(const InodePtr& from, const char* name, const InodePtr& to,
                             const char* new_name, unsigned flags, const KernelRequest& request,
                             RenameAttempt& attempt);
  Result<void> rename_located(const InodePtr& from, const char* name,
                              const std::vector<Located>& source, const InodePtr& to,
                              const char* new_name, const std::vector<Located>& target,
                              unsigned flags, const KernelRequest& request, RenameAttempt& attempt);
  void renamed(const InodePtr& from, const char* name, const std::vector<Located>& source,
               const InodePtr& to, const char* new_name, const std::vector<Located>& target,
               unsigned flags);
  void count_renamed(const InodePtr& from, const char* name, const std::vector<Located>& source,
                     const InodePtr& to, const char* new_name, const std::vector<Located>& target,
                     unsigned flags);
  // Whether the first attempt at this request has renamed the file. If so, records it in memory.
  Result<bool> was_renamed(const InodePtr& from, const OpenCopies& from_copies, const char* name,
                           const InodePtr& to, const OpenCopies& to_copies, const char* new_name,
                           unsigned flags, const KernelRequest& request);
  Result<std::vector<Step>> rename_steps(const InodePtr& parent, const char* name,
                                         const std::vector<Located>& source,
                                         const InodePtr& new_parent, const char* new_name,
                                         const std::vector<Located>& target, unsigned flags);

  const Parts parts_;
};

}  // namespace sluice
