// SPDX-License-Identifier: BSD-2-Clause
// Names: looking them up over the tiers, making, linking, removing, renaming and listing them.
#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <climits>
#include <cstring>
#include <functional>

#include "base/file_at.hpp"
#include "fs/directory_stream.hpp"
#include "fs/filesystem.hpp"

namespace sluice {
namespace {

// Errors that say "not on this tier" rather than "not at all".
bool no_room(int code) { return code == ENOSPC || code == EDQUOT || code == EROFS; }

}  // namespace

Filesystem::Filesystem(Pool& pool, Store& store, KernelSide& kernel, Settings settings)
    : pool_(pool),
      store_(store),
      kernel_(kernel),
      settings_(std::move(settings)),
      heat_(store, settings_.half_life),
      hot_files_(settings_.half_life),
      table_(pool),
      away_(store),
      times_(pool, store),
      // A quarter of what a process may have open for directories, half for files in use: the rest
      // is the database's.
      fd_cache_(
          std::clamp<std::size_t>(static_cast<std::size_t>(::sysconf(_SC_OPEN_MAX)) / 4, 64, 4096)),
      most_readers_(static_cast<std::uint64_t>(::sysconf(_SC_OPEN_MAX)) / 2),
      scans_({.ignored = settings_.heat_ignore}) {
  auto root = std::make_shared<Inode>(Identity{kRootId, 0}, S_IFDIR);
  {
    MutexLock lock(root->mutex);
    root->parent = kRootId;
    for (const auto& tier : pool_) root->copies.push_back({tier->index(), {}, nullptr});
  }
  table_.add_root(root);
}

Filesystem::~Filesystem() = default;

bool Filesystem::is_private(const Inode& parent, const char* name) {
  return parent.id() == kRootId && std::strcmp(name, kPrivateDirectory) == 0;
}

Result<bool> Filesystem::is_empty(int parent, const char* name) {
  const UniqueFd fd(::openat(parent, name, O_PATH | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC));
  if (!fd) return Error::last("open directory");
  return SLUICE_TRY(names_in(fd.get(), 1)).empty();
}

Result<Entry> Filesystem::lookup_self_or_parent(InodeId id, bool parent) {
  InodePtr self = SLUICE_TRY(inode(id));
  if (parent) {
    InodeId up{};
    {
      MutexLock lock(self->mutex);
      up = self->parent;
    }
    self = SLUICE_TRY(inode(up));
  }
  Entry entry;
  entry.id = self->id();
  entry.generation = self->identity.generation;
  entry.st = SLUICE_TRY(stat_of(self));
  if (self->id() == kRootId) return entry;
  // Counts as a lookup of the kernel's.
  std::vector<Located> copies;
  {
    MutexLock lock(self->mutex);
    for (const Copy& copy : self->copies) {
      copies.push_back({copy.tier, copy.handle, copy.handle.empty() ? copy.fd : nullptr,
                        self->identity, entry.st});
    }
  }
  std::string name;
  InodeId up{};
  {
    MutexLock lock(self->mutex);
    name = self->name;
    up = self->parent;
  }
  if (!table_.intern(copies, up, name, InodeTable::Told::Nobody))
    return Error(ESTALE, "lookup by id");
  return entry;
}

Result<Entry> Filesystem::enter(const std::vector<Located>& found, const InodePtr& parent,
                                const char* name, InodeTable::Told told) {
  const InodePtr inode = table_.intern(found, parent->id(), name, told);
  if (!inode) return Error(EIO, "two files with one identity");
  Entry entry;
  entry.id = inode->id();
  entry.generation = inode->identity.generation;
  entry.st = stat_of(inode, found[0]);
  entry.attribute_seconds = attribute_seconds(inode);
  return entry;
}

Result<Entry> Filesystem::lookup(InodeId parent, const char* name) {
  if (std::strcmp(name, ".") == 0) return lookup_self_or_parent(parent, false);
  if (std::strcmp(name, "..") == 0) return lookup_self_or_parent(parent, true);
  return look_up(SLUICE_TRY(inode(parent)), name, NamesLock::Free, InodeTable::Told::Kernel);
}

Result<Entry> Filesystem::look_up(const InodePtr& directory, const char* name, NamesLock held,
                                  InodeTable::Told told) {
  Entry missing;
  if (is_private(*directory, name)) return missing;
  OpenCopies copies;
  std::vector<Located> found;
  Entry entry;
  for (;;) {
    const std::uint64_t switches = switches_.load();
    copies = SLUICE_TRY(open_copies(directory));
    found = SLUICE_TRY(locate(copies, name, held));
    if (found.empty()) {
      // It may have moved to a tier on which the directory had no copy yet.
      if (switches_.load() != switches) continue;
      // On a tier that is away the name may well exist; nobody may remember that it does not.
      if (!copies.complete) missing.entry_seconds = 0;
      return missing;
    }
    entry = SLUICE_TRY(enter(found, directory, name, told));
    // A file that moved after we found it looks like another one with its number.
    if (entry.id == found[0].identity.id || switches_.load() == switches) break;
    forget(entry.id, 1);
  }
  if (is_directory(found) && !copies.complete) set_partly_unknown(entry.id);
  return entry;
}

// Where its parent has a copy on a tier that is away, so may the directory.
void Filesystem::set_partly_unknown(InodeId id) {
  if (const InodePtr directory = table_.find(id)) {
    MutexLock lock(directory->mutex);
    directory->partly_unknown = true;
  }
}

Result<Located> Filesystem::place_new(const InodePtr& parent, const char* name,
                                      const std::function<Result<Located>(const OpenCopy&)>& make) {
  const OpenCopies known = SLUICE_TRY(open_copies(parent));
  if (*name != '\0') {
    // Somebody may have made it past us, on another tier than the one that is chosen below.
    struct stat st {};
    for (const OpenCopy& copy : known.reachable) {
      if (known.reachable.size() > 1 &&
          ::fstatat(copy.get(), name, &st, AT_SYMLINK_NOFOLLOW) == 0)
        return Error(EEXIST, "make a file");
    }
    SLUICE_TRY(note_taken(parent, known, name));
  }
  Error failure(EIO, "no tier is online");
  std::vector<TierIndex> order = pool_.placement();
  if (const TierIndex wanted = wanted_tier(parent, name); wanted != kNoTier) {
    // Where a pin or a rule says, if that is possible at all; a tier that is being emptied is not
    // among them.
    const auto at = std::find(order.begin(), order.end(), wanted);
    if (at != order.end()) std::rotate(order.begin(), at, at + 1);
  }
  for (const TierIndex index : order) {
    auto copy = ensure_copy(parent, index);
    const ShownTimes::NameChange changing(*parent);
    Result<Located> made = copy ? make(*copy) : Result<Located>(copy.error());
    if (made) return made;
    // ENAMETOOLONG: the directory lies too deep to be copied to that tier.
    const bool may_go_elsewhere =
        no_room(made.error().code) || made.error().code == EIO || failed_with(copy, ENAMETOOLONG);
    if (!may_go_elsewhere) return made.error();
    // The first tier's error is the one to report, unless a later one says more than "full".
    if (failure.code == EIO || no_room(failure.code)) failure = made.error();
  }
  return failure;
}

Result<Entry> Filesystem::mknod(InodeId parent, const char* name, mode_t mode, dev_t device,
                                const Caller& caller) {
  const InodePtr directory = SLUICE_TRY(inode(parent));
  if (is_private(*directory, name)) return Error(EPERM, "mknod");
  SharedLock lock(namespace_);
  const Located made =
      SLUICE_TRY(place_new(directory, name, [&](const OpenCopy& copy) -> Result<Located> {
        create_as(caller);
        if (::mknodat(copy.get(), name, mode, device) < 0) return Error::last("mknod");
        return copy.tier->identify(copy.get(), name);
      }));
  return enter({made}, directory, name, InodeTable::Told::Kernel);
}

Result<Entry> Filesystem::mkdir(InodeId parent, const char* name, mode_t mode,
                                const Caller& caller) {
  const InodePtr directory = SLUICE_TRY(inode(parent));
  if (is_private(*directory, name)) return Error(EPERM, "mkdir");
  SharedLock lock(namespace_);
  const Located made =
      SLUICE_TRY(place_new(directory, name, [&](const OpenCopy& copy) -> Result<Located> {
        create_as(caller);
        if (::mkdirat(copy.get(), name, mode) < 0) return Error::last("mkdir");
        return copy.tier->identify(copy.get(), name);
      }));
  const Entry entry = SLUICE_TRY(enter({made}, directory, name, InodeTable::Told::Kernel));
  if (!away_copies(directory).empty()) set_partly_unknown(entry.id);
  return entry;
}

Result<Entry> Filesystem::symlink(const char* target, InodeId parent, const char* name,
                                  const Caller& caller) {
  const InodePtr directory = SLUICE_TRY(inode(parent));
  if (is_private(*directory, name)) return Error(EPERM, "symlink");
  SharedLock lock(namespace_);
  const Located made =
      SLUICE_TRY(place_new(directory, name, [&](const OpenCopy& copy) -> Result<Located> {
        create_as(caller);
        if (::symlinkat(target, copy.get(), name) < 0) return Error::last("symlink");
        return copy.tier->identify(copy.get(), name);
      }));
  return enter({made}, directory, name, InodeTable::Told::Kernel);
}

Result<Entry> Filesystem::link(InodeId id, InodeId new_parent, const char* new_name) {
  const InodePtr file = SLUICE_TRY(inode(id));
  const InodePtr directory = SLUICE_TRY(inode(new_parent));
  if (is_private(*directory, new_name)) return Error(EPERM, "link");
  // Before the names: whoever spills the file has it to himself and then wants the names.
  const ChangeGuard guard = SLUICE_TRY(ChangeGuard::of(file));
  SharedLock lock(namespace_);
  SLUICE_TRY(guard.check_name());
  TierIndex tier = kNoTier;
  {
    MutexLock inode_lock(file->mutex);
    tier = file->copies[0].tier;
  }
  const SharedFd fd = SLUICE_TRY(any_fd(file));
  const OpenCopies known = SLUICE_TRY(open_copies(directory));
  if (!SLUICE_TRY(locate(known, new_name, NamesLock::Held)).empty()) return Error(EEXIST, "link");
  SLUICE_TRY(note_taken(directory, known, new_name));
  const OpenCopy copy = SLUICE_TRY(ensure_copy(directory, tier));
  const ShownTimes::NameChange changing(*directory);
  if (::linkat(fd->get(), "", copy.get(), new_name, AT_EMPTY_PATH) < 0) return Error::last("link");
  const Located made = SLUICE_TRY(copy.tier->identify(copy.get(), new_name));
  return enter({made}, directory, new_name, InodeTable::Told::Kernel);
}

// The last name of a file is about to go. Who found it by that name a moment ago may still open and
// read it, as on any filesystem: the descriptor is kept until the kernel forgets the file. The
// engine lets go of it, or its blocks would stay.
void Filesystem::keep_nameless(const Located& victim) {
  if (S_ISDIR(victim.st.st_mode) || victim.st.st_nlink != 1) return;
  if (engine_in_use_) engine_->forget_file(FileId{victim.st.st_dev, victim.st.st_ino});
  const InodePtr file = table_.find(victim);
  if (!file || victim.handle.empty()) return;
  auto fd = pool_[victim.tier].open(victim.handle, O_PATH);
  // Where descriptors run short we do without: an open may then be ESTALE, which makes the kernel
  // look the name up again.
  if (!fd || static_cast<std::uint64_t>(fd->get()) > most_readers_ + most_readers_ / 2) return;
  MutexLock lock(file->mutex);
  if (file->copies[0].handle == victim.handle)
    file->copies[0].fd = std::make_shared<UniqueFd>(*std::move(fd));
}

// A removed directory can still be somebody's working directory: its descriptors are the only way
// left to it.
void Filesystem::set_removed(const std::vector<Located>& directory, bool removed) {
  const InodePtr inode = table_.find(directory[0].identity.id);
  if (!inode || !inode->is_directory()) return;
  for (const Located& copy : directory) {
    [[maybe_unused]] const auto held = open_copy(inode, copy.tier);
  }
  if (removed) times_.forget(inode->id());
  MutexLock lock(inode->mutex);
  inode->removed = removed;
}

Result<void> Filesystem::unlink(InodeId parent, const char* name) {
  const InodePtr directory = SLUICE_TRY(inode(parent));
  if (is_private(*directory, name)) return Error(ENOENT, "unlink");
  for (;;) {
    const InodePtr moving = moving_inode(directory, name, NamesLock::Free);
    const ChangeGuard guard = SLUICE_TRY(ChangeGuard::of(moving));
    SharedLock lock(namespace_);
    if (moving_inode(directory, name, NamesLock::Held) != moving) continue;  // it began meanwhile
    SLUICE_TRY(guard.check_name());
    return unlink_locked(directory, name);
  }
}

// REQUIRES: namespace_ is shared.
Result<void> Filesystem::unlink_locked(const InodePtr& directory, const char* name) {
  const OpenCopies copies = SLUICE_TRY(open_copies(directory));
  const auto found = SLUICE_TRY(locate_told(directory, copies, name, NamesLock::Held));
  if (found.empty()) return Error(copies.complete ? ENOENT : EIO, "unlink");
  keep_nameless(found[0]);
  const OpenCopy at = SLUICE_TRY(open_copy(directory, found[0].tier));
  const ShownTimes::NameChange changing(*directory);
  if (::unlinkat(at.get(), name, 0) < 0) return Error::last("unlink");
  return {};
}

Result<void> Filesystem::rmdir(InodeId parent, const char* name) {
  const InodePtr directory = SLUICE_TRY(inode(parent));
  if (is_private(*directory, name)) return Error(ENOENT, "rmdir");
  SharedLock lock(namespace_);
  const OpenCopies copies = SLUICE_TRY(open_copies(directory));
  const auto found = SLUICE_TRY(locate_told(directory, copies, name, NamesLock::Held));
  if (found.empty()) return Error(ENOENT, "rmdir");
  if (!is_directory(found)) return Error(ENOTDIR, "rmdir");
  // Where a copy of the parent is out of reach, so may be one of this directory, with files in it.
  if (!copies.complete) return Error(EIO, "rmdir on a tier that is offline");
  if (found.size() > 1) {
    for (const Located& copy : found) {
      const OpenCopy at = SLUICE_TRY(open_copy(directory, copy.tier));
      if (!SLUICE_TRY(is_empty(at.get(), name))) return Error(ENOTEMPTY, "rmdir");
    }
  }
  // The fastest copy, which the attributes come from, goes last. No intent is needed: a directory
  // that is left on some of its tiers is that directory still, empty as it was.
  set_removed(found, true);
  const ShownTimes::NameChange changing(*directory);
  for (auto copy = found.rbegin(); copy != found.rend(); ++copy) {
    const OpenCopy at = SLUICE_TRY(open_copy(directory, copy->tier));
    if (::unlinkat(at.get(), name, AT_REMOVEDIR) < 0) {
      const Error failure = Error::last("rmdir");
      set_removed(found, false);
      if (const InodePtr known = table_.find(copy->identity.id)) {
        MutexLock inode_lock(known->mutex);
        // What was removed before this one failed is not there any more.
        std::erase_if(known->copies, [&](const Copy& c) {
          return std::any_of(found.rbegin(), copy,
                             [&](const Located& gone) { return gone.tier == c.tier; });
        });
      }
      return failure;
    }
  }
  return {};
}

Result<std::string> Filesystem::readlink(InodeId id) {
  const InodePtr link = SLUICE_TRY(inode(id));
  const SharedFd fd = SLUICE_TRY(any_fd(link));
  std::string target(PATH_MAX, '\0');
  const ssize_t size = ::readlinkat(fd->get(), "", target.data(), target.size());
  if (size < 0) return Error::last("readlink");
  target.resize(static_cast<std::size_t>(size));
  return target;
}

Result<void> Filesystem::sync_directory(InodeId id) {
  const InodePtr directory = SLUICE_TRY(inode(id));
  for (const OpenCopy& copy : SLUICE_TRY(open_copies(directory)).reachable) {
    if (::fsync(copy.get()) < 0) return Error::last("sync directory");
  }
  return {};
}

Result<std::unique_ptr<DirectoryStream>> Filesystem::open_directory(InodeId id) {
  const InodePtr directory = SLUICE_TRY(inode(id));
  return std::make_unique<DirectoryStream>(*this, directory);
}

}  // namespace sluice
