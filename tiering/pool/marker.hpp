// SPDX-License-Identifier: BSD-2-Clause
// A marker is the file .sluice/tier.json in a tier's root. It says which pool the directory belongs
// to, which tier it is, and which other tiers the pool has. It distinguishes a tier without files
// from an empty mount point. Threads: plain values.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "base/result.hpp"

namespace sluice {

inline constexpr const char* kPrivateDirectory =
    ".sluice";  // in each tier's root; never shown in the mount

inline constexpr unsigned kMaxSlot = 30;  // see tiering/pool/identity.hpp

struct Member {
  std::string name;
  std::string uuid;
  unsigned slot = 0;     // see tiering/pool/identity.hpp; never reused in a pool
  bool retired = false;  // the tier was emptied; the pool is complete without it

  // Whether another disk has its name now. The roster keeps such a disk as "ssd#2", by its slot, so
  // that it is recognized if it comes back.
  bool is_replaced() const { return name.find('#') != std::string::npos; }
  bool operator==(const Member&) const = default;
};

struct Marker {
  std::string pool;             // the pool's UUID
  Member self;                  // the tier this directory is
  std::vector<Member> members;  // all tiers the pool has ever had, this one included
};

// The marker in `root_fd`, or nothing if there is none. Fails with EUCLEAN if the marker is
// damaged, with EPROTONOSUPPORT if a newer version wrote it.
Result<std::optional<Marker>> read_marker(int root_fd);

// Replaces the marker atomically and durably. Creates .sluice/ if needed.
Result<void> write_marker(int root_fd, const Marker& marker);

bool has_private_directory(int root_fd);
// Removes .sluice/ and the marker, of a directory that was about to become a tier and cannot. If
// there is anything of value in .sluice/, it stays.
void remove_private_directory(int root_fd);

// The member as the roster keeps it once another disk has its name.
Member replaced(Member member);

std::string new_uuid();

}  // namespace sluice
