// SPDX-License-Identifier: BSD-2-Clause
#include "base/user_room.hpp"

#include <linux/capability.h>
#include <linux/securebits.h>
#include <sys/fsuid.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cstdint>
#include <cstring>

#include "base/log.hpp"

namespace sluice {
namespace {

// Whether some thread of this process has ever given up the capability, so that a new thread may
// lack it. Otherwise it is not touched: libsluice has threads in other people's processes.
std::atomic<bool> is_used{false};

// What the calling thread has.
struct ThreadRights {
  uid_t uid = ::geteuid();
  gid_t gid = ::getegid();
  bool prepared = false;                         // see prepare()
  bool is_user = false;                          // it has given up rights of root
  std::array<__user_cap_data_struct, 2> sets{};  // its capabilities
};
thread_local ThreadRights rights;

// Makes the thread keep its capabilities when its fsuid changes, and learns which they are.
void prepare() {
  if (rights.prepared) return;
  rights.prepared = true;
  if (::prctl(PR_SET_SECUREBITS, SECBIT_NO_SETUID_FIXUP) < 0)
    log::get().error("cannot give a thread its own fsuid; new files may get the wrong owner");
  __user_cap_header_struct header{_LINUX_CAPABILITY_VERSION_3, 0};
  if (::syscall(SYS_capget, &header, rights.sets.data()) < 0) rights.sets = {};
}

constexpr std::uint32_t kRight = 1U << (CAP_SYS_RESOURCE % 32);

__user_cap_data_struct& set_of_right() { return rights.sets[CAP_SYS_RESOURCE / 32]; }

// False in a container that was started without the capability. There only the fsuid counts.
bool may_have_capability() { return (set_of_right().permitted & kRight) != 0; }

// Adds the capability to the effective ones, or removes it.
void set_capability(bool has) {
  auto& set = set_of_right();
  set.effective = has ? set.effective | kRight : set.effective & ~kRight;
  __user_cap_header_struct header{_LINUX_CAPABILITY_VERSION_3, 0};
  if (::syscall(SYS_capset, &header, rights.sets.data()) < 0) {
    log::get().error("cannot change a thread's right to the room kept for root: why={}",
                     std::strerror(errno));
  }
}

void take_room_as(bool user) {
  if (rights.is_user == user) return;
  rights.is_user = user;
  prepare();
  is_used.store(true, std::memory_order_relaxed);
  if (may_have_capability()) {
    set_capability(!user);
  } else if (!user) {
    set_filesystem_user(::geteuid(), ::getegid());
  }
}

}  // namespace

void set_filesystem_user(uid_t uid, gid_t gid) {
  // setfsuid(-1) sets nothing.
  if (uid == static_cast<uid_t>(-1)) uid = kNobody;
  if (gid == static_cast<gid_t>(-1)) gid = kNobody;
  prepare();
  if (rights.gid != gid) {
    ::setfsgid(gid);
    rights.gid = gid;
  }
  if (rights.uid != uid) {
    ::setfsuid(uid);
    rights.uid = uid;
  }
}

UserRoom::UserRoom(uid_t uid, gid_t gid, Fsuid fsuid) {
  if (fsuid == Fsuid::Own) {
    set_filesystem_user(::geteuid(), ::getegid());
  } else if (uid != 0) {
    set_filesystem_user(uid, gid);
  }
  take_room_as(uid != 0);
}

UserRoom::~UserRoom() {
  if (!keeps_) take_room_as(false);
}

NobodysRoom::~NobodysRoom() { set_filesystem_user(::geteuid(), ::getegid()); }

void end_user_room() { take_room_as(false); }

void reset_filesystem_user() {
  ::setfsuid(::geteuid());
  ::setfsgid(::getegid());
  rights = ThreadRights{};
  if (!is_used.load(std::memory_order_relaxed)) return;
  prepare();
  if (may_have_capability()) set_capability(true);
}

}  // namespace sluice
