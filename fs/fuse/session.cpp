// SPDX-License-Identifier: BSD-2-Clause
#include "fs/fuse/session.hpp"

#include <dlfcn.h>
#include <fcntl.h>
#include <linux/fuse.h>
#include <sys/eventfd.h>
#include <sys/ioctl.h>
#include <sys/mount.h>
#include <sys/utsname.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <cstdarg>
#include <cstdio>
#include <cstring>
#include <thread>

#include "base/check.hpp"
#include "base/log.hpp"
#include "base/thread.hpp"
#include "fs/fuse/noted_request.hpp"
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

// Also from Linux 6.9. The kernel sends the requests again that were taken and not answered.
constexpr int kNotifyResend = 7;
constexpr std::uint64_t kUniqueResend = std::uint64_t{1} << 63;

// A request in which this many daemons crashed is refused.
constexpr unsigned kMostCrashes = 2;
constexpr unsigned kMostBackground = 64;  // the kernel's default is 12

// What a request may be at most: a write of 1 MiB and its headers.
constexpr std::size_t kLargestRequest = (1 << 20) + 4096;
constexpr unsigned kTransferThreads = 32;

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

void set_hangup(int how) {
  sigset_t signals;
  ::sigemptyset(&signals);
  ::sigaddset(&signals, SIGHUP);
  ::pthread_sigmask(how, &signals, nullptr);
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

// While it exists, the first SIGTERM or SIGINT calls a function, and each SIGHUP before it another,
// in a thread of its own.
class Signals {
 public:
  Signals(std::function<void()> on_exit, std::function<void()> on_hangup)
      : wake_(::eventfd(0, EFD_CLOEXEC)) {
    wake_fd = wake_.get();
    struct sigaction action {};
    action.sa_handler = [](int signal) {
      (signal == SIGHUP ? hangup : exit) = true;
      wake();
    };
    action.sa_flags = SA_RESTART;
    for (std::size_t i = 0; i < kSignals.size(); ++i)
      ::sigaction(kSignals[i], &action, &before_[i]);
    ::signal(SIGPIPE, SIG_IGN);
    thread_ = std::thread([this, on_exit = std::move(on_exit), on_hangup = std::move(on_hangup)] {
      begin_thread("sluice-signals");
      // It is blocked in all other threads, so one that came before is delivered now.
      set_hangup(SIG_UNBLOCK);
      while (!ends_) {
        std::uint64_t count = 0;
        [[maybe_unused]] const ssize_t got = ::read(wake_.get(), &count, sizeof count);
        if (hangup.exchange(false) && !ends_ && on_hangup) on_hangup();
        if (exit && !ends_) return on_exit();
      }
    });
  }
  ~Signals() {
    ends_ = true;
    wake();
    thread_.join();
    for (std::size_t i = 0; i < kSignals.size(); ++i)
      ::sigaction(kSignals[i], &before_[i], nullptr);
  }
  Signals(const Signals&) = delete;
  Signals& operator=(const Signals&) = delete;

 private:
  static constexpr std::array kSignals{SIGTERM, SIGINT, SIGHUP};
  static void wake() {
    const std::uint64_t one = 1;
    [[maybe_unused]] const ssize_t written = ::write(wake_fd, &one, sizeof one);
  }

  static inline std::atomic<int> wake_fd{-1};
  static inline std::atomic<bool> hangup{false}, exit{false};  // which signals have come
  UniqueFd wake_;
  std::atomic<bool> ends_{false};
  std::array<struct sigaction, kSignals.size()> before_{};
  std::thread thread_;
};

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

// libfuse's session: it decodes and encodes.
Result<void> Session::make_session() {
  fuse_set_log_func(forward_log);
  {
    MutexLock lock(mutex_);
    passthrough_ = {false, settings_.passthrough
                               ? "the kernel has no FUSE passthrough (Linux 6.9 and later)"
                               : "turned off by debug option passthrough"};
  }
  // suid,dev: as on any filesystem that root mounts; libfuse's default forbids both. The user's
  // options come last and win.
  std::string options = "default_permissions,allow_other,suid,dev,subtype=sluice,fsname=" +
                        option_value(settings_.name);
  if (!settings_.options.empty()) options += "," + settings_.options;
  std::vector<std::string> words{"sluice", "-o", options};
  std::vector<char*> argv;
  for (std::string& word : words) argv.push_back(word.data());
  fuse_args args = FUSE_ARGS_INIT(static_cast<int>(argv.size()), argv.data());
  session_ = fuse_session_new(&args, &fuse_operations(), sizeof(fuse_lowlevel_ops), this);
  fuse_opt_free_args(&args);
  if (session_ == nullptr) {
    return Error{EINVAL, "mount", "the mount options are not understood: -o " + settings_.options};
  }
  return {};
}

// Mounts, or gets the /dev/fuse of an existing mount if `where` is /dev/fd/N. libfuse then writes
// replies there.
Result<void> Session::attach(const std::string& where) {
  if (fuse_session_mount(session_, where.c_str()) != 0) {
    const int code = errno;
    return Error{code, "mount",
                 "can't mount on " + settings_.mountpoint + ": " + std::strerror(code) +
                     "; is /dev/fuse there?"};
  }
  loop_ = std::make_unique<DeviceLoop>(device(), kLargestRequest,
                                       [this](std::span<std::byte> request) { take(request); });
  return {};
}

Result<std::unique_ptr<Session>> Session::mount(const Settings& settings, Handover& handover) {
  auto session = std::unique_ptr<Session>(new Session(settings, handover));
  SLUICE_TRY(session->make_session());
  SLUICE_TRY(session->attach(settings.mountpoint));
  session->unmounts_ = true;
  return session;
}

Result<std::unique_ptr<Session>> Session::take_over(const Settings& settings, Handover& handover,
                                                    UniqueFd device) {
  auto session = std::unique_ptr<Session>(new Session(settings, handover));
  SLUICE_TRY(session->make_session());
  SLUICE_TRY(session->attach("/dev/fd/" + std::to_string(device.release())));
  return session;
}

bool Session::kernel_resends() {
  utsname name{};
  int major = 0, minor = 0;
  return ::uname(&name) == 0 && std::sscanf(name.release, "%d.%d", &major, &minor) == 2 &&
         std::pair(major, minor) >= std::pair(6, 9);
}

int Session::device() const { return fuse_session_fd(session_); }

Session::~Session() {
  if (session_ == nullptr) return;
  notices_.reset();
  if (unmounts_) ::umount2(settings_.mountpoint.c_str(), MNT_DETACH);
  fuse_session_destroy(session_);
}

// Brings libfuse to the state that INIT left in the predecessor, restores what was open, and asks
// the kernel for the requests that the predecessor did not answer.
void Session::inherit() {
  // The kernel ignores the second reply to INIT. Empty: the predecessor died before the first.
  std::vector<std::byte> init = handover_.init();
  if (!init.empty()) take(init);
  const bool names_are_right = filesystem_->inherit();
  open_handles_.inherit([this](const OpenHandles::Open& open) {
    if (open.is_directory) return;
    const CurrentCaller opener(open.by_root ? Caller{} : Caller{.uid = kNobody, .gid = kNobody});
    filesystem_->files().inherit(open.inode, open.flags, open.backing_id, open.direct);
  });
  fuse_out_header resend{};
  resend.len = sizeof resend;
  resend.error = kNotifyResend;
  if (::write(device(), &resend, sizeof resend) < 0)
    log::get().error("requests of the last daemon are lost: why={}", std::strerror(errno));
  // Only if it must be: dropping a directory's name unmounts what is mounted there, and while the
  // kernel looks it up again, getcwd(2) fails there.
  if (!names_are_right) drop_all_names();
}

namespace {

// Whether the daemon may write for itself in answer to such a request. Those that it does not write
// for come between the writes of a user.
bool may_take_room(std::uint32_t opcode) {
  return opcode != FUSE_WRITE && opcode != FUSE_GETXATTR && opcode != FUSE_GETATTR &&
         opcode != FUSE_READ;
}

}  // namespace

void Session::take(std::span<std::byte> request) {
  fuse_in_header header;
  std::memcpy(&header, request.data(), sizeof header);
  if (header.opcode == FUSE_INIT) handover_.set_init(request);
  // The two kinds of rename count as one.
  const std::uint32_t kind = header.opcode == FUSE_RENAME ? +FUSE_RENAME2 : header.opcode;
  const RequestTimer timer(times_, kind);
  const std::uint64_t unique = header.unique & ~kUniqueResend;
  const bool repeated = header.unique != unique;
  if (repeated && handover_.count_crashes(unique, header.opcode) >= kMostCrashes)
    return refuse(header);
  if (may_take_room(header.opcode)) end_user_room();  // of the user who wrote before
  const CurrentCaller caller(
      {.uid = header.uid, .gid = header.gid, .pid = static_cast<pid_t>(header.pid)});
  const NotedRequest noted(handover_, unique, header.opcode, repeated);
  fuse_buf buffer{};
  buffer.size = request.size();
  buffer.mem = request.data();
  fuse_session_process_buf(session_, &buffer);
}

// Answers a request that has crashed two daemons, so that it does not crash a third one.
void Session::refuse(const fuse_in_header& header) {
  const NotedRequest noted(handover_, header.unique & ~kUniqueResend, header.opcode, true);
  const fuse_out_header reply{sizeof reply, -EIO, header.unique};
  [[maybe_unused]] const ssize_t written = ::write(device(), &reply, sizeof reply);
  log::get().error(
      "a request has crashed the daemon {} times and is answered with EIO; please report it with "
      "'sluice bundle': request={} inode={} user={} process={}",
      kMostCrashes, request_name(header.opcode), header.nodeid, header.uid, header.pid);
  // Nobody will close what a daemon opened for it before it crashed.
  const auto open = open_handles_.of_request(NotedRequest::of_thread());
  if (!open) return;
  open_handles_.remove(open->first);
  if (!open->second.is_directory)
    filesystem_->files().release(open->second.inode, open->second.flags);
}

void Session::serve(Filesystem& filesystem, GpuService& gpu) {
  filesystem_ = &filesystem;
  gpu_ = &gpu;
  slow_requests_ = std::make_unique<SlowRequests>();
  transfers_ = std::make_unique<SlowRequests>(kTransferThreads);
  notices_ = std::make_unique<KernelNotices>(device());
  if (!handover_.is_inherited()) return;
  inherit();
  if (const std::int64_t stopped = handover_.predecessor_stopped(); stopped != 0) {
    const auto now = std::chrono::steady_clock::now().time_since_epoch();
    handover_pause_ = std::chrono::duration_cast<std::chrono::milliseconds>(
        now - std::chrono::nanoseconds(stopped));
  }
}

void Session::block_hangup() { set_hangup(SIG_BLOCK); }

Session::End Session::run() {
  SLUICE_CHECK(filesystem_ != nullptr, "Session::serve() comes before run()");
  const Signals signals([this] { loop_->stop(); }, hangup);
  handover_.note_crashes();
  const bool ok = loop_->run();
  unmounts_ = !hands_over_;
  filesystem_->budgets().stop_waiting();
  filesystem_->budget_forecast().stop();
  transfers_.reset();  // no request is answered any more
  slow_requests_.reset();
  if (hands_over_) return End::HandedOver;
  return ok ? End::Unmounted : End::Failed;
}

void Session::hand_over() {
  hands_over_ = true;
  handover_.set_stopped();
  loop_->stop();
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
  // Readahead, asynchronous direct I/O and the writeback of mappings share these. Writes that wait
  // for a budget may be among them: see Budgets::when_room().
  connection.max_background = kMostBackground;
  // No request is ever interrupted, and libfuse then needs no list of all requests.
  connection.no_interrupt = 1;
  MutexLock lock(mutex_);
  // Also without passthrough, because backing files keep open files without names in existence.
  const bool can_pass = want(FUSE_CAP_PASSTHROUGH);
  // Tiers are plain filesystems, and other filesystems (overlayfs) may be stacked on ours.
  if (can_pass) connection.max_backing_stack_depth = FUSE_BACKING_STACKED_UNDER;
  if (can_pass && settings_.passthrough) {
    passthrough_ = {true, ""};
  } else {
    filesystem_->files().serve_everything();
  }
  log::get().info("{}: mountpoint={} protocol={}.{} passthrough={}",
                  handover_.is_inherited() ? "took over the mount" : "mounted",
                  settings_.mountpoint, connection.proto_major, connection.proto_minor,
                  passthrough_.on);
}

Feature Session::passthrough() const {
  MutexLock lock(mutex_);
  return passthrough_;
}

std::vector<std::pair<std::string, std::uint64_t>> Session::request_counts() const {
  std::vector<std::pair<std::string, std::uint64_t>> out;
  for (std::size_t i = 0; i < counts_.size(); ++i) {
    const std::uint64_t n = counts_[i].load(std::memory_order_relaxed);
    if (n > 0) out.emplace_back(request_name(i), n);
  }
  return out;
}

std::vector<std::pair<std::string, RequestTimes::Times>> Session::request_times() const {
  std::vector<std::pair<std::string, RequestTimes::Times>> out;
  for (std::size_t i = 0; i < RequestTimes::kKinds; ++i) {
    const RequestTimes::Times times = times_.of(i);
    if (times.sum.count() > 0) out.emplace_back(request_name(i), times);
  }
  return out;
}

std::uint64_t Session::user_requests() const {
  std::uint64_t out = 0;
  for (std::size_t i = 0; i < counts_.size(); ++i) {
    const bool tidies = i == FUSE_FORGET || i == FUSE_BATCH_FORGET || i == FUSE_INTERRUPT ||
                        i == FUSE_RELEASE || i == FUSE_RELEASEDIR || i == FUSE_STATFS;
    if (!tidies) out += counts_[i].load(std::memory_order_relaxed);
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
    log::get().warn("passthrough failed for a file, the daemon serves it: why={}",
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

// To drop them, the kernel waits for requests to end.
constexpr const char* kDropsAlone = "a thread that drops names or pages answers no request";

bool Session::drop_all_names() {
  SLUICE_CHECK(!NotedRequest::is_answering(), kDropsAlone);
  // Linux 6.16 and later.
  return fuse_lowlevel_notify_increment_epoch(session_) == 0;
}

void Session::drop_name(InodeId parent, const std::string& name) {
  SLUICE_CHECK(!NotedRequest::is_answering(), kDropsAlone);
  notices_->send([&] {
    fuse_lowlevel_notify_inval_entry(session_, to_number(parent), name.data(), name.size());
  });
}

void Session::drop_pages(InodeId id) {
  SLUICE_CHECK(!NotedRequest::is_answering(), kDropsAlone);
  // The kernel caches a directory's listing in its pages.
  notices_->send([&] { fuse_lowlevel_notify_inval_inode(session_, to_number(id), 0, 0); });
}

}  // namespace sluice
