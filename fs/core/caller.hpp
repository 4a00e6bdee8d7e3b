// SPDX-License-Identifier: BSD-2-Clause
// Who asked. New files must belong to the caller and obey their umask and the parent's default ACL,
// so the tier's own filesystem creates them as that user would. Permission was checked by the
// kernel (default_permissions); our threads keep their capabilities, so nothing is checked twice
// and supplementary groups need not be known.
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

// Whether the caller is in `group`, by gid or supplementary groups; no if the process is gone.
bool is_member(const Caller& caller, gid_t group);

// Makes files created by this thread from now on the caller's. Costs nothing while the caller stays
// the same.
void create_as(const Caller& caller);

// Drops setuid, and setgid where it means execution or the caller is not in the group, as the
// kernel does when somebody without CAP_FSETID changes a file.
Result<void> drop_suid(int fd, const Caller& caller);

}  // namespace sluice
