// SPDX-License-Identifier: BSD-2-Clause
// PageWatch notices changes of files that the kernel's cache does not know of: stores through
// mappings of passthrough files, and writes by the daemon or a GPU below pages that are cached. It
// makes the kernel drop what is out of date.
//
// Threads: every member may be called from any thread at once.
#pragma once

#include <memory>
#include <set>
#include <vector>

#include "base/mutex.hpp"
#include "fs/core/descriptors.hpp"
#include "fs/core/inode.hpp"
#include "fs/core/kernel_side.hpp"
#include "tiering/pool.hpp"

namespace sluice {

class PageWatch {
 public:
  PageWatch(Pool& pool, KernelSide& kernel, Descriptors& descriptors)
      : pool_(pool), kernel_(kernel), descriptors_(descriptors) {}

  // The file may be mapped for writing from now on: tick() looks at it every second.
  void watch(const InodePtr& inode, InodeState& state);
  // Whether a writable mapping has outlived the last close of the file. "No" holds until the file
  // is opened for writing again.
  bool is_still_mapped(const InodePtr& inode);

  // Looks at a file that was changed without a request. `unseen`: the kernel may not know either
  // (a mapping), so it is made to ask.
  void notice_change(const InodePtr& inode, const SharedFd& fd, bool unseen);
  // The daemon wrote to a file that somebody may have mapped; the pages go with the next tick().
  void written_below_pages(InodeId id);
  // A GPU wrote to the file: the kernel must ask for its size and times now.
  void written_past_kernel(const InodePtr& file);

  // Called every second. REQUIRES: the caller answers no request.
  void tick();

 private:
  bool is_no_longer_mapped(const InodePtr& inode);
  void notice_mapped_changes();
  void drop_written_pages();

  Pool& pool_;
  KernelSide& kernel_;
  Descriptors& descriptors_;
  Mutex mutex_;
  std::vector<std::weak_ptr<Inode>> mapped_ GUARDED_BY(mutex_);  // files that may be mapped
  std::set<InodeId> written_ GUARDED_BY(mutex_);                 // below cached pages
};

}  // namespace sluice
