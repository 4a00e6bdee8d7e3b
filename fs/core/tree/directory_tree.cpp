// SPDX-License-Identifier: BSD-2-Clause
#include "fs/core/tree/directory_tree.hpp"

#include <fcntl.h>
#include <linux/fs.h>
#include <stdio.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <optional>

#include "base/check.hpp"
#include "base/file_at.hpp"
#include "base/user_room.hpp"
#include "fs/core/inodes/caller.hpp"
#include "tiering/pool/copier.hpp"

namespace sluice {
DirectoryTree::DirectoryTree(Pool& pool, InodeTable& table, ShownTimes& times,
                             NamesLock& names_lock)
    : pool_(pool),
      table_(table),
      times_(times),
      names_lock_(names_lock),
      // A quarter of the descriptors that a process may have.
      fd_cache_(std::clamp<std::size_t>(static_cast<std::size_t>(::sysconf(_SC_OPEN_MAX)) / 4, 64,
                                        4096)) {
  auto root = std::make_shared<Inode>(Identity{kRootId, 0}, S_IFDIR);
  {
    Inode::Locked state(*root);
    state->name.parent = kRootId;
    for (const auto& tier : pool_) state->copies.push_back({tier->index(), {}, nullptr});
  }
  table_.add_root(root);
}

bool is_private(const Inode& parent, const char* name) {
  return parent.id() == kRootId && std::strcmp(name, kPrivateDirectory) == 0;
}

Result<bool> is_empty(int parent, const char* name) {
  const UniqueFd fd(::openat(parent, name, O_PATH | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC));
  if (!fd) return Error::last("open directory");
  return SLUICE_TRY(names_in(fd.get(), 1)).empty();
}

Result<InodePtr> DirectoryTree::inode(InodeId id, NamesHeld held) {
  if (InodePtr found = table_.find(id)) return found;
  return resolve_forgotten(id, held);
}

// Resolves an id from an NFS handle after the kernel has forgotten the file, perhaps after a
// remount.
Result<InodePtr> DirectoryTree::resolve_forgotten(InodeId id, NamesHeld held) {
  const Tier* tier = pool_.by_slot(slot_of(id));
  if (tier == nullptr || !tier->online()) return Error(ESTALE, "resolve id");
  const Located found = SLUICE_TRY(tier->find(id));
  const UniqueFd fd = SLUICE_TRY(tier->open(found.handle, O_PATH));
  const SharedFd root = SLUICE_TRY(tier->root());
  const auto path = current_path(fd.get());
  struct stat there {};
  const bool known = path && ::lstat(path->c_str(), &there) == 0 &&
                     there.st_dev == found.st.st_dev && there.st_ino == found.st.st_ino;
  if (known) {
    // The path leads to all copies of a directory and to its parents.
    const std::string base = SLUICE_TRY(current_path(root->get()));
    if (!path->starts_with(base + "/"))
      return Error(ESTALE, "the id belongs to a file outside the tier");
    std::vector<InodeId> references;
    auto walked = walk(path->substr(base.size()), references, held);
    for (const InodeId each : references) table_.forget(each, 1);  // those that walk() added
    if (!walked || (*walked)->id() != id) return Error(ESTALE, "resolve id");
    return walked;
  }
  // The kernel has no name of this file in its cache; only directories always have one. The file
  // can be used, but its path is unknown. As with an NFS export of a directory, a process that may
  // use handles (CAP_DAC_READ_SEARCH) can reach other files of the same disk with a forged handle.
  if (S_ISDIR(found.st.st_mode)) return Error(ESTALE, "resolve id");
  InodePtr unnamed = table_.intern({found}, kRootId, "", InodeTable::LookupBy::Daemon);
  if (!unnamed) return Error(ESTALE, "resolve id");
  table_.forget(unnamed->id(), 1);
  return unnamed;
}

Result<DirectoryTree::Lookup> DirectoryTree::look_up(const InodePtr& directory, const char* name,
                                                     NamesHeld held, InodeTable::LookupBy who) {
  Lookup out;
  if (is_private(*directory, name)) return out;
  for (;;) {
    out.switches = names_lock_.switches();
    const OpenCopies copies = SLUICE_TRY(open_copies(directory));
    out.complete = copies.complete;
    out.found = SLUICE_TRY(locate(copies, name, held));
    if (out.found.empty()) {
      // The file may have moved to a tier on which the directory had no copy when we opened its
      // copies.
      if (names_lock_.switches() != out.switches) continue;
      return out;
    }
    out.inode = table_.intern(out.found, directory->id(), name, who);
    if (!out.inode) return Error(EIO, "two files have the same identity");
    // A file that moved after it was found looks like another file with the same id.
    if (out.inode->id() == out.found[0].identity.id || names_lock_.switches() == out.switches)
      break;
    table_.forget(out.inode->id(), 1);
  }
  if (is_directory(out.found) && !out.complete) set_partly_unknown(out.inode->id());
  return out;
}

Result<InodePtr> DirectoryTree::walk(std::string_view path, std::vector<InodeId>& references,
                                     NamesHeld held) {
  InodePtr at = table_.find(kRootId);
  while (!path.empty()) {
    path.remove_prefix(1);  // the slash
    const std::string name(path.substr(0, path.find('/')));
    path.remove_prefix(name.size());
    Lookup next = SLUICE_TRY(look_up(at, name.c_str(), held, InodeTable::LookupBy::Daemon));
    if (!next.inode) return Error(ESTALE, "the file is gone");
    references.push_back(next.inode->id());
    at = std::move(next.inode);
  }
  return at;
}

Result<OpenCopy> DirectoryTree::open_copy(const InodePtr& directory, TierIndex index) {
  Tier& tier = pool_[index];
  if (directory->id() == kRootId) {
    if (!tier.online()) return Error(EIO, "tier is offline");
    return OpenCopy{&tier, SLUICE_TRY(tier.root())};
  }
  FileHandle handle;
  {
    Inode::Locked state(*directory);
    for (const Copy& copy : state->copies) {
      if (copy.tier != index) continue;
      if (!tier.online()) return Error(EIO, "tier is offline");
      if (copy.fd) {
        state->directory.fd_used = true;
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
    Inode::Locked state(*directory);
    for (Copy& copy : state->copies) {
      if (copy.tier == index && copy.handle == handle) copy.fd = fd;
    }
  }
  fd_cache_.added(directory);
  return OpenCopy{&tier, fd};
}

Result<OpenCopies> DirectoryTree::open_copies(const InodePtr& directory) {
  if (!directory->is_directory()) return Error(ENOTDIR, "open directory");
  OpenCopies out;
  std::vector<TierIndex> closed;  // copies that must be opened or are offline
  std::size_t copies = 0;
  {
    Inode::Locked state(*directory);
    out.complete = !state->directory.partly_unknown;
    copies = state->copies.size();
    out.reachable.reserve(copies);
    for (const Copy& copy : state->copies) {
      if (copy.fd && pool_[copy.tier].online()) {
        out.reachable.push_back({&pool_[copy.tier], copy.fd});
      } else {
        closed.push_back(copy.tier);
      }
    }
    state->directory.fd_used = true;
  }
  if (closed.empty() && copies > 0) return out;
  int code = ENOENT;
  for (const TierIndex tier : closed) {
    auto copy = open_copy(directory, tier);
    if (copy) {
      const auto at = std::find_if(out.reachable.begin(), out.reachable.end(),
                                   [&](const OpenCopy& c) { return c.tier->index() > tier; });
      out.reachable.insert(at, *std::move(copy));
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

Result<OpenCopy> DirectoryTree::ensure_copy(const InodePtr& directory, TierIndex tier,
                                            Spares spares) {
  names_lock_.mutex.assert_held_shared();
  auto known = open_copy(directory, tier);
  if (known || known.error().code != ENOENT) return known;
  MutexLock lock(replicate_);
  return replicate(directory, tier, spares);
}

// A rename must not fail because the file's tier is full, although other tiers have room. It may
// need a copy of the new directory there, for which spare ones are made in time.
void DirectoryTree::keep_spares() {
  constexpr std::size_t kSpares = 32;
  for (const auto& tier : pool_) {
    const auto directory = tier->spares_directory();
    if (!directory || !is_crowded(tier->facts())) continue;
    std::optional<std::size_t> known;
    {
      MutexLock lock(replicate_);
      if (const auto at = spares_.find(tier->index()); at != spares_.end())
        known = at->second.size();
    }
    // Without the lock: a disk that hangs must not stop those who use the others.
    std::vector<std::string> more;
    if (!known) {
      if (auto there = names_in((*directory)->get())) more = *std::move(there);
    }
    const NobodysRoom room(fsuid_for(*tier));
    while (known.value_or(0) + more.size() < kSpares) {
      std::string name = Tier::new_temp_name();
      if (::mkdirat((*directory)->get(), name.c_str(), 0700) < 0) break;  // too late, or read-only
      more.push_back(std::move(name));
    }
    MutexLock lock(replicate_);
    std::vector<std::string>& all = spares_[tier->index()];
    all.insert(all.end(), more.begin(), more.end());
  }
}

// Makes a directory in temp_directory(), or moves a spare one there. Returns its name.
Result<std::string> DirectoryTree::empty_directory(const Tier& tier, int temp, Spares spares) {
  std::string name = Tier::new_temp_name();
  const auto make = [&]() -> Result<void> {
    // Not of the caller's quota: the directory soon belongs to somebody else.
    const uid_t user = current_caller().uid == 0 ? 0 : kNobody;
    const UserRoom room(user, user, fsuid_for(tier));
    if (::mkdirat(temp, name.c_str(), 0700) < 0) return Error::last("make directory copy");
    return {};
  };
  const auto made = make();
  if (made) return name;
  const Error& failure = made.error();
  if (failure.code != ENOSPC || spares == Spares::Keep) return failure;
  const SharedFd directory = SLUICE_TRY(tier.spares_directory());
  std::vector<std::string>& kept = spares_[tier.index()];
  while (!kept.empty()) {
    const std::string spare = std::move(kept.back());
    kept.pop_back();
    if (::renameat(directory->get(), spare.c_str(), temp, name.c_str()) == 0) return name;
  }
  return failure;
}

// The parent and the name of a directory, as they are on a tier. The last known name is nearly
// always right; a lookup that ran at the same time as a rename can make it wrong.
Result<DirectoryTree::KnownName> DirectoryTree::current_name(const InodePtr& directory) {
  names_lock_.mutex.assert_held_shared();
  const OpenCopies originals = SLUICE_TRY(open_copies(directory));
  const OpenCopy& original = originals.reachable[0];
  const auto is_named = [&](const KnownName& known) {
    const auto above = open_copy(known.parent, original.tier->index());
    const auto there = above ? original.tier->identity_of(above->get(), known.name.c_str())
                             : Result<Identity>(above.error());
    return there && *there == directory->identity;
  };
  InodeId parent_id{};
  KnownName known;
  {
    Inode::Locked state(*directory);
    if (state->directory.removed) return Error(ENOENT, "name of a directory");
    parent_id = state->name.parent;
    known.name = state->name.text;
  }
  const auto remembered = inode(parent_id, NamesHeld::WithCopies);
  if (remembered) {
    known.parent = *remembered;
    if (is_named(known)) return known;
  }
  struct stat above {
  }, top{};
  const SharedFd root = SLUICE_TRY(original.tier->root());
  if (::fstatat(original.get(), "..", &above, 0) < 0 || ::fstat(root->get(), &top) < 0)
    return Error::last("stat");
  const bool is_below_root = above.st_ino == top.st_ino && above.st_dev == top.st_dev;
  const InodeId parent =
      is_below_root ? kRootId : SLUICE_TRY(original.tier->identity_of(original.get(), "..")).id;
  known.parent = SLUICE_TRY(inode(parent, NamesHeld::WithCopies));
  const std::string path = SLUICE_TRY(current_path(original.get()));
  known.name = path.substr(path.rfind('/') + 1);
  if (!is_named(known)) return Error(ENOENT, "name of a directory");
  directory->set_last_name(known.parent->id(), known.name);
  return known;
}

Result<OpenCopy> DirectoryTree::replicate(const InodePtr& directory, TierIndex index,
                                          Spares spares) {
  // A limit, so that one request does not make thousands of directories while others wait.
  constexpr std::size_t kMostLevels = 256;
  struct Missing {
    InodePtr directory;
    std::string name;
  };
  std::vector<Missing> missing;  // the deepest first
  InodePtr at = directory;
  auto copy = open_copy(at, index);
  while (failed_with(copy, ENOENT)) {
    if (missing.size() == kMostLevels)
      return Error(ENAMETOOLONG, "too many directories are missing on that tier");
    KnownName known = SLUICE_TRY(current_name(at));
    missing.push_back({at, std::move(known.name)});
    at = std::move(known.parent);
    copy = open_copy(at, index);
  }
  for (; copy && !missing.empty(); missing.pop_back()) {
    copy = copy_directory(missing.back().directory, missing.back().name, at, *copy, spares);
    at = missing.back().directory;
  }
  return copy;
}

Result<OpenCopy> DirectoryTree::copy_directory(const InodePtr& directory, const std::string& name,
                                               const InodePtr& parent, const OpenCopy& new_parent,
                                               Spares spares) {
  Tier& tier = *new_parent.tier;
  const OpenCopies originals = SLUICE_TRY(open_copies(directory));
  // The copy is made in a private directory and renamed into place, so that a crash cannot leave a
  // visible copy with the wrong mode.
  const SharedFd temp = SLUICE_TRY(tier.temp_directory());
  const std::string temp_name = SLUICE_TRY(empty_directory(tier, temp->get(), spares));
  const TierIndex fastest = originals.reachable[0].tier->index();
  const auto fill = [&]() -> Result<void> {
    const UniqueFd fd(
        ::openat(temp->get(), temp_name.c_str(), O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC));
    if (!fd) return Error::last("open directory copy");
    SLUICE_TRY(tier.carry_identity(fd.get(), directory->identity));
    SLUICE_TRY(copy_attributes(originals.reachable[0].get(), fd.get()));
    // No user changed the directory or its parent, so their times must stay the same.
    times_.copy_begins(*directory, fastest, originals.reachable[0].get(), tier.index(), fd.get());
    auto placed = times_.change_with_old_times(
        *parent, tier.index(), new_parent.get(), [&]() -> Result<void> {
          if (::renameat2(temp->get(), temp_name.c_str(), new_parent.get(), name.c_str(),
                          RENAME_NOREPLACE) < 0)
            return Error::last("place directory copy");
          return {};
        });
    times_.copy_ends(*directory, tier.index(), fd.get());
    return placed;
  };
  const auto filled = fill();
  if (!filled) {
    [[maybe_unused]] const int removed = ::unlinkat(temp->get(), temp_name.c_str(), AT_REMOVEDIR);
    if (filled.error().code != EEXIST) return filled.error();
  }
  // With EEXIST, the directory that is there is a copy that was not known, or was made directly on
  // the tier.
  const Located there = SLUICE_TRY(tier.identify(new_parent.get(), name.c_str()));
  if (!S_ISDIR(there.st.st_mode))
    return Error(EIO, "a file has the name of the directory on that tier");
  if (there.identity != directory->identity &&
      !take_identity(there, directory->identity, name.c_str()))
    return Error(EIO, "another directory has the same name on that tier");
  {
    Inode::Locked state(*directory);
    table_.put_copy(*directory, *state, {tier.index(), there.handle, there.pinned});
  }
  return open_copy(directory, tier.index());
}

// Searches a tier that came online for copies of `directory` and of the directories above it.
void DirectoryTree::rediscover(const InodePtr& directory, TierIndex tier) {
  std::vector<InodePtr> unsure;  // the deepest first
  for (InodePtr at = directory; at && at->id() != kRootId;) {
    InodeId up{};
    bool has_name = true;
    {
      Inode::Locked state(*at);
      if (state->has_copy_on(tier)) break;
      up = state->name.parent;
      has_name = !state->name.text.empty();
    }
    // An inode that a predecessor left has no text of its name yet.
    if (!has_name) {
      const auto known = current_name(at);
      if (!known) break;
      up = known->parent->id();
    }
    unsure.push_back(at);
    at = table_.find(up);
  }
  for (; !unsure.empty(); unsure.pop_back()) {
    const InodePtr& at = unsure.back();
    const auto [up, name, kernel_knows_since] = at->last_name();
    const InodePtr parent = table_.find(up);
    const auto above = parent ? open_copy(parent, tier) : Error(ENOENT, "no parent");
    const auto found =
        above ? pool_[tier].identify(above->get(), name.c_str()) : Result<Located>(above.error());
    if (!found || !S_ISDIR(found->st.st_mode)) return;
    if (found->identity != at->identity) {
      // The directories were made separately. They become one, if the name is still that of this
      // directory.
      const auto known = current_name(at);
      if (!known || known->parent != parent || known->name != name ||
          !take_identity(*found, at->identity, name.c_str()))
        return;
    }
    Inode::Locked state(*at);
    table_.put_copy(*at, *state, {tier, found->handle, found->pinned});
  }
}

std::vector<InodeId> DirectoryTree::rediscover_all(TierIndex tier) {
  names_lock_.mutex.assert_held_shared();
  MutexLock lock_copies(replicate_);
  std::vector<InodeId> unsure, changed;
  table_.for_each_directory([&](Inode& inode) {
    Inode::Locked state(inode);
    if (state->directory.partly_unknown) unsure.push_back(inode.id());
    if (state->directory.partly_unknown || state->has_copy_on(tier)) changed.push_back(inode.id());
  });
  for (const InodeId id : changed) {
    const InodePtr directory = table_.find(id);
    const auto copy = directory ? open_copy(directory, tier) : Error(ENOENT, "no directory");
    if (!copy || !pool_[tier].is_hidden(copy->get())) continue;
    // After a power failure this copy lost its name: files that are put into it would be invisible.
    Inode::Locked state(*directory);
    if (state->copies.size() > 1)
      table_.erase_copies(*state, [&](const Copy& each) { return each.tier == tier; });
  }
  const bool all_online =
      std::all_of(pool_.begin(), pool_.end(), [](const auto& each) { return each->online(); });
  for (const InodeId id : unsure) {
    const InodePtr directory = table_.find(id);
    if (!directory) continue;
    rediscover(directory, tier);
    if (all_online) {
      Inode::Locked state(*directory);
      state->directory.partly_unknown = false;
    }
  }
  return changed;
}

void DirectoryTree::set_partly_unknown(InodeId id) {
  if (const InodePtr directory = table_.find(id)) {
    Inode::Locked state(*directory);
    state->directory.partly_unknown = true;
  }
}

void DirectoryTree::tier_added(TierIndex tier) {
  const InodePtr root = table_.find(kRootId);
  {
    Inode::Locked state(*root);
    state->copies.push_back({tier, {}, nullptr});
  }
  table_.for_each_directory([](Inode& inode) {
    Inode::Locked state(inode);
    state->directory.partly_unknown = true;
  });
}

void DirectoryTree::tier_went_offline(TierIndex tier) {
  {
    MutexLock lock(replicate_);
    spares_.erase(tier);
  }
  table_.for_each_awake([&](Inode& inode) {
    Inode::Locked state(inode);
    for (Copy& copy : state->copies) {
      if (copy.tier == tier && !copy.handle.empty()) copy.fd = nullptr;
    }
  });
}

void DirectoryTree::tier_replaced(TierIndex tier) {
  names_lock_.mutex.assert_held();
  SLUICE_CHECK(!pool_[tier].online(), "a tier whose disk was replaced is offline");
  // Leads nowhere on any filesystem: no file has the inode number 0.
  const FileHandle nowhere{std::string("\x01\0\0\0\0\0\0\0\0", 9)};
  table_.for_each([&](Inode& inode) {
    if (inode.id() == kRootId) return;
    Inode::Locked state(inode);
    if (!state->has_copy_on(tier)) return;
    const bool is_only = state->copies.size() == 1;
    table_.erase_copies(*state, [&](const Copy& copy) { return copy.tier == tier; });
    if (is_only) state->copies.push_back({tier, nowhere, nullptr});
  });
}

std::vector<FileLists::File> DirectoryTree::files_on(TierIndex tier) {
  std::vector<FileLists::File> out;
  table_.for_each([&](Inode& inode) {
    if (!S_ISREG(inode.type)) return;
    Inode::Locked state(inode);
    const Copy& place = state->place();
    // A descriptor beside a handle means that the file has no name any more.
    if (place.tier != tier || (place.fd && !place.handle.empty())) return;
    const bool is_known = state->size_hint != ~std::uint64_t{0};
    out.push_back({inode.id(), is_known ? state->size_hint : 0, {}});
  });
  for (FileLists::File& file : out) {
    if (const InodePtr inode = table_.find(file.id)) file.path = path_of(inode);
  }
  std::erase_if(out, [](const FileLists::File& file) { return file.path.empty(); });
  return out;
}

// Finds the text of the last known name. A predecessor left only the parent and a hash of the name:
// the kernel does not look a name up again if the file is open, or if the request that needs the
// name had been sent before.
void DirectoryTree::learn_name(const InodePtr& inode) {
  const InodeName known = inode->last_name();
  // A file that was made without a name has none.
  if (!known.text.empty() || inode->has_name(known.parent, "")) return;
  const InodePtr parent = table_.find(known.parent);
  const auto copies = parent ? open_copies(parent) : Error(ENOENT, "no parent");
  if (!copies) return;
  const auto is_it = [&](const std::string& name) {
    if (!inode->has_name(known.parent, name)) return false;
    Inode::Locked state(*inode);
    if (state->name.text.empty() && state->name.parent == known.parent) state->name.text = name;
    return true;
  };
  // The tier's filesystem usually knows the path, if the file was used lately.
  const Copy place = inode->place();
  const auto fd =
      place.handle.empty() ? Error(EIO, "no handle") : pool_[place.tier].open(place.handle, O_PATH);
  const auto path = fd ? current_path(fd->get()) : fd.error();
  if (path && is_it(path->substr(path->rfind('/') + 1))) return;
  for (const OpenCopy& copy : copies->reachable) {
    const auto names = names_in(copy.get());
    if (names && std::any_of(names->begin(), names->end(), is_it)) return;
  }
}

std::string DirectoryTree::path_of(const InodePtr& leaf) {
  // A limit, so that a loop (which would be a bug) does not hang the caller.
  constexpr int kDeepest = 1 << 16;
  std::vector<std::string> names;  // the last one first
  InodePtr at = leaf;
  for (int depth = 0; at && at->id() != kRootId && depth < kDeepest; ++depth) {
    learn_name(at);
    InodeName name = at->last_name();
    if (name.text.empty()) return {};
    names.push_back(std::move(name.text));
    at = table_.find(name.parent);
  }
  if (!at || at->id() != kRootId) return {};
  std::string path = names.empty() ? "/" : "";
  for (auto name = names.rbegin(); name != names.rend(); ++name) path.append("/").append(*name);
  return path;
}

InodePtr DirectoryTree::parent_of(const InodePtr& inode) const {
  return table_.find(inode->last_name().parent);
}

Result<void> DirectoryTree::check_not_hidden(const InodePtr& parent, const std::string& name,
                                             TierIndex from, TierIndex to) {
  for (TierIndex faster = 0; faster < to; ++faster) {
    if (faster == from) continue;
    const auto copy = open_copy(parent, faster);
    struct stat st {};
    if (copy && ::fstatat(copy->get(), name.c_str(), &st, AT_SYMLINK_NOFOLLOW) == 0)
      return Error(EEXIST, "another file has the same name on a faster tier; run 'sluice fsck'");
  }
  return {};
}

}  // namespace sluice
