// SPDX-License-Identifier: BSD-2-Clause
// Inode is what the daemon remembers of one file or directory as long as the kernel refers to it:
// its identity, where its copies are, and how it is open. There may be a million inodes, so an
// inode keeps no descriptor and no path without need.
//
// Threads: identity and type never change, and some counters are atomic. Everything else is
// InodeState, which can be reached only while the inode is locked:
//
//   Inode::Locked state(*inode);
//   state->move_waits = true;
//
// A function that takes an InodeState& is called by a thread that has locked the inode. Most
// callers need only the short methods of Inode, which lock for themselves.
#pragma once

#include <fcntl.h>
#include <sys/stat.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "base/ids.hpp"
#include "base/mutex.hpp"
#include "fs/core/inodes/handover.hpp"
#include "fs/core/inodes/lock_order.hpp"
#include "metadata/store.hpp"
#include "tiering/move/file_move.hpp"
#include "tiering/pool/identity.hpp"
#include "tiering/pool/tier.hpp"

namespace sluice {

// One tier's copy. A regular file has exactly one. A directory has one on each tier that holds
// something below it.
struct Copy {
  TierIndex tier = kNoTier;
  FileHandle handle;  // empty: the filesystem has no handles, and `fd` is kept instead
  // For directories, a cached O_RDONLY descriptor that FdCache may close. For others an O_PATH
  // descriptor: if there is no handle, or if the last name was removed and the handle is useless.
  SharedFd fd;
  PlaceRecord* record = nullptr;  // for a successor; InodeTable sets it
};

// How a regular file is open. The first open chooses between passthrough and serving. All opens
// that overlap with it share the choice, because the kernel does not allow a mixture.
struct OpenFile {
  bool passthrough = false;
  std::int32_t backing_id = 0;
  unsigned opens = 0;
  unsigned writers = 0;    // opens that can write
  unsigned mappers = 0;    // opens that can map the file shared and writable: those with O_RDWR
  bool users_map = false;  // one of these was a user's who is not root, now or before
  SharedFd reader;         // O_RDONLY; opened when first needed
  SharedFd writer;         // O_RDWR; opened when first needed
  bool direct = false;     // some open of it bypasses the kernel's page cache
  bool is_held = false;    // a writer has waited in vain for passthrough opens to end
  // Room on the tier that is reserved for passthrough writers; see Tier::promise().
  std::uint64_t promised = 0;
  Tier* promised_on = nullptr;  // another disk may have taken the tier's place since
  // Operations that change the file hold it shared, a spill holds it exclusively. Absent if the
  // file cannot spill: the kernel writes it directly, or nobody has it open for writing.
  std::shared_ptr<SharedMutex> moving;
};

// The times that are shown instead of those on the tiers; see ShownTimes.
struct InodeTimes {
  KeptTimes kept;
  // Counts changes of a directory's `kept`. A reader of the tier's times retries if it differs
  // afterwards.
  unsigned changes = 0;
};

// The names in a directory that has copies on several tiers; fs/core/tree/directory_stream.cpp.
struct DirectoryNames;

// A name that the inode had when it was last looked up or renamed. Callers check it against the
// tier before they act on it.
struct InodeName {
  InodeId parent{};
  std::string text;
  // When the kernel last learned this name, in nanoseconds of the monotonic clock; 0: never. If two
  // files have one name, the kernel means the one that it learned of last.
  std::int64_t kernel_knows_since = 0;
};

// What the kernel may have cached of a file.
struct KernelPages {
  bool stale = false;  // its pages may be older than what a passthrough writer wrote
  // A writable mapping may have outlived the last close. The kernel does not report stores to it.
  bool maybe_mapped = false;
  bool is_watched = false;        // PageWatch has it in its list
  std::int64_t kernel_mtime = 0;  // st_mtim of the cached attributes; 0: none are cached
};

// Pins as last read; an old epoch means that they must be read again. See Pins.
struct CachedPins {
  TierIndex inherited = kNoTier;  // the pin for what is in this directory
  TierIndex own = kNoTier;        // the pin that this file or directory has itself
  std::uint32_t own_epoch = 0;
  std::uint64_t inherited_epoch = 0;
};

struct CachedXattrs {
  bool none = false;     // the file has no xattrs
  unsigned changes = 0;  // a reader that saw another number must not cache what it read
};

// What only directories need.
struct DirectoryState {
  bool partly_unknown = false;  // it may have a copy on a tier that was offline when it was found
  bool removed = false;         // by rmdir: its descriptors stay until the kernel forgets it
  bool fd_used = false;         // since FdCache last looked
  unsigned name_changes = 0;    // running operations of users that change names in it
  std::weak_ptr<const DirectoryNames> listed_names;  // shared by concurrent listings
};

// The part of an inode that its lock guards.
struct InodeState {
  std::vector<Copy> copies;  // fastest tier first, at most one per tier
  std::unique_ptr<OpenFile> open;
  unsigned changes = 0;  // running changes: see ChangeGuard
  unsigned uses = 0;     // running requests of the GPU engine: see UseGuard
  // A move was interrupted, and the other file still has the name. `copies` is right.
  bool has_duplicate = false;
  // A move waits for the file to be closed. The next open is served, so that the move can run.
  bool move_waits = false;
  // A budget is deleting the file, or has. It cannot be opened: see BudgetKeeper.
  bool is_doomed = false;
  InodeName name;               // for reports, and to find the parent of a directory
  std::uint64_t size_hint = 0;  // st_size when last seen: small files are opened differently
  KernelPages pages;
  CachedPins pins;
  CachedXattrs xattrs;
  std::unique_ptr<InodeTimes> times;  // absent: the times on the tiers are shown
  bool times_known = false;           // `times` has what the store has
  DirectoryState directory;

  // Where the bytes are; for a directory, its fastest copy.
  const Copy& place() const { return copies[0]; }
  bool is_at(TierIndex tier, const FileHandle& handle) const {
    return !copies.empty() && copies[0].tier == tier && copies[0].handle == handle;
  }
  bool has_copy_on(TierIndex tier) const {
    return std::any_of(copies.begin(), copies.end(),
                       [&](const Copy& copy) { return copy.tier == tier; });
  }
  // Adds a copy of a directory, or replaces what is known of the copy on that tier. Only for
  // InodeTable::put_copy(), which also tells a successor.
  struct Put {
    bool changed = true;
    std::vector<Copy> replaced = {};
  };
  Put put_copy(Copy copy) {
    const auto at = std::find_if(copies.begin(), copies.end(),
                                 [&](const Copy& c) { return c.tier >= copy.tier; });
    if (at == copies.end() || at->tier != copy.tier) {
      copies.insert(at, std::move(copy));
      return {};
    }
    if (at->handle == copy.handle && !copy.handle.empty()) return {false};
    return {true, {std::exchange(*at, std::move(copy))}};
  }
  // Closes the descriptors that can be opened again.
  void close_descriptors() {
    for (Copy& copy : copies) {
      if (!copy.handle.empty()) copy.fd = nullptr;
    }
  }

  // A file has at most one move.
  bool is_moving() const { return move_ != nullptr; }
  // While a move switches, the file may be found in either place, and users must wait for its end.
  std::shared_ptr<FileMove> switching_move() const { return is_switching_ ? move_ : nullptr; }
  bool may_be_in_two_places() const { return has_duplicate || switching_move(); }
  void start_move(std::shared_ptr<FileMove> move) {
    move_ = std::move(move);
    is_switching_ = false;
  }
  // Does nothing if a spill has taken the place of the move, which it cancelled.
  void start_switch(const FileMove& move) { is_switching_ |= move_.get() == &move; }
  void cancel_move() {
    if (move_) move_->cancel();
  }
  void end_move(const FileMove& move) {
    if (move_.get() != &move) return;  // see start_switch()
    move_ = nullptr;
    is_switching_ = false;
  }

 private:
  std::shared_ptr<FileMove> move_;
  bool is_switching_ = false;
};

class Inode {
 public:
  Inode(Identity who, mode_t file_type) : identity(who), type(file_type & S_IFMT) {}

  const Identity identity;
  const mode_t type;
  InodeId id() const { return identity.id; }
  bool is_directory() const { return S_ISDIR(type); }

  // The inode's state, locked from construction to destruction.
  class SCOPED_CAPABILITY Locked {
   public:
    explicit Locked(Inode& inode) ACQUIRE(inode.mutex_) : inode_(inode) { inode_.mutex_.lock(); }
    ~Locked() RELEASE() { inode_.mutex_.unlock(); }
    Locked(const Locked&) = delete;
    Locked& operator=(const Locked&) = delete;

    InodeState* operator->() const NO_THREAD_SAFETY_ANALYSIS { return &inode_.state_; }
    InodeState& operator*() const NO_THREAD_SAFETY_ANALYSIS { return inode_.state_; }

   private:
    Inode& inode_;
  };

  Copy place() {
    Locked state(*this);
    return state->place();
  }
  TierIndex tier() {
    Locked state(*this);
    return state->place().tier;
  }
  InodeName last_name() {
    Locked state(*this);
    return state->name;
  }
  void set_last_name(InodeId parent, std::string text) {
    Locked state(*this);
    state->name.parent = parent;
    state->name.text = std::move(text);
    record_name(*state);
  }
  // Records that the kernel knows the inode by this name.
  void set_kernel_name(InodeId parent, std::string_view text) {
    Locked state(*this);
    state->name = {parent, std::string(text),
                   std::chrono::steady_clock::now().time_since_epoch().count()};
    record_name(*state);
  }
  // Whether this is its last known name. A predecessor leaves only a hash of the name.
  bool is_named(const InodeState& state, InodeId parent, std::string_view text) const {
    if (state.name.parent != parent) return false;
    if (!state.name.text.empty() || record_ == nullptr) return state.name.text == text;
    return record_->name_hash == hash_of_name(text);
  }
  bool has_name(InodeId parent, std::string_view text) {
    Locked state(*this);
    return is_named(*state, parent, text);
  }
  bool is_recorded() const { return record_ != nullptr; }
  // Tells a successor whether a writable mapping may exist; see KernelPages.
  void record_mapped(bool maybe_mapped) {
    if (record_ == nullptr) return;
    const std::uint32_t flag = maybe_mapped ? InodeRecord::kMaybeMapped : 0;
    record_->type = (record_->type & S_IFMT) | flag;
  }
  // Tells a successor which backing id keeps the file in existence. Returns the one before.
  std::int32_t record_keeper(std::int32_t backing_id) {
    return record_ == nullptr ? 0 : std::exchange(record_->kept_by, backing_id);
  }

  // Accesses that AccessTracker has not passed on yet. The thread that raises new_opens from 0 puts
  // the inode on the tracker's list.
  struct Accesses {
    std::atomic<std::uint32_t> new_opens{0};
    // Until this time, an open by the process that made the file counts as part of making it; 0: no
    // longer.
    std::atomic<std::uint32_t> made_until{0};
    std::atomic<std::uint64_t> gpu_bytes{0};
    std::atomic<pid_t> last_opener{0};  // tells a walk over many files from use; a guess
  } accesses;
  std::atomic<bool> is_gone{false};  // the file has lost its last name
  std::atomic<int> listings{0};      // of this directory that are reading its names
  // A new file that found no room in a directory with a budget: its first write waits for it. The
  // file is served as long as this is set. See Budgets::claim_room().
  std::atomic<bool> waits_for_room{false};
  // chattr +a, as of the last open for writing or change of flags. A hint: the tier's filesystem
  // enforces the flag.
  std::atomic<bool> append_only{false};

 private:
  friend class InodeTable;

  void record_name(const InodeState& state) {
    if (record_ == nullptr) return;
    record_->parent = to_number(state.name.parent);
    record_->name_hash = hash_of_name(state.name.text);
    record_->kernel_knows_since = state.name.kernel_knows_since;
  }

  InodeRecord* record_ = nullptr;  // for a successor; set before others can see the inode
  std::uint64_t lookups_ = 0;  // references of the kernel; the lock of InodeTable's shard guards it
  Mutex mutex_ ACQUIRED_AFTER(lock_order::inode) ACQUIRED_BEFORE(lock_order::waiting);
  InodeState state_ GUARDED_BY(mutex_);
};

using InodePtr = std::shared_ptr<Inode>;

}  // namespace sluice
