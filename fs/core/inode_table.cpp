// SPDX-License-Identifier: BSD-2-Clause
#include "fs/core/inode_table.hpp"

#include <algorithm>
#include <chrono>

namespace sluice {
namespace {

Copy copy_from(const Located& found) { return {found.tier, found.handle, found.pinned}; }

bool is_same(const Inode& inode, const Located& found) REQUIRES(inode.mutex) {
  if ((found.st.st_mode & S_IFMT) != inode.type) return false;
  if (inode.is_directory()) return found.identity == inode.identity;
  // While its names change hands, it may be found in either place.
  if (inode.has_twin || (inode.move && inode.move->is_switching)) return true;
  const Copy& known = inode.copies[0];
  return known.tier == found.tier && known.handle == found.handle;
}

// Brings a known inode up to date with what was just found. False if it is another file altogether.
bool refresh(Inode& inode, const std::vector<Located>& found) {
  MutexLock lock(inode.mutex);
  if (!is_same(inode, found[0])) return false;
  if (!inode.is_directory()) return true;
  for (const Located& f : found) {
    if (f.identity == inode.identity) inode.put_copy(copy_from(f));
  }
  return true;
}

}  // namespace

InodePtr InodeTable::find(InodeId id) const {
  const Shard& s = shard(id);
  MutexLock lock(s.mutex);
  const auto found = s.inodes.find(to_number(id));
  return found == s.inodes.end() ? nullptr : found->second;
}

InodePtr InodeTable::find(const Located& found) const {
  const InodeId displaced = displaced_identity(pool_[found.tier].member().slot, found.handle).id;
  for (const InodeId id : {found.identity.id, displaced}) {
    const InodePtr inode = find(id);
    if (!inode) continue;
    MutexLock lock(inode->mutex);
    if (is_same(*inode, found)) return inode;
  }
  return nullptr;
}

InodePtr InodeTable::intern(const std::vector<Located>& found, InodeId parent,
                            std::string_view name, Told told) {
  Identity identity = found[0].identity;
  for (;;) {
    Shard& s = shard(identity.id);
    MutexLock lock(s.mutex);
    InodePtr& slot = s.inodes[to_number(identity.id)];
    if (!slot) {
      slot = std::make_shared<Inode>(identity, found[0].st.st_mode);
      MutexLock inode_lock(slot->mutex);
      slot->copies.reserve(found.size());
      for (const Located& f : found) slot->copies.push_back(copy_from(f));
    } else if (!refresh(*slot, found)) {
      // Another file has this identity: it moved away from here and its inode number was used
      // again, generation bits and all. The newcomer gets a number of its own.
      const Identity displaced =
          displaced_identity(pool_[found[0].tier].member().slot, found[0].handle);
      if (displaced.id == identity.id) return nullptr;
      identity = displaced;
      continue;
    }
    ++slot->lookups;
    MutexLock inode_lock(slot->mutex);
    const struct stat& st = found[0].st;
    slot->size_hint = static_cast<std::uint64_t>(st.st_size);
    slot->told_mtime = st.st_mtim.tv_sec * 1'000'000'000 + st.st_mtim.tv_nsec;
    // A walk of our own may be overtaken by a rename; the name that the kernel knows may not.
    const bool is_news = slot->parent != parent || slot->name != name;
    if (is_news && (told == Told::Kernel || slot->told_at == 0)) {
      slot->parent = parent;
      slot->name = name;
    }
    if (told == Told::Kernel)
      slot->told_at = std::chrono::steady_clock::now().time_since_epoch().count();
    return slot;
  }
}

void InodeTable::add_root(const InodePtr& root) {
  Shard& s = shard(kRootId);
  MutexLock lock(s.mutex);
  root->lookups = 1;
  s.inodes[to_number(kRootId)] = root;
}

void InodeTable::forget(InodeId id, std::uint64_t count) {
  InodePtr last;
  {
    Shard& s = shard(id);
    MutexLock lock(s.mutex);
    const auto found = s.inodes.find(to_number(id));
    if (found == s.inodes.end() || id == kRootId) return;
    Inode& inode = *found->second;
    inode.lookups -= std::min(inode.lookups, count);
    if (inode.lookups != 0) return;
    last = std::move(found->second);
    s.inodes.erase(found);
  }
  // Whoever still counts its opens keeps the inode, but no descriptor: of a deleted file, that
  // would keep the blocks. Closed after the locks are gone, so that it holds nobody up.
  std::vector<Copy> copies;
  MutexLock lock(last->mutex);
  copies = last->copies;
  for (Copy& copy : last->copies) {
    if (!copy.handle.empty()) copy.fd = nullptr;
  }
}

std::size_t InodeTable::size() const {
  std::size_t count = 0;
  for (const Shard& s : shards_) {
    MutexLock lock(s.mutex);
    count += s.inodes.size();
  }
  return count;
}

void InodeTable::for_each(const std::function<void(Inode&)>& visit) const {
  for (const Shard& s : shards_) {
    MutexLock lock(s.mutex);
    for (const auto& entry : s.inodes) visit(*entry.second);
  }
}

}  // namespace sluice
