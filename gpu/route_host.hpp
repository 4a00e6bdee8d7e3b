// SPDX-License-Identifier: BSD-2-Clause
// The host route: transfers between a file and host memory, without a GPU or an intermediate copy.
#pragma once

#include <cstdint>

#include "base/result.hpp"
#include "gpu/engine.hpp"

namespace sluice {

// Passes `data` to the file's write function, or to pwrite(2) if it has none.
Result<void> write_out(const EngineFile& file, const std::byte* data, std::size_t size,
                       std::uint64_t offset);

}  // namespace sluice
