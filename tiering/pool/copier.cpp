// SPDX-License-Identifier: BSD-2-Clause
#include "tiering/pool/copier.hpp"

#include <fcntl.h>
#include <linux/fs.h>
#include <linux/limits.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <sys/xattr.h>
#include <unistd.h>
#include <xxhash.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <memory>
#include <set>
#include <string>

#include "base/file_at.hpp"
#include "base/unique_fd.hpp"
#include "tiering/pool/identity.hpp"
#include "tiering/pool/twin.hpp"

namespace sluice {
namespace {

constexpr std::size_t kChunk = 2 << 20;
constexpr std::size_t kAlignment = 4096;

// RWF_DONTCACHE, which Debian 12's headers lack: the page cache keeps nothing from such a call.
constexpr int kDontCache = 0x80;
constexpr long kCachestat = 451;

// Whether any page of the range is in the page cache. True if the kernel cannot tell, so that
// cached pages are never dropped by mistake.
bool is_cached(int fd, off_t offset, std::size_t size) {
  struct {
    std::uint64_t offset, size;
  } range{static_cast<std::uint64_t>(offset), size};
  struct {
    std::uint64_t cached, dirty, writeback, evicted, recently_evicted;
  } found{};
  if (::syscall(kCachestat, fd, &range, &found, 0) < 0) return true;
  return found.cached > 0;
}

struct FreeDeleter {
  void operator()(char* p) const { std::free(p); }
};
using Buffer = std::unique_ptr<char, FreeDeleter>;

Buffer make_buffer() { return Buffer(static_cast<char*>(std::aligned_alloc(kAlignment, kChunk))); }

// One pread or pwrite that leaves no pages in the cache. Falls back to an ordinary call if the
// filesystem does not support that.
template <typename Vectored>
ssize_t uncached(Vectored call, int fd, char* data, std::size_t size, off_t offset) {
  iovec piece{data, size};
  const ssize_t done = call(fd, &piece, 1, offset, kDontCache);
  if (done >= 0 || errno != EOPNOTSUPP) return done;
  return call(fd, &piece, 1, offset, 0);
}

Result<void> write_all(int to, char* data, std::size_t size, off_t offset, bool keep_cached) {
  for (std::size_t done = 0; done < size;) {
    const off_t at = offset + static_cast<off_t>(done);
    const ssize_t put = keep_cached ? ::pwrite(to, data + done, size - done, at)
                                    : uncached(::pwritev2, to, data + done, size - done, at);
    if (put < 0 && errno == EINTR) continue;
    if (put < 0) return Error::last("write copy");
    done += static_cast<std::size_t>(put);
  }
  // Starts write-back now, so that the sync at the end has little to do.
  if (keep_cached) ::sync_file_range(to, offset, static_cast<off_t>(size), SYNC_FILE_RANGE_WRITE);
  return {};
}

// Hashes the data and the positions of the holes. The copy and its verification use the same hash.
class Hash {
 public:
  Hash() : state_(XXH3_createState()) { XXH3_64bits_reset(state_.get()); }
  void data(const char* bytes, std::size_t size) { XXH3_64bits_update(state_.get(), bytes, size); }
  void hole(off_t from, off_t to) {
    if (from == to) return;
    const std::array<std::int64_t, 2> range{from, to};
    XXH3_64bits_update(state_.get(), range.data(), sizeof range);
  }
  std::uint64_t value() const { return XXH3_64bits_digest(state_.get()); }

 private:
  struct Deleter {
    void operator()(XXH3_state_t* state) const { XXH3_freeState(state); }
  };
  std::unique_ptr<XXH3_state_t, Deleter> state_;
};

// The ranges of `fd` that contain data. They are read once and kept, because the answer can change:
// a preallocated range is a hole until someone reads it, and data while its pages are cached.
Result<std::vector<Copied::Range>> data_ranges(int fd, off_t size) {
  std::vector<Copied::Range> ranges;
  for (off_t at = 0; at < size;) {
    const off_t data = ::lseek(fd, at, SEEK_DATA);
    if (data < 0 && errno == ENXIO) break;  // only a hole is left
    if (data < 0) return Error::last("seek data");
    const off_t hole = ::lseek(fd, data, SEEK_HOLE);
    if (hole < 0) return Error::last("seek hole");
    ranges.push_back({data, std::min(hole, size)});
    at = hole;
  }
  return ranges;
}

// Calls `take(begin, end)` for each range and adds the holes between ranges to `hash`.
template <typename Take>
Result<void> for_each_range(const Copied& copied, Hash& hash, Take take) {
  std::int64_t at = 0;
  for (const Copied::Range& range : copied.ranges) {
    hash.hole(at, range.begin);
    SLUICE_TRY(take(range.begin, range.end));
    at = range.end;
  }
  hash.hole(at, copied.size);
  return {};
}

// The names of the xattrs that are copied.
Result<std::set<std::string>> xattr_names(const std::string& path) {
  std::string list;
  for (;;) {
    const ssize_t size = ::listxattr(path.c_str(), nullptr, 0);
    if (size < 0) {
      if (errno == EOPNOTSUPP) return std::set<std::string>{};
      return Error::last("list xattrs");
    }
    list.resize(static_cast<std::size_t>(size));
    const ssize_t got = ::listxattr(path.c_str(), list.data(), list.size());
    if (got < 0 && errno == ERANGE) continue;
    if (got < 0) return Error::last("list xattrs");
    list.resize(static_cast<std::size_t>(got));
    break;
  }
  std::set<std::string> names;
  for (std::size_t at = 0; at < list.size();) {
    const std::string name = &list[at];
    at += name.size() + 1;
    if (is_copied_xattr(name)) names.insert(name);
  }
  return names;
}

// Makes an error from errno that says which attribute cannot be stored.
Error cannot_store(std::string_view name) {
  if (name.starts_with("system.posix_acl_"))
    return Error::last("the tier cannot store the file's POSIX ACL");
  if (name.starts_with("system.")) return Error::last("the tier cannot store the file's ACL");
  if (name.starts_with("security."))
    return Error::last("the tier cannot store the file's security label or capabilities");
  if (name.starts_with("trusted."))
    return Error::last("the tier cannot store a trusted.* attribute of the file");
  if (name.starts_with("user."))
    return Error::last("the tier cannot store a user.* attribute of the file");
  return Error::last("the tier cannot store an attribute of the file");
}

// XFS lists an ACL also under its name on disk, and setting that name sets the ACL
// (fs/xfs/xfs_xattr.c). No other filesystem in the kernel has such aliases.
constexpr std::array<const char*, 2> kAclAliases{"trusted.SGI_ACL_FILE", "trusted.SGI_ACL_DEFAULT"};

// Attributes that describe how one filesystem stores a file: compression, layout on a cluster. They
// mean nothing elsewhere, and some cannot be set at all (ceph.dir.rbytes). ACLs of a single
// filesystem (system.nfs4_acl) are not in this list: dropping one could grant access.
constexpr std::array<std::string_view, 3> kStoragePrefixes{"btrfs.", "ceph.", "lustre."};

}  // namespace

std::span<const char* const> acl_aliases() { return kAclAliases; }

bool is_acl_alias(std::string_view name) {
  return std::find(kAclAliases.begin(), kAclAliases.end(), name) != kAclAliases.end();
}

bool is_copied_xattr(std::string_view name) {
  const auto is_prefix = [&](std::string_view prefix) { return name.starts_with(prefix); };
  return name != kIdentityXattr && name != kTwinXattr && !is_acl_alias(name) &&
         std::none_of(kStoragePrefixes.begin(), kStoragePrefixes.end(), is_prefix);
}

Result<void> copy_xattrs(int from, int to) {
  const std::string source = proc_path(from), target = proc_path(to);
  const auto wanted = SLUICE_TRY(xattr_names(source));
  const auto present = SLUICE_TRY(xattr_names(target));
  for (const std::string& name : present) {
    if (!wanted.contains(name) && ::removexattr(target.c_str(), name.c_str()) < 0 &&
        errno != ENODATA) {
      return Error::last("remove xattr");
    }
  }
  std::string value;
  for (const std::string& name : wanted) {
    value.resize(XATTR_SIZE_MAX);
    const ssize_t size = ::getxattr(source.c_str(), name.c_str(), value.data(), value.size());
    if (size < 0) return Error::last("read xattr");
    if (::setxattr(target.c_str(), name.c_str(), value.data(), static_cast<std::size_t>(size), 0) <
        0) {
      return cannot_store(name);
    }
  }
  return {};
}

Result<Copied> copy_data(int from, int to, const Pace& pace) {
  struct stat st {};
  if (::fstat(from, &st) < 0) return Error::last("stat source");
  const Buffer buffer = make_buffer();
  if (!buffer) return Error(ENOMEM, "allocate a copy buffer");
  Copied copied;
  copied.size = st.st_size;
  copied.ranges = SLUICE_TRY(data_ranges(from, st.st_size));
  Hash hash;
  const auto copy_range = [&](off_t offset, off_t end) -> Result<void> {
    while (offset < end) {
      const auto want =
          static_cast<std::size_t>(std::min<off_t>(end - offset, static_cast<off_t>(kChunk)));
      const bool cached = is_cached(from, offset, want);
      const ssize_t got = uncached(::preadv2, from, buffer.get(), want, offset);
      if (got < 0 && errno == EINTR) continue;
      if (got < 0) return Error::last("read source");
      if (got == 0) return {};  // truncated meanwhile; the caller checks for that
      const auto size = static_cast<std::size_t>(got);
      SLUICE_TRY(write_all(to, buffer.get(), size, offset, cached));
      hash.data(buffer.get(), size);
      offset += got;
      copied.bytes += size;
      if (pace) SLUICE_TRY(pace(size));
    }
    return {};
  };
  SLUICE_TRY(for_each_range(copied, hash, copy_range));
  if (::ftruncate(to, st.st_size) < 0) return Error::last("set size of copy");
  copied.hash = hash.value();
  return copied;
}

Result<Copied> hash_data(int fd, const Pace& pace) {
  struct stat st {};
  if (::fstat(fd, &st) < 0) return Error::last("stat source");
  const Buffer buffer = make_buffer();
  if (!buffer) return Error(ENOMEM, "allocate a buffer to compare a file");
  Copied read;
  read.size = st.st_size;
  read.ranges = SLUICE_TRY(data_ranges(fd, st.st_size));
  Hash hash;
  const auto hash_range = [&](off_t offset, off_t end) -> Result<void> {
    while (offset < end) {
      const auto want =
          static_cast<std::size_t>(std::min<off_t>(end - offset, static_cast<off_t>(kChunk)));
      const ssize_t got = uncached(::preadv2, fd, buffer.get(), want, offset);
      if (got < 0 && errno == EINTR) continue;
      if (got < 0) return Error::last("read source");
      if (got == 0) return {};  // truncated meanwhile; the caller checks for that
      hash.data(buffer.get(), static_cast<std::size_t>(got));
      offset += got;
      if (pace) SLUICE_TRY(pace(static_cast<std::uint64_t>(got)));
    }
    return {};
  };
  SLUICE_TRY(for_each_range(read, hash, hash_range));
  read.hash = hash.value();
  return read;
}

Result<std::vector<Copied::Range>> ranges_of(int fd) {
  struct stat st {};
  if (::fstat(fd, &st) < 0) return Error::last("stat");
  return data_ranges(fd, st.st_size);
}

Result<std::uint64_t> hash_on_disk(int copy, const Copied& copied, const Pace& pace) {
  const std::string path = proc_path(copy);
  UniqueFd direct(::open(path.c_str(), O_RDONLY | O_DIRECT | O_NOATIME | O_CLOEXEC));
  // Without O_DIRECT, this relies on the kernel dropping clean pages when asked.
  if (!direct) direct.reset(::open(path.c_str(), O_RDONLY | O_NOATIME | O_CLOEXEC));
  if (!direct) return Error::last("open copy");
  ::posix_fadvise(direct.get(), 0, 0, POSIX_FADV_DONTNEED);
  const Buffer buffer = make_buffer();
  if (!buffer) return Error(ENOMEM, "allocate a buffer to verify the copy");
  Hash hash;
  const auto hash_range = [&](off_t offset, off_t end) -> Result<void> {
    while (offset < end) {
      const off_t aligned = offset & -static_cast<off_t>(kAlignment);
      const ssize_t got = ::pread(direct.get(), buffer.get(), kChunk, aligned);
      if (got < 0 && errno == EINTR) continue;
      if (got < 0) return Error::last("read copy");
      const off_t size = std::min<off_t>(aligned + got, end) - offset;
      if (size <= 0) return Error(EIO, "the copy on disk is shorter than what was written");
      hash.data(buffer.get() + (offset - aligned), static_cast<std::size_t>(size));
      offset += size;
      if (pace) SLUICE_TRY(pace(static_cast<std::uint64_t>(size)));
    }
    return {};
  };
  SLUICE_TRY(for_each_range(copied, hash, hash_range));
  return hash.value();
}

Result<void> copy_attributes(int from, int to) {
  struct stat st {};
  if (::fstat(from, &st) < 0) return Error::last("stat source");
  // Owner first, because chown clears setuid and capabilities. Then the mode, then xattrs (an ACL
  // also sets the mode's group bits, to the same value). Times last; the steps before them change
  // only ctime.
  if (::fchown(to, st.st_uid, st.st_gid) < 0) return Error::last("chown copy");
  if (::fchmod(to, st.st_mode & 07777) < 0) return Error::last("chmod copy");
  SLUICE_TRY(copy_xattrs(from, to));
  const std::array<timespec, 2> times{st.st_atim, st.st_mtim};
  if (::futimens(to, times.data()) < 0) return Error::last("set times of copy");
  return {};
}

void copy_atime(int from, int to) {
  struct stat st {
  }, other{};
  if (::fstat(from, &st) < 0 || ::fstat(to, &other) < 0) return;
  const timespec &a = st.st_atim, &b = other.st_atim;
  if (a.tv_sec == b.tv_sec && a.tv_nsec == b.tv_nsec) return;
  const std::array<timespec, 2> times{a, {0, UTIME_OMIT}};
  [[maybe_unused]] const int set = ::futimens(to, times.data());
}

Result<void> copy_inode_flags(int from, int to) {
  unsigned flags = 0, present = 0;
  // The source's filesystem has no flags.
  if (::ioctl(from, FS_IOC_GETFLAGS, &flags) < 0) return {};
  if (flags & (FS_IMMUTABLE_FL | FS_APPEND_FL))
    return Error(EPERM, "the file is immutable or append-only");
  // The flags that users set and that mean the same on every filesystem.
  constexpr unsigned kKept = FS_SYNC_FL | FS_NODUMP_FL | FS_NOATIME_FL | FS_NOCOW_FL;
  const bool readable = ::ioctl(to, FS_IOC_GETFLAGS, &present) == 0;
  if ((flags & kKept) != (present & kKept)) {
    flags = (present & ~kKept) | (flags & kKept);
    if (!readable || ::ioctl(to, FS_IOC_SETFLAGS, &flags) < 0)
      return Error(EOPNOTSUPP, "the tier cannot store the file's flags");
  }
  fsxattr source{}, target{};
  if (::ioctl(from, FS_IOC_FSGETXATTR, &source) < 0) return {};
  const bool has_projects = ::ioctl(to, FS_IOC_FSGETXATTR, &target) == 0;
  // A twin may have an id that the file no longer has.
  if (target.fsx_projid == source.fsx_projid) return {};
  if (!has_projects) return Error(EOPNOTSUPP, "the tier cannot store the file's project id");
  target.fsx_projid = source.fsx_projid;
  if (::ioctl(to, FS_IOC_FSSETXATTR, &target) < 0)
    return Error(EOPNOTSUPP, "the tier cannot store the file's project id");
  return {};
}

}  // namespace sluice
