// SPDX-License-Identifier: BSD-2-Clause
#include "fs/core/names/names.hpp"

#include <fcntl.h>
#include <stdio.h>
#include <sys/xattr.h>
#include <unistd.h>

#include <algorithm>
#include <climits>
#include <cstring>

#include "base/file_at.hpp"
#include "fs/core/inodes/guards.hpp"
#include "fs/core/tree/repetition.hpp"
#include "tiering/pool/twins.hpp"

namespace sluice {

namespace {

// Why a pool in which no tier takes new files refuses one.
Error no_tier(const Pool& pool) {
  const bool has_read_only = std::any_of(pool.begin(), pool.end(), [](const Tier* tier) {
    return tier->intake() == Intake::ReadOnly;
  });
  if (has_read_only) return {EROFS, "no tier can be written"};
  return {EIO, "no tier is online"};
}

// Whether the error applies to one tier only, so that another tier can be tried.
bool no_room(int code) { return code == ENOSPC || code == EDQUOT || code == EROFS; }

// The copy of the directory in which the file was found.
const OpenCopy& copy_with(const OpenCopies& directory, const Located& found) {
  return *std::find_if(directory.reachable.begin(), directory.reachable.end(),
                       [&](const OpenCopy& copy) { return copy.tier->index() == found.tier; });
}

}  // namespace

// For NFS, the kernel also looks up "." and "..".
Result<Entry> Names::lookup_self_or_parent(InodeId id, bool parent) {
  InodePtr self = SLUICE_TRY(parts_.tree.inode(id));
  if (parent) {
    self = SLUICE_TRY(parts_.tree.inode(self->last_name().parent));
  }
  Entry entry;
  entry.id = self->id();
  entry.generation = self->identity.generation;
  entry.st = SLUICE_TRY(parts_.attributes.stat_of(self));
  if (self->id() == kRootId) return entry;
  // The kernel counts this as a lookup, so add a reference.
  std::vector<Located> copies;
  {
    Inode::Locked state(*self);
    for (const Copy& copy : state->copies) {
      copies.push_back({copy.tier, copy.handle, copy.handle.empty() ? copy.fd : nullptr,
                        self->identity, entry.st});
    }
  }
  const InodeName name = self->last_name();
  if (!parts_.table.intern(copies, name.parent, name.text, InodeTable::LookupBy::Daemon))
    return Error(ESTALE, "lookup by id");
  return entry;
}

Entry Names::entry_of(const InodePtr& inode, const Located& found, std::uint64_t switches) {
  Entry entry;
  entry.id = inode->id();
  entry.generation = inode->identity.generation;
  entry.st = parts_.attributes.stat_of(inode, found, switches);
  entry.attribute_seconds = parts_.attributes.cache_seconds(inode);
  return entry;
}

Result<Entry> Names::entry_with_reference(const std::vector<Located>& found, const InodePtr& parent,
                                          const char* name) {
  const InodePtr inode =
      parts_.table.intern(found, parent->id(), name, InodeTable::LookupBy::Kernel);
  if (!inode) return Error(EIO, "two files with one identity");
  return entry_of(inode, found[0], parts_.names_lock.switches());
}

Result<Entry> Names::lookup(InodeId parent, const char* name) {
  if (std::strcmp(name, ".") == 0) return lookup_self_or_parent(parent, false);
  if (std::strcmp(name, "..") == 0) return lookup_self_or_parent(parent, true);
  const InodePtr directory = SLUICE_TRY(parts_.tree.inode(parent));
  const auto known =
      SLUICE_TRY(parts_.tree.look_up(directory, name, NamesHeld::No, InodeTable::LookupBy::Kernel));
  if (known.inode) return entry_of(known.inode, known.found[0], known.switches);
  Entry missing;
  // The name may exist on a tier that is offline, so the kernel must not cache that it does not
  // exist.
  if (!known.complete) missing.entry_seconds = 0;
  return missing;
}

Result<Located> Names::place_new(const InodePtr& parent, const NewFile& file,
                                 const KernelRequest& request,
                                 const std::function<Result<Located>(const OpenCopy&)>& make) {
  parts_.names_lock.mutex.assert_held_shared();
  const char* const name = file.name;
  const OpenCopies known = SLUICE_TRY(parts_.tree.open_copies(parent));
  if (*name != '\0') {
    auto made = SLUICE_TRY(made_by_first_attempt(known, name, file.type, file.owner, request));
    if (made) return *std::move(made);
    remember_beginning(request);
    // The name may have been created directly on a tier other than the one that is chosen below.
    struct stat st {};
    for (const OpenCopy& copy : known.reachable) {
      if (known.reachable.size() > 1 && ::fstatat(copy.get(), name, &st, AT_SYMLINK_NOFOLLOW) == 0)
        return Error(EEXIST, "make a file");
    }
    SLUICE_TRY(parts_.away.note_new_name(parent, known, name));
  }
  std::vector<TierIndex> order = parts_.pool.placement();
  if (order.empty()) return no_tier(parts_.pool);
  Error failure(EIO, "make a file");  // that of the first tier takes its place
  if (const TierIndex wanted = parts_.pins.wanted(parent, name); wanted != kNoTier) {
    // Try the tier of the pin or rule first. It is not in the list if it is being emptied.
    const auto at = std::find(order.begin(), order.end(), wanted);
    if (at != order.end()) std::rotate(order.begin(), at, at + 1);
  }
  for (const TierIndex index : order) {
    auto copy = parts_.tree.ensure_copy(parent, index);
    const ShownTimes::NameChange changing(parts_.times, *parent);
    Result<Located> made = copy ? make(*copy) : Result<Located>(copy.error());
    const bool fails = copy && (failed_with(made, EIO) || failed_with(made, EUCLEAN));
    if (fails) parts_.pool[index].note_failure(made.error().code);
    if (failed_with(made, ENOSPC) && parts_.pool.twins().make_room(parts_.pool[index], 0)) {
      if (!copy) copy = parts_.tree.ensure_copy(parent, index);
      if (copy) made = make(*copy);
    }
    if (made) return made;
    // ENAMETOOLONG: the directory is too deep to be copied to that tier.
    const bool may_go_elsewhere = fails || no_room(made.error().code) || made.error().code == EIO ||
                                  failed_with(copy, ENAMETOOLONG);
    if (!may_go_elsewhere) return made.error();
    // Report the error of the first tier, unless a later one is more specific than "full".
    if (failure.code == EIO || no_room(failure.code)) failure = made.error();
  }
  return failure;
}

// Makes a name in `parent` by calling `make_it` with the copy of `parent` on the chosen tier.
Result<Entry> Names::make(InodeId parent, const NewFile& file, const KernelRequest& request,
                          const std::function<Result<void>(int directory)>& make_it) {
  const InodePtr directory = SLUICE_TRY(parts_.tree.inode(parent));
  if (is_private(*directory, file.name)) return Error(EPERM, "make a name");
  SharedLock lock(parts_.names_lock.mutex);
  const Located made =
      SLUICE_TRY(place_new(directory, file, request, [&](const OpenCopy& copy) -> Result<Located> {
        if (const auto done = make_it(copy.get()); !done) return done.error();
        return copy.tier->identify(copy.get(), file.name);
      }));
  const Entry entry = SLUICE_TRY(entry_with_reference({made}, directory, file.name));
  if (S_ISDIR(made.st.st_mode)) {
    if (parts_.away.has_offline_copy(directory)) parts_.tree.set_partly_unknown(entry.id);
    parts_.budget_trees.directory_made(directory, file.name);
  }
  return entry;
}

Result<Entry> Names::mknod(InodeId parent, const char* name, mode_t mode, dev_t device,
                           const Caller& caller, const KernelRequest& request) {
  // mknod(2) makes a regular file if the mode has no type.
  const mode_t type = mode & S_IFMT ? mode & S_IFMT : S_IFREG;
  return make(parent, {name, type, caller.uid}, request, [&](int directory) -> Result<void> {
    const CreateAs creator(caller);
    if (::mknodat(directory, name, mode, device) < 0) return Error::last("mknod");
    return {};
  });
}

Result<Entry> Names::mkdir(InodeId parent, const char* name, mode_t mode, const Caller& caller,
                           const KernelRequest& request) {
  return make(parent, {name, S_IFDIR, caller.uid}, request, [&](int directory) -> Result<void> {
    const CreateAs creator(caller);
    if (::mkdirat(directory, name, mode) < 0) return Error::last("mkdir");
    return {};
  });
}

Result<Entry> Names::symlink(const char* target, InodeId parent, const char* name,
                             const Caller& caller, const KernelRequest& request) {
  return make(parent, {name, S_IFLNK, caller.uid}, request, [&](int directory) -> Result<void> {
    const CreateAs creator(caller);
    if (::symlinkat(target, directory, name) < 0) return Error::last("symlink");
    return {};
  });
}

Result<Entry> Names::link(InodeId id, InodeId new_parent, const char* new_name,
                          const KernelRequest& request) {
  auto linked = try_link(id, new_parent, new_name, request);
  if (failed_with(linked, ENOSPC) && parts_.pool.twins().make_room_where_full())
    linked = try_link(id, new_parent, new_name, request);
  return linked;
}

Result<Entry> Names::try_link(InodeId id, InodeId new_parent, const char* new_name,
                              const KernelRequest& request) {
  const InodePtr file = SLUICE_TRY(parts_.tree.inode(id));
  const InodePtr directory = SLUICE_TRY(parts_.tree.inode(new_parent));
  if (is_private(*directory, new_name)) return Error(EPERM, "link");
  const Budgets::Room room = SLUICE_TRY(parts_.budgets.admit_link(file, directory));
  // Locked before the names: a spill locks the file first and then the names.
  const ChangeGuard guard = SLUICE_TRY(ChangeGuard::of(file, request));
  SharedLock lock(parts_.names_lock.mutex);
  SLUICE_TRY(guard.check_name());
  const TierIndex tier = file->tier();
  const SharedFd fd = SLUICE_TRY(parts_.descriptors.any(file));
  const OpenCopies known = SLUICE_TRY(parts_.tree.open_copies(directory));
  const auto there = SLUICE_TRY(parts_.tree.locate(known, new_name, NamesHeld::Yes));
  if (!there.empty()) {
    struct stat st {};
    if (::fstat(fd->get(), &st) < 0) return Error::last("stat");
    const bool is_same = there[0].st.st_dev == st.st_dev && there[0].st.st_ino == st.st_ino;
    // The first attempt found no such name, so it made this one.
    if (is_same && request.remembered(Fact::Began))
      return entry_with_reference(there, directory, new_name);
    return Error(EEXIST, "link");
  }
  SLUICE_TRY(parts_.away.note_new_name(directory, known, new_name));
  const OpenCopy copy = SLUICE_TRY(parts_.tree.ensure_copy(directory, tier, Spares::Use));
  const ShownTimes::NameChange changing(parts_.times, *directory);
  remember_beginning(request);
  {
    const CallersRoom as_caller(*copy.tier);
    if (::linkat(fd->get(), "", copy.get(), new_name, AT_EMPTY_PATH) < 0)
      return Error::last("link");
  }
  const Located made = SLUICE_TRY(copy.tier->identify(copy.get(), new_name));
  parts_.budgets.name_came(directory, new_name, file, Budgets::Growth::None);
  return entry_with_reference({made}, directory, new_name);
}

// Called before the last name of a file is removed. A process that looked the name up before may
// still open and read the file, as on any filesystem, so a descriptor is kept until the kernel
// forgets the file. The engine must release the file, or its blocks would stay allocated.
void Names::keep_open_after_unlink(const Located& victim, const InodePtr& file) {
  if (S_ISDIR(victim.st.st_mode) || victim.st.st_nlink != 1) return;
  parts_.engine.forget(FileId{victim.st.st_dev, victim.st.st_ino});
  if (victim.handle.empty()) return;
  auto fd = parts_.pool[victim.tier].open(victim.handle, O_PATH);
  // If descriptors are scarce, none is kept. An open may then fail with ESTALE, and the kernel
  // looks the name up again.
  if (!fd || parts_.descriptors.is_scarce(fd->get())) return;
  const auto kept = std::make_shared<UniqueFd>(*std::move(fd));
  bool is_served = false;
  {
    Inode::Locked state(*file);
    if (state->place().handle != victim.handle) return;
    state->copies[0].fd = kept;
    is_served = state->open && !state->open->passthrough;
  }
  if (is_served) parts_.descriptors.keep_in_existence(*file, kept->get());
}

void Names::last_name_gone(const Located& victim, const InodePtr& file) {
  parts_.pool.twins().forget(victim.identity.id);
  parts_.file_is_gone(victim.identity.id);
  file->is_gone = true;
}

// A removed directory can still be the working directory of a process, and can then be reached only
// through its descriptors. They are opened here and kept.
void Names::set_removed(const std::vector<Located>& directory, bool removed) {
  const InodePtr inode = parts_.table.find(directory[0].identity.id);
  if (!inode || !inode->is_directory()) return;
  for (const Located& copy : directory) {
    [[maybe_unused]] const auto held = parts_.tree.open_copy(inode, copy.tier);
  }
  set_removed(inode, removed);
}

void Names::set_removed(const InodePtr& directory, bool removed) {
  removed ? parts_.times.forget(*directory) : parts_.times.save(*directory);
  {
    Inode::Locked state(*directory);
    state->directory.removed = removed;
  }
  // Its budget may have been dropped meanwhile.
  if (!removed) parts_.budget_trees.changed(directory);
}

// Only once the name is gone: a budget must not be lost to an rmdir that fails.
void Names::end_budget(InodeId directory) {
  if (const InodePtr inode = parts_.table.find(directory); inode && inode->is_directory())
    parts_.budget_trees.directory_removed(inode);
}

Result<bool> Names::was_removed(const OpenCopies& parent, const char* name,
                                const KernelRequest& request) {
  const auto victim = request.remembered(Fact::Victim);
  if (!victim || SLUICE_TRY(has_identity(parent, name, InodeId{*victim}))) return false;
  const InodePtr known = parts_.table.find(InodeId{*victim});
  if (!parent.complete) {
    // The victim may still be on a tier that is offline, unless its own tier is online.
    if (!known || !parts_.pool[known->tier()].online()) return false;
  }
  if (known && known->is_directory()) set_removed(known, true);
  end_budget(InodeId{*victim});
  return true;
}

Result<void> Names::unlink(InodeId parent, const char* name, const KernelRequest& request) {
  const InodePtr directory = SLUICE_TRY(parts_.tree.inode(parent));
  if (is_private(*directory, name)) return Error(ENOENT, "unlink");
  for (;;) {
    const InodePtr moving = parts_.tree.moving_file(directory, name, NamesHeld::No);
    const ChangeGuard guard = SLUICE_TRY(ChangeGuard::of(moving, request));
    SharedLock lock(parts_.names_lock.mutex);
    if (parts_.tree.moving_file(directory, name, NamesHeld::Yes) != moving)
      continue;  // a move began or ended meanwhile
    SLUICE_TRY(guard.check_name());
    return unlink_locked(directory, name, request);
  }
}

Result<void> Names::unlink_locked(const InodePtr& directory, const char* name,
                                  const KernelRequest& request) {
  const OpenCopies copies = SLUICE_TRY(parts_.tree.open_copies(directory));
  if (SLUICE_TRY(was_removed(copies, name, request))) return {};
  const auto [found, file] =
      SLUICE_TRY(parts_.tree.locate_for_kernel(directory, copies, name, NamesHeld::Yes));
  if (found.empty()) return Error(copies.complete ? ENOENT : EIO, "unlink");
  keep_open_after_unlink(found[0], file);
  const OpenCopy& at = copy_with(copies, found[0]);
  const ShownTimes::NameChange changing(parts_.times, *directory);
  request.remember(Fact::Victim, to_number(found[0].identity.id));
  if (::unlinkat(at.get(), name, 0) < 0) return Error::last("unlink");
  if (found[0].st.st_nlink == 1) last_name_gone(found[0], file);
  parts_.budgets.name_gone(directory, name, found[0].identity.id);
  return {};
}

Result<void> Names::remove_unused(const InodePtr& file, const std::vector<Place>& names,
                                  const Agree& agree) {
  // Closed after the lock is given back: freeing the blocks of a large file takes long.
  const auto kept = parts_.descriptors.any(file);
  // The kernel does not know of this change, so it does not keep users away from the directory.
  const ExclusiveLock lock(parts_.names_lock.mutex);
  {
    Inode::Locked state(*file);
    if (state->is_moving() || state->may_be_in_two_places())
      return Error(EBUSY, "the file is being moved");
  }
  std::vector<OpenCopy> directories;
  for (const Place& each : names) {
    const OpenCopies copies = SLUICE_TRY(parts_.tree.open_copies(each.parent));
    const auto found = SLUICE_TRY(parts_.tree.locate(copies, each.name.c_str(), NamesHeld::Yes));
    if (found.size() != 1 || found[0].identity.id != file->id())
      return Error(ESTALE, "the name belongs to another file");
    directories.push_back(SLUICE_TRY(parts_.tree.open_copy(each.parent, found[0].tier)));
    SLUICE_TRY(agree(found[0], directories.back()));
    if (&each == &names.back())
      parts_.engine.forget(FileId{found[0].st.st_dev, found[0].st.st_ino});
  }
  for (std::size_t i = 0; i < names.size(); ++i) {
    const ShownTimes::NameChange changing(parts_.times, *names[i].parent);
    if (::unlinkat(directories[i].get(), names[i].name.c_str(), 0) < 0)
      return Error::last("unlink");
  }
  parts_.pool.twins().forget(file->id());
  file->is_gone = true;
  return {};
}

Result<std::string> Names::bring_back(const Twins::Survivor& twin) {
  const Tier& tier = *twin.tier;
  const SharedFd twins = SLUICE_TRY(tier.twins_directory());
  const SharedFd root = SLUICE_TRY(tier.root());
  std::string base = SLUICE_TRY(current_path(root->get()));
  if (base.ends_with('/')) base.pop_back();  // a private mount's root
  const std::string hidden = twin_name(twin.note.file);
  const UniqueFd file(
      ::openat(twins->get(), hidden.c_str(), O_RDONLY | O_NOFOLLOW | O_NOATIME | O_CLOEXEC));
  if (!file) return Error::last("open a twin");
  if (::fchown(file.get(), twin.note.uid, twin.note.gid) < 0 ||
      ::fchmod(file.get(), twin.note.mode) < 0 || ::fsync(file.get()) < 0)
    return Error::last("restore the attributes of a twin");
  ExclusiveLock lock(parts_.names_lock.mutex);
  // The twin may be about a place that the file had left before the disk was lost.
  const InodePtr known = parts_.table.find(twin.note.file.id);
  const Copy there = known ? known->place() : Copy{};
  if (known && known->identity == twin.note.file && parts_.pool[there.tier].online() &&
      (there.handle.empty() || parts_.pool[there.tier].open(there.handle, O_PATH)))
    return Error(EEXIST, "the file is on another tier");
  std::string path;
  Error failure(ESTALE, "its directory is gone");
  UniqueFd first;
  for (const TwinNote::Name& name : twin.note.names) {
    auto directory = tier.open(name.directory, O_RDONLY | O_DIRECTORY);
    const auto above = directory ? current_path(directory->get()) : directory.error();
    if (!above || !above->starts_with(base)) continue;
    std::vector<InodeId> references;
    const auto parent = parts_.tree.walk(above->substr(base.size()), references, NamesHeld::Yes);
    const auto place = [&]() -> Result<void> {
      const InodePtr inode = SLUICE_TRY(parent);
      const OpenCopies copies = SLUICE_TRY(parts_.tree.open_copies(inode));
      if (!SLUICE_TRY(parts_.tree.locate(copies, name.text.c_str(), NamesHeld::Yes)).empty())
        return Error(EEXIST, "another file has its name");
      SLUICE_TRY(parts_.away.note_new_name(inode, copies, name.text.c_str()));
      const int from = first ? first.get() : twins->get();
      const char* const as = first ? path.c_str() + path.rfind('/') + 1 : hidden.c_str();
      const int done =
          first ? ::linkat(from, as, directory->get(), name.text.c_str(), 0)
                : ::renameat2(from, as, directory->get(), name.text.c_str(), RENAME_NOREPLACE);
      if (done < 0 || ::fsync(directory->get()) < 0) return Error::last("name a twin");
      return {};
    }();
    for (const InodeId id : references) parts_.table.forget(id, 1);
    if (!place) {
      failure = place.error();
    } else if (!first) {
      path = above->substr(base.size()) + "/" + name.text;
      first = *std::move(directory);
      ::fremovexattr(file.get(), kTwinXattr);
    }
  }
  if (!first) return failure;
  parts_.pool.twins().taken(twin.note.file, tier, true);
  parts_.names_lock.note_switch();
  return path;
}

Result<void> Names::rmdir(InodeId parent, const char* name, const KernelRequest& request) {
  const InodePtr directory = SLUICE_TRY(parts_.tree.inode(parent));
  if (is_private(*directory, name)) return Error(ENOENT, "rmdir");
  SharedLock lock(parts_.names_lock.mutex);
  const OpenCopies copies = SLUICE_TRY(parts_.tree.open_copies(directory));
  if (SLUICE_TRY(was_removed(copies, name, request))) return {};
  const auto found =
      SLUICE_TRY(parts_.tree.locate_for_kernel(directory, copies, name, NamesHeld::Yes)).found;
  if (found.empty()) return Error(ENOENT, "rmdir");
  if (!is_directory(found)) return Error(ENOTDIR, "rmdir");
  // If a copy of the parent is offline, a copy of this directory may be, too, with files in it.
  if (!copies.complete)
    return Error(EIO, "rmdir: the directory may have files on a tier that is offline");
  if (found.size() > 1) {
    for (const Located& copy : found) {
      const OpenCopy at = SLUICE_TRY(parts_.tree.open_copy(directory, copy.tier));
      if (!SLUICE_TRY(is_empty(at.get(), name))) return Error(ENOTEMPTY, "rmdir");
    }
  }
  // The fastest copy, which defines the attributes, is removed last. No intent is needed: if a
  // crash leaves some of the copies, they are still the same empty directory.
  set_removed(found, true);
  const ShownTimes::NameChange changing(parts_.times, *directory);
  request.remember(Fact::Victim, to_number(found[0].identity.id));
  for (auto copy = found.rbegin(); copy != found.rend(); ++copy) {
    const OpenCopy at = SLUICE_TRY(parts_.tree.open_copy(directory, copy->tier));
    if (::unlinkat(at.get(), name, AT_REMOVEDIR) < 0) {
      const Error failure = Error::last("rmdir");
      set_removed(found, false);
      if (const InodePtr known = parts_.table.find(copy->identity.id)) {
        Inode::Locked state(*known);
        // Forget the copies that were removed before this one failed.
        parts_.table.erase_copies(*state, [&](const Copy& c) {
          return std::any_of(found.rbegin(), copy,
                             [&](const Located& gone) { return gone.tier == c.tier; });
        });
      }
      return failure;
    }
  }
  end_budget(found[0].identity.id);
  return {};
}

Result<std::string> Names::readlink(InodeId id) {
  const InodePtr link = SLUICE_TRY(parts_.tree.inode(id));
  const SharedFd fd = SLUICE_TRY(parts_.descriptors.any(link));
  std::string target(PATH_MAX, '\0');
  const ssize_t size = ::readlinkat(fd->get(), "", target.data(), target.size());
  if (size < 0) return Error::last("readlink");
  target.resize(static_cast<std::size_t>(size));
  return target;
}

Result<void> Names::sync_directory(InodeId id) {
  const InodePtr directory = SLUICE_TRY(parts_.tree.inode(id));
  for (const OpenCopy& copy : SLUICE_TRY(parts_.tree.open_copies(directory)).reachable) {
    if (::fsync(copy.get()) < 0) return Error::last("sync directory");
  }
  return {};
}

Result<std::unique_ptr<DirectoryStream>> Names::open_directory(InodeId id) {
  const InodePtr directory = SLUICE_TRY(parts_.tree.inode(id));
  return std::make_unique<DirectoryStream>(parts_.tree, parts_.names_lock, directory);
}

}  // namespace sluice
