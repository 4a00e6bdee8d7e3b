// SPDX-License-Identifier: BSD-2-Clause
// A DirectoryStream is one open directory being listed. A directory on one tier is read as the tier
// gives it, its offsets being the tier's own; one on several tiers is read whole, once, and each
// name shown for the fastest tier that has it. Rewinding to offset 0 reads anew.
//
// What was read whole is shared with other streams of the directory as long as it has not changed:
// a user may have hundreds of listings of a large directory open.
//
// Threads: the kernel sends one readdir at a time per open directory, but not always from one
// thread: members lock.
#pragma once

#include <sys/types.h>

#include <atomic>
#include <functional>
#include <memory>
#include <string>
#include <unordered_map>
#include <vector>

#include "base/mutex.hpp"
#include "fs/core/directory_tree.hpp"
#include "fs/core/namespace.hpp"

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

  DirectoryStream(DirectoryTree& tree, Namespace& names, InodePtr directory)
      : tree_(tree), namespace_(names), directory_(std::move(directory)) {}

  ~DirectoryStream();
  DirectoryStream(const DirectoryStream&) = delete;
  DirectoryStream& operator=(const DirectoryStream&) = delete;

  InodeId directory() const { return directory_->id(); }

  // Whether there are so many names that a call of read() had better hold up nobody: of a directory
  // on several tiers the first one reads all of them, and on a disk that must be read each name
  // that is looked up takes a while.
  bool may_take_long();

  // Calls `take` with the items from `offset` on, until it says false or there are no more. An item
  // that was refused comes again. EIO at the end of a directory part of which is on a tier that is
  // offline: nobody shall think that the rest was deleted.
  Result<void> read(off_t offset, Numbers numbers, const std::function<bool(const Item&)>& take);

 private:
  struct Raw {
    std::string name;
    unsigned char type;
    off_t next;
    TierIndex tier;  // that it is on
  };

  Result<void> load(off_t offset) REQUIRES(mutex_);
  Result<bool> more() REQUIRES(mutex_);
  Result<void> load_merged() REQUIRES(mutex_);
  Result<void> read_names(DirectoryNames& names) REQUIRES(mutex_);
  Raw item() const REQUIRES(mutex_);
  std::size_t count() const REQUIRES(mutex_);
  std::uint64_t number_of(const Raw& raw) REQUIRES(mutex_);
  // One that takes several calls must not miss a file that moves to a tier it does not read: moves
  // wait for it.
  void set_listing(bool listing) REQUIRES(mutex_);

  DirectoryTree& tree_;
  Namespace& namespace_;
  const InodePtr directory_;
  Mutex mutex_;
  bool loaded_ GUARDED_BY(mutex_) = false;
  bool listing_ GUARDED_BY(mutex_) = false;
  bool complete_ GUARDED_BY(mutex_) = true;
  // Known once it was asked for. No lock: whoever asks must not wait for one who reads.
  enum class Size { Unknown, Small, Large };
  std::atomic<Size> size_{Size::Unknown};
  std::vector<OpenCopy> copies_ GUARDED_BY(mutex_);
  UniqueFd single_ GUARDED_BY(mutex_);  // a position of our own in the only copy
  std::shared_ptr<const DirectoryNames> names_ GUARDED_BY(mutex_);  // of several copies
  std::vector<Raw> items_ GUARDED_BY(mutex_);  // of the only copy: what the last getdents gave
  std::size_t at_ GUARDED_BY(mutex_) = 0;
  off_t position_ GUARDED_BY(mutex_) = 0;  // the offset of item()
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
