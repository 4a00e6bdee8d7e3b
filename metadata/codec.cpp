// SPDX-License-Identifier: BSD-2-Clause
#include "metadata/codec.hpp"

#include <algorithm>
#include <bit>
#include <concepts>

#include "metadata/decay.hpp"

namespace sluice {
namespace {

static_assert(sizeof(double) == 8, "a score is an IEEE 754 binary64 on disk");

// On disk: never renumber.
constexpr std::size_t kVersionAt = 0;
constexpr std::size_t kScoreAt = 1;
constexpr std::size_t kLastAccessAt = 9;
constexpr std::size_t kOpensAt = 17;
constexpr std::size_t kGpuBytesAt = 25;
static_assert(kGpuBytesAt + sizeof(std::uint64_t) == kHeatBytes);

// Byte by byte, so that it is the same on every machine; compilers make one store of it.
template <std::unsigned_integral Number>
void put_little(char* out, Number value) {
  for (std::size_t i = 0; i < sizeof(Number); ++i) out[i] = static_cast<char>(value >> (8 * i));
}

// REQUIRES: sizeof(Number) bytes at `in`.
template <std::unsigned_integral Number>
Number get_little(const char* in) {
  Number value = 0;
  for (std::size_t i = 0; i < sizeof(Number); ++i) {
    value |= static_cast<Number>(static_cast<unsigned char>(in[i])) << (8 * i);
  }
  return value;
}

}  // namespace

std::array<char, kHeatBytes> encode_heat(const Heat& heat) {
  std::array<char, kHeatBytes> out;
  out[kVersionAt] = static_cast<char>(kHeatVersion);
  put_little(&out[kScoreAt], std::bit_cast<std::uint64_t>(heat.score));
  put_little(&out[kLastAccessAt], static_cast<std::uint64_t>(heat.last_access));
  put_little(&out[kOpensAt], heat.opens);
  put_little(&out[kGpuBytesAt], heat.gpu_bytes);
  return out;
}

Result<Heat> decode_heat(std::string_view bytes) {
  if (bytes.empty() || bytes[kVersionAt] != static_cast<char>(kHeatVersion) ||
      bytes.size() != kHeatBytes) {
    return Error(EUCLEAN, "decode heat");
  }
  const Heat heat{
      .score = std::bit_cast<double>(get_little<std::uint64_t>(&bytes[kScoreAt])),
      .last_access = static_cast<std::int64_t>(get_little<std::uint64_t>(&bytes[kLastAccessAt])),
      .opens = get_little<std::uint64_t>(&bytes[kOpensAt]),
      .gpu_bytes = get_little<std::uint64_t>(&bytes[kGpuBytesAt])};
  if (!is_storable(heat)) return Error(EUCLEAN, "decode heat");
  return heat;
}

std::array<char, kKeyBytes> encode_key(std::uint64_t number) {
  std::array<char, kKeyBytes> out;
  put_little(out.data(), number);
  std::reverse(out.begin(), out.end());
  return out;
}

Result<std::uint64_t> decode_key(std::string_view bytes) {
  if (bytes.size() != kKeyBytes) return Error(EUCLEAN, "decode key");
  std::array<char, kKeyBytes> reversed;
  std::reverse_copy(bytes.begin(), bytes.end(), reversed.begin());
  return get_little<std::uint64_t>(reversed.data());
}

std::array<char, kSchemaBytes> encode_schema(std::uint32_t version) {
  std::array<char, kSchemaBytes> out;
  put_little(out.data(), version);
  return out;
}

Result<std::uint32_t> decode_schema(std::string_view bytes) {
  if (bytes.size() != kSchemaBytes) return Error(EUCLEAN, "decode schema version");
  const auto version = get_little<std::uint32_t>(bytes.data());
  if (version == 0) return Error(EUCLEAN, "decode schema version");
  return version;
}

}  // namespace sluice
