// SPDX-License-Identifier: BSD-2-Clause
#include "base/disk_counters.hpp"

#include <fcntl.h>
#include <sys/sysmacros.h>
#include <unistd.h>

#include <array>
#include <charconv>

#include "base/unique_fd.hpp"

namespace sluice {

std::optional<DiskCounters> parse_disk_counters(std::string_view text) {
  // See Documentation/block/stat.rst in the kernel. Newer kernels have more fields at the end.
  constexpr std::size_t kFields = 10;
  // The unit of these counters, whatever the disk's sector size is.
  constexpr std::uint64_t kSector = 512;
  std::array<std::uint64_t, kFields> fields{};
  for (std::uint64_t& field : fields) {
    text.remove_prefix(std::min(text.find_first_not_of(" \t"), text.size()));
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), field);
    if (error != std::errc()) return std::nullopt;
    text.remove_prefix(static_cast<std::size_t>(end - text.data()));
  }
  DiskCounters out;
  out.reads = fields[0];
  out.read_bytes = fields[2] * kSector;
  out.read_ms = fields[3];
  out.writes = fields[4];
  out.written_bytes = fields[6] * kSector;
  out.write_ms = fields[7];
  out.busy_ms = fields[9];
  return out;
}

std::optional<DiskCounters> disk_counters(dev_t device) {
  if (major(device) == 0) return std::nullopt;
  const std::string directory =
      "/sys/dev/block/" + std::to_string(major(device)) + ":" + std::to_string(minor(device));
  const UniqueFd fd(::open((directory + "/stat").c_str(), O_RDONLY | O_CLOEXEC));
  std::array<char, 512> text{};
  const ssize_t size = fd ? ::read(fd.get(), text.data(), text.size()) : -1;
  if (size <= 0) return std::nullopt;
  auto out = parse_disk_counters({text.data(), static_cast<std::size_t>(size)});
  if (!out) return std::nullopt;
  std::array<char, 512> target{};
  const ssize_t length = ::readlink(directory.c_str(), target.data(), target.size());
  if (length > 0) {
    const std::string_view link(target.data(), static_cast<std::size_t>(length));
    out->name = link.substr(link.rfind('/') + 1);
  }
  return out;
}

}  // namespace sluice
