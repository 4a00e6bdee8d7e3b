// SPDX-License-Identifier: BSD-2-Clause
// Names: looking them up over the tiers, making, linking, removing and renaming them.
#include <dirent.h>
#include <fcntl.h>
#include <linux/fs.h>
#include <stdio.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <climits>
#include <cstring>
#include <functional>

#include "base/log.hpp"
#include "fs/directory_stream.hpp"
#include "fs/filesystem.hpp"
#include "tiering/copier.hpp"

namespace sluice {
namespace {

bool is_private(const Inode& parent, const char* name) {
  return parent.id() == kRootId && std::strcmp(name, kPrivateDirectory) == 0;
}

// Errors that say "not on this tier" rather than "not at all".
bool no_room(int code) { return code == ENOSPC || code == EDQUOT || code == EROFS; }

bool is_directory(const std::vector<Located>& found) {
  return !found.empty() && S_ISDIR(found[0].st.st_mode);
}

const Located* on_tier(const std::vector<Located>& found, TierIndex tier) {
  for (const Located& f : found) {
    if (f.tier == tier) return &f;
  }
  return nullptr;
}

bool has_several_copies(Inode& inode) {
  MutexLock lock(inode.mutex);
  return inode.copies.size() > 1;
}

// Whether the directory `name` in `parent` holds nothing.
Result<bool> is_empty(int parent, const char* name) {
  const int fd = ::openat(parent, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
  DIR* dir = fd < 0 ? nullptr : ::fdopendir(fd);
  if (dir == nullptr) return Error::last("open directory");
  bool empty = true;
  while (const dirent* entry = ::readdir(dir)) {
    const std::string_view found = entry->d_name;
    if (found != "." && found != "..") empty = false;
  }
  ::closedir(dir);
  return empty;
}

}  // namespace

Filesystem::Filesystem(Pool& pool, Store& store, KernelSide& kernel, Settings settings)
    : pool_(pool),
      store_(store),
      kernel_(kernel),
      settings_(settings),
      heat_(store),
      table_(pool),
      // A quarter of what a process may have open for directories, half for files in use: the rest
      // is the database's.
      fd_cache_(
          std::clamp<std::size_t>(static_cast<std::size_t>(::sysconf(_SC_OPEN_MAX)) / 4, 64, 4096)),
      most_readers_(static_cast<std::uint64_t>(::sysconf(_SC_OPEN_MAX)) / 2) {
  auto root = std::make_shared<Inode>(Identity{kRootId, 0}, S_IFDIR);
  {
    MutexLock lock(root->mutex);
    root->parent = kRootId;
    for (const auto& tier : pool_) root->copies.push_back({tier->index(), {}, nullptr});
  }
  table_.add_root(root);
}

Filesystem::~Filesystem() = default;

Result<InodePtr> Filesystem::inode(InodeId id) {
  if (InodePtr found = table_.find(id)) return found;
  return resolve_forgotten(id);
}

// An id from an NFS-style handle that outlived the kernel's memory of the file, perhaps by a
// remount.
Result<InodePtr> Filesystem::resolve_forgotten(InodeId id) {
  const Tier* tier = pool_.by_slot(slot_of(id));
  if (tier == nullptr) return Error(ESTALE, "resolve id");
  const Located found = SLUICE_TRY(tier->find(id));
  // Through its path we learn all copies of a directory and the way to its parents. The path may be
  // unknown to the kernel (only directories are always connected); a file can then be used, but not
  // named.
  const UniqueFd fd = SLUICE_TRY(tier->open(found.handle, O_PATH));
  const SharedFd root = SLUICE_TRY(tier->root());
  std::array<std::array<char, PATH_MAX>, 2> paths{};
  const std::array<int, 2> fds{root->get(), fd.get()};
  for (std::size_t i = 0; i < 2; ++i) {
    const std::string link = "/proc/self/fd/" + std::to_string(fds[i]);
    if (::readlink(link.c_str(), paths[i].data(), PATH_MAX - 1) < 0)
      return Error(ESTALE, "resolve id");
  }
  std::string_view path = paths[1].data();
  if (path.starts_with(paths[0].data())) {
    path.remove_prefix(std::strlen(paths[0].data()));
    InodeId at = kRootId;
    while (!path.empty()) {
      path.remove_prefix(1);  // the slash
      const std::string name(path.substr(0, path.find('/')));
      path.remove_prefix(name.size());
      auto entry = lookup(at, name.c_str());
      if (at != kRootId) table_.forget(at, 1);
      if (!entry || entry->id == InodeId{}) {
        at = kRootId;
        break;
      }
      at = entry->id;
    }
    if (at == id) {
      InodePtr resolved = table_.find(id);
      table_.forget(id, 1);
      if (resolved) return resolved;
    } else if (at != kRootId) {
      table_.forget(at, 1);
    }
  }
  if (S_ISDIR(found.st.st_mode)) return Error(ESTALE, "resolve id");
  InodePtr unnamed = table_.intern({found}, kRootId, "");
  if (!unnamed) return Error(ESTALE, "resolve id");
  table_.forget(unnamed->id(), 1);
  return unnamed;
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
  if (!table_.intern(copies, up, name)) return Error(ESTALE, "lookup by id");
  return entry;
}

Result<Filesystem::OpenCopy> Filesystem::open_copy(const InodePtr& directory, TierIndex index) {
  Tier& tier = pool_[index];
  if (directory->id() == kRootId) return OpenCopy{&tier, SLUICE_TRY(tier.root())};
  FileHandle handle;
  {
    MutexLock lock(directory->mutex);
    for (const Copy& copy : directory->copies) {
      if (copy.tier != index) continue;
      if (!tier.online()) return Error(EIO, "tier is offline");
      if (copy.fd) {
        directory->fd_used = true;
        return OpenCopy{&tier, copy.fd};
      }
      handle = copy.handle;
    }
  }
  if (handle.empty()) return Error(ENOENT, "no copy on that tier");
  auto opened = tier.open(handle, O_RDONLY | O_DIRECTORY);
  if (!opened)
    return opened.error().code == ESTALE ? Error(ENOENT, "open directory") : opened.error();
  SharedFd fd = std::make_shared<UniqueFd>(*std::move(opened));
  {
    MutexLock lock(directory->mutex);
    for (Copy& copy : directory->copies) {
      if (copy.tier == index && copy.handle == handle) copy.fd = fd;
    }
  }
  fd_cache_.added(directory);
  return OpenCopy{&tier, fd};
}

Result<Filesystem::OpenCopies> Filesystem::open_copies(const InodePtr& directory) {
  if (!directory->is_directory()) return Error(ENOTDIR, "open directory");
  std::vector<TierIndex> tiers;
  {
    MutexLock lock(directory->mutex);
    for (const Copy& copy : directory->copies) tiers.push_back(copy.tier);
  }
  OpenCopies out;
  {
    MutexLock lock(directory->mutex);
    out.complete = !directory->partly_unknown;
  }
  int code = ENOENT;
  for (const TierIndex tier : tiers) {
    auto copy = open_copy(directory, tier);
    if (copy) {
      out.reachable.push_back(*std::move(copy));
    } else if (copy.error().code == EIO) {
      out.complete = false;
      code = EIO;
    } else if (copy.error().code != ENOENT) {
      return copy.error();
    }
  }
  if (out.reachable.empty()) return Error(code, "open directory");
  return out;
}

Result<std::vector<Located>> Filesystem::locate(const OpenCopies& directory, const char* name) {
  std::vector<Located> found;
  for (const OpenCopy& copy : directory.reachable) {
    if (!found.empty()) {
      // Only directories are looked for on slower tiers too: of a file, the fastest tier's is the
      // one.
      struct stat st {};
      if (::fstatat(copy.get(), name, &st, AT_SYMLINK_NOFOLLOW) < 0 || !S_ISDIR(st.st_mode))
        continue;
    }
    auto here = copy.tier->identify(copy.get(), name);
    if (!here) {
      if (here.error().code == ENOENT) continue;
      if (here.error().code == EIO && !found.empty()) continue;
      return here.error();
    }
    found.push_back(*std::move(here));
    if (!S_ISDIR(found[0].st.st_mode)) break;
  }
  return found;
}

Result<Entry> Filesystem::enter(const std::vector<Located>& found, const InodePtr& parent,
                                const char* name) {
  const InodePtr inode = table_.intern(found, parent->id(), name);
  if (!inode) return Error(EIO, "two files with one identity");
  Entry entry;
  entry.id = inode->id();
  entry.generation = inode->identity.generation;
  entry.st = found[0].st;
  if (inode->is_directory() && has_several_copies(*inode)) {
    const auto merged = stat_of(inode);
    if (merged) entry.st = *merged;
  }
  entry.st.st_ino = to_number(inode->id());
  entry.attribute_seconds = attribute_seconds(inode);
  return entry;
}

Result<Entry> Filesystem::lookup(InodeId parent, const char* name) {
  if (std::strcmp(name, ".") == 0) return lookup_self_or_parent(parent, false);
  if (std::strcmp(name, "..") == 0) return lookup_self_or_parent(parent, true);
  const InodePtr directory = SLUICE_TRY(inode(parent));
  Entry missing;
  if (is_private(*directory, name)) return missing;
  const OpenCopies copies = SLUICE_TRY(open_copies(directory));
  const auto found = SLUICE_TRY(locate(copies, name));
  if (found.empty()) {
    // On a tier that is away the name may well exist; nobody may remember that it does not.
    if (!copies.complete) missing.entry_seconds = 0;
    return missing;
  }
  const Entry entry = SLUICE_TRY(enter(found, directory, name));
  if (is_directory(found) && !copies.complete) {
    if (const InodePtr child = table_.find(entry.id)) {
      MutexLock lock(child->mutex);
      child->partly_unknown = true;
    }
  }
  return entry;
}

Result<Located> Filesystem::place_new(const InodePtr& parent,
                                      const std::function<Result<Located>(const OpenCopy&)>& make) {
  Error failure(EIO, "no tier is online");
  for (const TierIndex index : pool_.placement()) {
    auto copy = ensure_copy(parent, index);
    Result<Located> made = copy ? make(*copy) : Result<Located>(copy.error());
    if (made) return made;
    if (!no_room(made.error().code) && made.error().code != EIO) return made.error();
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
      SLUICE_TRY(place_new(directory, [&](const OpenCopy& copy) -> Result<Located> {
        create_as(caller);
        if (::mknodat(copy.get(), name, mode, device) < 0) return Error::last("mknod");
        return copy.tier->identify(copy.get(), name);
      }));
  return enter({made}, directory, name);
}

Result<Entry> Filesystem::mkdir(InodeId parent, const char* name, mode_t mode,
                                const Caller& caller) {
  const InodePtr directory = SLUICE_TRY(inode(parent));
  if (is_private(*directory, name)) return Error(EPERM, "mkdir");
  SharedLock lock(namespace_);
  const Located made =
      SLUICE_TRY(place_new(directory, [&](const OpenCopy& copy) -> Result<Located> {
        create_as(caller);
        if (::mkdirat(copy.get(), name, mode) < 0) return Error::last("mkdir");
        return copy.tier->identify(copy.get(), name);
      }));
  return enter({made}, directory, name);
}

Result<Entry> Filesystem::symlink(const char* target, InodeId parent, const char* name,
                                  const Caller& caller) {
  const InodePtr directory = SLUICE_TRY(inode(parent));
  if (is_private(*directory, name)) return Error(EPERM, "symlink");
  SharedLock lock(namespace_);
  const Located made =
      SLUICE_TRY(place_new(directory, [&](const OpenCopy& copy) -> Result<Located> {
        create_as(caller);
        if (::symlinkat(target, copy.get(), name) < 0) return Error::last("symlink");
        return copy.tier->identify(copy.get(), name);
      }));
  return enter({made}, directory, name);
}

Result<Entry> Filesystem::link(InodeId id, InodeId new_parent, const char* new_name) {
  const InodePtr file = SLUICE_TRY(inode(id));
  const InodePtr directory = SLUICE_TRY(inode(new_parent));
  if (is_private(*directory, new_name)) return Error(EPERM, "link");
  SharedLock lock(namespace_);
  TierIndex tier = kNoTier;
  {
    MutexLock inode_lock(file->mutex);
    tier = file->copies[0].tier;
  }
  const SharedFd fd = SLUICE_TRY(any_fd(file));
  const OpenCopy copy = SLUICE_TRY(ensure_copy(directory, tier));
  if (::linkat(fd->get(), "", copy.get(), new_name, AT_EMPTY_PATH) < 0) return Error::last("link");
  const Located made = SLUICE_TRY(copy.tier->identify(copy.get(), new_name));
  return enter({made}, directory, new_name);
}

// A file that is open but was never opened by us (the kernel had its pages) must be opened before
// its last name goes.
void Filesystem::hold_if_open(const Located& victim) {
  const InodePtr file = table_.find(victim.identity.id);
  if (!file || file->is_directory()) return;
  {
    MutexLock lock(file->mutex);
    if (!file->open || file->open->reader) return;
  }
  // The result stays in the inode; a failure shows when the file is read.
  [[maybe_unused]] const auto held = reader(file);
}

// A removed directory can still be somebody's working directory: its descriptors are the only way
// left to it.
void Filesystem::set_removed(const std::vector<Located>& directory, bool removed) {
  const InodePtr inode = table_.find(directory[0].identity.id);
  if (!inode || !inode->is_directory()) return;
  for (const Located& copy : directory) {
    [[maybe_unused]] const auto held = open_copy(inode, copy.tier);
  }
  MutexLock lock(inode->mutex);
  inode->removed = removed;
}

Result<void> Filesystem::unlink(InodeId parent, const char* name) {
  const InodePtr directory = SLUICE_TRY(inode(parent));
  if (is_private(*directory, name)) return Error(ENOENT, "unlink");
  SharedLock lock(namespace_);
  const OpenCopies copies = SLUICE_TRY(open_copies(directory));
  if (unopened_.load() > 0) {
    for (const Located& victim : SLUICE_TRY(locate(copies, name))) hold_if_open(victim);
  }
  for (const OpenCopy& copy : copies.reachable) {
    if (::unlinkat(copy.get(), name, 0) == 0) return {};
    if (errno != ENOENT) return Error::last("unlink");
  }
  return Error(copies.complete ? ENOENT : EIO, "unlink");
}

Result<void> Filesystem::rmdir(InodeId parent, const char* name) {
  const InodePtr directory = SLUICE_TRY(inode(parent));
  if (is_private(*directory, name)) return Error(ENOENT, "rmdir");
  SharedLock lock(namespace_);
  const OpenCopies copies = SLUICE_TRY(open_copies(directory));
  const auto found = SLUICE_TRY(locate(copies, name));
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

Result<std::vector<Step>> Filesystem::rename_steps(const InodePtr& parent, const char* name,
                                                   const std::vector<Located>& source,
                                                   const InodePtr& new_parent, const char* new_name,
                                                   const std::vector<Located>& target,
                                                   unsigned flags) {
  std::vector<Step> renames, removals;
  for (const auto& tier : pool_) {
    const Located* from = on_tier(source, tier->index());
    const Located* to = on_tier(target, tier->index());
    if (from == nullptr && to == nullptr) continue;
    const OpenCopy old_dir = SLUICE_TRY(ensure_copy(parent, tier->index()));
    const OpenCopy new_dir = SLUICE_TRY(ensure_copy(new_parent, tier->index()));
    Step step;
    step.from = SLUICE_TRY(place_at(*tier, old_dir.get(), name));
    step.to = SLUICE_TRY(place_at(*tier, new_dir.get(), new_name));
    if (from != nullptr) {
      step.subject = from->identity;
      step.kind = to == nullptr               ? Step::Kind::Rename
                  : (flags & RENAME_EXCHANGE) ? Step::Kind::Exchange
                                              : Step::Kind::Replace;
      renames.push_back(std::move(step));
      continue;
    }
    std::swap(step.from, step.to);
    step.subject = to->identity;
    if (flags & RENAME_EXCHANGE) {
      step.kind = Step::Kind::Rename;
      renames.push_back(std::move(step));
    } else {
      step.kind = S_ISDIR(to->st.st_mode) ? Step::Kind::Rmdir : Step::Kind::Unlink;
      step.to = {};
      removals.push_back(std::move(step));
    }
  }
  renames.insert(renames.end(), removals.begin(), removals.end());
  return renames;
}

Result<void> Filesystem::rename(InodeId parent, const char* name, InodeId new_parent,
                                const char* new_name, unsigned flags) {
  if ((flags & ~(RENAME_NOREPLACE | RENAME_EXCHANGE)) != 0) return Error(EINVAL, "rename");
  const InodePtr from = SLUICE_TRY(inode(parent));
  const InodePtr to = SLUICE_TRY(inode(new_parent));
  if (is_private(*from, name) || is_private(*to, new_name)) return Error(EPERM, "rename");
  SharedLock lock(namespace_);
  const OpenCopies from_copies = SLUICE_TRY(open_copies(from));
  const OpenCopies to_copies = SLUICE_TRY(open_copies(to));
  const auto source = SLUICE_TRY(locate(from_copies, name));
  if (source.empty()) return Error(from_copies.complete ? ENOENT : EIO, "rename");
  const auto target = SLUICE_TRY(locate(to_copies, new_name));
  if (!target.empty() && (flags & RENAME_NOREPLACE)) return Error(EEXIST, "rename");
  if (target.empty() && (flags & RENAME_EXCHANGE)) return Error(ENOENT, "rename");

  if ((is_directory(source) && !from_copies.complete) ||
      (is_directory(target) && !to_copies.complete)) {
    return Error(EIO, "rename on a tier that is offline");
  }

  const bool replaces = !target.empty() && !(flags & RENAME_EXCHANGE);
  if (replaces && is_directory(target)) {
    if (!is_directory(source)) return Error(EISDIR, "rename");
    for (const Located& copy : target) {
      const OpenCopy at = SLUICE_TRY(open_copy(to, copy.tier));
      if (!SLUICE_TRY(is_empty(at.get(), new_name))) return Error(ENOTEMPTY, "rename");
    }
  } else if (replaces && is_directory(source)) {
    return Error(ENOTDIR, "rename");
  }
  if (replaces) {
    is_directory(target) ? set_removed(target, true) : hold_if_open(target[0]);
  }
  const auto done = rename_located(from, name, source, to, new_name, target, flags);
  if (!done) {
    if (replaces && is_directory(target)) set_removed(target, false);
    return done;
  }
  const auto renamed = [&](const Located& what, const InodePtr& where, const char* as) {
    const InodePtr moved = table_.find(what.identity.id);
    if (!moved) return;
    MutexLock inode_lock(moved->mutex);
    moved->parent = where->id();
    moved->name = as;
  };
  renamed(source[0], to, new_name);
  if (flags & RENAME_EXCHANGE) renamed(target[0], from, name);
  return {};
}

Result<void> Filesystem::rename_located(const InodePtr& from, const char* name,
                                        const std::vector<Located>& source, const InodePtr& to,
                                        const char* new_name, const std::vector<Located>& target,
                                        unsigned flags) {
  if (source.size() == 1 &&
      (target.empty() || (target.size() == 1 && target[0].tier == source[0].tier))) {
    // One tier, one system call: the tier's own filesystem makes it atomic.
    const OpenCopy old_dir = SLUICE_TRY(open_copy(from, source[0].tier));
    const OpenCopy new_dir = SLUICE_TRY(ensure_copy(to, source[0].tier));
    const unsigned how = target.empty() ? RENAME_NOREPLACE : flags & RENAME_EXCHANGE;
    if (::renameat2(old_dir.get(), name, new_dir.get(), new_name, how) < 0)
      return Error::last("rename");
    return {};
  }
  const auto steps = SLUICE_TRY(rename_steps(from, name, source, to, new_name, target, flags));
  return carry_out(store_, pool_, steps);
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

Result<Filesystem::OpenCopy> Filesystem::ensure_copy(const InodePtr& directory, TierIndex tier) {
  auto known = open_copy(directory, tier);
  if (known || known.error().code != ENOENT) return known;
  MutexLock lock(replicate_);
  return replicate(directory, tier);
}

// REQUIRES: replicate_ is held.
Result<Filesystem::OpenCopy> Filesystem::replicate(const InodePtr& directory, TierIndex index) {
  if (auto known = open_copy(directory, index); known || known.error().code != ENOENT) return known;
  InodeId parent_id{};
  std::string name;
  {
    MutexLock lock(directory->mutex);
    if (directory->removed || directory->copies.empty()) return Error(ENOENT, "copy directory");
    parent_id = directory->parent;
    name = directory->name;
  }
  if (directory->id() == kRootId) return Error(EIO, "tier is offline");
  const InodePtr parent = SLUICE_TRY(inode(parent_id));
  const OpenCopies originals = SLUICE_TRY(open_copies(directory));
  const OpenCopy& original = originals.reachable[0];
  // The name we remember must still be this directory's.
  const OpenCopy original_parent = SLUICE_TRY(open_copy(parent, original.tier->index()));
  const Identity there =
      SLUICE_TRY(original.tier->identity_of(original_parent.get(), name.c_str()));
  if (there != directory->identity) return Error(ENOENT, "copy directory");

  const OpenCopy new_parent = SLUICE_TRY(replicate(parent, index));
  Tier& tier = pool_[index];
  // Made out of sight and renamed into place, so that no crash leaves one with the wrong mode where
  // it would win.
  const SharedFd temp = SLUICE_TRY(tier.temp_directory());
  const std::string temp_name = Tier::new_temp_name();
  if (::mkdirat(temp->get(), temp_name.c_str(), 0700) < 0)
    return Error::last("make directory copy");
  const auto fill = [&]() -> Result<void> {
    const UniqueFd fd(
        ::openat(temp->get(), temp_name.c_str(), O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC));
    if (!fd) return Error::last("open directory copy");
    SLUICE_TRY(tier.carry_identity(fd.get(), directory->identity));
    SLUICE_TRY(copy_attributes(original.get(), fd.get()));
    struct stat parent_before {};
    if (::fstat(new_parent.get(), &parent_before) < 0) return Error::last("stat");
    if (::renameat2(temp->get(), temp_name.c_str(), new_parent.get(), name.c_str(),
                    RENAME_NOREPLACE) < 0) {
      return Error::last("place directory copy");
    }
    // Nobody made anything in the parent: its times stay.
    const std::array<timespec, 2> times{parent_before.st_atim, parent_before.st_mtim};
    [[maybe_unused]] const int kept = ::futimens(new_parent.get(), times.data());
    return {};
  };
  const auto filled = fill();
  if (!filled) {
    [[maybe_unused]] const int removed = ::unlinkat(temp->get(), temp_name.c_str(), AT_REMOVEDIR);
    return filled.error();
  }
  const Located made = SLUICE_TRY(tier.identify(new_parent.get(), name.c_str()));
  {
    MutexLock lock(directory->mutex);
    const auto at = std::find_if(directory->copies.begin(), directory->copies.end(),
                                 [&](const Copy& c) { return c.tier > index; });
    directory->copies.insert(at, Copy{index, made.handle, made.pinned});
  }
  return open_copy(directory, index);
}

bool Filesystem::rediscover(const InodePtr& directory, TierIndex tier) {
  InodeId up{};
  std::string name;
  {
    MutexLock lock(directory->mutex);
    for (const Copy& copy : directory->copies) {
      if (copy.tier == tier) return true;
    }
    up = directory->parent;
    name = directory->name;
  }
  const InodePtr parent = table_.find(up);
  if (name.empty() || !parent || !rediscover(parent, tier)) return false;
  const auto above = open_copy(parent, tier);
  const auto found =
      above ? pool_[tier].identify(above->get(), name.c_str()) : Result<Located>(above.error());
  if (!found || !S_ISDIR(found->st.st_mode)) return false;
  {
    MutexLock lock(directory->mutex);
    const auto at = std::find_if(directory->copies.begin(), directory->copies.end(),
                                 [&](const Copy& c) { return c.tier > tier; });
    directory->copies.insert(at, Copy{tier, found->handle, found->pinned});
  }
  return true;
}

void Filesystem::rediscover_all(TierIndex tier) {
  std::vector<InodeId> unsure;
  table_.for_each([&](Inode& inode) {
    MutexLock lock(inode.mutex);
    if (inode.is_directory() && (inode.partly_unknown || inode.id() == kRootId))
      unsure.push_back(inode.id());
  });
  const bool all_online =
      std::all_of(pool_.begin(), pool_.end(), [](const auto& each) { return each->online(); });
  for (const InodeId id : unsure) {
    const InodePtr directory = table_.find(id);
    if (!directory) continue;
    rediscover(directory, tier);
    if (all_online) {
      MutexLock lock(directory->mutex);
      directory->partly_unknown = false;
    }
    kernel_.drop_listing(id);
  }
}

// Where the inode is below a tier's root, by the names we remember; empty if they don't lead to the
// root.
std::string Filesystem::path_of(const InodePtr& leaf) {
  constexpr int kDeepest =
      1 << 16;  // a loop would be a bug of ours; it must not hang whoever asks for a path
  std::string path;
  InodePtr at = leaf;
  for (int depth = 0; at && at->id() != kRootId && depth < kDeepest; ++depth) {
    InodeId up{};
    {
      MutexLock lock(at->mutex);
      if (at->name.empty()) return {};
      path.insert(0, "/" + at->name);
      up = at->parent;
    }
    at = table_.find(up);
  }
  if (!at || at->id() != kRootId) return {};
  return path.empty() ? "/" : path;
}

}  // namespace sluice
