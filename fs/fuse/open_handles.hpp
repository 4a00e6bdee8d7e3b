// SPDX-License-Identifier: BSD-2-Clause
// OpenHandles gives each open file and directory the number by which the kernel names it
// (fuse_file_info::fh), and records it for a successor.
//
// Threads: thread-safe.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <optional>
#include <unordered_map>
#include <unordered_set>

#include "base/ids.hpp"
#include "base/mutex.hpp"
#include "base/result.hpp"
#include "fs/core/inodes/handover.hpp"
#include "fs/core/inodes/kernel_request.hpp"
#include "fs/gpu/open_id.hpp"

namespace sluice {

class OpenHandles {
 public:
  explicit OpenHandles(Handover& handover);

  struct Open {
    InodeId inode{};
    int flags = 0;
    std::int32_t backing_id = 0;  // see Opened
    bool direct = false;          // see Opened
    bool is_directory = false;
    bool by_root = false;  // determined by add(): the current caller is root
    // Whether the kernel may list the directory from its cache and put what is listed there.
    // Determined by add(): only one open of a directory may. With two, the kernel would go on from
    // the names that the other one has put there, even if they are older: it compares the cache
    // with the directory only at the beginning of a listing.
    bool caches_listing = false;
  };
  // Records that the request opens `open`. ENFILE if there are too many.
  Result<OpenId> add(const Open& open, const KernelRequest& request = {});
  void remove(OpenId id);
  // What is open by this number; nothing if it is unknown.
  std::optional<Open> find(OpenId id) const;

  // The open that the predecessor recorded for the request, if this is a repetition.
  std::optional<std::pair<OpenId, Open>> of_request(const KernelRequest& request) const;
  // Calls `visit` for everything that was open in the predecessor. REQUIRES: called once, first.
  void inherit(const std::function<void(const Open&)>& visit);

 private:
  OpenRecord* record_of(OpenId id) const;

  Handover& handover_;
  std::atomic<std::uint64_t> last_;
  mutable Mutex mutex_;
  std::unordered_map<std::uint64_t, OpenRecord*> inherited_ GUARDED_BY(mutex_);  // by request
  std::unordered_set<InodeId> cached_directories_ GUARDED_BY(mutex_);  // see caches_listing
};

}  // namespace sluice
