// SPDX-License-Identifier: BSD-2-Clause
#include "tools/lab/simulator/kv_trace.hpp"

#include <cmath>
#include <nlohmann/json.hpp>

namespace sluice::tools::lab {
namespace {

using nlohmann::json;

constexpr double kLatest = 9e12;  // seconds: in microseconds it still fits 64 bits

Error bad_line(const char* what) { return {EINVAL, "read a trace", what}; }

}  // namespace

Result<KvRequest> parse_kv_request(std::string_view line) {
  const json parsed = json::parse(line, nullptr, /*allow_exceptions=*/false);
  if (!parsed.is_object()) return bad_line("not a JSON object");
  const auto time = parsed.find("timestamp");
  if (time == parsed.end() || !time->is_number()) return bad_line("no number named timestamp");
  const auto blocks = parsed.find("hash_ids");
  if (blocks == parsed.end() || !blocks->is_array()) return bad_line("no list named hash_ids");
  const double unit = parsed.contains("chat_id") ? 1e6 : 1e3;  // microseconds
  const double at = time->get<double>() * unit;
  if (!(at >= 0 && at < kLatest * 1e6)) return bad_line("the timestamp is out of range");
  KvRequest request{std::llround(at), {}};
  for (const json& block : *blocks) {
    if (!block.is_number_integer()) return bad_line("hash_ids has something that is no integer");
    request.blocks.push_back(block.is_number_unsigned()
                                 ? block.get<std::uint64_t>()
                                 : static_cast<std::uint64_t>(block.get<std::int64_t>()));
  }
  return request;
}

bool is_kv_trace(std::string_view beginning) {
  const auto first = beginning.find_first_not_of(" \t\r\n");
  return first != beginning.npos && beginning[first] == '{';
}

}  // namespace sluice::tools::lab
