// SPDX-License-Identifier: BSD-2-Clause
// How a file is identified without a path: by the kernel's handle on its tier, and by an identity
// that stays the same on every tier.
//
// An identity is an InodeId (st_ino, FUSE nodeid) and a generation. A file has a *natural*
// identity, computed from the place where it was created, so that most files need no stored
// identity:
//
//     bits 63..59  the tier's slot (1..30), fixed when the tier joins the pool
//     ext4         58..32 low bits of the inode generation, 31..0 inode number
//     xfs          58..40 low bits of the inode generation, 39..0 inode number
//     others       slot 31, 58..0 a hash of slot and handle (or of slot, device and inode number
//     without handles)
//
// The generation bits make sure that a reused inode number does not give a new file the identity of
// a file that was moved away. A copy of a file or directory whose identity is not its natural one
// stores it in the xattr trusted.sluice.id. See docs/life-of-a-lookup.md, "Identity".
// Threads: plain values and pure functions.
#pragma once

#include <sys/stat.h>

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "base/ids.hpp"
#include "base/result.hpp"
#include "base/unique_fd.hpp"

namespace sluice {

// A kernel file handle (name_to_handle_at): one byte of type, then the bytes. Empty on filesystems
// without handles. Handles of ext4, xfs and tmpfs fit std::string's inline buffer, which saves
// memory with a million inodes.
struct FileHandle {
  std::string bytes;

  bool empty() const { return bytes.empty(); }
  bool operator==(const FileHandle&) const = default;
};

struct Identity {
  InodeId id{};
  std::uint32_t generation = 0;

  bool operator==(const Identity&) const = default;
};

// The layout of a filesystem's handles, as far as identities depend on it.
enum class HandleKind : std::uint8_t { Ext4, Xfs, Opaque, None };

HandleKind handle_kind(std::uint64_t filesystem_magic);

// The handle of `name` in `dirfd`, or of `dirfd` itself if `name` is empty. Does not follow
// symlinks. `mount_id` tells the caller whether the file is on the expected mount. Fails with
// EOPNOTSUPP if the filesystem has no handles.
Result<FileHandle> handle_at(int dirfd, const char* name, int* mount_id);

// Opens the file of `handle` on the filesystem of `mount_fd`. Fails with ESTALE if the file is
// gone, with EAGAIN if another process has a lease on it; see open_without_waiting().
Result<UniqueFd> open_handle(int mount_fd, const FileHandle& handle, int flags);

// The inode number in a handle, if the layout is known.
std::optional<std::uint64_t> inode_number(HandleKind kind, const FileHandle& handle);

// The natural identity of a file with a handle. CHECKED: kind != None.
Identity natural_identity(HandleKind kind, unsigned slot, const FileHandle& handle);

// The natural identity of a file on a filesystem without handles, or reached across a mount point
// inside a tier.
Identity natural_identity(unsigned slot, const struct stat& st);

// An identity for a file whose natural identity belongs to another file, which was moved away.
Identity displaced_identity(unsigned slot, const FileHandle& handle);

// The slot in which an identity was born; 31 if the identity is a hash.
constexpr unsigned slot_of(InodeId id) { return static_cast<unsigned>(to_number(id) >> 59); }
inline constexpr unsigned kOpaqueSlot = 31;

// A handle that opens the file with the natural identity `id`, or nothing if its filesystem does
// not allow that. `mount_fd` must be on the tier and not O_PATH.
std::optional<FileHandle> handle_from_identity(HandleKind kind, int mount_fd, InodeId id);

// The xattr that stores the identity of a file on a copy with another natural identity. It also
// stores the natural identity of that copy. If a tool copies the xattr to another file, the two do
// not match and the xattr is ignored.
inline constexpr const char* kIdentityXattr = "trusted.sluice.id";
std::string encode_carried(const Identity& carried, const Identity& natural);
std::optional<Identity> decode_carried(std::string_view bytes, const Identity& natural);

}  // namespace sluice
