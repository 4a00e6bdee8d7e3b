// SPDX-License-Identifier: BSD-2-Clause
#include "fs/core/caller.hpp"

#include <linux/securebits.h>
#include <sched.h>
#include <sys/fsuid.h>
#include <sys/prctl.h>
#include <sys/stat.h>

#include <fstream>
#include <sstream>
#include <string>

#include "base/file_at.hpp"
#include "base/log.hpp"

namespace sluice {
namespace {

// The identity with which this thread creates files. Each thread gets its own umask (unshare), and
// keeps its capabilities when fsuid changes (SECBIT_NO_SETUID_FIXUP).
struct ThreadIdentity {
  uid_t uid = 0;
  gid_t gid = 0;
  mode_t umask = 0;

  ThreadIdentity() {
    if (::unshare(CLONE_FS) < 0 || ::prctl(PR_SET_SECUREBITS, SECBIT_NO_SETUID_FIXUP) < 0) {
      log::get().error(
          "cannot give a thread its own umask and fsuid; new files may get the wrong owner or "
          "mode");
    }
    ::umask(0);
  }
};

}  // namespace

bool is_member(const Caller& caller, gid_t group) {
  if (caller.gid == group) return true;
  std::ifstream status("/proc/" + std::to_string(caller.pid) + "/status");
  for (std::string line; std::getline(status, line);) {
    if (!line.starts_with("Groups:")) continue;
    std::istringstream groups(line.substr(7));
    for (gid_t one = 0; groups >> one;) {
      if (one == group) return true;
    }
  }
  return false;
}

void create_as(const Caller& caller) {
  thread_local ThreadIdentity current;
  if (current.gid != caller.gid) {
    ::setfsgid(caller.gid);
    current.gid = caller.gid;
  }
  if (current.uid != caller.uid) {
    ::setfsuid(caller.uid);
    current.uid = caller.uid;
  }
  if (current.umask != caller.umask) {
    ::umask(caller.umask);
    current.umask = caller.umask;
  }
}

Result<void> drop_suid(int fd, const Caller& caller) {
  struct stat st {};
  if (::fstat(fd, &st) < 0) return Error::last("stat");
  mode_t mode = st.st_mode & ~static_cast<mode_t>(S_ISUID);
  // The caller may be root: the kernel requests this with each chown.
  const bool may_keep_setgid = caller.uid == 0 || is_member(caller, st.st_gid);
  if ((mode & S_ISGID) && ((mode & S_IXGRP) || !may_keep_setgid)) {
    mode &= ~static_cast<mode_t>(S_ISGID);
  }
  if (mode == st.st_mode) return {};
  if (::chmod(proc_path(fd).c_str(), mode & 07777) < 0) return Error::last("drop setuid");
  return {};
}

}  // namespace sluice
