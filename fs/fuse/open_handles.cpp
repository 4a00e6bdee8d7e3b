// SPDX-License-Identifier: BSD-2-Clause
#include "fs/fuse/open_handles.hpp"

#include "fs/core/inodes/caller.hpp"

namespace sluice {
namespace {

// The number of an OpenId: the index of its record, and above it a count, so that a number is not
// used again soon.
constexpr unsigned kIndexBits = 24;
constexpr unsigned kCountsPerDaemon = 26;  // bits

OpenHandles::Open to_open(const OpenRecord& record) {
  OpenHandles::Open out;
  out.inode = InodeId{record.inode};
  out.is_directory = (record.flags & OpenRecord::kDirectory) != 0;
  out.by_root = (record.flags & OpenRecord::kByRoot) != 0;
  out.direct = (record.flags & OpenRecord::kDirectIo) != 0;
  out.caches_listing = (record.flags & OpenRecord::kCachesListing) != 0;
  out.backing_id = record.backing_id;
  out.flags = static_cast<int>(record.flags & ~OpenRecord::kOwnFlags);
  return out;
}

}  // namespace

OpenHandles::OpenHandles(Handover& handover)
    : handover_(handover), last_(std::uint64_t{handover.epoch()} << kCountsPerDaemon) {}

OpenRecord* OpenHandles::record_of(OpenId id) const {
  OpenRecord* record = handover_.opens().at((id.number() & ((1U << kIndexBits) - 1)));
  return record != nullptr && record->handle == id.to_wire() ? record : nullptr;
}

Result<OpenId> OpenHandles::add(const Open& open, const KernelRequest& request) {
  OpenRecord* record = handover_.opens().allocate();
  if (record == nullptr) return Error(ENFILE, "too many files are open");
  const std::uint64_t count = last_.fetch_add(1, std::memory_order_relaxed) + 1;
  const OpenId id(count << kIndexBits | handover_.opens().index_of(record), open.flags);
  record->inode = to_number(open.inode);
  record->request = request.number();
  record->backing_id = open.backing_id;
  record->flags = static_cast<std::uint32_t>(open.flags) & ~OpenRecord::kOwnFlags;
  if (open.is_directory) {
    MutexLock lock(mutex_);
    const bool is_only_one = cached_directories_.insert(open.inode).second;
    record->flags |= OpenRecord::kDirectory | (is_only_one ? OpenRecord::kCachesListing : 0);
  }
  if (current_caller().uid == 0) record->flags |= OpenRecord::kByRoot;
  if (open.direct) record->flags |= OpenRecord::kDirectIo;
  publish(record->handle, id.to_wire());
  return id;
}

void OpenHandles::remove(OpenId id) {
  OpenRecord* record = record_of(id);
  if (record == nullptr) return;
  {
    MutexLock lock(mutex_);
    const auto found = inherited_.find(record->request);
    if (found != inherited_.end() && found->second == record) inherited_.erase(found);
    if ((record->flags & OpenRecord::kCachesListing) != 0)
      cached_directories_.erase(InodeId{record->inode});
  }
  handover_.opens().release(record);
}

std::optional<OpenHandles::Open> OpenHandles::find(OpenId id) const {
  const OpenRecord* record = record_of(id);
  return record == nullptr ? std::nullopt : std::optional(to_open(*record));
}

std::optional<std::pair<OpenId, OpenHandles::Open>> OpenHandles::of_request(
    const KernelRequest& request) const {
  if (!request.is_repeated()) return std::nullopt;
  MutexLock lock(mutex_);
  const auto found = inherited_.find(request.number());
  if (found == inherited_.end()) return std::nullopt;
  return std::pair(OpenId::from_wire(found->second->handle), to_open(*found->second));
}

void OpenHandles::inherit(const std::function<void(const Open&)>& visit) {
  handover_.opens().inherit([&](OpenRecord& record) {
    {
      MutexLock lock(mutex_);
      inherited_[record.request] = &record;
      if ((record.flags & OpenRecord::kCachesListing) != 0)
        cached_directories_.insert(InodeId{record.inode});
    }
    visit(to_open(record));
  });
}

}  // namespace sluice
