// SPDX-License-Identifier: BSD-2-Clause
// Caller is the user who made a request. New files must belong to the caller and obey the caller's
// umask and the parent's default ACL, so the daemon's threads create files with the caller's fsuid,
// fsgid and umask. They allocate room with the caller's rights (base/user_room.hpp). The kernel has
// checked permissions already (default_permissions). The threads keep the other capabilities, so
// the tier's filesystem does not check permissions again, and the supplementary groups are not
// needed.
//
// Threads: every function may be called from any thread and affects only the calling one.
#pragma once

#include <sys/types.h>

#include <utility>

#include "base/result.hpp"
#include "base/user_room.hpp"
#include "tiering/pool/tier.hpp"

namespace sluice {

struct Caller {
  uid_t uid = 0;
  gid_t gid = 0;
  mode_t umask = 0;
  pid_t pid = 0;
};

// Whether the caller is in `group`, by gid or supplementary groups. False if the process has ended.
bool is_member(const Caller& caller, gid_t group);

// Files that this thread creates while it exists belong to the caller, and take the caller's room.
class CreateAs {
 public:
  explicit CreateAs(const Caller& caller);

 private:
  const UserRoom room_;
};

namespace detail {
inline thread_local Caller current_caller{};
}

// Who sent the request that the calling thread answers. Root, if it answers none.
inline const Caller& current_caller() { return detail::current_caller; }

// Makes `caller` the current one until it is destroyed.
class CurrentCaller {
 public:
  explicit CurrentCaller(const Caller& caller)
      : before_(std::exchange(detail::current_caller, caller)) {}
  ~CurrentCaller() { detail::current_caller = before_; }
  CurrentCaller(const CurrentCaller&) = delete;
  CurrentCaller& operator=(const CurrentCaller&) = delete;

 private:
  const Caller before_;
};

// The fsuid with which room on the tier is allocated.
Fsuid fsuid_for(const Tier& tier);

// While it exists, what this thread allocates takes the room of the current caller.
class CallersRoom : public UserRoom {
 public:
  // For names: a network filesystem would judge by the fsuid, without the caller's other groups.
  explicit CallersRoom(const Tier& tier) : CallersRoom(fsuid_for(tier)) {}
  explicit CallersRoom(Fsuid fsuid = Fsuid::Users)
      : UserRoom(current_caller().uid, current_caller().gid, fsuid) {}
};

// Clears the setuid bit, and also the setgid bit if the group may execute the file or the caller is
// not in the group. The kernel does the same when a user without CAP_FSETID changes a file.
Result<void> drop_suid(int fd, const Caller& caller);

}  // namespace sluice
