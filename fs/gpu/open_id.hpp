// SPDX-License-Identifier: BSD-2-Clause
// An OpenId identifies an open file (fuse_file_info::fh): a unique number, and the open flags,
// which the kernel sends with OPEN but not with IOCTL. Immutable.
#pragma once

#include <fcntl.h>

#include <cstdint>

namespace sluice {

class OpenId {
 public:
  OpenId(std::uint64_t number, int flags)
      : value_(number << 3 | (flags & O_APPEND ? 4u : 0u) |
               static_cast<unsigned>(flags & O_ACCMODE)) {}
  static OpenId from_wire(std::uint64_t fh) { return OpenId(fh); }

  std::uint64_t to_wire() const { return value_; }
  std::uint64_t number() const { return value_ >> 3; }
  bool reads() const { return access() == O_RDONLY || access() == O_RDWR; }
  bool writes() const { return access() == O_WRONLY || access() == O_RDWR; }
  bool appends() const { return (value_ & 4) != 0; }
  bool operator==(const OpenId&) const = default;

 private:
  explicit OpenId(std::uint64_t value) : value_(value) {}
  int access() const { return static_cast<int>(value_ & O_ACCMODE); }

  std::uint64_t value_;
};

}  // namespace sluice
