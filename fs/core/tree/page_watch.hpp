// SPDX-License-Identifier: BSD-2-Clause
// PageWatch makes the kernel drop attributes and pages from its cache when a file changes without
// the kernel's knowledge: by stores through mappings of passthrough files, and by writes of the
// daemon or a GPU to ranges whose pages are cached. It owns the lists of files to check.
//
// Threads: thread-safe.
#pragma once

#include <memory>
#include <set>
#include <vector>

#include "base/mutex.hpp"
#include "fs/core/inodes/inode.hpp"
#include "fs/core/inodes/kernel_side.hpp"
#include "fs/core/tree/descriptors.hpp"
#include "tiering/pool/pool.hpp"

namespace sluice {

class PageWatch {
 public:
  PageWatch(Pool& pool, KernelSide& kernel, Descriptors& descriptors)
      : pool_(pool), kernel_(kernel), descriptors_(descriptors) {}

  // Records that the file may be mapped for writing from now on. tick() then checks it every
  // second. `state` is the inode's.
  void watch(const InodePtr& inode, InodeState& state);
  // Whether a writable mapping has outlived the last close of the file. The answer "false" stays
  // valid until the file is opened for writing again.
  bool is_still_mapped(const InodePtr& inode);

  // Reads the new size of a file that may have changed without a request to the daemon.
  // `by_mapping`: the kernel may not know of the change either; if the mtime differs, it must drop
  // the attributes.
  void notice_change(const InodePtr& inode, const SharedFd& fd, bool by_mapping);
  // Makes the next tick() drop the pages of a file that the daemon wrote to and that may be mapped.
  void drop_pages_later(InodeId id);
  // Drops the attributes of a file that changed without the kernel's knowledge, and makes the next
  // tick() drop its pages.
  void drop_cached(const InodePtr& file);

  // Called every second, by a thread that answers no request: see KernelSide::drop_pages().
  void tick();

 private:
  bool is_no_longer_mapped(const InodePtr& inode);
  void notice_mapped_changes();
  void drop_written_pages();

  Pool& pool_;
  KernelSide& kernel_;
  Descriptors& descriptors_;
  Mutex mutex_;
  // Files that may be mapped for writing. Those that the kernel has forgotten are left out from
  // time to time, because their inodes still take memory.
  std::vector<std::weak_ptr<Inode>> mapped_ GUARDED_BY(mutex_);
  std::size_t next_cleaning_ GUARDED_BY(mutex_) = 0;
  std::set<InodeId> written_ GUARDED_BY(mutex_);  // their pages must be dropped
};

}  // namespace sluice
