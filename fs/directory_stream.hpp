// SPDX-License-Identifier: BSD-2-Clause
// A DirectoryStream is one open directory being listed. Its tiers are read one after the other,
// fastest first, as they give their names; a name on a slower tier is left out if a faster one has
// it. Nothing is remembered but the position: a user may have hundreds of listings of a large
// directory open. Rewinding to offset 0 reads anew.
//
// An offset says which tier is being read and where in it, so it means the same in every stream:
// the kernel keeps listings, and goes on with one stream where it began with another.
//
// Moves. A file that changes its tier meanwhile could be missed or shown twice. Moves out of a
// directory that is being listed wait (Inode::listings), but those that are under way when the
// listing begins, and those that have waited too long, don't. Their names are known
// (Inode::moved_names); the stream remembers which of them it has shown, and shows the rest at the
// end. Only if a listing was left alone for a minute, and a file moved off the very tier that it
// was reading, it may show that file twice.
//
// Threads: the kernel sends one readdir at a time per open directory, but not always from one
// thread: members lock.
#pragma once

#include <sys/types.h>

#include <memory>
#include <string>
#include <unordered_map>
#include <vector>

#include "base/mutex.hpp"
#include "fs/filesystem.hpp"

namespace sluice {

class DirectoryStream {
 public:
  struct Item {
    std::string name;
    unsigned char type;  // DT_*
    off_t next;          // the offset that continues behind this item
    std::uint64_t inode_number;
  };

  // `numbers` says whether the items need st_ino: readdirplus looks each name up anyway.
  enum class Numbers { Wanted, NotWanted };

  DirectoryStream(Filesystem& filesystem, InodePtr directory)
      : filesystem_(filesystem), directory_(std::move(directory)) {}

  ~DirectoryStream();
  DirectoryStream(const DirectoryStream&) = delete;
  DirectoryStream& operator=(const DirectoryStream&) = delete;

  InodeId directory() const { return directory_->id(); }
  const InodePtr& inode() const { return directory_; }

  // Calls `take` with the items from `offset` on, until it says false or there are no more. An item
  // that was refused comes again. EIO at the end of a directory part of which is on a tier that is
  // offline: nobody shall think that the rest was deleted.
  Result<void> read(off_t offset, Numbers numbers, const std::function<bool(const Item&)>& take);

 private:
  struct Raw {
    std::string name;
    unsigned char type;
    off_t next;
    std::uint64_t number;  // st_ino, 0 if it is not known yet
  };
  // A name that changes its tier while we list.
  struct Watched {
    TierIndex only_on = kNoTier;  // a directory: it is shown for this tier, and for no other
    bool is_shown = false;        // a file, for whatever tier
    off_t shown_at = 0;           // the offset behind it
  };

  Result<void> load(off_t offset) REQUIRES(mutex_);
  Result<void> seek(off_t offset) REQUIRES(mutex_);
  Result<bool> more() REQUIRES(mutex_);
  Result<bool> read_copy() REQUIRES(mutex_);
  void add_moved(std::uint64_t place) REQUIRES(mutex_);
  enum class Phase { Beginning, UnderWay };
  void watch_moves(Phase phase) REQUIRES(mutex_);
  bool is_elsewhere(const Raw& raw) REQUIRES(mutex_);
  std::uint64_t number_of(const Raw& raw) REQUIRES(mutex_);
  // One that takes several calls must not miss a file that moves to a tier it does not read: moves
  // wait for it.
  void set_listing(bool listing) REQUIRES(mutex_);

  Filesystem& filesystem_;
  const InodePtr directory_;
  Mutex mutex_;
  bool loaded_ GUARDED_BY(mutex_) = false;
  bool listing_ GUARDED_BY(mutex_) = false;
  bool complete_ GUARDED_BY(mutex_) = true;
  std::vector<Filesystem::OpenCopy> copies_ GUARDED_BY(mutex_);
  std::size_t copy_ GUARDED_BY(mutex_) = 0;  // the one being read; behind the last: the moved names
  UniqueFd fd_ GUARDED_BY(mutex_);  // a position of our own in it; absent: at its beginning
  std::vector<Raw> items_ GUARDED_BY(mutex_);  // what the last getdents gave
  std::size_t at_ GUARDED_BY(mutex_) = 0;
  off_t position_ GUARDED_BY(mutex_) = 0;  // the offset of items_[at_]
  std::unordered_map<std::string, Watched> watched_ GUARDED_BY(mutex_);
  std::uint64_t old_moves_ GUARDED_BY(mutex_) =
      0;  // MovedName::number of those that were there when we began
};

// The open directories, by the number that the kernel is given for each. Threads: any thread, any
// time.
class DirectoryStreams {
 public:
  std::uint64_t add(std::shared_ptr<DirectoryStream> stream) {
    MutexLock lock(mutex_);
    streams_[++last_] = std::move(stream);
    return last_;
  }
  // nullptr for a number that was never given or is closed.
  std::shared_ptr<DirectoryStream> find(std::uint64_t number) const {
    MutexLock lock(mutex_);
    const auto found = streams_.find(number);
    return found == streams_.end() ? nullptr : found->second;
  }
  void remove(std::uint64_t number) {
    std::shared_ptr<DirectoryStream> last;  // closed after the lock is gone
    MutexLock lock(mutex_);
    const auto found = streams_.find(number);
    if (found == streams_.end()) return;
    last = std::move(found->second);
    streams_.erase(found);
  }

 private:
  mutable Mutex mutex_;
  std::uint64_t last_ GUARDED_BY(mutex_) = 0;
  std::unordered_map<std::uint64_t, std::shared_ptr<DirectoryStream>> streams_ GUARDED_BY(mutex_);
};

}  // namespace sluice
