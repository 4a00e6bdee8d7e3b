// SPDX-License-Identifier: BSD-2-Clause
// Emptying a tier that is being retired of what the mover does not move: directories, symlinks,
// FIFOs, sockets and devices.
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/file_at.hpp"
#include "fs/core/inodes/caller.hpp"
#include "fs/core/move/held_inode.hpp"
#include "fs/core/move/relocator.hpp"
#include "tiering/pool/twins.hpp"

namespace sluice {

// A symlink, FIFO, socket or device. It gets another inode number, because it has no place for an
// xattr that would keep the old one. REQUIRES: NamesLock::mutex is held exclusively.
class Relocator::SpecialFile final : public HeldInode {
 public:
  SpecialFile(const Parts& parts, const InodePtr& file, const HiddenCopy& copy, TierIndex to,
              const InodePtr& parent, const std::string& name)
      : HeldInode(parts, file, to, NamesHeld::Yes) {
    identity_ = copy.original;
    original_ = file->place();
    tier_ = original_.tier;
    names_.push_back({parent, name, {}, {}});
  }

  Result<Names> open_names() override { return open_all(); }
  Result<void> begin_switch(const HiddenCopy& copy) override {
    SLUICE_TRY(check_names());
    record(copy);
    return {};
  }
};

Result<void> Relocator::move_special(const InodePtr& parent, const std::string& name, Tier& from,
                                     Tier& to) {
  const auto found = SLUICE_TRY(
      parts_.tree.look_up(parent, name.c_str(), NamesHeld::Yes, InodeTable::LookupBy::Daemon));
  if (!found.inode) return Error(ENOENT, "the file was deleted");
  const auto move = [&]() -> Result<void> {
    if (found.found[0].tier != from.index())
      return Error(EEXIST, "another file has its name on a faster tier, see 'sluice fsck'");
    const OpenCopy directory = SLUICE_TRY(parts_.tree.open_copy(parent, from.index()));
    const HiddenCopy copy =
        SLUICE_TRY(make_hidden_special(directory.get(), name.c_str(), from, to));
    SpecialFile file(parts_, found.inode, copy, to.index(), parent, name);
    return switcher_.switch_file({&file, &copy, to.index()});
  };
  const auto moved = move();
  parts_.table.forget(found.inode->id(), 1);
  return moved;
}

// Empties one directory, and puts the names of its subdirectories into `below`.
Result<void> Relocator::vacate_directory(const InodePtr& directory, Tier& from, Tier& to,
                                         Remainder& left, std::vector<std::string>& below) {
  {
    ExclusiveLock lock(parts_.names_lock.mutex);
    const CurrentCaller nobody({.uid = kNobody, .gid = kNobody});  // see NobodysRoom
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
    std::string why;
    if (!S_ISREG(st.st_mode)) {
      ExclusiveLock lock(parts_.names_lock.mutex);
      const auto moved = move_special(directory, name, from, to);
      if (moved) continue;
      why = moved.error().text();
    }
    const std::uint64_t bytes = static_cast<std::uint64_t>(st.st_blocks) * 512;
    ++left.files;
    left.bytes += bytes;
    if (left.first.size() == kMostNamed) continue;
    const auto identity = from.identity_of(copy.get(), name.c_str());
    const std::string above = parts_.tree.path_of(directory);
    left.first.push_back({.id = identity ? identity->id : InodeId{},
                          .path = (above == "/" ? "" : above) + "/" + name,
                          .bytes = bytes,
                          .links = st.st_nlink,
                          .why = std::move(why)});
  }
  return {};
}

// Depth first, and without recursion, because a tree may be too deep for a thread's stack.
Result<void> Relocator::vacate_tree(Tier& from, Tier& to, Remainder& left) {
  struct Level {
    InodePtr directory;
    std::vector<std::string> below;  // still to be emptied
  };
  std::vector<Level> levels;
  // Each level except the root has a reference, so that its ancestors stay in the table.
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
          SLUICE_TRY(parts_.tree.look_up(levels.back().directory, name.c_str(), NamesHeld::No,
                                         InodeTable::LookupBy::Daemon))
              .inode;
      // It was removed or replaced meanwhile.
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
  parts_.pool.twins().drop_all(from);
  for (const TierIndex other : parts_.pool.placement()) {
    if (other == index || parts_.pool[other].is_draining()) continue;
    Remainder left;
    SLUICE_TRY(vacate_tree(from, parts_.pool[other], left));
    return left;
  }
  return Error(ENOSPC, "there is no other tier");
}

}  // namespace sluice
