// SPDX-License-Identifier: BSD-2-Clause
// The DescriptorTaker takes descriptors from other processes. They may be anything: of a file on a
// FUSE mount, say, whose server never answers, so that close() waits for ever, where no signal
// reaches it. So they are taken by a thread whose table of descriptors is not the process's and
// holds next to nothing, and only what can't block comes to ours. The rest is closed by yet another
// thread of that table, where nobody waits for it.
//
// The table is made once: making one copies the process's, which grows with the files that are
// open.
//
// A close that hangs keeps its thread, and with it the memory of a process that has ended, but no
// other descriptor: tiers and store are free.
// Threads: thread-safe. "sluice-taker", started by the first take(), and "sluice-take", which close
// and may outlive the object.
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

  // How many hang now.
  unsigned hanging() const;

 private:
  struct Hanging {
    Mutex mutex;
    std::map<uid_t, unsigned> of_user GUARDED_BY(mutex);
    unsigned of_all GUARDED_BY(mutex) = 0;
  };
  using HangingPtr = std::shared_ptr<Hanging>;
  using RequestsPtr = std::shared_ptr<UniqueFd>;  // our end of the socket to the thread

  static void work(int requests, const HangingPtr& hanging);
  static void close_elsewhere(UniqueFd taken, uid_t user, const HangingPtr& hanging);
  Result<RequestsPtr> requests();
  void replace(const RequestsPtr& silent);

  const HangingPtr hanging_ = std::make_shared<Hanging>();
  Mutex mutex_;
  RequestsPtr requests_ GUARDED_BY(mutex_);  // the thread ends when this does
};

}  // namespace sluice
