// SPDX-License-Identifier: BSD-2-Clause
// InodeTable holds every inode that the kernel refers to, by id, and drops an inode when the kernel
// forgets it. Threads: thread-safe. Lock order: a shard before an inode.
#pragma once

#include <array>
#include <functional>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "fs/core/inode.hpp"
#include "tiering/pool.hpp"

namespace sluice {

class InodeTable {
 public:
  // `handover`: where a successor finds the inodes; may be nullptr.
  explicit InodeTable(const Pool& pool, Handover* handover = nullptr)
      : pool_(pool), handover_(handover) {}

  // nullptr if the kernel does not refer to `id`.
  InodePtr find(InodeId id) const;
  // The inode that intern() would return for `found`; nullptr if there is none yet.
  InodePtr find(const Located& found) const;

  // Returns the inode for what was found, and adds a reference to it; creates it if necessary.
  // `found` holds every copy, fastest first. REQUIRES: `found` is not empty.
  enum class LookupBy { Kernel, Daemon };  // only Kernel: the kernel learns this name
  InodePtr intern(const std::vector<Located>& found, InodeId parent, std::string_view name,
                  LookupBy who = LookupBy::Kernel);

  // Takes over the inodes that a predecessor left. Each is restored when it is first needed,
  // because there may be a million. REQUIRES: nobody uses the table yet.
  struct Inherited {
    bool complete = true;         // false: some cannot be restored
    std::vector<InodeId> mapped;  // see KernelPages::maybe_mapped
  };
  Inherited inherit();
  // Change the copies of an inode, and tell a successor. REQUIRES: the inode is locked.
  void put_copy(Inode& inode, InodeState& state, Copy copy);
  void erase_copies(InodeState& state, const std::function<bool(const Copy&)>& which);
  // Tells a successor that the file may soon be at `place`, too. Returns the record, to be removed
  // or to become that of the copy.
  PlaceRecord* record_place(InodeId id, const Copy& place);
  void remove_record(PlaceRecord* record);

  // Adds the root. The kernel never looks it up and never forgets it.
  void add_root(const InodePtr& root);

  // Removes `count` references. The last one frees the inode.
  void forget(InodeId id, std::uint64_t count);

  std::size_t size() const;
  // Restores all.
  void for_each(const std::function<void(Inode&)>& visit) const;

 private:
  // What a predecessor left of an inode that was not needed yet.
  struct Left {
    InodeRecord* record = nullptr;
    std::vector<PlaceRecord*> places = {};
  };
  struct Shard {
    mutable Mutex mutex;
    std::unordered_map<std::uint64_t, InodePtr> inodes GUARDED_BY(mutex);
    std::unordered_map<std::uint64_t, Left> left GUARDED_BY(mutex);
  };
  Shard& shard(InodeId id) const {
    return shards_[(to_number(id) ^ to_number(id) >> 29) % shards_.size()];
  }

  void record(Inode& inode);
  // The inode, restored if necessary; nullptr if there is none.
  InodePtr find_in(Shard& s, InodeId id) const REQUIRES(s.mutex);
  InodePtr restore(const Left& left) const;
  void keep_named_copy(const Inode& inode, std::vector<Copy>& copies) const;

  const Pool& pool_;
  Handover* const handover_;
  mutable std::array<Shard, 64> shards_;  // find() may restore an inode
};

}  // namespace sluice
