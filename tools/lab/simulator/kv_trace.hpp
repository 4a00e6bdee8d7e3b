// SPDX-License-Identifier: BSD-2-Clause
// Reads traces of KV caches: JSON lines, one a request to an inference server, with the hashes of
// the blocks of its prompt. Each block is a file that the request uses. Two public formats are
// known: Mooncake's (timestamp in milliseconds) and Qwen-Bailian's (it has a chat_id, and the
// timestamp is in seconds). Threads: pure functions.
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "base/result.hpp"

namespace sluice::tools::lab {

// Blocks of one trace have one size, so only the ratio to the size of a tier matters.
inline constexpr std::uint64_t kKvBlockBytes = 1 << 20;

struct KvRequest {
  std::int64_t time = 0;  // microseconds
  std::vector<std::uint64_t> blocks;
};

// Parses one line. EINVAL: the text says what is wrong.
Result<KvRequest> parse_kv_request(std::string_view line);

// Whether a file that begins like this is such a trace.
bool is_kv_trace(std::string_view beginning);

}  // namespace sluice::tools::lab
