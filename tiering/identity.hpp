// SPDX-License-Identifier: BSD-2-Clause
// How a file is named without a path: by the kernel's handle on its tier, and by the stable
// identity we give it.
//
// An identity is an InodeId (st_ino, FUSE nodeid) and a generation. A file has a *natural*
// identity, computed from where it was born, so that nothing need be written for the common file:
//
//     bits 63..59  the tier's slot (1..30), fixed when the tier joins the pool
//     ext4         58..32 low bits of the inode generation, 31..0 inode number
//     xfs          58..40 low bits of the inode generation, 39..0 inode number
//     others       slot 31, 58..0 a hash of slot and handle (or of slot, device and inode number
//     without handles)
//
// The generation bits keep a reused inode number from meeting the identity of a file that has moved
// away. A file or directory copy that must keep an identity not its own carries it in the xattr
// trusted.sluice.id. docs/architecture.md, "Identity". Threads: plain values and pure functions.
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

// A kernel file handle (name_to_handle_at). Empty on filesystems that have none. One byte of type
// and then the bytes: the handles of ext4, xfs and tmpfs fit std::string's inline buffer, which
// matters with a million inodes in memory.
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

// What a filesystem's handles look like, so far as identities depend on it.
enum class HandleKind : std::uint8_t { Ext4, Xfs, Opaque, None };

HandleKind handle_kind(std::uint64_t filesystem_magic);

// The handle of `name` in `dirfd`, or of `dirfd` itself if `name` is empty, not following symlinks.
// `mount_id` tells whether the file is on the mount that the caller thinks it is. EOPNOTSUPP where
// there are no handles.
Result<FileHandle> handle_at(int dirfd, const char* name, int* mount_id);

// Opens what `handle` names on the filesystem of `mount_fd`. ESTALE if it is gone, EAGAIN if
// somebody has a lease on it; see open_without_waiting().
Result<UniqueFd> open_handle(int mount_fd, const FileHandle& handle, int flags);

// The inode number inside a handle of a kind whose layout we know.
std::optional<std::uint64_t> inode_number(HandleKind kind, const FileHandle& handle);

// The natural identity of a file with a handle. REQUIRES: kind != None.
Identity natural_identity(HandleKind kind, unsigned slot, const FileHandle& handle);

// The natural identity of a file on a filesystem without handles, or reached across a mount point
// inside a tier.
Identity natural_identity(unsigned slot, const struct stat& st);

// An identity for a file whose natural one is taken by another file that moved away.
Identity displaced_identity(unsigned slot, const FileHandle& handle);

// The slot an identity was born in; 31 where it can't be told.
constexpr unsigned slot_of(InodeId id) { return static_cast<unsigned>(to_number(id) >> 59); }
inline constexpr unsigned kOpaqueSlot = 31;

// A handle with which the file of natural identity `id` can be opened again after it was forgotten,
// or nothing where its filesystem makes that impossible. `mount_fd` must be a real descriptor on
// the tier.
std::optional<FileHandle> handle_from_identity(HandleKind kind, int mount_fd, InodeId id);

// The xattr that keeps an identity on a copy that was not born with it. It also names the natural
// identity of the copy it was made for: a tool that copies xattrs makes a file with the xattr but
// another nature, which must not be believed.
inline constexpr const char* kIdentityXattr = "trusted.sluice.id";
std::string encode_carried(const Identity& carried, const Identity& natural);
std::optional<Identity> decode_carried(std::string_view bytes, const Identity& natural);

}  // namespace sluice
