// SPDX-License-Identifier: BSD-2-Clause
// Loading tensors: cut into reads that are large enough for the bus and small enough to take turns,
// and carried out several at a time, from several files if there are several: they may be on
// different disks. Thread-safe.
#pragma once

#include <functional>
#include <span>

#include "client/include/sluice/loader.h"
#include "client/request.hpp"

namespace sluice {

// Reads the tensors, which stand in the order of their files, to buffer[offset + arena_offset].
// `progress`, if it is not empty, is called in this thread with the bytes that have come so far;
// false ends it (ECANCELED). Errors have been said. The route is that of a largest read.
Result<Outcome> load_tensors(Library& library, std::span<const struct sluice_tensor> tensors,
                             Buffer& buffer, std::uint64_t offset,
                             const std::function<bool(std::uint64_t)>& progress);

}  // namespace sluice
