// SPDX-License-Identifier: BSD-2-Clause
#include "fs/core/inodes/caller.hpp"

#include <sched.h>
#include <sys/stat.h>

#include <sstream>
#include <string>

#include "base/file_at.hpp"
#include "base/log.hpp"
#include "base/small_file.hpp"

namespace sluice {
namespace {

// Each thread has its own umask (unshare).
struct ThreadUmask {
  mode_t umask = 0;

  ThreadUmask() {
    if (::unshare(CLONE_FS) < 0)
      log::get().error("cannot give a thread its own umask; new files may get the wrong mode");
    ::umask(0);
  }
};

}  // namespace

bool is_member(const Caller& caller, gid_t group) {
  if (caller.gid == group) return true;
  std::istringstream status(text_of_file("/proc/" + std::to_string(caller.pid) + "/status"));
  for (std::string line; std::getline(status, line);) {
    if (!line.starts_with("Groups:")) continue;
    std::istringstream groups(line.substr(7));
    for (gid_t one = 0; groups >> one;) {
      if (one == group) return true;
    }
  }
  return false;
}

CreateAs::CreateAs(const Caller& caller) : room_(caller.uid, caller.gid) {
  thread_local ThreadUmask current;
  set_filesystem_user(caller.uid, caller.gid);
  if (current.umask != caller.umask) {
    ::umask(caller.umask);
    current.umask = caller.umask;
  }
}

Fsuid fsuid_for(const Tier& tier) { return tier.keeps_room_by_user() ? Fsuid::Users : Fsuid::Own; }

Result<void> drop_suid(int fd, const Caller& caller) {
  struct stat st {};
  if (::fstat(fd, &st) < 0) return Error::last("stat");
  mode_t mode = st.st_mode & ~static_cast<mode_t>(S_ISUID);
  // The caller may be root: the kernel requests this with each chown.
  const auto may_keep_setgid = [&] { return caller.uid == 0 || is_member(caller, st.st_gid); };
  if ((mode & S_ISGID) && ((mode & S_IXGRP) || !may_keep_setgid())) {
    mode &= ~static_cast<mode_t>(S_ISGID);
  }
  if (mode == st.st_mode) return {};
  if (::chmod(proc_path(fd).c_str(), mode & 07777) < 0) return Error::last("drop setuid");
  return {};
}

}  // namespace sluice
