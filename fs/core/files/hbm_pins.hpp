// SPDX-License-Identifier: BSD-2-Clause
// HbmPins copies files into the memory of GPUs in the background: those that are pinned there, and
// those that somebody asked to prefetch.
//
// The pin is an xattr of the file. So that the next mount finds it without a walk through the pool,
// the paths of the pinned files are also in a list in the state directory, which may name too many
// files, because a file is listed before it gets the xattr. A pinned file is copied again after a
// change, once it is no longer being changed, and when the GPU has room again. One file is copied
// at a time. A pin counts for the user who made it, until the file is unpinned or deleted.
//
// Threads: thread-safe. Its own thread runs while there are pins or prefetches.
#pragma once

#include <sys/types.h>

#include <chrono>
#include <deque>
#include <map>
#include <string>
#include <thread>

#include "base/mutex.hpp"
#include "base/result.hpp"
#include "fs/core/inodes/engine_link.hpp"
#include "fs/core/inodes/inode_table.hpp"
#include "fs/core/inodes/kernel_request.hpp"
#include "fs/core/names/attributes.hpp"
#include "fs/core/tree/descriptors.hpp"
#include "fs/core/tree/directory_tree.hpp"

namespace sluice {

// On disk. Users see it as user.sluice.hbm. On the tiers, only root can set it under this name.
inline constexpr const char* kHbmXattr = "trusted.sluice.hbm";

// Stands for GPU memory where the name of a tier is expected. No tier may have this name.
inline constexpr std::string_view kHbmName = "hbm";

class HbmPins {
 public:
  // Each pin is checked every second, and HbmTier remembers four times as many files. Root may use
  // all of them.
  static constexpr std::size_t kMostPins = 256, kMostPinsOfUser = 64;

  struct Parts {
    InodeTable& table;
    DirectoryTree& tree;
    Descriptors& descriptors;
    Attributes& attributes;
    EngineLink& engine;
    std::string list;  // the file with the paths; empty: none is kept
  };
  explicit HbmPins(const Parts& parts) : parts_(parts) {}
  ~HbmPins() { stop(); }

  // Reads the list. REQUIRES: called once, when files can be used.
  void start();
  void stop();

  // EISDIR: not a file. ENOSPC: too many are pinned. EDQUOT: too many of this user. The copy is
  // made in the background, as soon as there is room.
  Result<void> pin(const InodePtr& file, uid_t user, const KernelRequest& request);
  Result<void> unpin(const InodePtr& file,
                     const KernelRequest& request);  // ENODATA: it is not pinned
  bool is_pinned(const InodePtr& file);
  struct Count {
    std::size_t all = 0, most_of_user = 0;  // the latter without root
  };
  Count count();
  // The last known paths of the pinned files that were found.
  std::vector<std::string> paths();
  // Copies the file soon; all zero stands for the first GPU. EAGAIN: too many are waiting.
  // EOPNOTSUPP: the mount keeps no files in GPU memory. ENODEV: there is no such GPU.
  Result<void> prefetch(InodeId file, const GpuUuid& gpu, uid_t user);

 private:
  using Clock = std::chrono::steady_clock;
  struct Wanted {
    InodeId file;
    GpuUuid gpu;
    uid_t user;
    Clock::time_point until;  // a file that does not rest by then is left out
  };
  struct Pin {
    std::string path;      // the last known one
    uid_t user = 0;        // who pinned it first
    bool is_found = true;  // false: it is gone, or a folder above it was renamed while unknown
    std::uint64_t addition = 0;  // tells one pin() of the file from the next
  };
  enum class Keep { Yes, No };

  bool is_on() const;
  bool is_unpinned(const InodePtr& file);
  Result<InodePtr> find(InodeId id, const std::string& path);
  Result<void> copy(const InodePtr& file, const GpuUuid& gpu, Keep keep,
                    const std::stop_token& stop);
  void look_after(InodeId id, const std::string& path, const std::stop_token& stop);
  void serve(const Wanted& wanted, const std::stop_token& stop);
  void run(const std::stop_token& stop);
  void begin() REQUIRES(mutex_);
  Result<void> make_room(uid_t user) REQUIRES(mutex_);
  Result<void> add(InodeId id, const std::string& path, uid_t user) REQUIRES(mutex_);
  void save() REQUIRES(mutex_);

  const Parts parts_;
  Mutex mutex_;
  std::map<InodeId, Pin> pins_ GUARDED_BY(mutex_);
  std::uint64_t additions_ GUARDED_BY(mutex_) = 0;
  std::deque<Wanted> wanted_ GUARDED_BY(mutex_);
  bool started_ GUARDED_BY(mutex_) = false;
  bool is_new_ GUARDED_BY(mutex_) = false;  // something was added since the thread last looked
  StopCondVar changed_;
  std::jthread thread_ GUARDED_BY(mutex_);
};

}  // namespace sluice
