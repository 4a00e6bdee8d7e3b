// SPDX-License-Identifier: BSD-2-Clause
// ShownTimes hides moves from the times that users see. A ctime cannot be set: a file's copy on
// another tier gets a new one, and so does a directory when a move adds or removes a name in it.
// ShownTimes therefore remembers, for each copy, the ctime that the move caused and the ctime to
// show instead. If the copy's ctime is any other, a user has changed the file since, and the real
// ctime is shown.
//
// In memory the times are part of the inode (InodeTimes). flush() writes them to the store. If they
// are lost, a move becomes visible in a ctime; nothing else depends on them.
//
// Threads: thread-safe. Lock order: directory_mutex() after Namespace::lock and before an inode.
#pragma once

#include <sys/stat.h>

#include <array>
#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <set>
#include <vector>

#include "base/mutex.hpp"
#include "base/result.hpp"
#include "fs/core/inode.hpp"
#include "metadata/store.hpp"
#include "tiering/pool.hpp"

namespace sluice {

class ShownTimes {
 public:
  ShownTimes(const Pool& pool, Store& store) : pool_(pool), store_(store) {}

  // Loads the inode's times from the store, unless that was done before. Needed for files that may
  // have moved before the kernel looked them up.
  void load(Inode& inode);

  // Replaces the times in `st`, which the tier reported for the inode's copy, by the times to show.
  void show(const InodeState& inode, TierIndex tier, struct stat& st) const;
  // When the file was created; nothing if the birth time of its copy is right.
  std::optional<timespec> birth(const InodeState& file) const;

  // Records that the file `source` on the tier `from` was replaced by `copy` on `to`, which has all
  // of its names. Returns the copy's ctime. REQUIRES: no user can change either file.
  std::int64_t moved(Inode& file, TierIndex from, int source, TierIndex to, int copy);
  // The same for a file that is being written. Its ctime changes anyway, so only its birth time is
  // kept.
  void moved_while_written(Inode& file, TierIndex from, int source, TierIndex to);
  // Has the inode's times written to the store by the next flush().
  void save(Inode& inode);

  // Runs `act`, which adds a name to the directory's copy `fd` on `tier` or removes one, and hides
  // the change: the atime and mtime of the copy are restored, and the old ctime is shown. If a user
  // changes names in the directory at the same time, the new times stay.
  Result<void> change_with_old_times(Inode& directory, TierIndex tier, int fd,
                                     const std::function<Result<void>()>& act);
  // Records the new copy `made` of the directory, with the attributes of its copy `original` on
  // `tier`. The times shown stay the same. REQUIRES: users cannot see the new copy yet.
  void directory_copied(Inode& directory, TierIndex tier, int original, const Located& made);

  // Exists while a user changes names in the directory.
  class NameChange {
   public:
    explicit NameChange(Inode& directory);
    ~NameChange();
    NameChange(const NameChange&) = delete;
    NameChange& operator=(const NameChange&) = delete;

   private:
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
    Inode& directory_;
    Mutex& mutex_;
  };

  // Waits until a change would get a ctime later than `ctime`.
  static void wait_until_past(std::int64_t ctime);

  // Removes the times of an inode that was deleted.
  void forget(InodeId id);
  // Writes the changes since the last call to the store.
  void flush();

 private:
  Mutex& directory_mutex(const Inode& directory) {
    return directory_mutexes_[(to_number(directory.id()) * 0x9e3779b97f4a7c15U) >> 58];
  }
  std::uint8_t slot(TierIndex tier) const {
    return static_cast<std::uint8_t>(pool_[tier].member().slot);
  }
  void record_move(const Inode& file, InodeState& state, TierIndex from, std::int64_t born,
                   KeptTimes::Copy arrived);
  void write_later(InodeId id, KeptTimes times);

  const Pool& pool_;
  Store& store_;
  std::array<Mutex, 64> directory_mutexes_;  // shared by all directories; see directory_mutex()
  Mutex mutex_;
  std::map<InodeId, KeptTimes> changed_ GUARDED_BY(mutex_);
  std::set<InodeId> gone_ GUARDED_BY(mutex_);
};

}  // namespace sluice
