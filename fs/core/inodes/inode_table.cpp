// SPDX-License-Identifier: BSD-2-Clause
#include "fs/core/inodes/inode_table.hpp"

#include <fcntl.h>
#include <malloc.h>
#include <sys/stat.h>

#include <algorithm>
#include <chrono>

namespace sluice {
namespace {

// Files of a shard that do not rest although they could. Few, so that the memory of a file that is
// put to rest is still in the caches of the CPU: with 64, a walk took 10 % longer.
constexpr std::size_t kMostAwake = 8;
constexpr std::size_t kManyForgotten = 10'000;

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
  if (const auto resting = s.resting.find(to_number(id)); resting != s.resting.end()) {
    InodePtr inode = wake(resting->second);
    s.inodes.emplace(to_number(id), inode);
    s.resting.erase(resting);
    note_awake(s, *inode);
    return inode;
  }
  const auto left = s.left.find(to_number(id));
  if (left == s.left.end()) return nullptr;
  InodePtr inode = restore(left->second);
  if (inode) {
    s.inodes.emplace(to_number(id), inode);
  } else {
    handover_->inodes().release(left->second.record);
  }
  s.left.erase(left);
  if (inode) note_awake(s, *inode);
  return inode;
}

void InodeTable::note_awake(Shard& s, const Inode& inode) const {
  // A directory has descriptors and caches that are worth more than its memory.
  if (inode.is_directory() || handover_ == nullptr) return;
  s.awake.push_back(to_number(inode.id()));
  // Two, so that files which were in use for a while get their turn.
  if (s.awake.size() > kMostAwake) rest_oldest(s, 2);
}

void InodeTable::rest_oldest(Shard& s, std::size_t tries) const {
  for (; tries > 0 && !s.awake.empty(); --tries) {
    const std::uint64_t id = s.awake.front();
    s.awake.pop_front();
    if (!rest(s, id) && s.inodes.contains(id)) s.awake.push_back(id);
  }
}

// Whether the inode is used by nobody, and the records and Resting can hold all that is known.
bool InodeTable::can_rest(const InodePtr& inode, const InodeState& state) const {
  // Only the table has it, and others can only get it from the table: PageWatch, which has weak
  // pointers, is excluded below.
  if (inode.use_count() > 1 || inode->record_ == nullptr || state.copies.size() != 1) return false;
  const InodeRecord& record = *inode->record_;
  const Copy& copy = state.place();
  const auto& accesses = inode->accesses;
  return copy.record != nullptr && !copy.fd && inode->lookups_ == record.lookups &&
         record.parent == to_number(state.name.parent) &&
         record.kernel_knows_since == state.name.kernel_knows_since && !state.open &&
         !state.times && !state.is_moving() && state.changes == 0 && state.uses == 0 &&
         !state.has_duplicate && !state.move_waits && !state.is_doomed &&
         !state.pages.maybe_mapped && !state.pages.is_watched && accesses.new_opens == 0 &&
         accesses.gpu_bytes == 0 && !inode->waits_for_room && !inode->is_gone;
}

bool InodeTable::rest(Shard& s, std::uint64_t id) const {
  const auto found = s.inodes.find(id);
  if (found == s.inodes.end()) return false;
  const InodePtr& inode = found->second;
  {
    Inode::Locked state(*inode);
    if (!can_rest(inode, *state)) return false;
    const Copy& copy = state->place();
    Resting& resting = s.resting[id];
    resting.record = inode->record_;
    resting.place = copy.record;
    resting.size_hint = state->size_hint;
    resting.kernel_mtime = state->pages.kernel_mtime;
    resting.made_until = inode->accesses.made_until;
    resting.last_opener = inode->accesses.last_opener;
    resting.own_pin_epoch = state->pins.own_epoch;
    resting.own_pin = state->pins.own;
    resting.tier = copy.tier;
    resting.has_stale_pages = state->pages.stale;
    resting.has_no_xattrs = state->xattrs.none;
    resting.times_known = state->times_known;
    resting.append_only = inode->append_only;
    resting.name = std::move(state->name.text);
  }
  s.inodes.erase(found);
  return true;
}

InodePtr InodeTable::wake(Resting& resting) const {
  InodeRecord& record = *resting.record;
  auto inode = std::make_shared<Inode>(Identity{InodeId{record.inode}, record.generation},
                                       record.type & S_IFMT);
  inode->record_ = &record;
  inode->lookups_ = record.lookups;
  inode->accesses.made_until = resting.made_until;
  inode->accesses.last_opener = resting.last_opener;
  inode->append_only = resting.append_only;
  Inode::Locked state(*inode);
  const PlaceRecord& place = *resting.place;
  state->copies.reserve(1);
  state->copies.push_back(
      {resting.tier, {std::string(place.handle.data(), place.handle_size)}, {}, resting.place});
  state->name = {InodeId{record.parent}, std::move(resting.name), record.kernel_knows_since};
  state->size_hint = resting.size_hint;
  state->pages.stale = resting.has_stale_pages;
  state->pages.kernel_mtime = resting.kernel_mtime;
  state->pins.own = resting.own_pin;
  state->pins.own_epoch = resting.own_pin_epoch;
  state->xattrs.none = resting.has_no_xattrs;
  state->times_known = resting.times_known;
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
  const auto find_as = [&](InodeId id) {
    InodePtr inode = find(id);
    if (!inode) return inode;
    Inode::Locked state(*inode);
    return is_same(*inode, *state, found) ? inode : nullptr;
  };
  if (InodePtr inode = find_as(found.identity.id)) return inode;
  return find_as(displaced_identity(pool_[found.tier].member().slot, found.handle).id);
}

InodePtr InodeTable::intern(const std::vector<Located>& found, InodeId parent,
                            std::string_view name, LookupBy who) {
  Identity identity = found[0].identity;
  for (;;) {
    Shard& s = shard(identity.id);
    MutexLock lock(s.mutex);
    InodePtr inode = find_in(s, identity.id);
    if (!inode) {
      inode = std::make_shared<Inode>(identity, found[0].st.st_mode);
      {
        Inode::Locked state(*inode);
        state->copies.reserve(found.size());
        for (const Located& f : found) state->copies.push_back(copy_from(f));
      }
      s.inodes.emplace(to_number(identity.id), inode);
      note_awake(s, *inode);
    } else if (!refresh(*this, *inode, found)) {
      // Another file has this identity: it moved to another tier, and the inode number and
      // generation that it had here were reused. The new file gets a number of its own.
      const Identity displaced =
          displaced_identity(pool_[found[0].tier].member().slot, found[0].handle);
      if (displaced.id == identity.id) return nullptr;
      identity = displaced;
      continue;
    }
    if (inode->lookups_ == 0) record(*inode);
    ++inode->lookups_;
    Inode::Locked state(*inode);
    const struct stat& st = found[0].st;
    state->size_hint = static_cast<std::uint64_t>(st.st_size);
    state->pages.kernel_mtime = st.st_mtim.tv_sec * 1'000'000'000 + st.st_mtim.tv_nsec;
    // A rename may overtake a walk of the daemon, but not a lookup by the kernel. A walk may also
    // find the text of the name of which a predecessor left a hash.
    const bool is_believed = who == LookupBy::Kernel || state->name.kernel_knows_since == 0 ||
                             inode->is_named(*state, parent, name);
    if (is_believed && (state->name.parent != parent || state->name.text != name)) {
      state->name.parent = parent;
      state->name.text = name;
    }
    if (who == LookupBy::Kernel)
      state->name.kernel_knows_since = std::chrono::steady_clock::now().time_since_epoch().count();
    if (inode->record_ != nullptr) {
      inode->record_->lookups = static_cast<std::uint32_t>(inode->lookups_);
      if (is_believed) inode->record_name(*state);  // otherwise a hash is perhaps all that is known
    }
    return inode;
  }
}

void InodeTable::add_root(const InodePtr& root) {
  Shard& s = shard(kRootId);
  MutexLock lock(s.mutex);
  root->lookups_ = 1;
  s.inodes[to_number(kRootId)] = root;
}

bool InodeTable::forget_resting(Shard& s, InodeId id, std::uint64_t count) {
  const auto found = s.resting.find(to_number(id));
  if (found == s.resting.end()) return false;
  InodeRecord& record = *found->second.record;
  record.lookups -= static_cast<std::uint32_t>(std::min<std::uint64_t>(record.lookups, count));
  if (record.lookups != 0) return true;
  handover_->inodes().release(&record);
  remove_record(found->second.place);
  s.resting.erase(found);
  return true;
}

void InodeTable::forget(InodeId id, std::uint64_t count) {
  InodePtr last;
  {
    Shard& s = shard(id);
    MutexLock lock(s.mutex);
    if (id == kRootId) return;
    auto found = s.inodes.find(to_number(id));
    if (found == s.inodes.end()) {
      if (forget_resting(s, id, count) || !find_in(s, id)) return;
      found = s.inodes.find(to_number(id));
    }
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
  // They are closed after the locks are released, because closing can take long.
  std::vector<SharedFd> closing;
  Inode::Locked state(*last);
  for (Copy& copy : state->copies) {
    if (copy.fd && !copy.handle.empty()) closing.push_back(std::exchange(copy.fd, nullptr));
  }
}

std::size_t InodeTable::size() const {
  std::size_t count = 0;
  for (const Shard& s : shards_) {
    MutexLock lock(s.mutex);
    count += s.inodes.size() + s.resting.size() + s.left.size();
  }
  return count;
}

std::size_t InodeTable::awake() const {
  std::size_t count = 0;
  for (const Shard& s : shards_) {
    MutexLock lock(s.mutex);
    count += s.inodes.size();
  }
  return count;
}

void InodeTable::rest_unused() {
  for (Shard& s : shards_) {
    MutexLock lock(s.mutex);
    rest_oldest(s, s.awake.size());
  }
}

void InodeTable::give_back_memory() {
  rest_unused();
  const std::size_t known = size();
  most_known_ = std::max(most_known_, known);
  if (most_known_ - known < kManyForgotten) return;
  // The C library would keep the memory of what the kernel forgot for the next time.
  ::malloc_trim(0);
  most_known_ = known;
}

void InodeTable::for_each(const Visit& visit) const {
  for (Shard& s : shards_) {
    MutexLock lock(s.mutex);
    while (!s.left.empty()) find_in(s, InodeId{s.left.begin()->first});
    for (const auto& entry : s.inodes) visit(*entry.second);
    visit_resting(s, visit);
  }
}

void InodeTable::for_each_directory(const Visit& visit) const {
  for (Shard& s : shards_) {
    MutexLock lock(s.mutex);
    std::vector<InodeId> left;
    for (const auto& entry : s.left) {
      if (S_ISDIR(entry.second.record->type & S_IFMT)) left.push_back(InodeId{entry.first});
    }
    for (const InodeId id : left) find_in(s, id);
    for (const auto& entry : s.inodes) {
      if (entry.second->is_directory()) visit(*entry.second);
    }
  }
}

void InodeTable::for_each_awake(const Visit& visit) const {
  for (Shard& s : shards_) {
    MutexLock lock(s.mutex);
    for (const auto& entry : s.inodes) visit(*entry.second);
  }
}

// One at a time, so that a million of them do not take the memory of a million inodes.
void InodeTable::visit_resting(Shard& s, const Visit& visit) const {
  std::vector<std::uint64_t> ids;
  ids.reserve(s.resting.size());
  for (const auto& entry : s.resting) ids.push_back(entry.first);
  for (const std::uint64_t id : ids) {
    const auto found = s.resting.find(id);
    if (found == s.resting.end()) continue;
    InodePtr inode = wake(found->second);
    visit(*inode);
    s.inodes.emplace(id, std::move(inode));
    s.resting.erase(found);
    if (!rest(s, id)) s.awake.push_back(id);
  }
}

}  // namespace sluice
