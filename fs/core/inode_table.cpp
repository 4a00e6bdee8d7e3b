// SPDX-License-Identifier: BSD-2-Clause
#include "fs/core/inode_table.hpp"

#include <algorithm>
#include <chrono>

namespace sluice {
namespace {

Copy copy_from(const Located& found) { return {found.tier, found.handle, found.pinned}; }

bool is_same(const Inode& inode, const InodeState& state, const Located& found) {
  if ((found.st.st_mode & S_IFMT) != inode.type) return false;
  if (inode.is_directory()) return found.identity == inode.identity;
  return state.may_be_in_two_places() || state.is_at(found.tier, found.handle);
}

// Updates a known inode with what was just found. False if it is a different file.
bool refresh(Inode& inode, const std::vector<Located>& found) {
  Inode::Locked state(inode);
  if (!is_same(inode, *state, found[0])) return false;
  if (!inode.is_directory()) return true;
  for (const Located& f : found) {
    if (f.identity == inode.identity) state->put_copy(copy_from(f));
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
    Inode::Locked state(*inode);
    if (is_same(*inode, *state, found)) return inode;
  }
  return nullptr;
}

InodePtr InodeTable::intern(const std::vector<Located>& found, InodeId parent,
                            std::string_view name, LookupBy who) {
  Identity identity = found[0].identity;
  for (;;) {
    Shard& s = shard(identity.id);
    MutexLock lock(s.mutex);
    InodePtr& slot = s.inodes[to_number(identity.id)];
    if (!slot) {
      slot = std::make_shared<Inode>(identity, found[0].st.st_mode);
      Inode::Locked state(*slot);
      state->copies.reserve(found.size());
      for (const Located& f : found) state->copies.push_back(copy_from(f));
    } else if (!refresh(*slot, found)) {
      // Another file has this identity: it moved to another tier, and the inode number and
      // generation that it had here were reused. The new file gets a number of its own.
      const Identity displaced =
          displaced_identity(pool_[found[0].tier].member().slot, found[0].handle);
      if (displaced.id == identity.id) return nullptr;
      identity = displaced;
      continue;
    }
    ++slot->lookups_;
    Inode::Locked state(*slot);
    const struct stat& st = found[0].st;
    state->size_hint = static_cast<std::uint64_t>(st.st_size);
    state->pages.kernel_mtime = st.st_mtim.tv_sec * 1'000'000'000 + st.st_mtim.tv_nsec;
    // A rename may overtake a walk of the daemon, but not a lookup by the kernel.
    const bool is_news = state->name.parent != parent || state->name.text != name;
    if (is_news && (who == LookupBy::Kernel || state->name.kernel_knows_since == 0)) {
      state->name.parent = parent;
      state->name.text = name;
    }
    if (who == LookupBy::Kernel)
      state->name.kernel_knows_since = std::chrono::steady_clock::now().time_since_epoch().count();
    return slot;
  }
}

void InodeTable::add_root(const InodePtr& root) {
  Shard& s = shard(kRootId);
  MutexLock lock(s.mutex);
  root->lookups_ = 1;
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
    inode.lookups_ -= std::min(inode.lookups_, count);
    if (inode.lookups_ != 0) return;
    last = std::move(found->second);
    s.inodes.erase(found);
  }
  // Others may still refer to the inode, but a descriptor would keep the blocks of a deleted file.
  // `copies` closes the descriptors after the locks are released, because closing can take long.
  std::vector<Copy> copies;
  Inode::Locked state(*last);
  copies = state->copies;
  state->close_descriptors();
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
