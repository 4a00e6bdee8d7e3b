// SPDX-License-Identifier: BSD-2-Clause
// A DirectoryStream lists one open directory. The first call reads the names of all its copies, and
// each name is listed once, for the fastest tier that has it. Reading from offset 0 starts again
// with the current names.
//
// The names are ordered by a hash, and the hash is the offset. So a listing can be continued at any
// offset by another stream that has read the names anew, in this daemon or in its successor, and
// also where the kernel has listed the names before that offset from its cache: each name that was
// there all the time is listed exactly once. (If two names have the same hash, a listing that is
// continued between them lists the first one again.)
//
// Streams of the same directory share the names that were read completely, as long as the directory
// does not change: a user may have hundreds of listings of a large directory open.
//
// Threads: thread-safe. The kernel sends one readdir at a time per open directory, but different
// threads may take them.
#pragma once

#include <sys/types.h>

#include <atomic>
#include <functional>
#include <memory>
#include <string>
#include <unordered_map>
#include <vector>

#include "base/mutex.hpp"
#include "fs/core/inodes/lock_order.hpp"
#include "fs/core/inodes/names_lock.hpp"
#include "fs/core/tree/directory_tree.hpp"

namespace sluice {

class DirectoryStream {
 public:
  struct Item {
    std::string name;
    unsigned char type;  // DT_*
    off_t next;          // the offset of the item after this one
    std::uint64_t inode_number;
  };

  // Whether the items need inode_number. readdirplus does not: it looks each name up anyway.
  enum class Numbers { Wanted, NotWanted };

  DirectoryStream(DirectoryTree& tree, NamesLock& names_lock, InodePtr directory)
      : tree_(tree), names_lock_(names_lock), directory_(std::move(directory)) {}

  InodeId directory() const { return directory_->id(); }

  // Whether the directory is so large that read() should not run in a thread that takes requests
  // from the kernel. The first read reads all names, and looking up names may wait for a disk.
  bool may_take_long();

  // Calls `take` with the items from `offset` on, until it returns false or there are no more. An
  // item for which it returned false is passed again by the next call. If the directory has a copy
  // on a tier that is offline, the listing ends with EIO, so that users do not believe that the
  // missing names were deleted.
  Result<void> read(off_t offset, Numbers numbers, const std::function<bool(const Item&)>& take);

 private:
  Result<void> load(off_t offset) REQUIRES(mutex_);
  Result<void> read_copies() REQUIRES(mutex_);
  Result<void> read_names(DirectoryNames& names) REQUIRES(mutex_);
  std::uint64_t number_of(const char* name, TierIndex tier) REQUIRES(mutex_);

  DirectoryTree& tree_;
  NamesLock& names_lock_;
  const InodePtr directory_;
  Mutex mutex_ ACQUIRED_AFTER(lock_order::listing) ACQUIRED_BEFORE(lock_order::names);
  bool complete_ GUARDED_BY(mutex_) = true;
  // Determined by may_take_long(). Atomic, because may_take_long() must not wait for a thread in
  // read().
  enum class Size { Unknown, Small, Large };
  std::atomic<Size> size_{Size::Unknown};
  std::vector<OpenCopy> copies_ GUARDED_BY(mutex_);
  std::shared_ptr<const DirectoryNames> names_ GUARDED_BY(mutex_);  // null: nothing is read yet
  std::size_t at_ GUARDED_BY(mutex_) = 0;                           // the next one of names_
  off_t position_ GUARDED_BY(mutex_) = 0;                           // its offset
};

namespace detail {
// The bits of a name's hash that are used. Tests set fewer, so that names have the same hash.
extern std::uint64_t listing_hash_bits;
}  // namespace detail

// DirectoryStreams owns the open directories. The kernel refers to each by a number.
// Threads: thread-safe.
class DirectoryStreams {
 public:
  // Returns the stream with this number: `stream`, unless there is one already.
  std::shared_ptr<DirectoryStream> add(std::uint64_t number,
                                       std::shared_ptr<DirectoryStream> stream) {
    MutexLock lock(mutex_);
    return streams_.try_emplace(number, std::move(stream)).first->second;
  }
  // nullptr if no open directory has this number.
  std::shared_ptr<DirectoryStream> find(std::uint64_t number) const {
    MutexLock lock(mutex_);
    const auto found = streams_.find(number);
    return found == streams_.end() ? nullptr : found->second;
  }
  void remove(std::uint64_t number) {
    std::shared_ptr<DirectoryStream> last;  // destroyed after the lock is released
    MutexLock lock(mutex_);
    const auto found = streams_.find(number);
    if (found == streams_.end()) return;
    last = std::move(found->second);
    streams_.erase(found);
  }

 private:
  mutable Mutex mutex_;
  std::unordered_map<std::uint64_t, std::shared_ptr<DirectoryStream>> streams_ GUARDED_BY(mutex_);
};

}  // namespace sluice
