// SPDX-License-Identifier: BSD-2-Clause
#include "fs/core/inode_table.hpp"

#include <fcntl.h>
#include <sys/stat.h>

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
bool refresh(InodeTable& table, Inode& inode, const std::vector<Located>& found) {
  Inode::Locked state(inode);
  if (!is_same(inode, *state, found[0])) return false;
  if (!inode.is_directory()) return true;
  for (const Located& f : found) {
    if (f.identity == inode.identity) table.put_copy(inode, *state, copy_from(f));
  }
  return true;
}

}  // namespace

void InodeTable::record(Inode& inode) {
  if (handover_ == nullptr) return;
  InodeRecord* record = handover_->inodes().allocate();
  if (record == nullptr) return;
  record->generation = inode.identity.generation;
  record->type = inode.type;
  inode.record_ = record;
  Inode::Locked state(inode);
  for (Copy& copy : state->copies) copy.record = record_place(inode.id(), copy);
  // Last, so that a successor does not find an inode without a place.
  publish(record->inode, to_number(inode.id()));
}

PlaceRecord* InodeTable::record_place(InodeId id, const Copy& place) {
  const std::string& handle = place.handle.bytes;
  if (handover_ == nullptr || handle.empty() || handle.size() > PlaceRecord::kLongestHandle)
    return nullptr;
  PlaceRecord* record = handover_->places().allocate();
  if (record == nullptr) return nullptr;
  record->slot = static_cast<std::uint8_t>(pool_[place.tier].member().slot);
  record->handle_size = static_cast<std::uint8_t>(handle.size());
  handle.copy(record->handle.data(), handle.size());
  publish(record->inode, to_number(id));
  return record;
}

void InodeTable::remove_record(PlaceRecord* record) {
  if (record != nullptr) handover_->places().release(record);
}

void InodeTable::put_copy(Inode& inode, InodeState& state, Copy copy) {
  const InodeState::Put put = state.put_copy(std::move(copy));
  if (!put.changed) return;
  for (Copy& each : state.copies) {
    if (each.record == nullptr) each.record = record_place(inode.id(), each);
  }
  for (const Copy& each : put.replaced) remove_record(each.record);
}

void InodeTable::erase_copies(InodeState& state, const std::function<bool(const Copy&)>& which) {
  std::erase_if(state.copies, [&](const Copy& copy) {
    if (!which(copy)) return false;
    remove_record(copy.record);
    return true;
  });
}

InodeTable::Inherited InodeTable::inherit() {
  Inherited out;
  if (handover_ == nullptr) return out;
  handover_->inodes().inherit([&](InodeRecord& record) {
    Shard& s = shard(InodeId{record.inode});
    MutexLock lock(s.mutex);
    s.left[record.inode].record = &record;
    if (record.type & InodeRecord::kMaybeMapped) out.mapped.push_back(InodeId{record.inode});
  });
  handover_->places().inherit([&](PlaceRecord& record) {
    Shard& s = shard(InodeId{record.inode});
    MutexLock lock(s.mutex);
    const auto found = s.left.find(record.inode);
    // A place without an inode stays unused until the mount ends.
    if (found != s.left.end() && pool_.by_slot(record.slot) != nullptr)
      found->second.places.push_back(&record);
  });
  for (Shard& s : shards_) {
    MutexLock lock(s.mutex);
    std::erase_if(s.left, [&](const auto& entry) {
      if (!entry.second.places.empty()) return false;
      out.complete = false;
      handover_->inodes().release(entry.second.record);
      return true;
    });
  }
  return out;
}

InodePtr InodeTable::restore(const Left& left) const {
  InodeRecord& record = *left.record;
  auto inode = std::make_shared<Inode>(Identity{InodeId{record.inode}, record.generation},
                                       record.type & S_IFMT);
  inode->record_ = &record;
  inode->lookups_ = record.lookups;
  Inode::Locked state(*inode);
  state->name = {InodeId{record.parent}, {}, record.kernel_knows_since};
  // Unknown, so assume what is safe: large, and with old pages and attributes in the kernel.
  state->size_hint = ~std::uint64_t{0};
  state->pages.stale = true;
  state->pages.maybe_mapped = (record.type & InodeRecord::kMaybeMapped) != 0;
  state->pages.kernel_mtime = -1;
  for (PlaceRecord* place : left.places) {
    const Tier& tier = *pool_.by_slot(place->slot);
    state->copies.push_back(
        {tier.index(), {std::string(place->handle.data(), place->handle_size)}, {}, place});
  }
  if (state->copies.size() > 1 && !inode->is_directory()) keep_named_copy(*inode, state->copies);
  if (state->copies.empty()) return nullptr;
  std::sort(state->copies.begin(), state->copies.end(),
            [](const Copy& a, const Copy& b) { return a.tier < b.tier; });
  return inode;
}

InodePtr InodeTable::find_in(Shard& s, InodeId id) const {
  const auto found = s.inodes.find(to_number(id));
  if (found != s.inodes.end()) return found->second;
  const auto left = s.left.find(to_number(id));
  if (left == s.left.end()) return nullptr;
  InodePtr inode = restore(left->second);
  if (inode) {
    s.inodes[to_number(id)] = inode;
  } else {
    handover_->inodes().release(left->second.record);
  }
  s.left.erase(left);
  return inode;
}

// A file with two places was being moved. The move has been finished or undone since. The one that
// lost its name may still exist, because somebody has it open.
void InodeTable::keep_named_copy(const Inode& inode, std::vector<Copy>& copies) const {
  enum class State { Gone, Nameless, Named };
  const auto state_of = [&](const Copy& copy) {
    const Tier& tier = pool_[copy.tier];
    const auto opened = tier.open(copy.handle, O_PATH);
    if (!opened) return opened.error().code == ESTALE ? State::Gone : State::Named;
    const auto there = tier.identify(opened->get(), "");
    if (!there || there->identity != inode.identity) return State::Gone;
    if (tier.is_twin(inode.identity, there->st.st_ino)) return State::Gone;
    struct stat st {};
    const bool nameless = ::fstat(opened->get(), &st) == 0 && st.st_nlink == 0;
    return nameless ? State::Nameless : State::Named;
  };
  std::vector<State> states;
  for (const Copy& copy : copies) states.push_back(state_of(copy));
  const State best = *std::max_element(states.begin(), states.end());
  std::size_t at = 0;
  std::erase_if(copies, [&](const Copy& copy) {
    const bool kept = states[at++] == best && best != State::Gone;
    if (!kept) handover_->places().release(copy.record);
    return !kept;
  });
}

InodePtr InodeTable::find(InodeId id) const {
  Shard& s = shard(id);
  MutexLock lock(s.mutex);
  return find_in(s, id);
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
    find_in(s, identity.id);  // restores it
    InodePtr& slot = s.inodes[to_number(identity.id)];
    if (!slot) {
      slot = std::make_shared<Inode>(identity, found[0].st.st_mode);
      Inode::Locked state(*slot);
      state->copies.reserve(found.size());
      for (const Located& f : found) state->copies.push_back(copy_from(f));
    } else if (!refresh(*this, *slot, found)) {
      // Another file has this identity: it moved to another tier, and the inode number and
      // generation that it had here were reused. The new file gets a number of its own.
      const Identity displaced =
          displaced_identity(pool_[found[0].tier].member().slot, found[0].handle);
      if (displaced.id == identity.id) return nullptr;
      identity = displaced;
      continue;
    }
    if (slot->lookups_ == 0) record(*slot);
    ++slot->lookups_;
    Inode::Locked state(*slot);
    const struct stat& st = found[0].st;
    state->size_hint = static_cast<std::uint64_t>(st.st_size);
    state->pages.kernel_mtime = st.st_mtim.tv_sec * 1'000'000'000 + st.st_mtim.tv_nsec;
    // A rename may overtake a walk of the daemon, but not a lookup by the kernel. A walk may also
    // find the text of the name of which a predecessor left a hash.
    const bool is_believed = who == LookupBy::Kernel || state->name.kernel_knows_since == 0 ||
                             slot->is_named(*state, parent, name);
    if (is_believed && (state->name.parent != parent || state->name.text != name)) {
      state->name.parent = parent;
      state->name.text = name;
    }
    if (who == LookupBy::Kernel)
      state->name.kernel_knows_since = std::chrono::steady_clock::now().time_since_epoch().count();
    if (slot->record_ != nullptr) {
      slot->record_->lookups = static_cast<std::uint32_t>(slot->lookups_);
      if (is_believed) slot->record_name(*state);  // otherwise a hash is perhaps all that is known
    }
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
    if (id == kRootId || !find_in(s, id)) return;
    const auto found = s.inodes.find(to_number(id));
    Inode& inode = *found->second;
    inode.lookups_ -= std::min(inode.lookups_, count);
    if (inode.record_ != nullptr)
      inode.record_->lookups = static_cast<std::uint32_t>(inode.lookups_);
    if (inode.lookups_ != 0) return;
    last = std::move(found->second);
    s.inodes.erase(found);
    Inode::Locked state(*last);
    if (inode.record_ != nullptr)
      handover_->inodes().release(std::exchange(inode.record_, nullptr));
    for (Copy& copy : state->copies) remove_record(std::exchange(copy.record, nullptr));
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
    count += s.inodes.size() + s.left.size();
  }
  return count;
}

void InodeTable::for_each(const std::function<void(Inode&)>& visit) const {
  for (Shard& s : shards_) {
    MutexLock lock(s.mutex);
    while (!s.left.empty()) find_in(s, InodeId{s.left.begin()->first});
    for (const auto& entry : s.inodes) visit(*entry.second);
  }
}

}  // namespace sluice
