// SPDX-License-Identifier: BSD-2-Clause
// InodeTable holds every inode that the kernel refers to, by id, and drops an inode when the kernel
// forgets it. Threads: thread-safe.
//
// The kernel refers to every file that was ever listed, perhaps a million, and most of them are not
// used again. A file that nobody uses and of which nothing special is known rests: the table keeps
// a short note instead of an Inode, together with the records for a successor. It becomes an Inode
// again when it is next needed.
#pragma once

#include <array>
#include <deque>
#include <functional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "fs/core/inodes/inode.hpp"
#include "fs/core/inodes/lock_order.hpp"
#include "tiering/pool/pool.hpp"

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
  // `found` holds every copy, fastest first. CHECKED: `found` is not empty.
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
  // Change the copies of an inode, and tell a successor.
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
  // How many inodes do not rest, and were not left by a predecessor.
  std::size_t awake() const;
  // Makes all files rest that can.
  void rest_unused();
  // The same; also gives memory back to the system if the kernel forgot many inodes. To be called
  // every few seconds, by one thread.
  void give_back_memory();

  // Visits all inodes. Those that rest will rest again.
  void for_each(const std::function<void(Inode&)>& visit) const;
  void for_each_directory(const std::function<void(Inode&)>& visit) const;
  // Visits the inodes that may be open, move, or have a descriptor.
  void for_each_awake(const std::function<void(Inode&)>& visit) const;

 private:
  using Visit = std::function<void(Inode&)>;

  // What a predecessor left of an inode that was not needed yet.
  struct Left {
    InodeRecord* record = nullptr;
    std::vector<PlaceRecord*> places = {};
  };
  // What is known of a file that rests, beside its records. INVARIANT: whatever can_rest() does not
  // exclude is here or in the records, or is a cache that may be empty.
  struct Resting {
    InodeRecord* record = nullptr;
    PlaceRecord* place = nullptr;
    std::uint64_t size_hint = 0;
    std::int64_t kernel_mtime = 0;
    std::uint32_t made_until = 0;
    pid_t last_opener = 0;
    std::uint32_t own_pin_epoch = 0;
    TierIndex own_pin = kNoTier;
    TierIndex tier = kNoTier;
    bool has_stale_pages = false;
    bool has_no_xattrs = false;
    bool times_known = false;
    bool append_only = false;
    std::string name;
  };
  struct Shard {
    mutable Mutex mutex ACQUIRED_AFTER(lock_order::table) ACQUIRED_BEFORE(lock_order::inode);
    std::unordered_map<std::uint64_t, InodePtr> inodes GUARDED_BY(mutex);
    std::unordered_map<std::uint64_t, Resting> resting GUARDED_BY(mutex);
    std::unordered_map<std::uint64_t, Left> left GUARDED_BY(mutex);
    // Files in `inodes`, oldest first. May contain others, too.
    std::deque<std::uint64_t> awake GUARDED_BY(mutex);
  };
  Shard& shard(InodeId id) const {
    return shards_[(to_number(id) ^ to_number(id) >> 29) % shards_.size()];
  }

  void record(Inode& inode);
  // Called when `inode`, to which the caller holds a pointer, was put into Shard::inodes. If there
  // are many, others rest instead.
  void note_awake(Shard& s, const Inode& inode) const REQUIRES(s.mutex);
  // Lets the oldest `tries` files that do not rest do so, if they can.
  void rest_oldest(Shard& s, std::size_t tries) const REQUIRES(s.mutex);
  bool can_rest(const InodePtr& inode, const InodeState& state) const;
  bool rest(Shard& s, std::uint64_t id) const REQUIRES(s.mutex);
  // The caller then removes `resting` from the table.
  InodePtr wake(Resting& resting) const;
  bool forget_resting(Shard& s, InodeId id, std::uint64_t count) REQUIRES(s.mutex);
  void visit_resting(Shard& s, const Visit& visit) const REQUIRES(s.mutex);
  // The inode, which rests no more; nullptr if there is none.
  InodePtr find_in(Shard& s, InodeId id) const REQUIRES(s.mutex);
  InodePtr restore(const Left& left) const;
  void keep_named_copy(const Inode& inode, std::vector<Copy>& copies) const;

  const Pool& pool_;
  Handover* const handover_;
  std::size_t most_known_ = 0;            // inodes since memory was last given back
  mutable std::array<Shard, 64> shards_;  // find() may restore or wake an inode
};

}  // namespace sluice
