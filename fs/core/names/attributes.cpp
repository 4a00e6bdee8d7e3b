// SPDX-License-Identifier: BSD-2-Clause
#include "fs/core/names/attributes.hpp"

#include <fcntl.h>
#include <linux/fs.h>
#include <linux/limits.h>
#include <sys/ioctl.h>
#include <sys/vfs.h>
#include <sys/xattr.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <set>

#include "fs/core/inodes/file_flags.hpp"
#include "fs/core/inodes/guards.hpp"
#include "fs/core/tree/repetition.hpp"
#include "tiering/move/intent.hpp"

namespace sluice {

namespace {

// A path to the file of an O_PATH descriptor, for system calls that take only paths. It works for
// symlinks too: the link in /proc leads to the symlink itself.
struct ProcPath {
  explicit ProcPath(int fd) { std::snprintf(text.data(), text.size(), "/proc/self/fd/%d", fd); }
  const char* c_str() const { return text.data(); }
  std::array<char, 32> text{};
};

bool later(const timespec& a, const timespec& b) {
  return a.tv_sec != b.tv_sec ? a.tv_sec > b.tv_sec : a.tv_nsec > b.tv_nsec;
}

// The error for an xattr that a file does not have. Without SELinux no file has a label; EOPNOTSUPP
// stops `ls -l` from asking for the label of every file, which was half of its requests.
Error absent(std::string_view name) {
  static const bool has_selinux = ::access("/sys/fs/selinux/enforce", F_OK) == 0;
  if (name == "security.selinux" && !has_selinux) return Error(EOPNOTSUPP, "getxattr");
  return Error(ENODATA, "getxattr");
}

bool has_xattr(const ProcPath& path, const char* name) {
  return ::getxattr(path.c_str(), name, nullptr, 0) >= 0;
}

// A change must not end half way: attributes of a directory are those of its fastest copy.
Result<void> check_writable(const OpenCopies& copies) {
  for (const OpenCopy& copy : copies.reachable) {
    if (copy.tier->is_read_only())
      return Error(EROFS, "a copy of the directory is on a tier that is read-only");
  }
  return {};
}

// Gives the first copy the latest mtime of all. An error is ignored: mtime is one of the attributes
// that a user changes, and no others are worth failing for.
void keep_latest_mtime(const OpenCopies& copies) {
  struct stat first {};
  if (::fstat(copies.reachable[0].get(), &first) < 0) return;
  timespec latest = first.st_mtim;
  for (const OpenCopy& copy : copies.reachable) {
    struct stat st {};
    if (::fstat(copy.get(), &st) == 0 && later(st.st_mtim, latest)) latest = st.st_mtim;
  }
  if (!later(latest, first.st_mtim)) return;
  const std::array<timespec, 2> times{timespec{0, UTIME_OMIT}, latest};
  ::futimens(copies.reachable[0].get(), times.data());
}

Result<void> drop_setgid(int fd, const Caller& caller) {
  struct stat st {};
  if (::fstat(fd, &st) < 0) return Error::last("stat");
  if (!(st.st_mode & S_ISGID) || caller.uid == 0 || is_member(caller, st.st_gid)) return {};
  if (::chmod(ProcPath(fd).c_str(), st.st_mode & 05777) < 0) return Error::last("drop setgid");
  return {};
}

Result<void> apply_change(const SharedFd& fd, const AttributeChange& change) {
  // Owner before mode: a change of owner clears setuid bits that the same call may set.
  if (change.uid || change.gid) {
    // The new owner or group has a quota, too. It may be a group that only the caller is in.
    const CallersRoom room(Fsuid::Own);
    const uid_t uid = change.uid.value_or(static_cast<uid_t>(-1));
    const gid_t gid = change.gid.value_or(static_cast<gid_t>(-1));
    if (::fchownat(fd->get(), "", uid, gid, AT_EMPTY_PATH | AT_SYMLINK_NOFOLLOW) < 0)
      return Error::last("chown");
  }
  if (change.mode && ::chmod(ProcPath(fd->get()).c_str(), *change.mode & 07777) < 0)
    return Error::last("chmod");
  if (change.atime || change.mtime) {
    const timespec omit{0, UTIME_OMIT};
    const std::array<timespec, 2> times{change.atime.value_or(omit), change.mtime.value_or(omit)};
    if (::utimensat(fd->get(), "", times.data(), AT_EMPTY_PATH) < 0)
      return Error::last("set times");
  }
  return {};
}

}  // namespace

// Records the attributes that the kernel is about to get.
void Attributes::note_kernel_attributes(Inode& inode, const struct stat& st) {
  if (S_ISREG(st.st_mode))
    parts_.pool.note_file_size(static_cast<std::uint64_t>(st.st_blocks) * 512);
  Inode::Locked state(inode);
  state->size_hint = static_cast<std::uint64_t>(st.st_size);
  state->pages.kernel_mtime = st.st_mtim.tv_sec * 1'000'000'000 + st.st_mtim.tv_nsec;
}

Result<struct stat> Attributes::stat_of(const InodePtr& inode) {
  struct stat st =
      SLUICE_TRY(inode->is_directory() ? stat_of_directory(inode) : stat_of_file(inode));
  st.st_ino = to_number(inode->id());
  return st;
}

Result<struct stat> Attributes::stat_of_file(const InodePtr& inode) {
  parts_.times.load(*inode);
  struct stat st {};
  for (;;) {
    const std::uint64_t switches = parts_.names_lock.switches();
    TierIndex tier = kNoTier;
    FileHandle handle;
    {
      Inode::Locked state(*inode);
      tier = state->place().tier;
      handle = state->place().handle;
    }
    const SharedFd fd = SLUICE_TRY(parts_.descriptors.any(inode));
    if (::fstat(fd->get(), &st) < 0) return Error::last("stat");
    Inode::Locked state(*inode);
    // The file was moved meanwhile.
    if (!state->is_at(tier, handle)) continue;
    // A link count of 0 means that the file was deleted, or that a move has just removed the old
    // copy.
    if (st.st_nlink == 0 && parts_.names_lock.switches() != switches) continue;
    parts_.times.show(*state, tier, st);
    break;
  }
  note_kernel_attributes(*inode, st);
  return st;
}

Result<struct stat> Attributes::stat_of_directory(const InodePtr& inode) {
  parts_.times.load(*inode);
  const OpenCopies copies = SLUICE_TRY(parts_.tree.open_copies(inode));
  const auto changes = [&] {
    Inode::Locked state(*inode);
    return state->times ? state->times->changes : 0;
  };
  struct stat st {};
  for (unsigned before = changes();; before = changes()) {
    for (std::size_t i = 0; i < copies.reachable.size(); ++i) {
      struct stat each {};
      const OpenCopy& copy = copies.reachable[i];
      if (::fstat(copy.get(), &each) < 0) {
        if (i == 0) return Error::last("stat");
        continue;
      }
      {
        Inode::Locked state(*inode);
        parts_.times.show(*state, copy.tier->index(), each);
      }
      if (i == 0) st = each;
      // The times of the directory are the latest ones of its copies.
      if (later(each.st_mtim, st.st_mtim)) st.st_mtim = each.st_mtim;
      if (later(each.st_ctim, st.st_ctim)) st.st_ctim = each.st_ctim;
    }
    if (changes() == before) break;
  }
  // Counting the subdirectories of several copies would be expensive. A link count of 1 means
  // "unknown", as on btrfs.
  if (copies.reachable.size() > 1 || !copies.complete) st.st_nlink = 1;
  return st;
}

struct stat Attributes::stat_of(const InodePtr& inode, const Located& found,
                                std::uint64_t switches) {
  const bool may_have_moved = found.carries_identity || inode->is_directory();
  if (may_have_moved) parts_.times.load(*inode);
  struct stat st = found.st;
  st.st_ino = to_number(inode->id());
  {
    Inode::Locked state(*inode);
    const bool is_there = state->is_at(found.tier, found.handle);
    // A file that is found during its switch, in either place, has only some of its links there.
    const bool moves = state->may_be_in_two_places() || parts_.names_lock.switches() != switches;
    const bool merges = inode->is_directory() && (state->copies.size() > 1 || state->times);
    if (is_there && !moves && !merges) {
      if (!may_have_moved) state->times_known = true;
      parts_.times.show(*state, found.tier, st);
      return st;
    }
  }
  const auto merged = stat_of(inode);
  return merged ? *merged : st;
}

// Stores through a shared mapping of a passthrough file change its times without a request, and
// without a change of the attributes that the kernel has cached.
double Attributes::cache_seconds(const InodePtr& inode) {
  if (!S_ISREG(inode->type)) return kCacheSeconds;
  bool changing = false, unsure = false;
  {
    Inode::Locked state(*inode);
    changing = state->open && state->open->passthrough && state->open->mappers > 0;
    unsure = !changing && state->pages.maybe_mapped;
  }
  if (unsure) changing = parts_.pages.is_still_mapped(inode);
  return changing ? 0 : kCacheSeconds;
}

Result<FileAttributes> Attributes::get(InodeId id) {
  const InodePtr file = SLUICE_TRY(parts_.tree.inode(id));
  FileAttributes out;
  out.seconds = cache_seconds(file);
  out.st = SLUICE_TRY(stat_of(file));
  return out;
}

// Applies `change` to every copy of a directory. The fastest copy, which defines the attributes, is
// changed first. After a crash, the next mount applies its attributes to the other copies.
Result<void> Attributes::change_copies(const InodePtr& directory,
                                       const std::function<Result<void>(const SharedFd&)>& change) {
  const auto is_alone = [](const OpenCopies& open) {
    return open.complete && open.reachable.size() == 1;
  };
  {
    // A copy that is made now has the attributes from before.
    const DirectoryTree::NoNewCopies no_new_copies(parts_.tree);
    const OpenCopies copies = SLUICE_TRY(parts_.tree.open_copies(directory));
    if (is_alone(copies)) {
      const ShownTimes::AttributeChange changing(parts_.times, *directory);
      return change(copies.reachable[0].fd);
    }
  }
  SharedLock lock(parts_.names_lock.mutex);
  const DirectoryTree::NoNewCopies no_new_copies(parts_.tree);
  // While the names are locked, no tier can return. The change is recorded for tiers that are
  // offline.
  const OpenCopies copies = SLUICE_TRY(parts_.tree.open_copies(directory));
  SLUICE_TRY(check_writable(copies));
  SLUICE_TRY(parts_.away.note_attribute_change(directory, copies));
  const OpenCopy& first = copies.reachable[0];
  const ShownTimes::AttributeChange changing(parts_.times, *directory);
  if (copies.reachable.size() == 1) return change(first.fd);
  std::vector<Step> steps;
  for (std::size_t i = 1; i < copies.reachable.size(); ++i) {
    Step step;
    step.kind = Step::Kind::MirrorDir;
    step.from = SLUICE_TRY(place_at(*first.tier, first.get(), ""));
    step.to = SLUICE_TRY(place_at(*copies.reachable[i].tier, copies.reachable[i].get(), ""));
    steps.push_back(std::move(step));
  }
  const std::uint64_t sequence = SLUICE_TRY(announce(parts_.store, steps));
  // Users see the latest mtime of all copies, and the others are about to get that of the first.
  keep_latest_mtime(copies);
  const auto changed = change(first.fd);
  // Completed even if the change failed: mirroring equal attributes does no harm, and the intent
  // must be removed.
  SLUICE_TRY(complete(parts_.store, parts_.pool, sequence, steps));
  return changed;
}

Result<FileAttributes> Attributes::set(InodeId id, const AttributeChange& change,
                                       const KernelRequest& request) {
  const InodePtr file = SLUICE_TRY(parts_.tree.inode(id));
  if (file->is_directory()) {
    SLUICE_TRY(change_copies(file, [&](const SharedFd& fd) { return apply_change(fd, change); }));
    return get(id);
  }
  const ChangeGuard guard = SLUICE_TRY(ChangeGuard::of(file, request));
  if (change.size) {
    const SharedFd fd = SLUICE_TRY(parts_.descriptors.writer(file));
    {
      const CallersRoom room;
      if (::ftruncate(fd->get(), *change.size) < 0) return Error::last("truncate");
    }
    parts_.budgets.written(file);
    Inode::Locked state(*file);
    if (!state->open || state->open->passthrough) state->pages.stale = true;
  }
  const SharedFd fd = SLUICE_TRY(parts_.descriptors.any(file));
  if (change.strip_suid) SLUICE_TRY(drop_suid(fd->get(), *change.strip_suid));
  SLUICE_TRY(apply_change(fd, change));
  return get(id);
}

Result<std::string> Attributes::xattr(const InodePtr& file, const char* name) {
  unsigned set_before = 0;
  {
    Inode::Locked state(*file);
    if (state->xattrs.none) return absent(name);
    set_before = state->xattrs.changes;
  }
  const SharedFd fd = SLUICE_TRY(parts_.descriptors.any(file));
  const ProcPath path(fd->get());
  // The kernel asks for security.capability of each file that is written, and `ls -l` asks for two
  // more xattrs. Most files have no xattrs at all, so this is cached.
  if (::listxattr(path.c_str(), nullptr, 0) == 0) {
    Inode::Locked state(*file);
    state->xattrs.none = state->xattrs.changes == set_before;
    return absent(name);
  }
  std::string value(256, '\0');
  ssize_t size = ::getxattr(path.c_str(), name, value.data(), value.size());
  if (size < 0 && errno == ERANGE) {
    value.resize(XATTR_SIZE_MAX);
    size = ::getxattr(path.c_str(), name, value.data(), value.size());
  }
  if (size < 0) return Error::last("getxattr");
  value.resize(static_cast<std::size_t>(size));
  return value;
}

Result<std::string> Attributes::xattr_names(const InodePtr& file) {
  const SharedFd fd = SLUICE_TRY(parts_.descriptors.any(file));
  std::string list(XATTR_LIST_MAX, '\0');
  const ssize_t size = ::listxattr(ProcPath(fd->get()).c_str(), list.data(), list.size());
  if (size < 0) return Error::last("listxattr");
  list.resize(static_cast<std::size_t>(size));
  return list;
}

Result<void> Attributes::set_xattr(const InodePtr& file, const char* name, std::string_view value,
                                   int flags, const Caller& caller, const KernelRequest& request) {
  const auto set = [&](const SharedFd& fd) -> Result<void> {
    const ProcPath path(fd->get());
    // If the request is repeated and finds the xattr, the first attempt has set it.
    if ((flags & XATTR_CREATE) && !has_xattr(path, name)) remember_beginning(request);
    const CallersRoom room;
    if (::setxattr(path.c_str(), name, value.data(), value.size(), flags) < 0 &&
        !(errno == EEXIST && request.remembered(Fact::Began))) {
      return Error::last("setxattr");
    }
    {
      Inode::Locked state(*file);
      state->xattrs.none = false;
      ++state->xattrs.changes;
    }
    // Like chmod, setting an ACL clears setgid if the caller is not in the group.
    if (std::string_view(name) == "system.posix_acl_access") return drop_setgid(fd->get(), caller);
    return {};
  };
  if (file->is_directory()) return change_copies(file, set);
  const ChangeGuard guard = SLUICE_TRY(ChangeGuard::of(file, request));
  return set(SLUICE_TRY(parts_.descriptors.any(file)));
}

Result<void> Attributes::remove_xattr(const InodePtr& file, const char* name,
                                      const KernelRequest& request) {
  const auto remove = [&](const SharedFd& fd) -> Result<void> {
    const ProcPath path(fd->get());
    // If the request is repeated and finds no xattr, the first attempt has removed it.
    if (has_xattr(path, name)) remember_beginning(request);
    if (::removexattr(path.c_str(), name) < 0 &&
        !(errno == ENODATA && request.remembered(Fact::Began)))
      return Error::last("removexattr");
    return {};
  };
  if (file->is_directory()) return change_copies(file, remove);
  const ChangeGuard guard = SLUICE_TRY(ChangeGuard::of(file, request));
  return remove(SLUICE_TRY(parts_.descriptors.any(file)));
}

Result<struct statx> Attributes::statx_on_tier(const InodePtr& inode) {
  const SharedFd fd = SLUICE_TRY(parts_.descriptors.any(inode));
  struct statx out {};
  if (::statx(fd->get(), "", AT_EMPTY_PATH | AT_SYMLINK_NOFOLLOW, STATX_BASIC_STATS | STATX_BTIME,
              &out) < 0) {
    return Error::last("statx");
  }
  return out;
}

Result<struct statx> Attributes::statx(InodeId id) {
  const InodePtr file = SLUICE_TRY(parts_.tree.inode(id));
  const struct stat st = SLUICE_TRY(stat_of(file));
  struct statx out = SLUICE_TRY(statx_on_tier(file));
  const auto time = [](const timespec& t) {
    return statx_timestamp{t.tv_sec, static_cast<std::uint32_t>(t.tv_nsec), {}};
  };
  out.stx_ino = st.st_ino;
  out.stx_nlink = static_cast<std::uint32_t>(st.st_nlink);
  out.stx_mtime = time(st.st_mtim);
  out.stx_ctime = time(st.st_ctim);
  if (const auto born = born_at(file)) out.stx_btime = time(*born);
  return out;
}

// When the inode was created; nothing if the birth time from statx_on_tier() is right.
std::optional<timespec> Attributes::born_at(const InodePtr& inode) {
  if (!inode->is_directory()) {
    Inode::Locked state(*inode);
    return parts_.times.birth(*state);
  }
  const auto copies = parts_.tree.open_copies(inode);
  std::optional<timespec> first;
  if (!copies || copies->reachable.size() < 2) return first;
  for (const OpenCopy& copy : copies->reachable) {
    struct statx st {};
    if (::statx(copy.get(), "", AT_EMPTY_PATH, STATX_BTIME, &st) < 0 ||
        !(st.stx_mask & STATX_BTIME))
      continue;
    const timespec born{st.stx_btime.tv_sec, st.stx_btime.tv_nsec};
    if (!first || later(*first, born)) first = born;
  }
  return first;
}

Result<void> Attributes::flags(InodeId id, unsigned command, std::string& data,
                               const KernelRequest& request) {
  const bool sets = command == FS_IOC_SETFLAGS || command == FS_IOC_FSSETXATTR;
  if (!sets && command != FS_IOC_GETFLAGS && command != FS_IOC_FSGETXATTR)
    return Error(ENOTTY, "ioctl");
  const InodePtr file = SLUICE_TRY(parts_.tree.inode(id));
  if (!file->is_directory() && !S_ISREG(file->type)) return Error(ENOTTY, "ioctl");
  // Long enough for either structure, whatever length the kernel sends.
  data.resize(std::max(data.size(), sizeof(fsxattr)));
  const auto call = [&](const SharedFd& fd) -> Result<void> {
    const CallersRoom room;  // the new project has a quota, too
    if (::ioctl(fd->get(), command, data.data()) < 0) return Error::last("inode flags");
    return {};
  };
  if (!file->is_directory()) {
    const ChangeGuard guard = SLUICE_TRY(ChangeGuard::of(sets ? file : nullptr, request));
    const SharedFd fd = SLUICE_TRY(parts_.descriptors.reader(file));
    SLUICE_TRY(call(fd));
    if (sets) {
      const struct statx st = SLUICE_TRY(statx_of(fd->get()));
      Inode::Locked state(*file);
      note_flags(*file, *state, st);
    }
  } else {
    const OpenCopies copies = SLUICE_TRY(parts_.tree.open_copies(file));
    if (sets && !copies.complete)
      return Error(EIO, "set flags: the directory may have a copy on a tier that is offline");
    if (sets) SLUICE_TRY(check_writable(copies));
    const ShownTimes::AttributeChange changing(parts_.times, *file);
    for (const OpenCopy& copy : copies.reachable) {
      SLUICE_TRY(call(copy.fd));
      if (!sets) break;
    }
  }
  if (sets) parts_.kernel.drop_attributes(id);  // ctime has changed
  return {};
}

Result<struct statvfs> Attributes::statfs() {
  struct statvfs out {};
  constexpr std::uint64_t kUnit = 4096;
  out.f_bsize = out.f_frsize = kUnit;
  out.f_namemax = 255;
  std::set<std::uint64_t> counted;  // tiers on one filesystem share its space
  // The room of a tier that takes no new files is of no use to anybody.
  std::vector<TierIndex> order = parts_.pool.placement();
  const std::size_t takers = order.size();
  for (const auto& tier : parts_.pool) {
    if (std::find(order.begin(), order.end(), tier->index()) == order.end())
      order.push_back(tier->index());
  }
  for (std::size_t i = 0; i < order.size(); ++i) {
    const Tier* const tier = &parts_.pool[order[i]];
    const auto root = tier->root();
    struct stat st {};
    struct statvfs fs {};
    if (!root || ::fstat((*root)->get(), &st) < 0 || ::fstatvfs((*root)->get(), &fs) < 0) continue;
    if (!counted.insert(st.st_dev).second) continue;
    tier->refresh_space();
    const Space space = tier->space();
    if (i >= takers) {
      out.f_blocks += space.used() / kUnit;
      out.f_files += fs.f_files - fs.f_ffree;
      continue;
    }
    out.f_blocks += (space.total + space.kept) / kUnit;
    out.f_bavail += space.free / kUnit;
    out.f_bfree += (space.free + space.kept) / kUnit;
    out.f_files += fs.f_files;
    out.f_ffree += fs.f_ffree;
    out.f_favail += fs.f_favail;
  }
  return out;
}

Result<bool> Attributes::is_owner(InodeId id, const Caller& caller) {
  const InodePtr file = SLUICE_TRY(parts_.tree.inode(id));
  return caller.uid == 0 || SLUICE_TRY(stat_of(file)).st_uid == caller.uid;
}

}  // namespace sluice
