// SPDX-License-Identifier: BSD-2-Clause
// A Tier is one directory of the pool on one filesystem: its root descriptor, how much room it has,
// and whether it is there at all. It turns names into identities and handles back into descriptors;
// it knows nothing of the other tiers.
//
// Threads: every member may be called from any thread at once.
#pragma once

#include <sys/stat.h>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "base/ids.hpp"
#include "base/mutex.hpp"
#include "base/result.hpp"
#include "base/unique_fd.hpp"
#include "tiering/identity.hpp"
#include "tiering/marker.hpp"

namespace sluice {

// A descriptor that several threads may hold while its owner lets go of it.
using SharedFd = std::shared_ptr<const UniqueFd>;

struct TierSettings {
  std::string name;
  std::string path;
  std::optional<std::uint64_t> capacity;
  unsigned high_watermark = 90;
  unsigned low_watermark = 80;
  std::optional<std::uint64_t> reserve;
  bool noatime = false;  // reading through the mount leaves access times alone
  double threshold = 0;  // the score that makes a file eligible for this tier
  unsigned moves = 2;    // that may read from it or write to it at once
};

// One thing found on a tier.
struct Located {
  TierIndex tier = kNoTier;
  FileHandle handle;  // empty where the filesystem has none; `pinned` names the file then
  SharedFd pinned;    // O_PATH
  Identity identity;
  struct stat st {};              // as the tier's filesystem says: st_ino is not yet ours
  bool carries_identity = false;  // `identity` is not the copy's natural one: it was moved here
};

struct Space {
  std::uint64_t total = 0;  // of the filesystem, or the configured capacity if that is less
  std::uint64_t free = 0;   // what may still be written
  std::uint64_t over = 0;   // bytes that are there beyond a configured capacity
  std::uint64_t used() const { return total - free + over; }
};

class Tier {
 public:
  // `root` may be empty: the tier is then offline, for the reason `why`, until check_presence()
  // finds it. `lock` is held as long as the tier is online; for a tier that comes back it is taken
  // in the name of `user`.
  Tier(TierIndex index, TierSettings settings, Member member, UniqueFd root, std::string why,
       UniqueFd lock = {}, std::string user = {});

  TierIndex index() const { return index_; }
  const std::string& name() const { return settings_.name; }
  const std::string& path() const { return settings_.path; }
  // st_dev of its filesystem, or what it was when the tier was last online.
  dev_t device() const { return device_; }
  const TierSettings& settings() const { return settings_; }
  const Member& member() const { return member_; }
  std::string filesystem() const;  // "ext4", "xfs", ...

  // Whether requests may use it.
  bool online() const { return online_.load(std::memory_order_relaxed); }
  // Whether its directory is there. One that has come back is present first, while it is told what
  // changed in its absence, and online after admit().
  bool present() const;
  void admit();
  std::string why_offline() const;

  // EIO while it is not present.
  Result<SharedFd> root() const;
  // .sluice/tmp: where things are made before they are renamed into place. EIO while not present.
  Result<SharedFd> temp_directory() const;
  static std::string new_temp_name();
  // Whether the file or directory lies below there, at whatever depth, so far as the kernel can
  // say.
  bool is_hidden(int fd) const;

  // What `name` in `dirfd` is, symlinks not followed; or what `dirfd` itself is, if `name` is
  // empty.
  Result<Located> identify(int dirfd, const char* name) const;
  // Only the identity: what readdir needs for d_ino.
  Result<Identity> identity_of(int dirfd, const char* name) const;
  Result<UniqueFd> open(const FileHandle& handle, int flags) const;
  // What a natural identity names, after the kernel gave up its reference. ESTALE if it is gone or
  // can't be told.
  Result<Located> find(InodeId id) const;

  // Writes `identity` on the open file or directory `fd` (not O_PATH), durably once that is synced.
  Result<void> carry_identity(int fd, const Identity& identity);

  // Cached for some milliseconds, so that asking on each create costs nothing. Zero while offline.
  Space space() const;
  void refresh_space() const;
  std::uint64_t reserve() const;
  bool low_on_space() const { return space().free < reserve(); }
  bool above_high_watermark() const;

  // Bytes that others may yet write here without our seeing it come: whoever writes through the
  // kernel's passthrough, and copies that are being made.
  void promise(std::uint64_t bytes) { promised_.fetch_add(bytes, std::memory_order_relaxed); }
  void take_back_promise(std::uint64_t bytes) {
    promised_.fetch_sub(bytes, std::memory_order_relaxed);
  }
  // What is free and promised to nobody.
  std::uint64_t room() const;

  // Whether it is being emptied, to be retired. Remembered on the tier itself.
  bool is_draining() const { return draining_.load(std::memory_order_relaxed); }
  Result<void> set_draining(bool draining);

  // Bytes that this process has read and written here: for users whose requests it serves, and for
  // moves. What the kernel passes through is not among them; see disk_counters().
  struct Traffic {
    std::uint64_t read = 0, written = 0;
  };
  void count_read(std::uint64_t bytes) { read_.fetch_add(bytes, std::memory_order_relaxed); }
  // `took`: how long an application waited for it.
  void count_written(std::uint64_t bytes, std::chrono::nanoseconds took = {});
  // Whether the kernel made a writer wait a moment ago: it does so once there are more changed
  // pages than the disk can take soon.
  bool writes_wait() const;
  Traffic traffic() const {
    return {read_.load(std::memory_order_relaxed), written_.load(std::memory_order_relaxed)};
  }

  // Looks whether the directory at path() is still this tier. True if that changed present().
  bool check_presence();

 private:
  struct Root {
    SharedFd fd, temp;
    UniqueFd lock;
    dev_t device = 0;
    int mount_id = 0;
    HandleKind kind = HandleKind::None;
    std::uint64_t magic = 0;
  };

  Result<std::shared_ptr<const Root>> current() const;
  Result<std::shared_ptr<const Root>> adopt(UniqueFd fd, UniqueFd lock) const;
  Result<Identity> carried_or(const Identity& natural, int dirfd, const char* name) const;
  void read_flags(const Root& root) REQUIRES(mutex_);
  void go_offline(std::string why);

  const TierIndex index_;
  const TierSettings settings_;
  const Member member_;
  const std::string user_;
  // Read on every operation and only ever a hint: a tier that goes away in mid-operation answers
  // EIO itself.
  std::atomic<bool> online_{false};
  // Set before the first identity is carried on this tier and never cleared, so a stale read can
  // only be false before any such file can be named.
  std::atomic<bool> carries_{false};
  std::atomic<bool> draining_{false};  // a hint to those who place and plan
  mutable Mutex mutex_;
  std::shared_ptr<const Root> root_ GUARDED_BY(mutex_);
  std::string why_ GUARDED_BY(mutex_);
  std::atomic<dev_t> device_{0};  // of the last root
  // Independent figures, each valid alone.
  mutable std::atomic<std::uint64_t> total_{0}, free_{0}, over_{0};
  mutable std::atomic<std::int64_t> space_read_at_{0};
  std::atomic<std::uint64_t> promised_{0};           // a sum; nobody waits for it
  std::atomic<std::uint64_t> read_{0}, written_{0};  // statistics
  std::atomic<std::chrono::steady_clock::rep> writes_wait_until_{0};
};

}  // namespace sluice
