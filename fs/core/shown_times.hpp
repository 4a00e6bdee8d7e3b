// SPDX-License-Identifier: BSD-2-Clause
// ShownTimes hides moves from the times that users see. The kernel sets a ctime itself, and nobody
// can set one back: the copy of a file on another tier gets a new one, and so does a directory into
// or out of which a name goes. What was shown before is shown until something else changes the
// file. An exact ctime tells: it is the one that our last change left, or somebody made another.
//
// In memory the times are the inode's (InodeTimes); in the store they are written behind, and
// losing them makes a move visible, no more.
//
// Threads: every member may be called from any thread at once. Lock order: a directory's turn comes
// after Filesystem's locks and before an inode's.
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

  // Asks the store, the first time, what it knows of the inode. Needed for what may have been moved
  // before the kernel looked it up.
  void load(Inode& inode);

  // Puts into `st`, which the tier says of the inode's copy there, the times that are shown.
  void show(const InodeState& inode, TierIndex tier, struct stat& st) const;
  // When the file was made; nothing if its copy says so itself.
  std::optional<timespec> birth(const InodeState& file) const;

  // The file `source` on the tier `from` goes on as `copy` on `to`, which has all its names.
  // Returns the copy's ctime. REQUIRES: nobody can change either file.
  std::int64_t moved(Inode& file, TierIndex from, int source, TierIndex to, int copy);
  // The same for a file that is being written, whose ctime changes anyway: only its birth is kept.
  void moved_while_written(Inode& file, TierIndex from, int source, TierIndex to);
  // The move is done: the store is told.
  void keep(Inode& inode);

  // Runs `act`, which puts a name into the directory's copy `fd` on `tier` or takes one out, behind
  // the users' backs: the copy keeps its atime and mtime, and is shown with the ctime it had. If a
  // user changes names there at the same time, the new times stay.
  Result<void> change_unseen(Inode& directory, TierIndex tier, int fd,
                             const std::function<Result<void>()>& act);
  // The directory has a new copy `made`, with the attributes of its copy `original` on `tier`. It
  // is no younger for that. Called before anybody can see the copy.
  void copied(Inode& directory, TierIndex tier, int original, const Located& made);

  // While one lives, a user changes names in the directory.
  class NameChange {
   public:
    explicit NameChange(Inode& directory);
    ~NameChange();
    NameChange(const NameChange&) = delete;
    NameChange& operator=(const NameChange&) = delete;

   private:
    Inode& directory_;
  };
  // While one lives, a user changes attributes of the directory, and nothing is changed unseen.
  class AttributeChange {
   public:
    AttributeChange(ShownTimes& times, Inode& directory) NO_THREAD_SAFETY_ANALYSIS;
    ~AttributeChange() NO_THREAD_SAFETY_ANALYSIS;
    AttributeChange(const AttributeChange&) = delete;
    AttributeChange& operator=(const AttributeChange&) = delete;

   private:
    Inode& directory_;
    Mutex& turn_;
  };

  // Returns once whatever is changed from now on gets a later ctime than that.
  static void wait_until_past(std::int64_t ctime);

  // The inode is no more.
  void forget(InodeId id);
  // Writes to the store what changed since the last call.
  void flush();

 private:
  Mutex& turn(const Inode& directory) {
    return turns_[(to_number(directory.id()) * 0x9e3779b97f4a7c15U) >> 58];
  }
  std::uint8_t slot(TierIndex tier) const {
    return static_cast<std::uint8_t>(pool_[tier].member().slot);
  }
  void arrive(const Inode& file, InodeState& state, TierIndex from, std::int64_t born,
              KeptTimes::Copy arrived);
  void write_later(InodeId id, KeptTimes times);

  const Pool& pool_;
  Store& store_;
  std::array<Mutex, 64> turns_;  // each directory's is one of them
  Mutex mutex_;
  std::map<InodeId, KeptTimes> changed_ GUARDED_BY(mutex_);
  std::set<InodeId> gone_ GUARDED_BY(mutex_);
};

}  // namespace sluice
