// SPDX-License-Identifier: BSD-2-Clause
// ShownTimes hides moves from the times that users see: see tiering/pool/kept_times.hpp. It has the
// KeptTimes of the inodes in memory, as parts of the inodes, and in the store. The store has every
// change at once: a successor shows what its predecessor showed. If the store is lost, moves become
// visible in ctimes and birth times; nothing else depends on it.
//
// Threads: thread-safe. Lock order: fs/core/inodes/lock_order.hpp; directory_mutex() comes before
// saving_.
#pragma once

#include <sys/stat.h>

#include <array>
#include <cstdint>
#include <functional>
#include <optional>

#include "base/mutex.hpp"
#include "base/result.hpp"
#include "fs/core/inodes/inode.hpp"
#include "metadata/store.hpp"
#include "tiering/pool/kept_times.hpp"
#include "tiering/pool/pool.hpp"

namespace sluice {

class ShownTimes {
 public:
  ShownTimes(const Pool& pool, Store& store) : pool_(pool), store_(store) {}

  // Loads the inode's times from the store, unless that was done before. If a daemon died while it
  // changed the directory, this ends the change, unless the changed copy is not known yet.
  // REQUIRES: users cannot have changed the directory since.
  void load(Inode& inode);

  // Replaces the times in `st`, which the tier reported for the inode's copy, by the times to show.
  void show(const InodeState& inode, TierIndex tier, struct stat& st) const;
  // When the file was created; nothing if the birth time of its copy is right.
  std::optional<timespec> birth(const InodeState& file) const;

  // What users see of the file `source` on the tier `from`, which is about to move.
  ShownBefore before_move(Inode& file, TierIndex from, int source);
  // Records that the file on the tier `from` was replaced by `copy` on `to`, which has all of its
  // names. Returns the times to store. REQUIRES: no user can change either file.
  KeptTimes moved(Inode& file, TierIndex from, TierIndex to, int copy, const ShownBefore& before);

  // Runs `act`, which adds a name to the directory's copy `fd` on `tier` or removes one, and hides
  // the change: the atime and mtime of the copy are restored, and the old ctime is shown. If a user
  // changes names in the directory at the same time, the new times stay.
  Result<void> change_with_old_times(Inode& directory, TierIndex tier, int fd,
                                     const std::function<Result<void>()>& act);
  // The new copy `copy` of the directory on `to`, with the attributes of its copy `original` on
  // `from`, is renamed into place between these two calls. The times shown stay the same. REQUIRES:
  // users cannot see the new copy before.
  void copy_begins(Inode& directory, TierIndex from, int original, TierIndex to, int copy);
  void copy_ends(Inode& directory, TierIndex to, int copy);

  // Exists while a user changes names in the directory.
  class NameChange {
   public:
    NameChange(ShownTimes& times, Inode& directory);
    ~NameChange();
    NameChange(const NameChange&) = delete;
    NameChange& operator=(const NameChange&) = delete;

   private:
    ShownTimes& times_;
    Inode& directory_;
  };
  // Exists while a user changes attributes of the directory. Blocks change_with_old_times().
  class AttributeChange {
   public:
    AttributeChange(ShownTimes& times, Inode& directory) NO_THREAD_SAFETY_ANALYSIS;
    ~AttributeChange() NO_THREAD_SAFETY_ANALYSIS;
    AttributeChange(const AttributeChange&) = delete;
    AttributeChange& operator=(const AttributeChange&) = delete;

   private:
    ShownTimes& times_;
    Inode& directory_;
  };

  // Removes the times of a directory that was deleted from the store, or writes them there again.
  void forget(Inode& directory);
  void save(Inode& directory);

 private:
  static std::size_t index(const Inode& directory) {
    return (to_number(directory.id()) * 0x9e3779b97f4a7c15U) >> 58;
  }
  Mutex& directory_mutex(const Inode& directory) { return directory_mutexes_[index(directory)]; }
  std::uint8_t slot(TierIndex tier) const {
    return static_cast<std::uint8_t>(pool_[tier].member().slot);
  }
  void end_inherited_changes(Inode& directory, KeptTimes& times);

  const Pool& pool_;
  Store& store_;
  std::array<Mutex, 64> directory_mutexes_;  // shared by all directories; see directory_mutex()
  std::array<Mutex, 64> saving_;             // likewise; held while save() writes
};

}  // namespace sluice
