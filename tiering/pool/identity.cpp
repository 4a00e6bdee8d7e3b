// SPDX-License-Identifier: BSD-2-Clause
#include "tiering/pool/identity.hpp"

#include <fcntl.h>
#include <linux/magic.h>
#include <sys/ioctl.h>

#define XXH_INLINE_ALL
#include <xxhash.h>

#include <array>
#include <cstddef>
#include <cstring>
#include <thread>

#include "base/check.hpp"
#include "base/file_at.hpp"

namespace sluice {
namespace {

constexpr std::uint64_t kXfsMagic = 0x58465342;
constexpr unsigned kXfsInodeBits = 40;
constexpr int kFileIdInode32Generation = 1;  // FILEID_INO32_GEN in the kernel's exportfs.h
constexpr int kXfsFileId64 = 0x81;           // XFS_FILEID_TYPE_64FLAG | FILEID_INO32_GEN
constexpr std::uint64_t kLow59 = (std::uint64_t{1} << 59) - 1;
constexpr std::uint8_t kCarriedVersion = 1;  // On disk: never renumber.

// struct file_handle ends in a flexible array; this adds room for the largest handle.
struct HandleBuffer {
  alignas(file_handle) std::array<std::byte, sizeof(file_handle) + MAX_HANDLE_SZ> storage{};
  file_handle* get() { return reinterpret_cast<file_handle*>(storage.data()); }
};

template <typename T>
T load(std::string_view bytes, std::size_t offset) {
  T value{};
  std::memcpy(&value, bytes.data() + offset, sizeof value);
  return value;
}

template <typename T>
void append(std::string& out, T value) {
  out.append(reinterpret_cast<const char*>(&value), sizeof value);
}

struct InodeAndGeneration {
  std::uint64_t inode;
  std::uint32_t generation;
};

// These layouts are ABI: NFS clients keep such handles across reboots.
std::optional<InodeAndGeneration> parse(HandleKind kind, const FileHandle& handle) {
  const std::string_view bytes = handle.bytes;
  if (bytes.empty()) return std::nullopt;
  const int type = static_cast<unsigned char>(bytes[0]);
  if ((kind == HandleKind::Ext4 || kind == HandleKind::Xfs) && type == kFileIdInode32Generation &&
      bytes.size() == 9) {
    return InodeAndGeneration{load<std::uint32_t>(bytes, 1), load<std::uint32_t>(bytes, 5)};
  }
  if (kind == HandleKind::Xfs && type == kXfsFileId64 && bytes.size() == 13) {
    return InodeAndGeneration{load<std::uint64_t>(bytes, 1), load<std::uint32_t>(bytes, 9)};
  }
  return std::nullopt;
}

Identity opaque_identity(std::uint64_t hash) {
  return {InodeId{std::uint64_t{kOpaqueSlot} << 59 | (hash & kLow59)},
          static_cast<std::uint32_t>(hash >> 32)};
}

// XFS rejects a handle with a wrong generation; bulkstat returns the right one for an inode number.
std::optional<std::uint32_t> xfs_generation(int mount_fd, std::uint64_t inode) {
  // ABI, from xfs_fs.h, which Debian ships in xfslibs-dev.
  struct BulkRequest {
    std::uint64_t ino;
    std::uint32_t flags, icount, ocount, agno;
    std::uint64_t reserved[5];
    struct {
      std::uint64_t ino, size, blocks, xflags;
      std::int64_t atime, mtime, ctime, btime;
      std::uint32_t gen;
      std::byte rest[192 - 68];
    } stat;
  } request{};
  static_assert(offsetof(BulkRequest, stat) == 64 && sizeof(request.stat) == 192);
  request.ino = inode;
  request.icount = 1;
  constexpr unsigned long kBulkstat = _IOR('X', 127, std::byte[64]);
  if (::ioctl(mount_fd, kBulkstat, &request) < 0 || request.ocount != 1) return std::nullopt;
  if (request.stat.ino != inode) return std::nullopt;
  return request.stat.gen;
}

}  // namespace

HandleKind handle_kind(std::uint64_t filesystem_magic) {
  if (filesystem_magic == EXT4_SUPER_MAGIC) return HandleKind::Ext4;
  if (filesystem_magic == kXfsMagic) return HandleKind::Xfs;
  return HandleKind::Opaque;
}

Result<FileHandle> handle_at(int dirfd, const char* name, int* mount_id) {
  HandleBuffer buffer;
  buffer.get()->handle_bytes = MAX_HANDLE_SZ;
  const int flags = *name == '\0' ? AT_EMPTY_PATH : 0;
  if (::name_to_handle_at(dirfd, name, buffer.get(), mount_id, flags) < 0) {
    return Error::last("name_to_handle_at");
  }
  FileHandle handle;
  handle.bytes.reserve(buffer.get()->handle_bytes + 1);
  handle.bytes.push_back(static_cast<char>(buffer.get()->handle_type));
  handle.bytes.append(reinterpret_cast<const char*>(buffer.get()->f_handle),
                      buffer.get()->handle_bytes);
  return handle;
}

Result<UniqueFd> open_handle(int mount_fd, const FileHandle& handle, int flags) {
  HandleBuffer buffer;
  buffer.get()->handle_bytes = static_cast<unsigned>(handle.bytes.size() - 1);
  buffer.get()->handle_type = static_cast<unsigned char>(handle.bytes[0]);
  std::memcpy(buffer.get()->f_handle, handle.bytes.data() + 1, handle.bytes.size() - 1);
  // ext4 returns ENOMEM instead of ESTALE while the inode number of a deleted file is being reused.
  for (int retries = 100;; --retries) {
    auto fd = open_without_waiting(
        [&](int how) { return ::open_by_handle_at(mount_fd, buffer.get(), how); }, flags,
        "open_by_handle_at");
    if (fd || fd.error().code != ENOMEM || retries == 0) return fd;
    std::this_thread::yield();
  }
}

std::optional<std::uint64_t> inode_number(HandleKind kind, const FileHandle& handle) {
  const auto parsed = parse(kind, handle);
  if (!parsed) return std::nullopt;
  return parsed->inode;
}

Identity natural_identity(HandleKind kind, unsigned slot, const FileHandle& handle) {
  SLUICE_CHECK(kind != HandleKind::None, "a file with a handle is on a filesystem with handles");
  if (const auto parsed = parse(kind, handle)) {
    const unsigned inode_bits = kind == HandleKind::Xfs ? kXfsInodeBits : 32;
    if (parsed->inode >> inode_bits == 0) {
      const std::uint64_t id = std::uint64_t{slot} << 59 |
                               ((std::uint64_t{parsed->generation} << inode_bits) & kLow59) |
                               parsed->inode;
      return {InodeId{id}, parsed->generation};
    }
  }
  return opaque_identity(XXH3_64bits_withSeed(handle.bytes.data(), handle.bytes.size(), slot));
}

Identity natural_identity(unsigned slot, const struct stat& st) {
  const std::array<std::uint64_t, 2> key{st.st_dev, st.st_ino};
  return opaque_identity(XXH3_64bits_withSeed(key.data(), sizeof key, slot));
}

Identity displaced_identity(unsigned slot, const FileHandle& handle) {
  constexpr std::uint64_t kDisplaced = 0x100;  // a seed that no slot uses
  return opaque_identity(
      XXH3_64bits_withSeed(handle.bytes.data(), handle.bytes.size(), kDisplaced | slot));
}

std::optional<FileHandle> handle_from_identity(HandleKind kind, int mount_fd, InodeId id) {
  FileHandle handle;
  if (kind == HandleKind::Ext4) {
    // On ext4, generation 0 matches any inode; the caller compares the identity of the result.
    handle.bytes.push_back(kFileIdInode32Generation);
    append(handle.bytes, static_cast<std::uint32_t>(to_number(id)));
    append(handle.bytes, std::uint32_t{0});
    return handle;
  }
  if (kind == HandleKind::Xfs) {
    const std::uint64_t inode = to_number(id) & ((std::uint64_t{1} << kXfsInodeBits) - 1);
    const auto generation = xfs_generation(mount_fd, inode);
    if (!generation) return std::nullopt;
    handle.bytes.push_back(static_cast<char>(kXfsFileId64));
    append(handle.bytes, inode);
    append(handle.bytes, *generation);
    return handle;
  }
  return std::nullopt;
}

std::string encode_carried(const Identity& carried, const Identity& natural) {
  std::string out;
  append(out, kCarriedVersion);
  append(out, to_number(carried.id));
  append(out, carried.generation);
  append(out, to_number(natural.id));
  append(out, natural.generation);
  return out;
}

std::optional<Identity> decode_carried(std::string_view bytes, const Identity& natural) {
  if (bytes.size() != 25 || static_cast<std::uint8_t>(bytes[0]) != kCarriedVersion)
    return std::nullopt;
  const Identity owner{InodeId{load<std::uint64_t>(bytes, 13)}, load<std::uint32_t>(bytes, 21)};
  if (owner != natural) return std::nullopt;
  return Identity{InodeId{load<std::uint64_t>(bytes, 1)}, load<std::uint32_t>(bytes, 9)};
}

}  // namespace sluice
