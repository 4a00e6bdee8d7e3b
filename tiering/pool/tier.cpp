// SPDX-License-Identifier: BSD-2-Clause
#include "tiering/pool/tier.hpp"

#include <fcntl.h>
#include <linux/magic.h>
#include <sys/syscall.h>
#include <sys/vfs.h>
#include <sys/xattr.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdio>
#include <cstring>

#include "base/clock.hpp"
#include "base/file_at.hpp"
#include "base/log.hpp"
#include "tiering/pool/disk_health.hpp"
#include "tiering/pool/tier_lock.hpp"
#include "tiering/pool/twin.hpp"

namespace sluice {
namespace {

constexpr const char* kTempDirectory = "tmp";
constexpr const char* kTwinsDirectory = "twins";
constexpr const char* kSparesDirectory = "spares";
constexpr const char* kCarriesFlag = "carries";    // in .sluice: some copy here carries an identity
constexpr const char* kDrainingFlag = "draining";  // in .sluice: the tier is being emptied
constexpr std::uint64_t kMaxDefaultReserve = std::uint64_t{4} << 30;
constexpr std::chrono::nanoseconds kSpaceMaxAge = std::chrono::milliseconds(50);
constexpr std::chrono::nanoseconds kFailingFor = std::chrono::minutes(1);
constexpr int kIdentifyRetries = 16;

std::uint64_t reserve_of(const TierLimits& limits, const Space& space) {
  return limits.reserve.value_or(std::min(space.total / 50, kMaxDefaultReserve));
}

std::int64_t monotonic_ns() { return std::chrono::steady_clock::now().time_since_epoch().count(); }

// Opens the same directory through a private mount that does not update access times.
Result<UniqueFd> without_atime(UniqueFd fd) {
  // Debian 12's libc has no wrappers for open_tree(2) and mount_setattr(2); their numbers are the
  // same on all architectures.
  constexpr long kOpenTree = 428, kMountSetattr = 442;
  constexpr unsigned kClone = 1, kNoAtime = 0x10, kAtimeMask = 0x70;
  struct {
    std::uint64_t set, clear, propagation, user_namespace;
  } change{kNoAtime, kAtimeMask, 0, 0};
  const UniqueFd tree(
      static_cast<int>(::syscall(kOpenTree, fd.get(), "", AT_EMPTY_PATH | kClone | O_CLOEXEC)));
  if (!tree) return Error::last("open_tree");
  if (::syscall(kMountSetattr, tree.get(), "", AT_EMPTY_PATH, &change, sizeof change) < 0) {
    return Error::last("mount_setattr");
  }
  UniqueFd root(::openat(tree.get(), ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (!root) return Error::last("open tier");
  return root;
}

// The kernel's number of the mount that `fd` is on, which no later mount gets, and of this boot of
// the machine. Zero where the kernel has no such number (before Linux 6.8).
std::uint64_t session_of(int fd) {
  constexpr unsigned kUniqueMountId = 0x4000;  // STATX_MNT_ID_UNIQUE, which older headers lack
  struct statx st {};
  if (::statx(fd, "", AT_EMPTY_PATH, kUniqueMountId, &st) < 0) return 0;
  if (!(st.stx_mask & kUniqueMountId)) return 0;
  // Newer than Debian 12's headers: stx_mnt_id follows stx_dev_minor.
  std::uint64_t mount = 0;
  std::memcpy(&mount, reinterpret_cast<const char*>(&st) + 0x90, sizeof mount);
  std::array<char, 64> boot{};
  const UniqueFd file(::open("/proc/sys/kernel/random/boot_id", O_RDONLY | O_CLOEXEC));
  const ssize_t size = file ? ::read(file.get(), boot.data(), boot.size()) : -1;
  if (size <= 0) return 0;
  std::uint64_t hash = 0xcbf29ce484222325;  // FNV-1a
  const auto add = [&](unsigned char byte) { hash = (hash ^ byte) * 0x100000001b3; };
  for (ssize_t i = 0; i < size; ++i)
    add(static_cast<unsigned char>(boot[static_cast<std::size_t>(i)]));
  for (unsigned shift = 0; shift < 64; shift += 8) add(static_cast<unsigned char>(mount >> shift));
  return hash;
}

// Whether every store to a mapped file changes its times before it returns. tmpfs maps a page that
// is read writable at once, and does not learn of the stores; ZFS sets the times when it writes the
// page. Of filesystems that are not in this list nothing is known.
bool notes_mapped_stores(std::uint64_t magic) {
  constexpr std::uint64_t kXfsMagic = 0x58465342;
  return magic == EXT4_SUPER_MAGIC || magic == kXfsMagic || magic == BTRFS_SUPER_MAGIC ||
         magic == F2FS_SUPER_MAGIC;
}

Result<SharedFd> open_private(int directory, const char* name) {
  if (::mkdirat(directory, name, 0700) < 0 && errno != EEXIST)
    return Error::last("make a directory in .sluice");
  auto fd = std::make_shared<UniqueFd>(
      ::openat(directory, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC));
  if (!*fd) return Error::last("open a directory in .sluice");
  return SharedFd(std::move(fd));
}

const char* filesystem_name(std::uint64_t magic) {
  struct Name {
    std::uint64_t magic;
    const char* text;
  };
  static constexpr Name kNames[] = {{EXT4_SUPER_MAGIC, "ext4"},
                                    {0x58465342, "xfs"},
                                    {BTRFS_SUPER_MAGIC, "btrfs"},
                                    {TMPFS_MAGIC, "tmpfs"},
                                    {OVERLAYFS_SUPER_MAGIC, "overlay"},
                                    {RAMFS_MAGIC, "ramfs"},
                                    {NFS_SUPER_MAGIC, "nfs"},
                                    {0xff534d42, "cifs"},
                                    {0xfe534d42, "cifs"},
                                    {0x00c36400, "ceph"},
                                    {V9FS_MAGIC, "9p"},
                                    {0x2fc12fc1, "zfs"},
                                    {0x65735546, "fuse"},
                                    {0xca451a4e, "bcachefs"},
                                    {0xf2f52010, "f2fs"}};
  for (const Name& n : kNames) {
    if (n.magic == magic) return n.text;
  }
  return "other";
}

}  // namespace

TierLimits limits_of(const TierSettings& settings) {
  return {settings.capacity, settings.high_watermark, settings.low_watermark, settings.reserve,
          settings.threshold};
}

Tier::Tier(TierIndex index, TierSettings settings, Member member, UniqueFd root, std::string why,
           UniqueFd lock, std::string user)
    : index_(index),
      settings_(std::move(settings)),
      member_(std::move(member)),
      user_(std::move(user)),
      limits_(limits_of(settings_)),
      why_(std::move(why)) {
  if (!root) return;
  auto adopted = adopt(std::move(root), std::move(lock));
  MutexLock guard(mutex_);
  if (!adopted) {
    why_ = adopted.error().text();
    return;
  }
  root_ = *adopted;
  device_ = root_->device;
  read_flags(*root_);
  online_ = true;
}

void Tier::read_flags(const Root& root) {
  const auto has = [&](const char* flag) {
    return ::faccessat(root.temp->get(), (std::string("../") + flag).c_str(), F_OK, 0) == 0;
  };
  carries_ = has(kCarriesFlag);
  draining_ = has(kDrainingFlag);
}

Result<void> Tier::set_draining(bool draining) {
  const auto root = SLUICE_TRY(current());
  const UniqueFd dir = SLUICE_TRY(open_beneath(root->fd->get(), kPrivateDirectory));
  if (draining) {
    const UniqueFd flag(::openat(dir.get(), kDrainingFlag, O_WRONLY | O_CREAT | O_CLOEXEC, 0600));
    if (!flag) return Error::last("create .sluice/draining");
  } else if (::unlinkat(dir.get(), kDrainingFlag, 0) < 0 && errno != ENOENT) {
    return Error::last("remove .sluice/draining");
  }
  if (::fsync(dir.get()) < 0) return Error::last("sync .sluice");
  draining_ = draining;
  return {};
}

Result<std::shared_ptr<const Tier::Root>> Tier::adopt(UniqueFd fd, UniqueFd lock) const {
  // Passthrough uses the mount that our descriptors are on, and a private mount can be noatime.
  auto root = std::make_shared<Root>();
  const std::uint64_t session = session_of(fd.get());
  if (settings_.noatime) fd = SLUICE_TRY(without_atime(std::move(fd)));
  root->lock = std::move(lock);
  struct statfs fs {};
  if (::fstatfs(fd.get(), &fs) < 0) return Error::last("statfs tier");
  root->magic = static_cast<std::uint64_t>(fs.f_type);
  if (notes_mapped_stores(root->magic)) root->session = session;
  struct stat st {};
  if (::fstat(fd.get(), &st) < 0) return Error::last("stat tier");
  root->device = st.st_dev;
  root->kind = handle_kind(root->magic);
  // Both directions must work: overlayfs may return handles that it cannot open, and a container
  // may lack the capability to open them.
  auto handle = handle_at(fd.get(), "", &root->mount_id);
  if (!handle || !open_handle(fd.get(), *handle, O_RDONLY | O_DIRECTORY))
    root->kind = HandleKind::None;

  const UniqueFd dir(
      ::openat(fd.get(), kPrivateDirectory, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC));
  if (!dir) return Error::last("open .sluice");
  root->temp = SLUICE_TRY(open_private(dir.get(), kTempDirectory));
  if (auto twins = open_private(dir.get(), kTwinsDirectory)) root->twins = *std::move(twins);
  if (auto spares = open_private(dir.get(), kSparesDirectory)) root->spares = *std::move(spares);
  root->fd = std::make_shared<UniqueFd>(std::move(fd));
  return std::shared_ptr<const Root>(std::move(root));
}

Result<std::shared_ptr<const Tier::Root>> Tier::current() const {
  MutexLock lock(mutex_);
  if (!root_) return Error(EIO, "tier is offline");
  return root_;
}

std::string Tier::filesystem() const {
  const auto root = current();
  return root ? filesystem_name((*root)->magic) : "unknown";
}

bool Tier::keeps_room_by_user() const {
  const auto root = current();
  return root && ((*root)->magic == EXT4_SUPER_MAGIC || (*root)->magic == F2FS_SUPER_MAGIC);
}

std::string Tier::why_offline() const {
  MutexLock lock(mutex_);
  return why_;
}

std::int64_t Tier::offline_since() const {
  MutexLock lock(mutex_);
  return offline_since_;
}

Result<SharedFd> Tier::root() const { return SLUICE_TRY(current())->fd; }

Result<SharedFd> Tier::temp_directory() const { return SLUICE_TRY(current())->temp; }

Result<SharedFd> Tier::twins_directory() const {
  SharedFd twins = SLUICE_TRY(current())->twins;
  if (!twins) return Error(EROFS, "the tier has no .sluice/twins");
  return twins;
}

Result<SharedFd> Tier::spares_directory() const {
  SharedFd spares = SLUICE_TRY(current())->spares;
  if (!spares) return Error(EROFS, "the tier has no .sluice/spares");
  return spares;
}

bool Tier::is_twin(const Identity& identity, ino_t number) const {
  const auto twins = twins_directory();
  struct stat st {};
  return twins &&
         ::fstatat((*twins)->get(), twin_name(identity).c_str(), &st, AT_SYMLINK_NOFOLLOW) == 0 &&
         st.st_ino == number;
}

std::uint64_t Tier::session() const {
  const auto root = current();
  return root ? (*root)->session : 0;
}

bool Tier::has_handles() const {
  const auto root = current();
  return root && (*root)->kind != HandleKind::None;
}

void Tier::count_written(std::uint64_t bytes, std::chrono::nanoseconds took) {
  constexpr std::chrono::milliseconds kLong{5};
  constexpr std::chrono::nanoseconds kMaxWait = std::chrono::seconds(2);
  written_.fetch_add(bytes, std::memory_order_relaxed);
  if (took < kLong) return;
  // The longer this write blocked, the likelier the next one blocks, too.
  const auto until = std::chrono::steady_clock::now() + std::min(10 * took, kMaxWait);
  writes_wait_until_.store(until.time_since_epoch().count(), std::memory_order_relaxed);
}

bool Tier::writes_wait() const {
  const auto until = writes_wait_until_.load(std::memory_order_relaxed);
  return until != 0 && std::chrono::steady_clock::now().time_since_epoch().count() < until;
}

bool Tier::is_hidden(int fd) const {
  const auto temp = temp_directory();
  const auto above = temp ? current_path((*temp)->get()) : temp.error();
  const auto path = current_path(fd);
  return above && path && path->starts_with(*above + "/");
}

std::string Tier::new_temp_name() {
  // Starts at a value that no earlier process used, because a tier that was away may still have
  // temporary files of an earlier process.
  static std::atomic<std::uint64_t> counter{
      static_cast<std::uint64_t>(std::chrono::system_clock::now().time_since_epoch().count())};
  return "t" + std::to_string(counter.fetch_add(1, std::memory_order_relaxed));
}

Result<std::optional<Identity>> Tier::carried(const Identity& natural, int dirfd,
                                              const char* name) const {
  using None = std::optional<Identity>;
  if (!carries_.load(std::memory_order_relaxed)) return None{};
  std::array<char, 64> value{};
  const ssize_t got = getxattr_at(dirfd, name, kIdentityXattr, value.data(), value.size());
  if (got < 0) {
    // ELOOP: a symlink, opened with O_PATH, cannot have this xattr.
    if (errno == ENODATA || errno == EOPNOTSUPP || errno == ELOOP || errno == ERANGE) return None{};
    return Error::last("read identity");
  }
  return decode_carried({value.data(), static_cast<std::size_t>(got)}, natural);
}

Result<Located> Tier::identify(int dirfd, const char* name) const {
  const auto root = SLUICE_TRY(current());
  const int stat_flags = AT_SYMLINK_NOFOLLOW | (*name == '\0' ? AT_EMPTY_PATH : 0);
  Located found;
  found.tier = index_;
  for (int attempt = 0; root->kind != HandleKind::None && attempt < kIdentifyRetries; ++attempt) {
    int mount_id = 0;
    auto handle = handle_at(dirfd, name, &mount_id);
    if (!handle) {
      if (handle.error().code == EOPNOTSUPP || handle.error().code == EOVERFLOW) break;
      return handle.error();
    }
    if (mount_id != root->mount_id) break;  // something is mounted inside the tier
    if (::fstatat(dirfd, name, &found.st, stat_flags) < 0) return Error::last("stat");
    // The name may have been replaced between the two calls. If the layout of the handle is known,
    // the inode numbers then differ.
    const auto inode = inode_number(root->kind, *handle);
    if (inode && *inode != found.st.st_ino) continue;
    if (!inode && *name != '\0') break;
    found.handle = *std::move(handle);
    found.identity = natural_identity(root->kind, member_.slot, found.handle);
    if (S_ISREG(found.st.st_mode) || S_ISDIR(found.st.st_mode)) {
      const auto other = SLUICE_TRY(carried(found.identity, dirfd, name));
      found.carries_identity = other.has_value();
      found.identity = other.value_or(found.identity);
    }
    return found;
  }

  // The slow way, by descriptor, for filesystems whose handles have an unknown layout or that have
  // none.
  UniqueFd fd(::openat(dirfd, *name == '\0' ? "." : name, O_PATH | O_NOFOLLOW | O_CLOEXEC));
  if (*name == '\0' && !fd && errno == ENOTDIR) {
    fd.reset(::fcntl(dirfd, F_DUPFD_CLOEXEC, 0));
  }
  if (!fd) return Error::last("open by name");
  if (::fstat(fd.get(), &found.st) < 0) return Error::last("stat");
  int mount_id = 0;
  auto handle = root->kind == HandleKind::None
                    ? Result<FileHandle>(Error(EOPNOTSUPP, "get a file handle"))
                    : handle_at(fd.get(), "", &mount_id);
  if (handle && mount_id == root->mount_id) {
    found.handle = *std::move(handle);
    found.identity = natural_identity(root->kind, member_.slot, found.handle);
  } else {
    found.identity = natural_identity(member_.slot, found.st);
  }
  if (S_ISREG(found.st.st_mode) || S_ISDIR(found.st.st_mode)) {
    const auto other = SLUICE_TRY(carried(found.identity, fd.get(), ""));
    found.carries_identity = other.has_value();
    found.identity = other.value_or(found.identity);
  }
  if (found.handle.empty()) {
    // A directory is used through this descriptor, so it cannot be O_PATH.
    if (S_ISDIR(found.st.st_mode))
      fd.reset(::openat(fd.get(), ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC));
    if (!fd) return Error::last("open by name");
    found.pinned = std::make_shared<UniqueFd>(std::move(fd));
  }
  return found;
}

Result<Identity> Tier::identity_of(int dirfd, const char* name) const {
  const auto root = SLUICE_TRY(current());
  int mount_id = 0;
  auto handle = root->kind == HandleKind::None
                    ? Result<FileHandle>(Error(EOPNOTSUPP, "get a file handle"))
                    : handle_at(dirfd, name, &mount_id);
  if (!handle || mount_id != root->mount_id) return SLUICE_TRY(identify(dirfd, name)).identity;
  const Identity natural = natural_identity(root->kind, member_.slot, *handle);
  return SLUICE_TRY(carried(natural, dirfd, name)).value_or(natural);
}

Result<UniqueFd> Tier::open(const FileHandle& handle, int flags) const {
  const auto root = SLUICE_TRY(current());
  return open_handle(root->fd->get(), handle, flags);
}

Result<Located> Tier::find(InodeId id) const {
  const auto root = SLUICE_TRY(current());
  const auto handle = handle_from_identity(root->kind, root->fd->get(), id);
  if (!handle) return Error(ESTALE, "find file by identity");
  auto fd = open_handle(root->fd->get(), *handle, O_PATH);
  if (!fd) return Error(ESTALE, "find file by identity");
  auto found = SLUICE_TRY(identify(fd->get(), ""));
  // A deleted file that is still open can be opened by handle, but it has no name any more.
  if (found.identity.id != id || found.st.st_nlink == 0)
    return Error(ESTALE, "find file by identity");
  if (is_twin(found.identity, found.st.st_ino))
    return Error(ESTALE, "the file with this identity is on another tier");
  return found;
}

Result<void> Tier::carry_identity(int fd, const Identity& identity) {
  const auto root = SLUICE_TRY(current());
  if (!carries_.load()) {
    // The flag must be durable before the first xattr that depends on it.
    const UniqueFd dir(
        ::openat(root->fd->get(), kPrivateDirectory, O_RDONLY | O_DIRECTORY | O_CLOEXEC));
    const UniqueFd flag(
        dir ? ::openat(dir.get(), kCarriesFlag, O_WRONLY | O_CREAT | O_CLOEXEC, 0600) : -1);
    if (!flag || ::fsync(flag.get()) < 0 || ::fsync(dir.get()) < 0)
      return Error::last("create .sluice/carries");
    carries_ = true;
  }
  int mount_id = 0;
  Identity natural;
  if (root->kind != HandleKind::None) {
    natural = natural_identity(root->kind, member_.slot, SLUICE_TRY(handle_at(fd, "", &mount_id)));
  } else {
    struct stat st {};
    if (::fstat(fd, &st) < 0) return Error::last("stat");
    natural = natural_identity(member_.slot, st);
  }
  const std::string value = encode_carried(identity, natural);
  if (::fsetxattr(fd, kIdentityXattr, value.data(), value.size(), 0) < 0)
    return Error::last("store identity xattr");
  return {};
}

void Tier::refresh_space() const {
  const auto root = current();
  struct statfs fs {};
  if (!root || ::fstatfs((*root)->fd->get(), &fs) < 0) {
    measured_.total = 0;
    measured_.free = 0;
    measured_.over = 0;
    measured_.twins = 0;
    measured_.kept = 0;
    return;
  }
  const auto unit = static_cast<std::uint64_t>(fs.f_bsize);
  const std::uint64_t all_used = (fs.f_blocks - fs.f_bfree) * unit;
  std::uint64_t kept = (fs.f_bfree - std::min(fs.f_bavail, fs.f_bfree)) * unit;
  std::uint64_t total = fs.f_blocks * unit - kept;
  const std::uint64_t twins = std::min(twin_bytes_.load(std::memory_order_relaxed), all_used);
  std::uint64_t free = fs.f_bavail * unit + twins;
  std::uint64_t over = 0;
  if (const auto capacity = limits().capacity; capacity && *capacity < total) {
    const std::uint64_t used = all_used - twins;
    total = *capacity;
    free = std::min(free, total > used ? total - used : 0);
    over = used > total ? used - total : 0;
    kept = 0;
  }
  constexpr decltype(fs.f_flags) kReadOnly = 1;  // ST_RDONLY
  measured_.is_read_only = (fs.f_flags & kReadOnly) != 0;
  measured_.total = total;
  measured_.free = free;
  measured_.over = over;
  measured_.twins = std::min(twins, free);
  measured_.kept = kept;
  measured_.read_at = monotonic_ns();
}

Space Tier::space() const { return space(monotonic_ns()); }

Space Tier::space(std::int64_t now) const {
  if (now - measured_.read_at.load(std::memory_order_relaxed) > kSpaceMaxAge.count())
    refresh_space();
  return {measured_.total.load(std::memory_order_relaxed),
          measured_.free.load(std::memory_order_relaxed),
          measured_.over.load(std::memory_order_relaxed),
          measured_.twins.load(std::memory_order_relaxed),
          measured_.kept.load(std::memory_order_relaxed)};
}

std::uint64_t Tier::room() const {
  const std::uint64_t free = space().free_now();
  const std::uint64_t promised = promised_.load(std::memory_order_relaxed);
  return free > promised ? free - promised : 0;
}

std::uint64_t Tier::reserve() const { return reserve_of(limits(), space()); }

bool Tier::is_read_only() const {
  static_cast<void>(space());  // reads the flags of the filesystem, too
  return is_known_read_only();
}

bool Tier::is_known_read_only() const {
  return measured_.is_read_only.load(std::memory_order_relaxed) ||
         trouble_.has_given_up.load(std::memory_order_relaxed);
}

void Tier::note_failure(int code) {
  if (failure() == 0) {
    log::get().error(
        "cannot make a file on a tier, new files avoid it for a minute: tier={} why={}", name(),
        std::strerror(code));
  }
  trouble_.failure = code;
  trouble_.failing_until = monotonic_ns() + kFailingFor.count();
}

int Tier::failure() const { return failure(monotonic_ns()); }

int Tier::failure(std::int64_t now) const {
  return now < trouble_.failing_until.load(std::memory_order_relaxed)
             ? trouble_.failure.load(std::memory_order_relaxed)
             : 0;
}

// Each create asks every tier, so the clock and the limits are read once.
TierFacts Tier::facts() const {
  const std::int64_t now = monotonic_ns();
  const Space space = this->space(now);
  const TierLimits limits = this->limits();
  return {.total = space.total,
          .used = space.used(),
          .high_watermark = limits.high_watermark,
          .low_watermark = limits.low_watermark,
          .threshold = limits.threshold,
          .online = online(),
          .draining = is_draining(),
          .read_only = is_known_read_only(),
          .failing = failure(now) != 0,
          .reserve = reserve_of(limits, space),
          .disk_used = space.used()};
}

void Tier::check_writable() {
  trouble_.has_given_up = has_given_up(device());
  const bool is_read_only = this->is_read_only();
  if (trouble_.was_read_only.exchange(is_read_only) == is_read_only) return;
  if (is_read_only) {
    log::get().error("tier is read-only, nothing is created or moved there: tier={} path={}",
                     name(), path());
  } else {
    log::get().info("tier is writable again: tier={} path={}", name(), path());
  }
}

TierLimits Tier::limits() const {
  const MutexLock lock(limits_mutex_);
  return limits_;
}

bool Tier::change(const TierLimits& limits) {
  const MutexLock lock(limits_mutex_);
  if (limits_ == limits) return false;
  limits_ = limits;
  measured_.read_at = 0;  // the capacity is part of it; read by whoever needs it next
  return true;
}

void Tier::go_offline(std::string why) {
  log::get().error("tier is offline: tier={} path={} why={}", name(), path(), why);
  MutexLock lock(mutex_);
  online_ = false;
  root_ = nullptr;
  why_ = std::move(why);
  offline_since_ = real_clock().seconds();
}

bool Tier::check_presence() {
  if (const auto root = current()) {
    struct stat ours {
    }, theirs{};
    // stat(2) needs no descriptor, so a daemon that has none left does not mistake that for a lost
    // tier.
    if (::stat(path().c_str(), &theirs) < 0) {
      if (errno == ENOMEM) return false;
      go_offline(std::string(std::strerror(errno)) + " (at the tier's path)");
      return true;
    }
    if (::fstat((*root)->fd->get(), &ours) < 0) {
      go_offline(std::strerror(errno));
      return true;
    }
    if (ours.st_dev != theirs.st_dev || ours.st_ino != theirs.st_ino) {
      go_offline("the tier's path leads to another directory: its disk was unmounted or replaced");
      return true;
    }
    check_writable();
    return false;
  }
  UniqueFd at_path(::open(path().c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (!at_path) return false;
  const auto marker = read_marker(at_path.get());
  if (!marker || !*marker || (*marker)->self.uuid != member_.uuid) return false;
  auto own = lock_tier(at_path.get(), user_);
  auto adopted = own ? adopt(std::move(at_path), *std::move(own))
                     : Result<std::shared_ptr<const Root>>(own.error());
  if (!adopted) {
    MutexLock lock(mutex_);
    why_ = adopted.error().code == EBUSY ? "the tier is in use elsewhere: " + adopted.error().text()
                                         : std::strerror(adopted.error().code);
    return false;
  }
  {
    MutexLock lock(mutex_);
    root_ = *adopted;
    device_ = root_->device;
    why_ = "the tier is back and is being brought up to date";
    read_flags(*root_);
  }
  return true;
}

bool Tier::present() const {
  MutexLock lock(mutex_);
  return root_ != nullptr;
}

void Tier::admit() {
  {
    MutexLock lock(mutex_);
    if (!root_) return;
    why_.clear();
    offline_since_ = 0;
    online_ = true;
  }
  log::get().info("tier is online again: tier={} path={}", name(), path());
}

}  // namespace sluice
