// SPDX-License-Identifier: BSD-2-Clause
// A marker is the file .sluice/tier.json in a tier's root: which pool the directory belongs to,
// which tier it is, and which other tiers the pool has. It is how an empty mount point is told from
// an emptied tier. Threads: plain values.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "base/result.hpp"

namespace sluice {

inline constexpr const char* kPrivateDirectory =
    ".sluice";  // in each tier's root; never shown in the mount

inline constexpr unsigned kMaxSlot = 30;  // see tiering/identity.hpp

struct Member {
  std::string name;
  std::string uuid;
  unsigned slot = 0;     // see tiering/identity.hpp; never reused in a pool
  bool retired = false;  // it was emptied: the pool is whole without it

  bool operator==(const Member&) const = default;
};

struct Marker {
  std::string pool;             // the pool's UUID
  Member self;                  // the tier this directory is
  std::vector<Member> members;  // all tiers the pool has ever had, this one included
};

// The marker in `root_fd`; nothing if there is none. EUCLEAN if there is one that can't be read,
// EPROTONOSUPPORT if a newer version wrote it.
Result<std::optional<Marker>> read_marker(int root_fd);

// Replaces the marker atomically and durably, making .sluice/ where needed.
Result<void> write_marker(int root_fd, const Marker& marker);

std::string new_uuid();

}  // namespace sluice
