// SPDX-License-Identifier: BSD-2-Clause
// An Inode is what we remember of one file or directory while the kernel refers to it: who it is,
// where its copies are, and how it is open. There may be a million of them, so no descriptor and no
// path is kept without need.
//
// Threads: `mutex` guards what it is written to guard; identity and type never change.
#pragma once

#include <sys/stat.h>

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "base/ids.hpp"
#include "base/mutex.hpp"
#include "tiering/identity.hpp"
#include "tiering/tier.hpp"

namespace sluice {

// One tier's copy. A regular file has exactly one; a directory has one wherever something in it
// lives.
struct Copy {
  TierIndex tier = kNoTier;
  FileHandle handle;  // empty: `fd` is the only way back to it, and is kept
  // For directories, a cached O_RDONLY descriptor that FdCache may take away; else O_PATH where
  // there is no handle.
  SharedFd fd;
};

// How a regular file is open. The first open chooses between the kernel's passthrough and our
// serving its pages, and all opens at the same time share the choice: the kernel allows no mixture.
struct OpenFile {
  bool passthrough = false;
  std::int32_t backing_id = 0;
  unsigned opens = 0;
  unsigned mappers = 0;  // opens that could map the file shared and writable: those with O_RDWR
  SharedFd
      reader;  // O_RDONLY; absent until first needed when the kernel's page cache serves the file
  SharedFd writer;  // O_RDWR; absent until first needed
  // Shared by whatever changes the file, exclusive while its bytes move to another tier. Absent
  // where they can't: the kernel writes the file itself, or nobody does.
  std::shared_ptr<SharedMutex> moving;
};

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

  // Guarded by the table's shard: how many references the kernel holds.
  std::uint64_t lookups = 0;

  Mutex mutex;
  std::vector<Copy> copies GUARDED_BY(mutex);  // fastest tier first
  std::unique_ptr<OpenFile> open GUARDED_BY(mutex);

  // One name this inode had when we last heard of it, for reports, and for directories the way to
  // their parents. Checked against the tier before anything is done by it.
  InodeId parent GUARDED_BY(mutex){};
  std::string name GUARDED_BY(mutex);

  std::uint64_t size_hint GUARDED_BY(mutex) =
      0;  // st_size when last seen: small files are opened another way
  // The kernel may hold pages of this file older than what a passthrough writer wrote.
  bool pages_stale GUARDED_BY(mutex) = false;
  // A writable mapping may have outlived the last close: the kernel tells nobody about stores
  // through it.
  bool maybe_mapped GUARDED_BY(mutex) = false;
  // st_mtim, in nanoseconds, of the attributes that the kernel keeps; 0 if it keeps none.
  std::int64_t told_mtime GUARDED_BY(mutex) = 0;
  bool without_xattrs GUARDED_BY(mutex) =
      false;  // a listing came back empty and nothing was set since
  // A directory that was found while a tier was offline on which it may have a copy, too.
  bool partly_unknown GUARDED_BY(mutex) = false;
  bool removed GUARDED_BY(mutex) =
      false;  // rmdir: descriptors are kept until the kernel forgets it
  bool fd_used GUARDED_BY(mutex) = false;  // FdCache's second chance
};

using InodePtr = std::shared_ptr<Inode>;

}  // namespace sluice
