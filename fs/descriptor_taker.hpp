// SPDX-License-Identifier: BSD-2-Clause
// The DescriptorTaker takes descriptors from other processes. They may be anything: of a file on a
// FUSE mount, say, whose server never answers, so that close() waits for ever, where no signal
// reaches it. So each is taken by a thread that has a table of descriptors to itself, and only what
// can't block comes to ours; the rest is closed there, where nobody waits for it.
//
// A close that hangs keeps its thread, and with it the memory of a process that has ended, but no
// other descriptor: tiers and store are free.
// Threads: thread-safe. Those that hang may outlive the object.
#pragma once

#include <sys/types.h>

#include <map>
#include <memory>

#include "base/mutex.hpp"
#include "base/result.hpp"
#include "base/unique_fd.hpp"

namespace sluice {

class DescriptorTaker {
 public:
  // Descriptors of one user, and of all, that may be hanging in close() before the next is not
  // taken.
  static constexpr unsigned kMostOfUser = 4, kMostOfAll = 64;

  // The descriptor `fd` of the process that the pidfd names: of memory, a device or something
  // anonymous of the kernel's (as drivers export). EINVAL for all else; EBUSY if too many hang;
  // EBADF and EPERM from pidfd_getfd(2).
  Result<UniqueFd> take(const UniqueFd& process, int fd, uid_t user);

 private:
  struct Hanging {
    Mutex mutex;
    std::map<uid_t, unsigned> of_user GUARDED_BY(mutex);
    unsigned of_all GUARDED_BY(mutex) = 0;
  };
  static void work(int process, int fd, int answer, uid_t user, Hanging& hanging);

  const std::shared_ptr<Hanging> hanging_ = std::make_shared<Hanging>();
};

}  // namespace sluice
