// SPDX-License-Identifier: BSD-2-Clause
// Encodes and decodes the keys and values of the metadata store, as docs/metadata-format.md
// specifies.
//
// Decoding checks everything: input of the wrong length, of an unknown version or with an
// impossible value fails with EUCLEAN. Pure functions.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "base/result.hpp"
#include "metadata/store.hpp"

namespace sluice {

// On disk: never renumber.
inline constexpr std::uint8_t kHeatVersion = 2;
inline constexpr std::size_t kHeatBytes = 49;
inline constexpr std::uint8_t kReceiptVersion = 1;
inline constexpr std::uint8_t kGhostVersion = 1;
inline constexpr std::size_t kGhostBytes = 10;
inline constexpr std::uint8_t kTimesVersion = 1;
inline constexpr std::uint8_t kChangingTimesVersion = 2;  // some copy is_changing
inline constexpr std::size_t kTimesBytes = 2;             // header of every record
inline constexpr std::size_t kCopyTimesBytes = 25;        // each copy in it
inline constexpr std::size_t kChangingCopyTimesBytes = kCopyTimesBytes + 17;
inline constexpr std::uint8_t kRequestVersion = 1;
inline constexpr std::size_t kKeyBytes = 8;
inline constexpr std::size_t kSchemaBytes = 4;

// Version, score, last_access, opens, gpu_bytes, recent, since; little-endian, no padding. The
// result cannot be decoded unless is_storable(heat).
std::array<char, kHeatBytes> encode_heat(const Heat& heat);
Result<Heat> decode_heat(std::string_view bytes);

// Version, the numbers, then each text after its length; little-endian, no padding.
std::string encode_receipt(const Receipt& receipt);
Result<Receipt> decode_receipt(std::string_view bytes);

// Version, left_at, slot; little-endian, no padding.
std::array<char, kGhostBytes> encode_ghost(const Ghost& ghost);
Result<Ghost> decode_ghost(std::string_view bytes);

// Version, kind, then slot, ctime, shown_ctime and birth of each copy, and in the second version
// is_changing, atime and mtime; little-endian, no padding.
std::string encode_times(const KeptTimes& times);
Result<KeptTimes> decode_times(std::string_view bytes);

// Version, number, user, then each text after its length; little-endian, no padding.
std::string encode_request(const MoveRequest& request);
Result<MoveRequest> decode_request(std::string_view bytes);

// An inode or a sequence number, big-endian, so that the database sorts keys by number.
std::array<char, kKeyBytes> encode_key(std::uint64_t number);
Result<std::uint64_t> decode_key(std::string_view bytes);

// The schema version, little-endian. 0 is not a valid version and cannot be decoded.
std::array<char, kSchemaBytes> encode_schema(std::uint32_t version);
Result<std::uint32_t> decode_schema(std::string_view bytes);

}  // namespace sluice
