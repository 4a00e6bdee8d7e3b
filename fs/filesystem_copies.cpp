// SPDX-License-Identifier: BSD-2-Clause
// Where things are: an inode by its id, the copies of a directory, the path of a file.
#include <fcntl.h>
#include <linux/fs.h>
#include <stdio.h>
#include <unistd.h>

#include <algorithm>
#include <array>

#include "base/file_at.hpp"
#include "fs/filesystem.hpp"
#include "tiering/copier.hpp"

namespace sluice {

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
  const UniqueFd fd = SLUICE_TRY(tier->open(found.handle, O_PATH));
  const SharedFd root = SLUICE_TRY(tier->root());
  const auto path = current_path(fd.get());
  struct stat there {};
  const bool known = path && ::lstat(path->c_str(), &there) == 0 &&
                     there.st_dev == found.st.st_dev && there.st_ino == found.st.st_ino;
  if (known) {
    // By its path we learn all copies of a directory and the way to its parents.
    const std::string base = SLUICE_TRY(current_path(root->get()));
    if (!path->starts_with(base + "/")) return Error(ESTALE, "id of a file outside the tier");
    std::vector<InodeId> references;
    auto walked = walk(path->substr(base.size()), references);
    for (const InodeId each : references) table_.forget(each, 1);  // ours alone
    if (!walked || (*walked)->id() != id) return Error(ESTALE, "resolve id");
    return walked;
  }
  // The kernel remembers no name of this file; only directories always have one. It can be used,
  // but not named. As with NFS exports of a folder, a forged handle can reach another file of the
  // same disk this way, for whoever may use handles at all (CAP_DAC_READ_SEARCH).
  if (S_ISDIR(found.st.st_mode)) return Error(ESTALE, "resolve id");
  InodePtr unnamed = table_.intern({found}, kRootId, "");
  if (!unnamed) return Error(ESTALE, "resolve id");
  table_.forget(unnamed->id(), 1);
  return unnamed;
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
  OpenCopies out;
  std::vector<TierIndex> closed;  // those that must be opened, or can't be
  std::size_t copies = 0;
  {
    MutexLock lock(directory->mutex);
    out.complete = !directory->partly_unknown;
    copies = directory->copies.size();
    out.reachable.reserve(copies);
    for (const Copy& copy : directory->copies) {
      if (copy.fd && pool_[copy.tier].online()) {
        out.reachable.push_back({&pool_[copy.tier], copy.fd});
      } else {
        closed.push_back(copy.tier);
      }
    }
    directory->fd_used = true;
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
    kernel_.drop_pages(id);
  }
}

// Where the inode is below a tier's root, by the names we remember; empty if they don't lead to the
// root.
std::string Filesystem::path_of(const InodePtr& leaf) {
  constexpr int kDeepest =
      1 << 16;  // a loop would be a bug of ours; it must not hang whoever asks for a path
  std::vector<std::string> names;  // the last one first
  InodePtr at = leaf;
  for (int depth = 0; at && at->id() != kRootId && depth < kDeepest; ++depth) {
    InodeId up{};
    {
      MutexLock lock(at->mutex);
      if (at->name.empty()) return {};
      names.push_back(at->name);
      up = at->parent;
    }
    at = table_.find(up);
  }
  if (!at || at->id() != kRootId) return {};
  std::string path = names.empty() ? "/" : "";
  for (auto name = names.rbegin(); name != names.rend(); ++name) path.append("/").append(*name);
  return path;
}

}  // namespace sluice
