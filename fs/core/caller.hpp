// SPDX-License-Identifier: BSD-2-Clause
// Caller is the user who made a request. New files must belong to the caller and obey the caller's
// umask and the parent's default ACL, so the daemon's threads create files with the caller's fsuid,
// fsgid and umask. The kernel has checked permissions already (default_permissions). The threads
// keep their capabilities, so the tier's filesystem does not check permissions again, and the
// supplementary groups are not needed.
//
// Threads: every function may be called from any thread; create_as() affects only the calling one.
#pragma once

#include <sys/types.h>

#include "base/result.hpp"

namespace sluice {

struct Caller {
  uid_t uid = 0;
  gid_t gid = 0;
  mode_t umask = 0;
  pid_t pid = 0;
};

// Whether the caller is in `group`, by gid or supplementary groups. False if the process has ended.
bool is_member(const Caller& caller, gid_t group);

// Files that this thread creates from now on belong to the caller. Makes no system call if the
// caller is the same as the last time.
void create_as(const Caller& caller);

// Clears the setuid bit, and also the setgid bit if the group may execute the file or the caller is
// not in the group. The kernel does the same when a user without CAP_FSETID changes a file.
Result<void> drop_suid(int fd, const Caller& caller);

}  // namespace sluice
