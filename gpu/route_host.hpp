// SPDX-License-Identifier: BSD-2-Clause
// The host route: between a file and host memory, with no GPU and no copy in between. Functions of
// no state.
#pragma once

#include <cstdint>
#include <span>

#include "base/result.hpp"
#include "gpu/cutter.hpp"
#include "gpu/engine.hpp"
#include "gpu/file_reader.hpp"
#include "gpu/worker_pool.hpp"

namespace sluice {

// On the calling thread, through the page cache, what is not there all at once. Returns how many
// bytes there were.
Result<std::uint64_t> read_host_small(int fd, std::byte* memory, std::span<const Segment> segments);
// With all workers.
Result<std::uint64_t> read_host(WorkerPool& workers, FileReader& reader, std::byte* memory,
                                std::span<const Segment> segments, std::uint64_t chunk);
// Hands `data` to the file's owner, or to pwrite(2) where the file has none.
Result<void> write_out(const EngineFile& file, const std::byte* data, std::size_t size,
                       std::uint64_t offset);

}  // namespace sluice
