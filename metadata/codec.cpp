// SPDX-License-Identifier: BSD-2-Clause
#include "metadata/codec.hpp"

#include <algorithm>
#include <bit>
#include <concepts>
#include <cstdint>

#include "base/check.hpp"
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
constexpr std::size_t kRecentAt = 33;
constexpr std::size_t kSinceAt = 41;
static_assert(kSinceAt + sizeof(std::int64_t) == kHeatBytes);

constexpr std::size_t kTimeAt = 1;
constexpr std::size_t kInodeAt = 9;
constexpr std::size_t kBytesAt = 17;
constexpr std::size_t kHashAt = 25;
constexpr std::size_t kMillisecondsAt = 33;
constexpr std::size_t kCodeAt = 37;
constexpr std::size_t kTextsAt = 41;  // path, from, to, reason
static_assert(kCodeAt + sizeof(std::uint32_t) == kTextsAt);

constexpr std::size_t kLeftAtAt = 1;
constexpr std::size_t kSlotAt = 9;
static_assert(kSlotAt + sizeof(std::uint8_t) == kGhostBytes);

constexpr std::size_t kNumberAt = 1;
constexpr std::size_t kUserAt = 9;
constexpr std::size_t kRequestTextsAt = 13;  // to, path
static_assert(kUserAt + sizeof(std::uint32_t) == kRequestTextsAt);

constexpr std::size_t kKindAt = 1;
constexpr char kFileTimes = 1;
constexpr char kDirectoryTimes = 2;
static_assert(kKindAt + sizeof(char) == kTimesBytes);
// Offsets from the beginning of a copy, which is its slot.
constexpr std::size_t kCtimeAt = 1;
constexpr std::size_t kShownCtimeAt = 9;
constexpr std::size_t kBirthAt = 17;
static_assert(kBirthAt + sizeof(std::uint64_t) == kCopyTimesBytes);
constexpr std::size_t kIsChangingAt = kCopyTimesBytes;
constexpr std::size_t kAtimeAt = 26;
constexpr std::size_t kMtimeAt = 34;
static_assert(kMtimeAt + sizeof(std::uint64_t) == kChangingCopyTimesBytes);

// Byte by byte, so that the result is the same on every machine; compilers turn this into one
// store.
template <std::unsigned_integral Number>
void put_little(char* out, Number value) {
  for (std::size_t i = 0; i < sizeof(Number); ++i) out[i] = static_cast<char>(value >> (8 * i));
}

template <std::unsigned_integral Number>
Number get_little(const char* in) {
  Number value = 0;
  for (std::size_t i = 0; i < sizeof(Number); ++i) {
    value |= static_cast<Number>(static_cast<unsigned char>(in[i])) << (8 * i);
  }
  return value;
}

void append_text(std::string& out, std::string_view text) {
  SLUICE_CHECK(text.size() <= UINT32_MAX, "the length of a stored text fits 32 bits");
  std::array<char, sizeof(std::uint32_t)> length;
  put_little(length.data(), static_cast<std::uint32_t>(text.size()));
  out.append(length.data(), length.size()).append(text);
}

// Removes the text at the front of `rest` and stores it in `text`; returns false if it is
// incomplete.
bool take_text(std::string_view& rest, std::string& text) {
  if (rest.size() < sizeof(std::uint32_t)) return false;
  const auto length = get_little<std::uint32_t>(rest.data());
  rest.remove_prefix(sizeof(std::uint32_t));
  if (rest.size() < length) return false;
  text = rest.substr(0, length);
  rest.remove_prefix(length);
  return true;
}

}  // namespace

std::array<char, kHeatBytes> encode_heat(const Heat& heat) {
  std::array<char, kHeatBytes> out;
  out[kVersionAt] = static_cast<char>(kHeatVersion);
  put_little(&out[kScoreAt], std::bit_cast<std::uint64_t>(heat.score));
  put_little(&out[kLastAccessAt], static_cast<std::uint64_t>(heat.last_access));
  put_little(&out[kOpensAt], heat.opens);
  put_little(&out[kGpuBytesAt], heat.gpu_bytes);
  put_little(&out[kRecentAt], std::bit_cast<std::uint64_t>(heat.recent));
  put_little(&out[kSinceAt], static_cast<std::uint64_t>(heat.since));
  return out;
}

Result<Heat> decode_heat(std::string_view bytes) {
  if (bytes.size() != kHeatBytes || bytes[kVersionAt] != static_cast<char>(kHeatVersion)) {
    return Error(EUCLEAN, "decode heat");
  }
  const Heat heat{
      .score = std::bit_cast<double>(get_little<std::uint64_t>(&bytes[kScoreAt])),
      .last_access = static_cast<std::int64_t>(get_little<std::uint64_t>(&bytes[kLastAccessAt])),
      .opens = get_little<std::uint64_t>(&bytes[kOpensAt]),
      .gpu_bytes = get_little<std::uint64_t>(&bytes[kGpuBytesAt]),
      .recent = std::bit_cast<double>(get_little<std::uint64_t>(&bytes[kRecentAt])),
      .since = static_cast<std::int64_t>(get_little<std::uint64_t>(&bytes[kSinceAt]))};
  if (!is_storable(heat)) return Error(EUCLEAN, "decode heat");
  return heat;
}

std::string encode_receipt(const Receipt& receipt) {
  std::string out(kTextsAt, '\0');
  out[kVersionAt] = static_cast<char>(kReceiptVersion);
  put_little(&out[kTimeAt], static_cast<std::uint64_t>(receipt.time));
  put_little(&out[kInodeAt], to_number(receipt.id));
  put_little(&out[kBytesAt], receipt.bytes);
  put_little(&out[kHashAt], receipt.hash);
  put_little(&out[kMillisecondsAt], receipt.milliseconds);
  put_little(&out[kCodeAt], static_cast<std::uint32_t>(receipt.code));
  for (const std::string* text : {&receipt.path, &receipt.from, &receipt.to, &receipt.reason}) {
    append_text(out, *text);
  }
  return out;
}

Result<Receipt> decode_receipt(std::string_view bytes) {
  if (bytes.size() < kTextsAt || bytes[kVersionAt] != static_cast<char>(kReceiptVersion)) {
    return Error(EUCLEAN, "decode receipt");
  }
  Receipt receipt;
  receipt.time = static_cast<std::int64_t>(get_little<std::uint64_t>(&bytes[kTimeAt]));
  receipt.id = InodeId{get_little<std::uint64_t>(&bytes[kInodeAt])};
  receipt.bytes = get_little<std::uint64_t>(&bytes[kBytesAt]);
  receipt.hash = get_little<std::uint64_t>(&bytes[kHashAt]);
  receipt.milliseconds = get_little<std::uint32_t>(&bytes[kMillisecondsAt]);
  receipt.code = static_cast<std::int32_t>(get_little<std::uint32_t>(&bytes[kCodeAt]));
  std::string_view rest = bytes.substr(kTextsAt);
  for (std::string* text : {&receipt.path, &receipt.from, &receipt.to, &receipt.reason}) {
    if (!take_text(rest, *text)) return Error(EUCLEAN, "decode receipt");
  }
  if (!rest.empty()) return Error(EUCLEAN, "decode receipt");
  return receipt;
}

std::array<char, kGhostBytes> encode_ghost(const Ghost& ghost) {
  std::array<char, kGhostBytes> out;
  out[kVersionAt] = static_cast<char>(kGhostVersion);
  put_little(&out[kLeftAtAt], static_cast<std::uint64_t>(ghost.left_at));
  out[kSlotAt] = static_cast<char>(ghost.slot);
  return out;
}

Result<Ghost> decode_ghost(std::string_view bytes) {
  if (bytes.size() != kGhostBytes || bytes[kVersionAt] != static_cast<char>(kGhostVersion)) {
    return Error(EUCLEAN, "decode ghost");
  }
  return Ghost{.left_at = static_cast<std::int64_t>(get_little<std::uint64_t>(&bytes[kLeftAtAt])),
               .slot = static_cast<std::uint8_t>(bytes[kSlotAt])};
}

std::string encode_times(const KeptTimes& times) {
  const bool is_changing = std::any_of(times.copies.begin(), times.copies.end(),
                                       [](const auto& copy) { return copy.is_changing; });
  const std::size_t size = is_changing ? kChangingCopyTimesBytes : kCopyTimesBytes;
  std::string out(kTimesBytes + times.copies.size() * size, '\0');
  out[kVersionAt] = static_cast<char>(is_changing ? kChangingTimesVersion : kTimesVersion);
  out[kKindAt] = times.is_directory ? kDirectoryTimes : kFileTimes;
  char* at = out.data() + kTimesBytes;
  for (const KeptTimes::Copy& copy : times.copies) {
    *at = static_cast<char>(copy.slot);
    put_little(at + kCtimeAt, static_cast<std::uint64_t>(copy.ctime));
    put_little(at + kShownCtimeAt, static_cast<std::uint64_t>(copy.shown_ctime));
    put_little(at + kBirthAt, static_cast<std::uint64_t>(copy.birth));
    if (is_changing) {
      at[kIsChangingAt] = copy.is_changing ? 1 : 0;
      put_little(at + kAtimeAt, static_cast<std::uint64_t>(copy.atime));
      put_little(at + kMtimeAt, static_cast<std::uint64_t>(copy.mtime));
    }
    at += size;
  }
  return out;
}

Result<KeptTimes> decode_times(std::string_view bytes) {
  const char version = bytes.size() < kTimesBytes ? '\0' : bytes[kVersionAt];
  const bool is_changing = version == static_cast<char>(kChangingTimesVersion);
  const std::size_t size = is_changing ? kChangingCopyTimesBytes : kCopyTimesBytes;
  if ((version != static_cast<char>(kTimesVersion) && !is_changing) ||
      (bytes.size() - kTimesBytes) % size != 0 ||
      (bytes[kKindAt] != kFileTimes && bytes[kKindAt] != kDirectoryTimes)) {
    return Error(EUCLEAN, "decode times");
  }
  const auto time = [](const char* at) {
    return static_cast<std::int64_t>(get_little<std::uint64_t>(at));
  };
  KeptTimes times{.is_directory = bytes[kKindAt] == kDirectoryTimes, .copies = {}};
  for (std::size_t at = kTimesBytes; at < bytes.size(); at += size) {
    const char* from = &bytes[at];
    KeptTimes::Copy& copy = times.copies.emplace_back();
    copy.slot = static_cast<std::uint8_t>(*from);
    copy.ctime = time(from + kCtimeAt);
    copy.shown_ctime = time(from + kShownCtimeAt);
    copy.birth = time(from + kBirthAt);
    if (!is_changing) continue;
    copy.is_changing = from[kIsChangingAt] != 0;
    copy.atime = time(from + kAtimeAt);
    copy.mtime = time(from + kMtimeAt);
  }
  return times;
}

std::string encode_request(const MoveRequest& request) {
  std::string out(kRequestTextsAt, '\0');
  out[kVersionAt] = static_cast<char>(kRequestVersion);
  put_little(&out[kNumberAt], request.number);
  put_little(&out[kUserAt], request.user);
  append_text(out, request.to);
  append_text(out, request.path);
  return out;
}

Result<MoveRequest> decode_request(std::string_view bytes) {
  if (bytes.size() < kRequestTextsAt || bytes[kVersionAt] != static_cast<char>(kRequestVersion)) {
    return Error(EUCLEAN, "decode request");
  }
  MoveRequest request;
  request.number = get_little<std::uint64_t>(&bytes[kNumberAt]);
  request.user = get_little<std::uint32_t>(&bytes[kUserAt]);
  std::string_view rest = bytes.substr(kRequestTextsAt);
  if (!take_text(rest, request.to) || !take_text(rest, request.path) || !rest.empty())
    return Error(EUCLEAN, "decode request");
  return request;
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
