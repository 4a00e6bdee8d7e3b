// SPDX-License-Identifier: BSD-2-Clause
#include "fs/fuse/session.hpp"

#include <dlfcn.h>
#include <fcntl.h>
#include <sys/ioctl.h>
#include <sys/mount.h>
#include <sys/sysinfo.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <cstdarg>
#include <cstring>
#include <fstream>
#include <sstream>

#include "base/log.hpp"
#include "fs/fuse/operations.hpp"

namespace sluice {
namespace {

// From the kernel's fuse.h of Linux 6.9; ABI. Debian 12's headers are older.
struct BackingMap {
  std::int32_t fd;
  std::uint32_t flags;
  std::uint64_t padding;
};
constexpr unsigned long kBackingOpen = _IOW(229, 1, BackingMap);
constexpr unsigned long kBackingClose = _IOW(229, 2, std::uint32_t);

constexpr const char* kEnableUring = "/sys/module/fuse/parameters/enable_uring";

void forward_log(fuse_log_level level, const char* format, va_list arguments) {
  std::array<char, 1024> text{};
  std::vsnprintf(text.data(), text.size(), format, arguments);
  std::string_view line = text.data();
  while (line.ends_with('\n')) line.remove_suffix(1);
  if (level <= FUSE_LOG_ERR) {
    log::get().error("libfuse: {}", line);
  } else if (level == FUSE_LOG_WARNING) {
    log::get().warn("libfuse: {}", line);
  } else {
    log::get().debug("libfuse: {}", line);
  }
}

// FUSE over io_uring is off in the kernel until the administrator turns it on. Mounting with
// io_uring = true does that.
Feature enable_io_uring() {
  const UniqueFd fd(::open(kEnableUring, O_RDWR | O_CLOEXEC));
  if (!fd) {
    return {false, errno == ENOENT ? "the kernel has no FUSE-over-io_uring (Linux 6.14 and later)"
                                   : std::string("can't enable it: ") + std::strerror(errno)};
  }
  char now = 0;
  if (::pread(fd.get(), &now, 1, 0) == 1 && now == 'Y') return {true, ""};
  if (::pwrite(fd.get(), "Y", 1, 0) != 1)
    return {false, std::string("can't enable it: ") + std::strerror(errno)};
  log::get().info("enabled FUSE-over-io_uring: parameter={}", kEnableUring);
  return {true, ""};
}

// The entries of each io_uring queue; there is one queue per core. With libfuse's default of 8, a
// few users who wait for a disk would block all other requests from that core. An entry takes a
// megabyte of address space. It takes memory only when a large request first uses it.
unsigned queue_depth() {
  constexpr unsigned kLeast = 16, kMost = 128, kTotal = 1024;
  const auto cores = static_cast<unsigned>(std::max(::get_nprocs_conf(), 1));
  return std::clamp(kTotal / cores, kLeast, kMost);
}

// One option of -o in the syntax of libfuse.
std::string option_value(std::string_view word) {
  std::string out;
  for (const char c : word) {
    if (c == ',' || c == '\\') out += '\\';
    out += c;
  }
  return out;
}

// The directory in which the kernel shows the requests of the mount. Not found by stat(), because
// no thread answers requests yet.
UniqueFd open_connection(const std::string& mountpoint) {
  std::ifstream mounts("/proc/self/mountinfo");
  std::string device;
  for (std::string line; std::getline(mounts, line);) {
    std::istringstream words(line);
    std::string id, parent, number, root, where;
    words >> id >> parent >> number >> root >> where;
    if (where == mountpoint && line.find(" fuse") != std::string::npos) device = number;
  }
  const auto colon = device.find(':');
  if (colon == std::string::npos) return {};
  const std::string name = device.substr(colon + 1);
  UniqueFd found(
      ::open(("/sys/fs/fuse/connections/" + name).c_str(), O_PATH | O_DIRECTORY | O_CLOEXEC));
  if (found) return found;
  // If fusectl is not mounted, mount it without a path.
  const UniqueFd control(::fsopen("fusectl", FSOPEN_CLOEXEC));
  if (!control || ::fsconfig(control.get(), FSCONFIG_CMD_CREATE, nullptr, nullptr, 0) < 0)
    return {};
  const UniqueFd top(::fsmount(control.get(), FSMOUNT_CLOEXEC, 0));
  if (!top) return {};
  return UniqueFd(::openat(top.get(), name.c_str(), O_PATH | O_DIRECTORY | O_CLOEXEC));
}

}  // namespace

std::string libfuse_version() {
  Dl_info ours{}, theirs{};
  std::string where;
  if (::dladdr(reinterpret_cast<void*>(&libfuse_version), &ours) != 0 &&
      ::dladdr(reinterpret_cast<void*>(&fuse_pkgversion), &theirs) != 0) {
    where =
        ours.dli_fbase == theirs.dli_fbase ? ", linked in" : std::string(", ") + theirs.dli_fname;
  }
  return fuse_pkgversion() + where;
}

Result<std::unique_ptr<Session>> Session::mount(const Settings& settings) {
  auto session = std::unique_ptr<Session>(new Session(settings));
  fuse_set_log_func(forward_log);
  ::sched_getaffinity(0, sizeof(cpu_set_t), &session->allowed_cores_);

  {
    MutexLock lock(session->mutex_);
    session->io_uring_ = settings.io_uring ? enable_io_uring()
                                           : Feature{false, "turned off by debug option io_uring"};
    session->passthrough_ = {false, settings.passthrough
                                        ? "the kernel has no FUSE passthrough (Linux 6.9 and later)"
                                        : "turned off by debug option passthrough"};
  }

  // suid,dev: as on any filesystem that root mounts; libfuse's default forbids both. The user's
  // options come last and win.
  std::string options = "default_permissions,allow_other,suid,dev,subtype=sluice,fsname=" +
                        option_value(settings.name);
  if (session->io_uring().on) {
    options += ",io_uring,io_uring_q_depth=" + std::to_string(queue_depth());
    session->most_lent_ = queue_depth() * 7 / 8;
  }
  if (!settings.options.empty()) options += "," + settings.options;
  std::vector<std::string> words{"sluice", "-o", options};
  std::vector<char*> argv;
  for (std::string& word : words) argv.push_back(word.data());
  fuse_args args = FUSE_ARGS_INIT(static_cast<int>(argv.size()), argv.data());

  session->session_ =
      fuse_session_new(&args, &fuse_operations(), sizeof(fuse_lowlevel_ops), session.get());
  fuse_opt_free_args(&args);
  if (session->session_ == nullptr) {
    return Error{EINVAL, "mount", "the mount options are not understood: -o " + settings.options};
  }
  if (fuse_session_mount(session->session_, settings.mountpoint.c_str()) != 0) {
    const int code = errno;
    return Error{code, "mount",
                 "can't mount on " + settings.mountpoint + ": " + std::strerror(code) +
                     "; is /dev/fuse there?"};
  }
  session->mounted_ = true;
  session->connection_ = open_connection(settings.mountpoint);
  return session;
}

unsigned Session::waiting() const {
  if (!connection_) return 0;
  // Opened each time, because an open file returns the number only once.
  const UniqueFd file(::openat(connection_.get(), "waiting", O_RDONLY | O_CLOEXEC));
  std::array<char, 32> text{};
  const ssize_t got = file ? ::read(file.get(), text.data(), text.size()) : 0;
  unsigned count = 0;
  if (got > 0) std::from_chars(text.data(), text.data() + got, count);
  return count;
}

Session::~Session() {
  if (session_ == nullptr) return;
  if (mounted_) fuse_session_unmount(session_);
  fuse_session_destroy(session_);
}

bool Session::run(Filesystem& filesystem, GpuService& gpu) {
  filesystem_ = &filesystem;
  gpu_ = &gpu;
  if (fuse_set_signal_handlers(session_) != 0) return false;
  fuse_loop_config* config = fuse_loop_cfg_create();
  // For requests that do not come through io_uring: enough threads for slow and fast disks.
  fuse_loop_cfg_set_max_threads(config, 32);
  fuse_loop_cfg_set_idle_threads(config, 4);
  slow_requests_ = std::make_unique<SlowRequests>();
  const int result = fuse_session_loop_mt(session_, config);
  fuse_loop_cfg_destroy(config);
  slow_requests_.reset();  // no request is answered any more
  fuse_remove_signal_handlers(session_);
  fuse_session_unmount(session_);
  mounted_ = false;
  // A positive result is the signal that ended the session.
  return result >= 0;
}

void Session::negotiate(fuse_conn_info& connection) {
  const auto want = [&](std::uint64_t capability) {
    return fuse_set_feature_flag(&connection, capability);
  };
  // The kernel checks permissions and ACLs. The filesystem of the tier applies umask and default
  // ACLs.
  want(FUSE_CAP_POSIX_ACL);
  want(FUSE_CAP_DONT_MASK);
  // The daemon removes setuid bits itself. Otherwise the kernel asks for security.capability before
  // each write.
  want(FUSE_CAP_HANDLE_KILLPRIV_V2);
  want(FUSE_CAP_PARALLEL_DIROPS);
  want(FUSE_CAP_EXPORT_SUPPORT);
  want(FUSE_CAP_CACHE_SYMLINKS);
  want(FUSE_CAP_READDIRPLUS);
  // In its AUTO mode the kernel asks for attributes with the first names of a listing only, and
  // `ls -l`, `find` and rsync then look up the rest one by one. If the attributes are not used,
  // they cost something once, because the kernel caches the listing.
  fuse_unset_feature_flag(&connection, FUSE_CAP_READDIRPLUS_AUTO);
  MutexLock lock(mutex_);
  if (settings_.passthrough && want(FUSE_CAP_PASSTHROUGH)) {
    // Tiers are plain filesystems, and other filesystems (overlayfs) may be stacked on ours.
    connection.max_backing_stack_depth = FUSE_BACKING_STACKED_UNDER;
    passthrough_ = {true, ""};
  } else {
    filesystem_->files().serve_everything();
  }
  if (io_uring_.on && !(connection.capable_ext & FUSE_CAP_OVER_IO_URING)) {
    io_uring_ = {false, "the kernel does not offer it"};
  }
  log::get().info("mounted: mountpoint={} protocol={}.{} passthrough={} io_uring={}",
                  settings_.mountpoint, connection.proto_major, connection.proto_minor,
                  passthrough_.on, io_uring_.on);
}

Feature Session::passthrough() const {
  MutexLock lock(mutex_);
  return passthrough_;
}

Feature Session::io_uring() const {
  MutexLock lock(mutex_);
  return io_uring_;
}

std::vector<std::pair<std::string, std::uint64_t>> Session::request_counts() const {
  std::vector<std::pair<std::string, std::uint64_t>> out;
  for (std::size_t i = 0; i < counts_.size(); ++i) {
    const std::uint64_t n = counts_[i].load(std::memory_order_relaxed);
    if (n > 0) out.emplace_back(request_name(i), n);
  }
  return out;
}

Result<std::int32_t> Session::add_backing(int fd) {
  BackingMap map{};
  map.fd = fd;
  const int id = ::ioctl(fuse_session_fd(session_), kBackingOpen, &map);
  if (id > 0) return id;
  const Error failure = Error::last("register backing file");
  MutexLock lock(mutex_);
  if (passthrough_.why.empty()) {
    passthrough_.why = std::string("some files can't use it: ") + std::strerror(failure.code);
    log::get().warn("a file is served by the daemon, the kernel can't pass its I/O through: why={}",
                    std::strerror(failure.code));
  }
  return failure;
}

void Session::remove_backing(std::int32_t id) {
  const auto backing = static_cast<std::uint32_t>(id);
  ::ioctl(fuse_session_fd(session_), kBackingClose, &backing);
}

void Session::drop_attributes(InodeId id) {
  // A negative offset keeps the pages. ENOENT: the kernel has already forgotten the inode.
  fuse_lowlevel_notify_inval_inode(session_, to_number(id), -1, 0);
}

bool Session::drop_all_names() {
  // Linux 6.16 and later.
  return fuse_lowlevel_notify_increment_epoch(session_) == 0;
}

void Session::drop_name(InodeId parent, const std::string& name) {
  fuse_lowlevel_notify_inval_entry(session_, to_number(parent), name.data(), name.size());
}

void Session::drop_pages(InodeId id) {
  // The kernel caches a directory's listing in its pages.
  fuse_lowlevel_notify_inval_inode(session_, to_number(id), 0, 0);
}

}  // namespace sluice
