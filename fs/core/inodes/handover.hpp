// SPDX-License-Identifier: BSD-2-Clause
// Handover is what a daemon leaves to its successor, in memory that outlives it: a memfd that the
// keeper holds, too. It is always up to date, because a daemon that is killed cannot write it at
// the end. The format is described in docs/handover-format.md; a successor refuses one that it
// cannot read.
//
// It holds what the kernel refers to and cannot be asked for again:
//   - what INIT agreed on,
//   - the inodes that the kernel knows, and where their files are,
//   - the open files and directories,
//   - notes about requests that are being answered (RequestNote).
//
// A record becomes valid by a store to its first member and invalid by a store of 0 to it, so a
// record is never half valid. Records are only facts for a successor: the daemon itself works with
// its own objects.
//
// Threads: thread-safe. A record belongs to the object that allocated it.
#pragma once

#include <sys/types.h>

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <unordered_map>
#include <vector>

#include "base/check.hpp"
#include "base/mutex.hpp"
#include "base/result.hpp"
#include "base/unique_fd.hpp"
#include "fs/core/inodes/kernel_request.hpp"

namespace sluice {

// Where one copy of a file or directory is. Never changed while it is valid.
struct PlaceRecord {
  static constexpr std::size_t kLongestHandle = 30;

  std::uint64_t inode;  // its InodeId; 0: the record is free
  std::uint8_t slot;    // of the tier
  std::uint8_t handle_size;
  std::array<char, kLongestHandle> handle;
};
static_assert(sizeof(PlaceRecord) == 40);

// An inode that the kernel knows.
struct InodeRecord {
  std::uint64_t inode;  // its InodeId; 0: the record is free
  std::uint64_t parent;
  std::uint64_t name_hash;          // of its name in `parent`; see hash_of_name()
  std::int64_t kernel_knows_since;  // see InodeName
  std::uint32_t lookups;            // references of the kernel; at most too many
  std::uint32_t generation;
  std::int32_t kept_by;  // the backing id that keeps a file without names in existence; 0: none
  std::uint32_t type;    // S_IFMT bits, and kMaybeMapped

  static constexpr std::uint32_t kMaybeMapped = 1;  // see KernelPages
};
static_assert(sizeof(InodeRecord) == 48);

// One open file or directory.
struct OpenRecord {
  std::uint64_t handle;  // fuse_file_info::fh; 0: the record is free
  std::uint64_t inode;
  std::uint64_t request;    // the number of the request that opened it
  std::int32_t backing_id;  // of a passthrough file; 0: the daemon serves it
  std::uint32_t flags;      // of open(2), and those below

  static constexpr std::uint32_t kDirectIo = 1U << 31;  // it bypasses the kernel's page cache
  static constexpr std::uint32_t kDirectory = 1U << 30;
  static constexpr std::uint32_t kCachesListing = 1U << 29;
  static constexpr std::uint32_t kByRoot = 1U << 28;  // root opened it
  static constexpr std::uint32_t kOwnFlags = kDirectIo | kDirectory | kCachesListing | kByRoot;
};
static_assert(sizeof(OpenRecord) == 32);

std::uint64_t hash_of_name(std::string_view name);

// A table of records in shared memory. Free records are reused.
template <typename Record>
class RecordTable {
 public:
  // `used` counts the records that were ever used; it is in shared memory, too.
  void set(std::span<Record> records, std::uint64_t* used) {
    records_ = records;
    used_ = used;
  }
  // A free record: all zero. nullptr if there is none.
  Record* allocate() {
    MutexLock lock(mutex_);
    if (!free_.empty()) {
      Record* record = free_.back();
      free_.pop_back();
      return record;
    }
    const std::uint64_t next = *used_;
    if (next == records_.size()) return nullptr;
    __atomic_store_n(used_, next + 1, __ATOMIC_RELEASE);
    return &records_[next];
  }
  // CHECKED: `record` is one of the table's.
  void release(Record* record) {
    if (record == nullptr) return;
    SLUICE_CHECK(index_of(record) < __atomic_load_n(used_, __ATOMIC_ACQUIRE),
                 "a record that is released belongs to the table");
    __atomic_store_n(reinterpret_cast<std::uint64_t*>(record), 0, __ATOMIC_RELEASE);
    *record = Record{};
    MutexLock lock(mutex_);
    free_.push_back(record);
  }
  // The record with this index; nullptr if none was ever allocated there.
  Record* at(std::uint64_t index) {
    return index < __atomic_load_n(used_, __ATOMIC_ACQUIRE) ? &records_[index] : nullptr;
  }
  std::uint64_t index_of(const Record* record) const {
    return static_cast<std::uint64_t>(record - records_.data());
  }
  // Visits the records that a predecessor left, once, before any other call.
  void inherit(const std::function<void(Record&)>& visit) {
    // Not locked: those who allocate records hold locks that `visit` takes, too.
    std::vector<Record*> unused;
    for (std::uint64_t i = 0; i < std::min<std::uint64_t>(*used_, records_.size()); ++i) {
      Record& record = records_[i];
      if (*reinterpret_cast<const std::uint64_t*>(&record) != 0) {
        visit(record);
      } else {
        record = Record{};
        unused.push_back(&record);
      }
    }
    MutexLock lock(mutex_);
    free_.insert(free_.end(), unused.begin(), unused.end());
  }

 private:
  std::span<Record> records_;
  std::uint64_t* used_ = nullptr;
  Mutex mutex_;
  std::vector<Record*> free_ GUARDED_BY(mutex_);
};

// Makes a filled record valid: stores its first member last.
inline void publish(std::uint64_t& first, std::uint64_t value) {
  __atomic_store_n(&first, value, __ATOMIC_RELEASE);
}

class Handover {
 public:
  // New memory, for a first daemon.
  static Result<std::unique_ptr<Handover>> create(const std::string& pool);
  // The memory of a predecessor. EPROTONOSUPPORT if it cannot be read, EINVAL if it belongs to
  // another pool; the error says what to do.
  static Result<std::unique_ptr<Handover>> open(UniqueFd fd, const std::string& pool);
  ~Handover();
  Handover(const Handover&) = delete;
  Handover& operator=(const Handover&) = delete;

  // EPROTONOSUPPORT if the memory `fd` cannot be read. Changes nothing: its owner may still serve.
  static Result<void> check(int fd);
  // What the mount was made of. A successor must be given the same.
  struct Mount {
    std::string mountpoint;
    std::vector<std::string> tiers;  // names
    std::vector<std::string> added;  // those that were added since, as the user gave them
  };
  static Mount mount_of(int fd);
  void set_mountpoint(const std::string& mountpoint);
  // `added`: as the user gave it; empty if it was there from the start.
  void add_tier(const std::string& name, const std::string& added = {});

  // From here on, if a thread of this process crashes, the request that it answers is noted for
  // the successor.
  void note_crashes();
  // Sets the kernel's number of the request that the calling thread answers; 0: none.
  static void set_answered(std::uint64_t unique);
  // REQUIRES: the request is a repetition, and begin_note() was not called for it. If the
  // predecessor crashed in it, counts that. Returns how many daemons have crashed in it.
  unsigned count_crashes(std::uint64_t unique, std::uint32_t opcode);

  // Notes that this daemon takes no more requests, because it hands over.
  void set_stopped();
  // When the predecessor did, in nanoseconds of the monotonic clock; 0 if it crashed.
  std::int64_t predecessor_stopped() const { return predecessor_stopped_; }

  int fd() const { return fd_.get(); }
  // How many daemons served this mount before.
  std::uint32_t epoch() const { return epoch_; }
  bool is_inherited() const { return epoch_ > 0; }

  // The kernel's INIT request, with which a successor's libfuse comes to the same state.
  void set_init(std::span<const std::byte> request);
  std::vector<std::byte> init() const;

  RecordTable<InodeRecord>& inodes() { return inodes_; }
  RecordTable<PlaceRecord>& places() { return places_; }
  RecordTable<OpenRecord>& opens() { return opens_; }

  // The note for a request. If `repeated`, the note that the predecessor wrote, if it did. nullptr
  // if all notes are in use.
  RequestNote* begin_note(std::uint64_t unique, std::uint32_t opcode, bool repeated);
  void end_note(RequestNote* note);

 private:
  struct Header;
  Handover(UniqueFd fd, void* memory);
  void set_tables();
  RequestNote* new_note(std::uint64_t unique, std::uint32_t opcode);

  UniqueFd fd_;
  void* const memory_;
  Header* const header_;
  std::uint32_t epoch_ = 0;
  std::int64_t predecessor_stopped_ = 0;
  std::uint64_t predecessor_crashed_in_ = 0;  // Header::crashed_in
  RecordTable<InodeRecord> inodes_;
  RecordTable<PlaceRecord> places_;
  RecordTable<OpenRecord> opens_;
  RecordTable<RequestNote> notes_;
  Mutex mutex_;
  std::unordered_map<std::uint64_t, RequestNote*> inherited_notes_ GUARDED_BY(mutex_);
};

}  // namespace sluice
