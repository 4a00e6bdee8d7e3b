// SPDX-License-Identifier: BSD-2-Clause
// A UserRoom makes the calling thread take room on a filesystem as a user would.
//
// Filesystems keep room for root (ext4: 5 % of the blocks), and root is not bound by quotas. They
// judge by the thread that allocates: it has these rights if its fsuid is 0 or if it has the
// capability CAP_SYS_RESOURCE. The daemon's threads have both, so they must give them up while they
// allocate for a user. All other capabilities stay: the kernel has checked permissions already.
//
// Threads: everything here affects only the calling thread. begin_thread() undoes what a new thread
// has inherited.
#pragma once

#include <sys/types.h>

namespace sluice {

// Without the rights of root, for room that is taken for no user in particular.
inline constexpr uid_t kNobody = 65534;

// Gives the thread another fsuid and fsgid, and no other capabilities. Files that it creates belong
// to that user. Makes no system call if nothing changes.
void set_filesystem_user(uid_t uid, gid_t gid);

// Whose fsuid the thread has meanwhile. The capability is given up in both cases. With Own, a
// network or FUSE filesystem that checks the sender of a request sees root, but ext4 and f2fs also
// give out the blocks that are reserved for root.
enum class Fsuid { Users, Own };

// A thread has at most one at a time.
class UserRoom {
 public:
  // Root keeps its rights.
  UserRoom(uid_t uid, gid_t gid, Fsuid fsuid = Fsuid::Users);
  // The thread has the rights again. If the capability gives them, it keeps the fsuid, which saves
  // system calls.
  ~UserRoom();
  UserRoom(const UserRoom&) = delete;
  UserRoom& operator=(const UserRoom&) = delete;

  // The thread stays as it is beyond the life of this object, until end_user_room(). Saves two
  // system calls if the next thing that it does is the same.
  void keep() { keeps_ = true; }

 private:
  bool keeps_ = false;
};

// Room for what the daemon does on its own, such as copying a file to another tier: root's reserve
// is not for that. At the end, the thread's fsuid and fsgid are those of the process again.
class NobodysRoom {
 public:
  explicit NobodysRoom(Fsuid fsuid) : room_(kNobody, kNobody, fsuid) {}
  ~NobodysRoom();
  NobodysRoom(const NobodysRoom&) = delete;
  NobodysRoom& operator=(const NobodysRoom&) = delete;

 private:
  UserRoom room_;
};

// Ends what keep() has left. Makes no system call if there is nothing to end.
void end_user_room();

// For begin_thread(): forgets what was inherited from the thread that started this one.
void reset_filesystem_user();

}  // namespace sluice
