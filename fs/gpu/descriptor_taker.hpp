// SPDX-License-Identifier: BSD-2-Clause
// The DescriptorTaker takes descriptors from other processes. They may refer to anything, for
// example to a file on a FUSE mount whose server never answers; close() would then block forever
// and could not be interrupted. So a thread with its own, nearly empty descriptor table takes them,
// and passes on only descriptors whose close() can't block. Another thread with that table closes
// the rest, and no one waits for it.
//
// The table is created once, because creating one copies the process's table, which grows with the
// number of open files.
//
// A close() that hangs keeps its thread, and after the end of the process its memory, but no other
// descriptor: tiers and store are released. Threads: thread-safe. The first take() starts
// "sluice-taker". Threads named "sluice-take" close descriptors and may outlive the object.
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
  // If this many descriptors of one user, or of all users, hang in close(), no more are taken.
  static constexpr unsigned kMostOfUser = 4, kMostOfAll = 64;

  // Takes the descriptor `fd` of the process that the pidfd refers to. It must be memory, a device,
  // or an anonymous file of the kernel (as exported by drivers); EINVAL otherwise. EBUSY: too many
  // hang. EBADF and EPERM come from pidfd_getfd(2).
  Result<UniqueFd> take(const UniqueFd& process, int fd, uid_t user);

  // The number of descriptors that hang now.
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
  RequestsPtr requests_ GUARDED_BY(mutex_);  // the thread ends when this is closed
};

}  // namespace sluice
