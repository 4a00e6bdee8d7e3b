// SPDX-License-Identifier: BSD-2-Clause
#include "tiering/origin/version.hpp"

#include <sys/random.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <optional>
#include <string_view>

#include "base/small_file.hpp"

namespace sluice {
namespace {

// On disk, in attributes of files: never renumber.
constexpr std::uint64_t kFormat = 1;
constexpr const char* kStamp = "v";
constexpr std::string_view kFlag = "w.";
// The flag of all writers beyond kMostWriters. None of them removes it, because none knows of the
// others: the file stays without copies until it is stamped again.
constexpr const char* kManyFlag = "w.many";

// What v holds: five numbers, the lowest byte first.
struct Stamp {
  std::uint64_t number = 0;  // 0: being written
  // The file when it was stamped. Setting the stamp changes ctime, so that is left out.
  std::uint64_t inode = 0;
  std::int64_t size = 0;
  std::int64_t mtime = 0;

  bool is_of(const FileStat& stat) const {
    return number != 0 && inode == stat.inode && size == stat.size && mtime == stat.mtime;
  }
};

void put_number(std::string& out, std::uint64_t value) {
  for (int i = 0; i < 8; ++i) out.push_back(static_cast<char>(value >> (8 * i)));
}

std::uint64_t number_at(std::string_view bytes, std::size_t index) {
  std::uint64_t value = 0;
  for (std::size_t i = 8; i-- > 0;)
    value = value << 8 | static_cast<unsigned char>(bytes[index * 8 + i]);
  return value;
}

std::string encode(const Stamp& stamp) {
  std::string out;
  put_number(out, kFormat);
  put_number(out, stamp.number);
  put_number(out, stamp.inode);
  put_number(out, static_cast<std::uint64_t>(stamp.size));
  put_number(out, static_cast<std::uint64_t>(stamp.mtime));
  return out;
}

// Of a later format nothing is known, so it is no stamp.
std::optional<Stamp> decode(std::string_view bytes) {
  if (bytes.size() != 40 || number_at(bytes, 0) != kFormat) return std::nullopt;
  return Stamp{.number = number_at(bytes, 1),
               .inode = number_at(bytes, 2),
               .size = static_cast<std::int64_t>(number_at(bytes, 3)),
               .mtime = static_cast<std::int64_t>(number_at(bytes, 4))};
}

Result<std::optional<Stamp>> read_stamp(const OriginFile& file) {
  const auto value = file.get(kStamp);
  if (failed_with(value, ENODATA)) return std::optional<Stamp>();
  if (!value) return value.error();
  return decode(*value);
}

Result<std::uint64_t> random_number() {
  std::uint64_t number = 0;
  while (number == 0) {
    if (::getrandom(&number, sizeof number, 0) != sizeof number) return Error::last("getrandom");
  }
  return number;
}

Result<std::vector<std::string>> flags_of(const OriginFile& file) {
  auto names = SLUICE_TRY(file.names());
  std::erase_if(names, [](const std::string& name) { return !name.starts_with(kFlag); });
  return names;
}

bool has_no_room(const Error& error) {
  return error.code == ENOSPC || error.code == E2BIG || error.code == EDQUOT ||
         error.code == ERANGE;
}

// Sets a flag with a name that no other writer has, now or later: only so can a flag be removed
// without a lock.
Result<WriteFlag> raise_flag(OriginFile& file, BootId boot) {
  const auto flags = SLUICE_TRY(flags_of(file));
  const std::uint64_t number = SLUICE_TRY(random_number());
  std::array<char, 32> name{};
  std::snprintf(name.data(), name.size(), "w.%016llx", static_cast<unsigned long long>(number));
  std::string value;
  put_number(value, kFormat);
  put_number(value, static_cast<std::uint64_t>(boot));
  if (flags.size() < kMostWriters) {
    const auto set = file.set(name.data(), value);
    if (set) return WriteFlag{name.data()};
    if (!has_no_room(set.error())) return set.error();
  }
  SLUICE_TRY(file.set(kManyFlag, ""));
  return WriteFlag{kManyFlag};
}

Result<void> lower_flag(OriginFile& file, const std::string& name) {
  const auto removed = file.remove(name);
  // Another machine took us for dead.
  if (failed_with(removed, ENODATA)) return {};
  return removed;
}

Result<void> set_new_stamp(OriginFile& file, const FileStat& stat) {
  const std::uint64_t number = SLUICE_TRY(random_number());
  return file.set(kStamp, encode({number, stat.inode, stat.size, stat.mtime}));
}

// The clocks of the machines may differ, by an hour at most. Times further in the future mean
// nothing.
bool is_younger(std::int64_t time, std::int64_t now, std::chrono::seconds age) {
  const std::int64_t passed = now - time / 1'000'000'000;
  return passed > -3600 && passed < age.count();
}

}  // namespace

Result<BootId> this_boot() {
  const std::string text = SLUICE_TRY(read_small_file("/proc/sys/kernel/random/boot_id"));
  std::string digits;
  std::copy_if(text.begin(), text.end(), std::back_inserter(digits),
               [](unsigned char c) { return std::isxdigit(c) != 0; });
  if (digits.size() < 16) return Error(EUCLEAN, "read the boot id");
  return BootId{std::strtoull(digits.substr(0, 16).c_str(), nullptr, 16)};
}

Result<OriginVersion> read_version(const OriginFile& file) {
  // The stamp first: if a writer comes in between, stat is newer than the stamp, and the next
  // comparison fails.
  const auto stamp = SLUICE_TRY(read_stamp(file));
  const auto stat = SLUICE_TRY(file.stat());
  return OriginVersion{stamp ? stamp->number : 0, stat};
}

Result<bool> is_still(const OriginFile& file, const OriginVersion& before) {
  if (!before.is_settled()) return false;
  // In this order: a writer whose flag is gone by now has set another stamp before.
  const auto flags = SLUICE_TRY(flags_of(file));
  if (!flags.empty()) return false;
  const auto now = SLUICE_TRY(read_version(file));
  return now == before;
}

Result<WriteFlag> begin_writing(OriginFile& file, BootId boot) {
  const auto flag = SLUICE_TRY(raise_flag(file, boot));
  // Kept copies must not be used from here on, also if this machine dies.
  const auto marked = file.set(kStamp, encode({}));
  if (marked) return flag;
  if (flag.name != kManyFlag) static_cast<void>(lower_flag(file, flag.name));
  return marked.error();
}

Result<void> end_writing(OriginFile& file, const WriteFlag& flag) {
  SLUICE_TRY(file.sync());
  const auto stat = SLUICE_TRY(file.stat());
  // Whether others still write can't be known without a lock, and does not matter: while they do,
  // no copy is kept under this number.
  SLUICE_TRY(set_new_stamp(file, stat));
  if (flag.name == kManyFlag) return {};
  return lower_flag(file, flag.name);
}

Result<Quiet> stamp_quiet_file(OriginFile& file, std::int64_t now) {
  const auto before = SLUICE_TRY(file.stat());
  const auto flags = SLUICE_TRY(flags_of(file));
  if (!flags.empty() && is_younger(std::max(before.mtime, before.ctime), now, kLeftOver))
    return Quiet::Written;
  const auto stamp = SLUICE_TRY(read_stamp(file));
  if (flags.empty() && stamp && stamp->is_of(before)) return Quiet::Unchanged;
  if (is_younger(before.mtime, now, kRecent)) return Quiet::Recent;
  SLUICE_TRY(set_new_stamp(file, before));
  for (const std::string& flag : flags) SLUICE_TRY(lower_flag(file, flag));
  const auto after = SLUICE_TRY(file.stat());
  const bool is_same =
      after.inode == before.inode && after.size == before.size && after.mtime == before.mtime;
  return is_same ? Quiet::Stamped : Quiet::Recent;
}

}  // namespace sluice
