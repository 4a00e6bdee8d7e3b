// SPDX-License-Identifier: BSD-2-Clause
// Files creates, opens, reads and writes files. The first open of a file chooses between
// passthrough and serving, for all opens that overlap with it. The daemon serves small files that
// are only read, files that are being moved, and writers that may outgrow their tier.
//
// Threads: thread-safe.
#pragma once

#include <sys/stat.h>

#include <atomic>
#include <cstdint>
#include <functional>
#include <optional>
#include <utility>

#include "base/result.hpp"
#include "fs/core/budget/budgets.hpp"
#include "fs/core/files/access_tracker.hpp"
#include "fs/core/inodes/caller.hpp"
#include "fs/core/inodes/engine_link.hpp"
#include "fs/core/inodes/kernel_request.hpp"
#include "fs/core/inodes/kernel_side.hpp"
#include "fs/core/move/relocator.hpp"
#include "fs/core/names/attributes.hpp"
#include "fs/core/names/names.hpp"
#include "fs/core/tree/descriptors.hpp"
#include "fs/core/tree/page_watch.hpp"

namespace sluice {

struct Opened {
  std::int32_t backing_id = 0;  // 0: the kernel sends its reads and writes to the daemon
  bool keep_pages = false;
  bool direct = false;  // reads and writes of this open bypass the kernel's page cache
};

// End: at the current end of the file, which may differ from the offset that the kernel sent.
enum class WriteTo { Offset, End };

class Files {
 public:
  struct Parts {
    Pool& pool;
    KernelSide& kernel;
    InodeTable& table;
    NamesLock& names_lock;
    DirectoryTree& tree;
    Descriptors& descriptors;
    Attributes& attributes;
    Names& names;
    PageWatch& pages;
    AccessTracker& accesses;
    Relocator& relocator;
    EngineLink& engine;
    Budgets& budgets;
    std::uint64_t small_file;  // bytes; files up to this size that are only read are served
    // Called when a file that was in use can be moved again.
    std::function<void(InodeId)> file_is_free;
  };
  explicit Files(Parts parts) : parts_(std::move(parts)) {}

  Result<std::pair<Entry, Opened>> create(InodeId parent, const char* name, mode_t mode, int flags,
                                          const Caller& caller, const KernelRequest& request = {});
  Result<std::pair<Entry, Opened>> create_unnamed(InodeId parent, mode_t mode, int flags,
                                                  const Caller& caller,
                                                  const KernelRequest& request = {});
  // `strip_suid`: the caller, if O_TRUNC must clear the file's setuid and setgid bits.
  Result<Opened> open(InodeId id, int flags, pid_t opener, const std::optional<Caller>& strip_suid,
                      const KernelRequest& request = {});
  void release(InodeId id, int flags);
  // Restores one open of a file, as open() left it in the predecessor. `backing_id`, `direct`: see
  // Opened. The current caller is the one who opened it.
  void inherit(InodeId id, int flags, std::int32_t backing_id, bool direct);

  // `flags` are those of the open file; only O_NOATIME matters.
  Result<std::size_t> read(InodeId id, char* buffer, std::size_t size, off_t offset, int flags,
                           const KernelRequest& request = {});
  // If the tier is full, the file is spilled to another one, which takes as long as copying it. If
  // the request must not wait, a full tier means ENOSPC, or fewer bytes written than `size`.
  // `before` is how many bytes of the same request an earlier call has written.
  Result<std::size_t> write(InodeId id, const char* data, std::size_t size, off_t offset,
                            const std::optional<Caller>& strip_suid,
                            WriteTo where = WriteTo::Offset, std::size_t before = 0,
                            const KernelRequest& request = {});
  // The user whose room is used for pages of a mapping that the kernel writes back. The kernel does
  // not say who stored to them. Root, if nobody else had the file open in a way that allows stores.
  Caller mapper(InodeId id);
  Result<void> sync(InodeId id, bool data_only);
  Result<void> allocate(InodeId id, int mode, off_t offset, off_t length,
                        const KernelRequest& request = {});
  Result<off_t> seek(InodeId id, off_t offset, int whence);
  Result<std::size_t> copy_range(InodeId from, off_t from_offset, InodeId to, off_t to_offset,
                                 std::size_t length, const KernelRequest& request = {});
  // Whether the file had chattr +a when it was last opened for writing.
  bool is_append_only(InodeId id);
  // See Inode::waits_for_room.
  bool waits_for_room(InodeId id);
  void stop_waiting_for_room(InodeId id);

  // Turns passthrough off for files that are opened from now on.
  void serve_everything() { passthrough_ = false; }
  std::uint64_t open_files() const { return open_files_.load(std::memory_order_relaxed); }

 private:
  Result<std::pair<Entry, Opened>> open_new(const Located& made, const InodePtr& directory,
                                            const char* name, int flags, const SharedFd& fd,
                                            const Budgets::Room& room,
                                            const KernelRequest& request);
  Result<Opened> open_inode(const InodePtr& inode, int flags, const SharedFd& fresh,
                            const KernelRequest& request);
  Result<void> wait_for_release(const InodePtr& inode, int flags, const KernelRequest& request);
  Result<std::int32_t> add_backing(const Tier& tier, int fd, bool writes);
  Result<Opened> open_locked(const InodePtr& inode, InodeState& state, int flags, SharedFd fd,
                             bool mapped);
  void count_open(const InodePtr& inode, InodeState& state, int flags);
  bool may_outgrow(const InodeState& state, int flags, const struct statx& st);
  Result<struct statx> statx_of(const InodeState& state);
  // Runs `change(writer)`. If the tier is full, spills the file and runs it again.
  template <typename Change>
  auto with_room(const InodePtr& inode, off_t offset, std::uint64_t more,
                 const KernelRequest& request, Change change);

  const Parts parts_;
  std::atomic<bool> passthrough_{true};       // only ever turns false
  std::atomic<std::uint64_t> open_files_{0};  // a statistic
};

}  // namespace sluice
