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

#include "base/result.hpp"
#include "fs/core/access_tracker.hpp"
#include "fs/core/attributes.hpp"
#include "fs/core/caller.hpp"
#include "fs/core/descriptors.hpp"
#include "fs/core/engine_link.hpp"
#include "fs/core/files.hpp"
#include "fs/core/move_requests.hpp"
#include "fs/core/page_watch.hpp"
#include "gpu/engine.hpp"

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
  explicit GpuFiles(const Parts& parts) : parts_(parts) {}

  // ENOTTY if `id` is not a regular file; this applies to all requests.
  Result<Transfer> read(InodeId id, Memory& memory, std::span<const Segment> segments,
                        Route wanted);
  // `strip_suid` as in Files::write(). After an error the content of the range is unspecified.
  Result<Transfer> write(InodeId id, Memory& memory, const Segment& segment, Route wanted,
                         const std::optional<Caller>& strip_suid);

  struct Preview {
    Engine::Preview preview;  // of a read of the whole file
    std::uint64_t size = 0;
    std::string tier;
  };
  Result<Preview> preview(InodeId id, Device* device);
  // Describes the route that a read of the whole file would take, for a person.
  Result<std::string> describe_route(const InodePtr& file);

  // Reads the range into the page cache, in the background. A length of 0 means up to the end of
  // the file.
  Result<void> warm(InodeId id, std::uint64_t offset, std::uint64_t length, uid_t user);
  // "warm" or "": the whole file; "0-1MiB": that range; "promote": a move to a faster tier.
  Result<void> prefetch(const InodePtr& file, std::string_view how, uid_t user);

 private:
  Result<InodePtr> regular_file(InodeId id);

  const Parts parts_;
};

}  // namespace sluice
