// SPDX-License-Identifier: BSD-2-Clause
// Descriptors opens the bytes of a file on whichever tier has them now. It decides which
// descriptors stay open as long as the file is open, because their number per process is limited.
//
// Threads: thread-safe.
#pragma once

#include <atomic>
#include <cstdint>

#include "base/result.hpp"
#include "fs/core/inodes/inode.hpp"
#include "fs/core/inodes/kernel_side.hpp"
#include "fs/core/tree/directory_tree.hpp"
#include "tiering/pool/pool.hpp"

namespace sluice {

class Descriptors {
 public:
  Descriptors(Pool& pool, DirectoryTree& tree, KernelSide& kernel);

  // A descriptor for operations that need no access to the bytes. It is an O_PATH descriptor unless
  // a better one is open already. Works for directories too.
  Result<SharedFd> any(const InodePtr& inode);
  // A new descriptor on the bytes. EAGAIN if another process has a lease on the file.
  Result<SharedFd> open(const InodePtr& inode, int flags);
  // The descriptor that all readers of an open file share.
  enum class Keep { IfThereAreFew, Always };
  Result<SharedFd> reader(const InodePtr& inode, Keep keep = Keep::IfThereAreFew);
  // The descriptor that all served writers of an open file share.
  Result<SharedFd> writer(const InodePtr& inode);
  // Opens the file of a descriptor again, with other flags.
  static Result<SharedFd> reopen(int fd, int flags);

  // Makes the kernel keep an open file that has no name, also if this daemon dies: the descriptors
  // die with it. `fd` is any descriptor of the file. Ended by let_go(), at the file's last close.
  void keep_in_existence(Inode& file, int fd);
  void let_go(Inode& file);

  // Sets and closes OpenFile::reader.
  void keep_reader(OpenFile& file, SharedFd fd);
  void drop_reader(OpenFile& file);
  bool has_room_for_readers() const { return readers_.load() < most_readers_; }
  // Whether a descriptor with this number shows that the process is near its limit.
  bool is_scarce(int fd) const {
    return static_cast<std::uint64_t>(fd) > most_readers_ + most_readers_ / 2;
  }

 private:
  Result<SharedFd> open_handle(const InodePtr& inode, int flags);

  Pool& pool_;
  DirectoryTree& tree_;
  KernelSide& kernel_;
  std::atomic<std::uint64_t> readers_{0};  // open files whose reader stays open
  const std::uint64_t most_readers_;
};

}  // namespace sluice
