// SPDX-License-Identifier: BSD-2-Clause
// The host route: transfers between a file and host memory, without a GPU or an intermediate copy.
// Stateless functions.
#pragma once

#include <cstdint>
#include <span>

#include "base/result.hpp"
#include "gpu/cutter.hpp"
#include "gpu/engine.hpp"
#include "gpu/file_reader.hpp"
#include "gpu/worker_pool.hpp"

namespace sluice {

// Reads on the calling thread through the page cache; reads of missing bytes are all started first.
// Returns the number of bytes.
Result<std::uint64_t> read_host_small(int fd, std::byte* memory, std::span<const Segment> segments);
// Reads with all workers, for `user`.
Result<Cutter::Done> read_host(WorkerPool& workers, FileReader& reader, std::byte* memory,
                               Cutter& cutter, uid_t user);
// Passes `data` to the file's write function, or to pwrite(2) if it has none.
Result<void> write_out(const EngineFile& file, const std::byte* data, std::size_t size,
                       std::uint64_t offset);

}  // namespace sluice
