// SPDX-License-Identifier: BSD-2-Clause
// A DirectoryStream lists one open directory. A directory with one copy is read piece by piece,
// with the offsets of its tier. A directory with several copies is read completely by the first
// call, and each name is listed once, for the fastest tier that has it. Reading from offset 0
// starts again with the current names.
//
// The names of several copies are ordered by a hash, and the hash is the offset. So a listing can
// be continued at any offset by another stream that has read the names anew, in this daemon or in
// its successor: each name that was there all the time is listed exactly once. (If two names have
// the same hash, a listing that is continued between them lists the first one again.)
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
#include "fs/core/directory_tree.hpp"
#include "fs/core/namespace.hpp"

namespace sluice {

// What the offsets of a listing mean. Plain data: it is handed over to a successor, which continues
// the listing.
struct alignas(2) ListingMode {  // so that it can be an atomic
  enum class Kind : std::uint8_t {
    Undecided,  // nothing was read
    OneTier,    // offsets of one tier: the directory had one copy when the listing began
    Merged,     // hashes of the names
  };
  Kind kind = Kind::Undecided;
  std::uint8_t slot = 0;  // of that tier

  bool operator==(const ListingMode&) const = default;
};

class DirectoryStream {
 public:
  using Mode = ListingMode;

  struct Item {
    std::string name;
    unsigned char type;  // DT_*
    off_t next;          // the offset of the item after this one
    std::uint64_t inode_number;
  };

  // Whether the items need inode_number. readdirplus does not: it looks each name up anyway.
  enum class Numbers { Wanted, NotWanted };

  // `mode` is that of the stream whose listing is continued.
  DirectoryStream(DirectoryTree& tree, Namespace& names, InodePtr directory, Mode mode = {});
  ~DirectoryStream();
  DirectoryStream(const DirectoryStream&) = delete;
  DirectoryStream& operator=(const DirectoryStream&) = delete;

  InodeId directory() const { return directory_->id(); }
  // Changes only in read().
  Mode mode() const { return mode_; }

  // Whether the directory is so large that read() should not run in a thread that takes requests
  // from the kernel. The first read of a directory with several copies reads all names, and looking
  // up names may wait for a disk.
  bool may_take_long();

  // Calls `take` with the items from `offset` on, until it returns false or there are no more. An
  // item for which it returned false is passed again by the next call. If the directory has a copy
  // on a tier that is offline, the listing ends with EIO, so that users do not take the missing
  // names for deleted.
  Result<void> read(off_t offset, Numbers numbers, const std::function<bool(const Item&)>& take);

 private:
  struct Raw {
    std::string name;
    unsigned char type;
    off_t next;
    TierIndex tier;  // the tier that has it
  };

  Result<void> load(off_t offset) REQUIRES(mutex_);
  Result<void> open_anew(Mode mode) REQUIRES(mutex_);
  Result<bool> more() REQUIRES(mutex_);
  Result<void> load_merged() REQUIRES(mutex_);
  Result<void> read_names(DirectoryNames& names) REQUIRES(mutex_);
  Raw item() const REQUIRES(mutex_);
  std::size_t count() const REQUIRES(mutex_);
  std::uint64_t number_of(const Raw& raw) REQUIRES(mutex_);
  // Delays moves while a listing that takes several calls is running: it would miss a file that
  // moves to a tier that it does not read.
  void set_listing(bool listing) REQUIRES(mutex_);

  DirectoryTree& tree_;
  Namespace& namespace_;
  const InodePtr directory_;
  Mutex mutex_;
  bool loaded_ GUARDED_BY(mutex_) = false;
  bool listing_ GUARDED_BY(mutex_) = false;
  bool complete_ GUARDED_BY(mutex_) = true;
  // Determined by may_take_long(). Atomic, because may_take_long() must not wait for a thread in
  // read().
  enum class Size { Unknown, Small, Large };
  std::atomic<Size> size_{Size::Unknown};
  std::atomic<Mode> mode_;                           // atomic, so that mode() need not wait, either
  std::vector<OpenCopy> copies_ GUARDED_BY(mutex_);  // those that are read
  UniqueFd single_ GUARDED_BY(mutex_);  // OneTier: that copy, opened for this stream's position
  std::shared_ptr<const DirectoryNames> names_ GUARDED_BY(mutex_);  // Merged
  std::vector<Raw> items_ GUARDED_BY(mutex_);  // OneTier: from the last getdents64
  std::size_t at_ GUARDED_BY(mutex_) = 0;
  off_t position_ GUARDED_BY(mutex_) = 0;  // the offset of item()
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
