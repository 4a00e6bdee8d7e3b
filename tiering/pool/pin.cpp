// SPDX-License-Identifier: BSD-2-Clause
#include "tiering/pool/pin.hpp"

#include <array>
#include <cerrno>

#include "base/file_at.hpp"

namespace sluice {

std::optional<TierIndex> own_pin(const Pool& pool, int dirfd, const char* name) {
  std::array<char, 256> value{};
  const ssize_t size = getxattr_at(dirfd, name, kPinXattr, value.data(), value.size());
  if (size <= 0) return std::nullopt;
  const Tier* tier = pool.by_name({value.data(), static_cast<std::size_t>(size)});
  if (tier == nullptr) return std::nullopt;
  return tier->index();
}

Result<bool> has_own_pin(int fd) {
  const ssize_t size = getxattr_at(fd, "", kPinXattr, nullptr, 0);
  if (size >= 0) return size > 0;
  if (errno == ENODATA || errno == EOPNOTSUPP) return false;
  return Error::last("read a pin");
}

}  // namespace sluice
