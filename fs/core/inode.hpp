// SPDX-License-Identifier: BSD-2-Clause
// An Inode is what we remember of one file or directory while the kernel refers to it: who it is,
// where its copies are, and how it is open. There may be a million of them, so no descriptor and no
// path is kept without need.
//
// Threads: `mutex` guards what it is written to guard; identity and type never change.
#pragma once

#include <fcntl.h>
#include <sys/stat.h>

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "base/ids.hpp"
#include "base/mutex.hpp"
#include "metadata/store.hpp"
#include "tiering/identity.hpp"
#include "tiering/tier.hpp"

namespace sluice {

// One tier's copy. A regular file has exactly one; a directory has one wherever something in it
// lives.
struct Copy {
  TierIndex tier = kNoTier;
  FileHandle handle;  // empty: `fd` is the only way back to it, and is kept
  // For directories, a cached O_RDONLY descriptor that FdCache may take away. For others O_PATH,
  // where there is no handle, or after the last name was removed: the handle leads nowhere then.
  SharedFd fd;
};

// How a regular file is open. The first open chooses between the kernel's passthrough and our
// serving its pages, and all opens at the same time share the choice: the kernel allows no mixture.
struct OpenFile {
  bool passthrough = false;
  std::int32_t backing_id = 0;
  unsigned opens = 0;
  unsigned writers = 0;  // opens that can write
  unsigned mappers = 0;  // opens that could map the file shared and writable: those with O_RDWR
  SharedFd
      reader;  // O_RDONLY; absent until first needed when the kernel's page cache serves the file
  SharedFd writer;  // O_RDWR; absent until first needed
  // Some open of it skips the kernel's page cache.
  bool direct = false;
  // Of its tier's room, to those who write to it without our seeing it; see Tier::promise().
  std::uint64_t promised = 0;
  // Shared by whatever changes the file, exclusive while its bytes move to another tier. Absent
  // where they can't: the kernel writes the file itself, or nobody does.
  std::shared_ptr<SharedMutex> moving;
};

// A file's move to another tier, from the first byte copied to the last name changed. It gives way
// to whoever wants to change the file, up to the moment in which the names change hands; from then
// on they wait, for some syncs' time.
class FileMove {
 public:
  FileMove(SharedFd source, bool leased, TierIndex to)
      : source_(std::move(source)), leased_(leased), to_(to) {}

  int source() const { return source_->get(); }
  TierIndex to() const { return to_; }
  bool is_cancelled() const { return cancelled_.load(std::memory_order_relaxed); }
  // Somebody outside the mount may want the file, too: they wait for our lease.
  bool is_lease_broken() const { return leased_ && ::fcntl(source_->get(), F_GETLEASE) != F_RDLCK; }
  // Lets go of the lease, or the writer would wait for it.
  void cancel() {
    cancelled_ = true;
    end_lease();
  }
  void end_lease() {
    if (leased_) ::fcntl(source_->get(), F_SETLEASE, F_UNLCK);
  }

  bool is_switching = false;  // guarded by the inode's mutex: no way back any more

  void end() {
    MutexLock lock(mutex_);
    ended_ = true;
    wake_.notify_all();
  }
  void wait_for_end() {
    MutexLock lock(mutex_);
    while (!ended_) wake_.wait(mutex_);
  }

 private:
  const SharedFd source_;
  const bool leased_;
  const TierIndex to_;
  std::atomic<bool> cancelled_{false};  // read while copying; only ever turns true
  Mutex mutex_;
  CondVar wake_;
  bool ended_ GUARDED_BY(mutex_) = false;
};

// The times that are shown in place of those on the tiers; see ShownTimes.
struct InodeTimes {
  KeptTimes kept;
  // While we change names in a copy of this directory: the slot of its tier, 0 if there is none,
  // and the mtime that is shown for it.
  std::uint8_t changing = 0;
  std::int64_t mtime = 0;
  // Times that `changing` was set or cleared: who looked at a tier before that looks again.
  unsigned changes = 0;
};

// Names of a directory on several tiers, as a listing found them; fs/core/directory_stream.cpp.
struct DirectoryNames;

class Inode {
 public:
  Inode(Identity who, mode_t file_type) : identity(who), type(file_type & S_IFMT) {}

  const Identity identity;
  const mode_t type;
  InodeId id() const { return identity.id; }
  bool is_directory() const { return S_ISDIR(type); }

  // Opens that the heat recorder has not been told of yet; Filesystem::note_open(). No lock:
  // whoever raises it from 0 puts the inode on the list, whoever takes it to 0 has taken it off.
  std::atomic<std::uint32_t> new_opens{0};
  // Bytes read into GPUs that the heat recorder has not been told of; Filesystem::note_gpu_read().
  std::atomic<std::uint64_t> gpu_bytes{0};
  // Who opened the file last, for telling a walk over many files from use. No lock: a guess.
  std::atomic<pid_t> last_opener{0};
  // chattr +a, when the file was last opened for writing or its flags were set. No lock: a hint,
  // the tier's filesystem holds to the flag itself.
  std::atomic<bool> append_only{false};
  // Listings of this directory that are under way, and when they may be given up for dead, in
  // nanoseconds of the monotonic clock. No lock: whoever looks, looks again.
  std::atomic<int> listings{0};
  std::atomic<std::int64_t> listed_until{0};

  // Guarded by the table's shard: how many references the kernel holds.
  std::uint64_t lookups = 0;

  // Where its bytes are; of a directory, its fastest copy.
  Copy place() {
    MutexLock lock(mutex);
    return copies[0];
  }
  TierIndex tier() {
    MutexLock lock(mutex);
    return copies[0].tier;
  }
  // A name that it had when we last heard of it.
  struct Name {
    InodeId parent{};
    std::string text;
  };
  Name last_name() {
    MutexLock lock(mutex);
    return {parent, name};
  }
  void set_last_name(InodeId new_parent, std::string new_name) {
    MutexLock lock(mutex);
    parent = new_parent;
    name = std::move(new_name);
  }
  bool has_copy_on(TierIndex where) const REQUIRES(mutex) {
    return std::any_of(copies.begin(), copies.end(),
                       [&](const Copy& copy) { return copy.tier == where; });
  }
  // Adds a copy of a directory, or replaces what is known of the copy on that tier.
  void put_copy(Copy copy) REQUIRES(mutex) {
    const auto at = std::find_if(copies.begin(), copies.end(),
                                 [&](const Copy& c) { return c.tier >= copy.tier; });
    if (at == copies.end() || at->tier != copy.tier) {
      copies.insert(at, std::move(copy));
    } else if (at->handle != copy.handle || copy.handle.empty()) {
      *at = std::move(copy);
    }
  }

  Mutex mutex;
  std::vector<Copy> copies GUARDED_BY(mutex);  // fastest tier first, each tier once
  std::unique_ptr<OpenFile> open GUARDED_BY(mutex);
  std::shared_ptr<FileMove> move GUARDED_BY(mutex);
  unsigned changes GUARDED_BY(mutex) = 0;  // under way: see ChangeGuard
  unsigned uses GUARDED_BY(mutex) = 0;     // requests of the engine: see UseGuard
  // A move stopped half-way, and a second file has the name: what `copies` says is right.
  bool has_twin GUARDED_BY(mutex) = false;
  // A move waits for the file to be closed. Who opens it next is served by us, so that it can go
  // on.
  bool move_waits GUARDED_BY(mutex) = false;

  // One name this inode had when we last heard of it, for reports, and for directories the way to
  // their parents. Checked against the tier before anything is done by it.
  InodeId parent GUARDED_BY(mutex){};
  std::string name GUARDED_BY(mutex);
  // When the kernel was last told of that name, in nanoseconds of the monotonic clock. Of two files
  // with one name, the one that the kernel means is the one it was told of last.
  std::int64_t told_at GUARDED_BY(mutex) = 0;

  std::uint64_t size_hint GUARDED_BY(mutex) =
      0;  // st_size when last seen: small files are opened another way
  // The kernel may hold pages of this file older than what a passthrough writer wrote.
  bool pages_stale GUARDED_BY(mutex) = false;
  // A writable mapping may have outlived the last close: the kernel tells nobody about stores
  // through it.
  bool maybe_mapped GUARDED_BY(mutex) = false;
  bool is_watched GUARDED_BY(mutex) = false;  // it is in Filesystem::mapped_
  // st_mtim, in nanoseconds, of the attributes that the kernel keeps; 0 if it keeps none.
  std::int64_t told_mtime GUARDED_BY(mutex) = 0;
  std::unique_ptr<InodeTimes> times GUARDED_BY(mutex);  // none: those on the tiers are shown
  bool without_xattrs GUARDED_BY(mutex) =
      false;                                  // a listing came back empty and nothing was set since
  unsigned xattrs_set GUARDED_BY(mutex) = 0;  // times; whoever lists them sees if one came between
  // A directory that was found while a tier was offline on which it may have a copy, too.
  bool partly_unknown GUARDED_BY(mutex) = false;
  bool removed GUARDED_BY(mutex) =
      false;  // rmdir: descriptors are kept until the kernel forgets it
  bool fd_used GUARDED_BY(mutex) = false;       // FdCache's second chance
  bool times_known GUARDED_BY(mutex) = false;   // the store was asked for them
  unsigned name_changes GUARDED_BY(mutex) = 0;  // by users, in this directory, under way
  // Of a directory: those that some listing has in memory, for others to share.
  std::weak_ptr<const DirectoryNames> listed_names GUARDED_BY(mutex);
  // The pin that holds for what is in this directory, as of Filesystem::pin_epoch_.
  TierIndex pin GUARDED_BY(mutex) = kNoTier;
  // The one that it bears itself, as of Filesystem::tier_epoch_.
  TierIndex own_pin GUARDED_BY(mutex) = kNoTier;
  std::uint32_t own_pin_epoch GUARDED_BY(mutex) = 0;
  std::uint64_t pin_epoch GUARDED_BY(mutex) = 0;
};

using InodePtr = std::shared_ptr<Inode>;

}  // namespace sluice
