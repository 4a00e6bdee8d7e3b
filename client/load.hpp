// SPDX-License-Identifier: BSD-2-Clause
// Loads tensors. The load is split into reads that are large enough to use the bus well and small
// enough to take turns. Several are executed at a time, from all files in turn, because the files
// may be on different disks. Thread-safe.
#pragma once

#include <functional>
#include <span>

#include "client/include/sluice/loader.h"
#include "client/request.hpp"

namespace sluice {

// Reads the tensors to buffer[offset + arena_offset]. REQUIRES: tensors of one file are adjacent.
// `progress`, if not empty, is called in this thread with the number of bytes so far; if it returns
// false, the load ends with ECANCELED. The text of an error is already set (client/sentence.hpp).
// The result is a sum of reads, see Transfer::add().
Result<Outcome> load_tensors(Library& library, std::span<const struct sluice_tensor> tensors,
                             Buffer& buffer, std::uint64_t offset,
                             const std::function<bool(std::uint64_t)>& progress);

}  // namespace sluice
