// SPDX-License-Identifier: BSD-2-Clause
// A Tier is one directory of the pool on one filesystem. It owns the descriptor of that directory
// and knows its free space and whether it is online. It converts names to identities and handles to
// descriptors. It knows nothing about the other tiers.
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
#include "tiering/choose/tier_facts.hpp"
#include "tiering/pool/identity.hpp"
#include "tiering/pool/marker.hpp"

namespace sluice {

// A descriptor that is closed when its last user releases it.
using SharedFd = std::shared_ptr<const UniqueFd>;

struct TierSettings {
  std::string name;
  std::string path;
  std::optional<std::uint64_t> capacity;
  unsigned high_watermark = 90;
  unsigned low_watermark = 80;
  std::optional<std::uint64_t> reserve;
  bool noatime = false;  // reads through the mount do not update access times
  double threshold = 0;  // the score at which a file is eligible for this tier
  unsigned moves = 2;    // maximum number of moves from and to this tier at once
};

// The settings of a tier that can change while it is used.
struct TierLimits {
  std::optional<std::uint64_t> capacity;
  unsigned high_watermark = 90;
  unsigned low_watermark = 80;
  std::optional<std::uint64_t> reserve;
  double threshold = 0;

  bool operator==(const TierLimits&) const = default;
};
TierLimits limits_of(const TierSettings& settings);

// A file or directory found on a tier.
struct Located {
  TierIndex tier = kNoTier;
  FileHandle handle;  // empty if the filesystem has no handles; then `pinned` is set
  SharedFd pinned;    // O_PATH
  Identity identity;
  struct stat st {};              // from the tier's filesystem: st_ino is not the identity
  bool carries_identity = false;  // it stores `identity` in an xattr: the file was moved here
};

struct Space {
  // What users may use of the filesystem, or the configured capacity if that is less.
  std::uint64_t total = 0;
  std::uint64_t free = 0;   // bytes that can still be written, once the twins have gone
  std::uint64_t over = 0;   // bytes used in excess of a configured capacity
  std::uint64_t twins = 0;  // bytes of twins, a part of `free`
  std::uint64_t kept = 0;   // what the filesystem keeps for root, no part of `total`
  std::uint64_t used() const { return total - free + over; }
  std::uint64_t free_now() const { return free > twins ? free - twins : 0; }
};

class Tier {
 public:
  // `root` may be empty: then the tier is offline for the reason `why` until check_presence() finds
  // it. The tier keeps `lock` while it is online. When a tier comes back, it takes the lock again
  // in the name of `user`.
  Tier(TierIndex index, TierSettings settings, Member member, UniqueFd root, std::string why,
       UniqueFd lock = {}, std::string user = {});

  TierIndex index() const { return index_; }
  const std::string& name() const { return settings_.name; }
  const std::string& path() const { return settings_.path; }
  // st_dev of its filesystem, or what it was when the tier was last online.
  dev_t device() const { return device_; }
  unsigned moves() const { return settings_.moves; }
  TierLimits limits() const;
  // True if the limits differ from those before.
  bool change(const TierLimits& limits);
  const Member& member() const { return member_; }
  std::string filesystem() const;  // "ext4", "xfs", ...

  // Whether requests may use it.
  bool online() const { return online_.load(std::memory_order_relaxed); }
  // Whether its directory exists. A tier that comes back is present first, while the changes made
  // in its absence are applied, and online after admit().
  bool present() const;
  void admit();
  std::string why_offline() const;
  // When it went offline, in seconds since the epoch; 0 if it is online, or if it was offline
  // already when this daemon started.
  std::int64_t offline_since() const;

  // Fails with EIO while the tier is not present.
  Result<SharedFd> root() const;
  // .sluice/tmp, where files are created before they are renamed into place. Fails with EIO while
  // the tier is not present.
  Result<SharedFd> temp_directory() const;
  static std::string new_temp_name();
  // .sluice/twins; see twin.hpp. Fails with EIO while the tier is not present.
  Result<SharedFd> twins_directory() const;
  // .sluice/spares, with empty directories for the time when the tier is full; see
  // DirectoryTree::keep_spares(). Fails with EIO while the tier is not present.
  Result<SharedFd> spares_directory() const;
  // Whether the inode `number` is the twin of the file `identity`: it has the file's identity, but
  // is not the file.
  bool is_twin(const Identity& identity, ino_t number) const;
  // Identifies the time from one mounting of the tier's filesystem to the next, in which a file
  // with the same ctime has the same bytes. Zero: unknown, or its times do not tell.
  std::uint64_t session() const;
  // Whether files can be found by handles here.
  bool has_handles() const;
  // Whether the file or directory is below temp_directory(), as far as the kernel knows its path.
  bool is_hidden(int fd) const;

  // Identifies `name` in `dirfd`, or `dirfd` itself if `name` is empty. Does not follow symlinks.
  Result<Located> identify(int dirfd, const char* name) const;
  // Only the identity: what readdir needs for d_ino.
  Result<Identity> identity_of(int dirfd, const char* name) const;
  Result<UniqueFd> open(const FileHandle& handle, int flags) const;
  // Finds the file with the natural identity `id`. Fails with ESTALE if it is gone or cannot be
  // found that way.
  Result<Located> find(InodeId id) const;

  // Stores `identity` on the open file or directory `fd` (not O_PATH). Durable once `fd` is synced.
  Result<void> carry_identity(int fd, const Identity& identity);

  // Whether the filesystem keeps room for users by their number, root or another: ext4, f2fs.
  bool keeps_room_by_user() const;

  // Cached for some milliseconds, so that every create can call it. Zero while offline.
  Space space() const;
  void refresh_space() const;
  std::uint64_t reserve() const;
  bool low_on_space() const { return space().free < reserve(); }
  // Whether its filesystem accepts no writes: it is mounted read-only, or it found errors.
  bool is_read_only() const;
  // Making a file there failed for a reason that is not lack of room. The tier is left alone for a
  // minute. failure() is the errno of that; 0: no failure is known.
  void note_failure(int code);
  int failure() const;
  // Everything but the speed.
  TierFacts facts() const;
  Intake intake() const { return intake_of(facts()); }

  // Reserves or releases bytes that will be written here later: by writers that use the kernel's
  // passthrough, and by copies in progress.
  void promise(std::uint64_t bytes) { promised_.fetch_add(bytes, std::memory_order_relaxed); }
  void take_back_promise(std::uint64_t bytes) {
    promised_.fetch_sub(bytes, std::memory_order_relaxed);
  }
  // Bytes that are free now, without dropping twins, and are not promised.
  std::uint64_t room() const;

  // Whether the tier is being emptied, to be retired. Stored on the tier itself.
  bool is_draining() const { return draining_.load(std::memory_order_relaxed); }
  Result<void> set_draining(bool draining);

  // How many bytes its twins take; Twins counts them.
  void set_twin_bytes(std::uint64_t bytes) { twin_bytes_.store(bytes, std::memory_order_relaxed); }
  std::uint64_t promised() const { return promised_.load(std::memory_order_relaxed); }

  // Bytes that this process has read and written here, to serve requests and for moves. Passthrough
  // I/O is not included; see disk_counters().
  struct Traffic {
    std::uint64_t read = 0, written = 0;
  };
  void count_read(std::uint64_t bytes) { read_.fetch_add(bytes, std::memory_order_relaxed); }
  // `took` is how long an application waited for the write.
  void count_written(std::uint64_t bytes, std::chrono::nanoseconds took = {});
  // Whether the kernel recently made a writer wait. It does so when there are more dirty pages than
  // the disk can write soon.
  bool writes_wait() const;
  Traffic traffic() const {
    return {read_.load(std::memory_order_relaxed), written_.load(std::memory_order_relaxed)};
  }

  // Checks whether the directory at path() is still this tier, and whether it can be written.
  // Returns true if present() changed.
  bool check_presence();

 private:
  struct Root {
    SharedFd fd, temp, twins, spares;
    UniqueFd lock;
    dev_t device = 0;
    int mount_id = 0;
    HandleKind kind = HandleKind::None;
    std::uint64_t magic = 0;
    std::uint64_t session = 0;
  };

  Result<std::shared_ptr<const Root>> current() const;
  Result<std::shared_ptr<const Root>> adopt(UniqueFd fd, UniqueFd lock) const;
  Result<std::optional<Identity>> carried(const Identity& natural, int dirfd,
                                          const char* name) const;
  void read_flags(const Root& root) REQUIRES(mutex_);
  void go_offline(std::string why);
  void check_writable();
  // What the public functions of these names say, for callers that have read the clock and the
  // limits.
  Space space(std::int64_t now) const;
  int failure(std::int64_t now) const;
  bool is_known_read_only() const;

  const TierIndex index_;
  const TierSettings settings_;  // its limits are those of the beginning; see limits_
  const Member member_;
  const std::string user_;
  mutable Mutex limits_mutex_;
  TierLimits limits_ GUARDED_BY(limits_mutex_);
  // Read on every operation and only a hint: if the tier goes away during an operation, its
  // filesystem returns EIO.
  std::atomic<bool> online_{false};
  // Set before the first identity is stored on this tier and never cleared. A stale false can be
  // read only before any such file has a name.
  std::atomic<bool> carries_{false};
  std::atomic<bool> draining_{false};  // a hint for placement and planning
  mutable Mutex mutex_;
  std::shared_ptr<const Root> root_ GUARDED_BY(mutex_);
  std::string why_ GUARDED_BY(mutex_);
  std::int64_t offline_since_ GUARDED_BY(mutex_) = 0;
  std::atomic<dev_t> device_{0};  // of the last root
  // What the filesystem said last. Independent values; no consistency between them is needed.
  struct Measured {
    std::atomic<std::uint64_t> total{0}, free{0}, over{0}, twins{0}, kept{0};
    std::atomic<bool> is_read_only{false};
    std::atomic<std::int64_t> read_at{0};
  };
  mutable Measured measured_;
  // Why nothing should be put there. Hints, as online_.
  struct Trouble {
    std::atomic<bool> has_given_up{false};   // its filesystem found errors, and writes no more
    std::atomic<bool> was_read_only{false};  // when check_presence() looked last
    std::atomic<int> failure{0};             // see note_failure()
    std::atomic<std::int64_t> failing_until{0};
  };
  Trouble trouble_;
  std::atomic<std::uint64_t> promised_{0};           // a sum that nothing waits for
  std::atomic<std::uint64_t> twin_bytes_{0};         // the same
  std::atomic<std::uint64_t> read_{0}, written_{0};  // statistics
  std::atomic<std::chrono::steady_clock::rep> writes_wait_until_{0};
};

}  // namespace sluice
