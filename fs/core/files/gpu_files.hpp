// SPDX-License-Identifier: BSD-2-Clause
// GpuFiles transfers bytes between files and memory that clients registered with the GPU engine.
// Without an engine every request fails with EOPNOTSUPP.
//
// Threads: thread-safe.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.hpp"
#include "fs/core/files/access_tracker.hpp"
#include "fs/core/files/files.hpp"
#include "fs/core/files/hbm_pins.hpp"
#include "fs/core/files/move_requests.hpp"
#include "fs/core/inodes/caller.hpp"
#include "fs/core/inodes/engine_link.hpp"
#include "fs/core/names/attributes.hpp"
#include "fs/core/tree/descriptors.hpp"
#include "fs/core/tree/page_watch.hpp"
#include "gpu/engine.hpp"
#include "gpu/hbm.hpp"

namespace sluice {

class GpuFiles {
 public:
  struct Parts {
    Pool& pool;
    DirectoryTree& tree;
    Descriptors& descriptors;
    Attributes& attributes;
    PageWatch& pages;
    AccessTracker& accesses;
    Files& files;
    MoveRequests& moves;
    EngineLink& engine;
  };
  GpuFiles(const Parts& parts, const HbmPins::Parts& pins) : parts_(parts), hbm_pins_(pins) {}

  HbmPins& hbm_pins() { return hbm_pins_; }

  // ENOTTY if `id` is not a regular file; this applies to all requests. `user`: who reads.
  // `is_cancelled`: see EngineFile.
  Result<Transfer> read(InodeId id, Memory& memory, std::span<const Segment> segments, Route wanted,
                        uid_t user = EngineFile::kNoUser, std::function<bool()> is_cancelled = {});
  // Records by number, by Route::Hbm only; see Engine::gather().
  Result<Transfer> gather_from_hbm(InodeId id, Memory& memory, std::uint64_t memory_offset,
                                   const Engine::Records& records, const RecordIndex& index,
                                   uid_t user);
  // On behalf of `writer`. After an error the content of the range is unspecified.
  Result<Transfer> write(InodeId id, Memory& memory, const Segment& segment, Route wanted,
                         const Caller& writer);

  // As Engine::share(). Counts as a read of the whole file when the memory is handed out.
  Result<SharedCopy> share(InodeId id, Device& device, uid_t user);

  struct Preview {
    Engine::Preview preview;  // of a read of the whole file
    std::uint64_t size = 0;
    std::string tier;
  };
  // `user`: who would read.
  Result<Preview> preview(InodeId id, Device* device, uid_t user = EngineFile::kNoUser);
  // Describes the route that a read of the whole file would take, for a person.
  Result<std::string> describe_route(const InodePtr& file);
  // The copies of the file in the memory of GPUs.
  std::vector<HbmTier::Held> in_hbm(const InodePtr& file);

  // Reads the range into the page cache, in the background. A length of 0 means up to the end of
  // the file.
  Result<void> warm(InodeId id, std::uint64_t offset, std::uint64_t length, uid_t user);
  // "warm" or "": the whole file; "0-1MiB": that range; "promote": a move to a faster tier; "hbm"
  // or "hbm:GPU-...": into the memory of the first or of that GPU.
  Result<void> prefetch(const InodePtr& file, std::string_view how, uid_t user);

 private:
  Result<InodePtr> regular_file(InodeId id);
  Result<GpuUuid> gpu_named(std::string_view name);

  const Parts parts_;
  HbmPins hbm_pins_;
};

}  // namespace sluice
