// SPDX-License-Identifier: BSD-2-Clause
// Traces: which object was accessed when, read from files in the formats of docs/simulator.md.
//
// An object has one size, the largest that its records name: a tier must hold it at its largest.
// Threads: plain values and functions without shared state.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.hpp"

namespace sluice::tools::lab {

struct Trace {
  // By record, in the order of time. 12 bytes a record, so that long traces fit into memory.
  std::vector<std::int64_t> times;     // microseconds
  std::vector<std::uint32_t> objects;  // indexes into sizes
  std::vector<std::uint64_t> sizes;    // bytes, by object
  std::uint64_t out_of_order = 0;      // records that had to be sorted into their place

  std::size_t records() const { return times.size(); }
  std::uint64_t total_bytes() const;
  // From the first record to the last.
  std::int64_t span_us() const { return times.empty() ? 0 : times.back() - times.front(); }
};

enum class TraceFormat {
  Csv,     // text: columns time, id and size, by a header or in this order; ours has a path, too
  Oracle,  // libCacheSim's oracleGeneral: binary records of 24 bytes
  Kv,      // requests to an inference server, as JSON lines; see kv_trace.hpp
};
// "csv", "oracle" or "kv"; nothing for another word.
std::optional<TraceFormat> trace_format(std::string_view word);

// Fills `trace` from `path` ("-": standard input) in the format `forced`, or as detected from the
// file's name and beginning. After an error, which says where,
// what is wrong and what is expected, `trace` is unspecified.
Result<void> read_trace(const std::string& path, std::optional<TraceFormat> forced, Trace& trace);

// For each record the number of the next one of the same object, or kNeverAgain.
inline constexpr std::uint32_t kNeverAgain = 0xffffffff;
std::vector<std::uint32_t> next_uses(const Trace& trace);

}  // namespace sluice::tools::lab
