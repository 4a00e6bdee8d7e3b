// SPDX-License-Identifier: BSD-2-Clause
// What the mover leaves on a tier that is being retired: directories, and the names that have no
// bytes to copy (symlinks, FIFOs, sockets, devices).
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <climits>

#include "base/file_at.hpp"
#include "fs/core/relocator.hpp"
#include "tiering/copier.hpp"

namespace sluice {

namespace {

// Makes in `dirfd` a second `name`: the same kind of thing, with the same attributes.
Result<void> make_twin(int from_dir, const char* from_name, const struct stat& st, int dirfd,
                       const char* name) {
  if (S_ISLNK(st.st_mode)) {
    std::string target(PATH_MAX, '\0');
    const ssize_t size = ::readlinkat(from_dir, from_name, target.data(), target.size());
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
  // Without its ACL, a FIFO or device would let its whole group in: the mode of a file with an ACL
  // has the ACL's mask in place of the group's rights.
  const UniqueFd old(::openat(from_dir, from_name, O_PATH | O_NOFOLLOW | O_CLOEXEC));
  const UniqueFd made(::openat(dirfd, name, O_PATH | O_NOFOLLOW | O_CLOEXEC));
  if (!old || !made) return Error::last("open special file");
  SLUICE_TRY(copy_xattrs(old.get(), made.get()));
  const std::array<timespec, 2> times{st.st_atim, st.st_mtim};
  if (::utimensat(dirfd, name, times.data(), AT_SYMLINK_NOFOLLOW) < 0)
    return Error::last("set times");
  return {};
}

}  // namespace

// A symlink or special file gets another number by this: nothing can be written on it that would
// keep the old one. REQUIRES: parts_.names.lock is held exclusively.
Result<void> Relocator::relocate_special(const InodePtr& parent, const std::string& name,
                                         Tier& from, Tier& to) {
  const OpenCopy old_dir = SLUICE_TRY(parts_.tree.open_copy(parent, from.index()));
  const OpenCopy new_dir = SLUICE_TRY(parts_.tree.ensure_copy(parent, to.index()));
  const Located old = SLUICE_TRY(from.identify(old_dir.get(), name.c_str()));
  const SharedFd temp = SLUICE_TRY(to.temp_directory());
  const std::string temp_name = Tier::new_temp_name();
  const auto place = [&]() -> Result<void> {
    SLUICE_TRY(make_twin(old_dir.get(), name.c_str(), old.st, temp->get(), temp_name.c_str()));
    const Located twin = SLUICE_TRY(to.identify(temp->get(), temp_name.c_str()));
    Step put;
    put.kind = Step::Kind::Rename;
    put.from = SLUICE_TRY(place_at(to, temp->get(), temp_name));
    put.to = SLUICE_TRY(place_at(to, new_dir.get(), name));
    put.subject = twin.identity;
    Step remove;
    remove.kind = Step::Kind::Unlink;
    remove.from = SLUICE_TRY(place_at(from, old_dir.get(), name));
    remove.subject = old.identity;
    SLUICE_TRY(
        execute(parts_.store, parts_.pool, {put, remove}, [&] { parts_.names.note_switch(); }));
    if (const InodePtr known = parts_.table.find(old.identity.id)) {
      Inode::Locked state(*known);
      state->copies[0] = Copy{to.index(), twin.handle, twin.pinned};
    }
    return {};
  };
  const auto placed = place();
  if (!placed) ::unlinkat(temp->get(), temp_name.c_str(), 0);
  return placed;
}

// Empties one directory, and says in `below` which ones it holds.
Result<void> Relocator::vacate_directory(const InodePtr& directory, Tier& from, Tier& to,
                                         Remainder& left, std::vector<std::string>& below) {
  {
    ExclusiveLock lock(parts_.names.lock);
    SLUICE_TRY(parts_.tree.ensure_copy(directory, to.index()));
  }
  const OpenCopy copy = SLUICE_TRY(parts_.tree.open_copy(directory, from.index()));
  for (const std::string& name : SLUICE_TRY(names_in(copy.get()))) {
    if (is_private(*directory, name.c_str())) continue;
    struct stat st {};
    if (::fstatat(copy.get(), name.c_str(), &st, AT_SYMLINK_NOFOLLOW) < 0) {
      if (errno != ENOENT) return Error::last("stat");
      continue;
    }
    if (S_ISDIR(st.st_mode)) {
      below.push_back(name);
      continue;
    }
    if (!S_ISREG(st.st_mode)) {
      ExclusiveLock lock(parts_.names.lock);
      if (relocate_special(directory, name, from, to)) continue;
    }
    ++left.files;
    left.bytes += static_cast<std::uint64_t>(st.st_blocks) * 512;
  }
  return {};
}

// Depth first and without recursion: a tree may be deeper than a thread's stack is large.
Result<void> Relocator::vacate_tree(Tier& from, Tier& to, Remainder& left) {
  struct Level {
    InodePtr directory;
    std::vector<std::string> below;  // still to be emptied
  };
  std::vector<Level> levels;
  // Each level but the root's has a reference, so that the way up stays in the table.
  const auto empty_all = [&]() -> Result<void> {
    levels.push_back({parts_.table.find(kRootId), {}});
    SLUICE_TRY(vacate_directory(levels[0].directory, from, to, left, levels[0].below));
    while (!levels.empty()) {
      if (levels.back().below.empty()) {
        parts_.table.forget(levels.back().directory->id(), 1);  // the root is never forgotten
        levels.pop_back();
        continue;
      }
      const std::string name = std::move(levels.back().below.back());
      levels.back().below.pop_back();
      InodePtr directory =
          SLUICE_TRY(parts_.tree.look_up(levels.back().directory, name.c_str(), NamesLock::Free,
                                         InodeTable::Told::Nobody))
              .inode;
      // Removed or replaced meanwhile: that empties it, too.
      if (!directory || !directory->is_directory()) {
        if (directory) parts_.table.forget(directory->id(), 1);
        continue;
      }
      levels.push_back({std::move(directory), {}});
      Level& level = levels.back();
      SLUICE_TRY(vacate_directory(level.directory, from, to, left, level.below));
    }
    return {};
  };
  const auto emptied = empty_all();
  for (const Level& level : levels) parts_.table.forget(level.directory->id(), 1);
  return emptied;
}

Result<Relocator::Remainder> Relocator::vacate(TierIndex index) {
  Tier& from = parts_.pool[index];
  parts_.engine.forget_filesystem(from.device());
  for (const TierIndex other : parts_.pool.placement()) {
    if (other == index || parts_.pool[other].is_draining()) continue;
    Remainder left;
    SLUICE_TRY(vacate_tree(from, parts_.pool[other], left));
    return left;
  }
  return Error(ENOSPC, "there is no other tier");
}

}  // namespace sluice
