// SPDX-License-Identifier: BSD-2-Clause
#include "tiering/pool/hidden_copy.hpp"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <climits>

#include "base/user_room.hpp"

namespace sluice {

Result<HiddenCopy> make_hidden_copy(int source, const Identity& identity, Tier& to,
                                    const Pace& pace) {
  const SharedFd temp = SLUICE_TRY(to.temp_directory());
  HiddenCopy copy;
  copy.original = identity;
  struct stat st {};
  if (::fstat(source, &st) < 0) return Error::last("stat");
  // A file made with O_TMPFILE may still get a name by linkat(2), so its copy is made the same way.
  if (st.st_nlink == 0)
    copy.fd.reset(::openat(temp->get(), ".", O_TMPFILE | O_RDWR | O_CLOEXEC, 0600));
  if (!copy.fd) {
    copy.name = Tier::new_temp_name();
    copy.fd.reset(
        ::openat(temp->get(), copy.name.c_str(), O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0600));
  }
  if (!copy.fd) return Error::last("create copy");
  const auto fill = [&]() -> Result<void> {
    // Neither root's reserve nor somebody else's quota is for moves.
    const NobodysRoom room(to.keeps_room_by_user() ? Fsuid::Users : Fsuid::Own);
    // Before the bytes, so that a full quota does not fail the move after all of them.
    if (::fchown(copy.fd.get(), st.st_uid, st.st_gid) < 0) return Error::last("chown copy");
    SLUICE_TRY(copy_inode_flags(source, copy.fd.get()));
    copy.copied = SLUICE_TRY(copy_data(source, copy.fd.get(), pace));
    SLUICE_TRY(to.carry_identity(copy.fd.get(), identity));
    SLUICE_TRY(copy_attributes(source, copy.fd.get()));
    copy.located = SLUICE_TRY(to.identify(copy.fd.get(), ""));
    return {};
  };
  const auto filled = fill();
  if (!filled) {
    discard(copy, to);
    return filled.error();
  }
  return copy;
}

namespace {

// Makes a file of the same kind and with the same attributes as `original`, whose stat is `st`.
Result<void> copy_special(int original, const struct stat& st, int dirfd, const char* name) {
  if (S_ISLNK(st.st_mode)) {
    std::string target(PATH_MAX, '\0');
    const ssize_t size = ::readlinkat(original, "", target.data(), target.size());
    if (size < 0) return Error::last("readlink");
    target.resize(static_cast<std::size_t>(size));
    if (::symlinkat(target.c_str(), dirfd, name) < 0) return Error::last("symlink");
  } else if (::mknodat(dirfd, name, st.st_mode & S_IFMT, st.st_rdev) < 0) {
    return Error::last("mknod");
  }
  if (::fchownat(dirfd, name, st.st_uid, st.st_gid, AT_SYMLINK_NOFOLLOW) < 0)
    return Error::last("chown");
  if (!S_ISLNK(st.st_mode) && ::fchmodat(dirfd, name, st.st_mode & 07777, 0) < 0)
    return Error::last("chmod");
  // The ACL must be copied too: the mode of a file with an ACL has the ACL's mask in place of the
  // group's permissions, so without the ACL the group would get more than it had.
  const UniqueFd made(::openat(dirfd, name, O_PATH | O_NOFOLLOW | O_CLOEXEC));
  if (!made) return Error::last("open special file");
  SLUICE_TRY(copy_xattrs(original, made.get()));
  const std::array<timespec, 2> times{st.st_atim, st.st_mtim};
  if (::utimensat(dirfd, name, times.data(), AT_SYMLINK_NOFOLLOW) < 0)
    return Error::last("set times");
  return {};
}

}  // namespace

Result<HiddenCopy> make_hidden_special(int from_dir, const char* name, const Tier& from,
                                       const Tier& to) {
  const UniqueFd original(::openat(from_dir, name, O_PATH | O_NOFOLLOW | O_CLOEXEC));
  if (!original) return Error::last("open special file");
  const Located old = SLUICE_TRY(from.identify(original.get(), ""));
  const SharedFd temp = SLUICE_TRY(to.temp_directory());
  HiddenCopy copy;
  copy.original = old.identity;
  copy.name = Tier::new_temp_name();
  const auto make = [&]() -> Result<void> {
    SLUICE_TRY(copy_special(original.get(), old.st, temp->get(), copy.name.c_str()));
    copy.fd.reset(::openat(temp->get(), copy.name.c_str(), O_PATH | O_NOFOLLOW | O_CLOEXEC));
    if (!copy.fd) return Error::last("open copy");
    copy.located = SLUICE_TRY(to.identify(temp->get(), copy.name.c_str()));
    return {};
  };
  const auto made = make();
  if (!made) {
    discard(copy, to);
    return made.error();
  }
  return copy;
}

void discard(const HiddenCopy& copy, const Tier& tier) {
  if (copy.name.empty() || copy.is_twin) return;
  // If it can't be removed now, the next mount clears .sluice/tmp.
  if (const auto temp = tier.temp_directory()) ::unlinkat((*temp)->get(), copy.name.c_str(), 0);
}

Result<void> sync_copy(const HiddenCopy& copy) {
  // Not retried: after a failed fsync the kernel may have dropped the dirty pages.
  if (::fsync(copy.fd.get()) < 0) return Error::last("sync copy");
  return {};
}

}  // namespace sluice
