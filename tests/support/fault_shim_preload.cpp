// SPDX-License-Identifier: BSD-2-Clause
// The part of FaultShim that is preloaded into the daemon. It interposes libc's file calls, counts
// those that match and affects the chosen one.
//
// I/O that the kernel does by itself (passthrough) does not pass here. It is built
// without sanitizers, because it must run before they do. Each function is defined under a
// different name and given libc's name as its symbol, because libc's headers declare some with
// other attributes.
#include <dlfcn.h>
#include <fcntl.h>
#include <limits.h>
#include <linux/fs.h>
#include <signal.h>
#include <stdarg.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "tests/support/fault_control.hpp"

namespace {

using sluice::test::CallKind;
using sluice::test::FaultAction;
using sluice::test::FaultControl;

constexpr int kBlockMilliseconds = 60'000;  // a test that died must not leave a blocked daemon

FaultControl* control = nullptr;

__attribute__((constructor)) void map_control() {
  const char* path = std::getenv(FaultControl::kVariable);
  if (path == nullptr) return;
  const auto fd = static_cast<int>(::syscall(SYS_openat, AT_FDCWD, path, O_RDWR | O_CLOEXEC));
  if (fd < 0) std::abort();
  void* memory = ::mmap(nullptr, sizeof(FaultControl), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  ::close(fd);
  if (memory == MAP_FAILED) std::abort();
  control = static_cast<FaultControl*>(memory);
}

// The file of a call: a descriptor, or a name relative to one.
struct Place {
  int fd = AT_FDCWD;
  const char* name = nullptr;
};

// Writes the absolute path of `place` to `out`. Returns false if it is unknown.
bool write_path(const Place& place, char (&out)[PATH_MAX]) {
  out[0] = '\0';
  const bool absolute = place.name != nullptr && place.name[0] == '/';
  std::size_t length = 0;
  if (!absolute) {
    char link[64];
    std::snprintf(link, sizeof link, "/proc/self/fd/%d", place.fd);
    const ssize_t got =
        ::readlink(place.fd == AT_FDCWD ? "/proc/self/cwd" : link, out, sizeof out - 1);
    if (got < 0) return false;
    length = static_cast<std::size_t>(got);
    out[length] = '\0';
  }
  if (place.name == nullptr || place.name[0] == '\0') return true;
  std::snprintf(out + length, sizeof out - length, "%s%s", absolute ? "" : "/", place.name);
  return true;
}

bool lies_below(const Place& place, const char* directory) {
  char path[PATH_MAX];
  if (!write_path(place, path)) return false;
  const std::size_t length = std::strlen(directory);
  return std::strncmp(path, directory, length) == 0 &&
         (path[length] == '/' || path[length] == '\0');
}

bool matches(CallKind kind, const Place& place, const Place& other) {
  if ((control->kinds & static_cast<std::uint32_t>(kind)) == 0) return false;
  if (control->thread[0] != '\0') {
    char name[16] = "";
    ::prctl(PR_GET_NAME, name);
    if (std::strncmp(name, control->thread, std::strlen(control->thread)) != 0) return false;
  }
  return control->path[0] == '\0' || lies_below(place, control->path) ||
         ((other.fd != AT_FDCWD || other.name != nullptr) && lies_below(other, control->path));
}

[[noreturn]] void die() {
  ::kill(::getpid(), SIGKILL);
  for (;;) ::pause();
}

void block(std::uint64_t at) {
  ++control->blocked;
  for (int waited = 0; control->at == at && waited < kBlockMilliseconds; ++waited) ::usleep(1000);
  --control->blocked;
}

enum class Verdict { Go, Fail, Skip, DieAfter };

// Counts a call and takes the action that comes before it.
Verdict judge(const char* call, CallKind kind, const Place& place, const Place& other) {
  if (control == nullptr) return Verdict::Go;
  const int saved = errno;
  if (!matches(kind, place, other)) {
    errno = saved;
    return Verdict::Go;
  }
  const std::uint64_t number = ++control->calls;
  const std::uint64_t at = control->at;
  errno = saved;
  if (at == 0 || (control->for_good ? number < at : number != at)) return Verdict::Go;
  if (++control->faults == 1) {
    char path[PATH_MAX];
    write_path(place, path);
    std::snprintf(control->where, sizeof control->where, "%.40s of %.1200s", call, path);
  }
  errno = saved;
  switch (control->action) {
    case FaultAction::KillBefore:
      die();
    case FaultAction::KillAfter:
      return Verdict::DieAfter;
    case FaultAction::Crash:
      ::prctl(PR_SET_DUMPABLE, 0);  // no core
      std::abort();
    case FaultAction::Block:
      block(at);
      errno = saved;
      return Verdict::Go;
    case FaultAction::Skip:
      return Verdict::Skip;
    case FaultAction::Fail:
      break;
  }
  errno = control->error;
  return Verdict::Fail;
}

// The next definition: libc's, or that of a sanitizer between us and libc. A race at the first call
// stores the same value twice.
template <typename Function>
Function* resolve(Function*& cached, const char* symbol) {
  if (cached == nullptr) cached = reinterpret_cast<Function*>(::dlsym(RTLD_NEXT, symbol));
  if (cached == nullptr) std::abort();
  return cached;
}

template <typename Call>
auto pass(const char* name, CallKind kind, const Place& place, const Place& other, Call call)
    -> decltype(call()) {
  const Verdict verdict = judge(name, kind, place, other);
  if (verdict == Verdict::Fail) return -1;
  if (verdict == Verdict::Skip) return 0;
  const auto result = call();
  if (verdict == Verdict::DieAfter) die();
  return result;
}

CallKind kind_of_open(int flags) {
  const bool has_effect = (flags & (O_CREAT | O_TRUNC)) != 0 || (flags & O_TMPFILE) == O_TMPFILE;
  return has_effect ? CallKind::Create : CallKind::Open;
}

}  // namespace

// Interposes a function with fixed parameters. `place` and `other` are Place{...}.
#define SLUICE_INTERPOSE(symbol, kind, result, parameters, arguments, place, other) \
  extern "C" result shim_##symbol parameters asm(#symbol);                          \
  extern "C" result shim_##symbol parameters {                                      \
    static result(*real) parameters;                                                \
    resolve(real, #symbol);                                                         \
    return pass(#symbol, CallKind::kind, place, other,                              \
                [&]() -> result { return real arguments; });                        \
  }
#define SLUICE_ON(...) (Place{__VA_ARGS__})

SLUICE_INTERPOSE(read, Read, ssize_t, (int fd, void* data, size_t size), (fd, data, size),
                 SLUICE_ON(fd), SLUICE_ON())
SLUICE_INTERPOSE(pread, Read, ssize_t, (int fd, void* data, size_t size, off_t at),
                 (fd, data, size, at), SLUICE_ON(fd), SLUICE_ON())
SLUICE_INTERPOSE(pread64, Read, ssize_t, (int fd, void* data, size_t size, off_t at),
                 (fd, data, size, at), SLUICE_ON(fd), SLUICE_ON())
SLUICE_INTERPOSE(preadv, Read, ssize_t, (int fd, const iovec* data, int count, off_t at),
                 (fd, data, count, at), SLUICE_ON(fd), SLUICE_ON())
SLUICE_INTERPOSE(preadv64, Read, ssize_t, (int fd, const iovec* data, int count, off_t at),
                 (fd, data, count, at), SLUICE_ON(fd), SLUICE_ON())
SLUICE_INTERPOSE(preadv2, Read, ssize_t,
                 (int fd, const iovec* data, int count, off_t at, int flags),
                 (fd, data, count, at, flags), SLUICE_ON(fd), SLUICE_ON())
SLUICE_INTERPOSE(preadv64v2, Read, ssize_t,
                 (int fd, const iovec* data, int count, off_t at, int flags),
                 (fd, data, count, at, flags), SLUICE_ON(fd), SLUICE_ON())

SLUICE_INTERPOSE(write, Write, ssize_t, (int fd, const void* data, size_t size), (fd, data, size),
                 SLUICE_ON(fd), SLUICE_ON())
SLUICE_INTERPOSE(writev, Write, ssize_t, (int fd, const iovec* data, int count), (fd, data, count),
                 SLUICE_ON(fd), SLUICE_ON())
SLUICE_INTERPOSE(pwrite, Write, ssize_t, (int fd, const void* data, size_t size, off_t at),
                 (fd, data, size, at), SLUICE_ON(fd), SLUICE_ON())
SLUICE_INTERPOSE(pwrite64, Write, ssize_t, (int fd, const void* data, size_t size, off_t at),
                 (fd, data, size, at), SLUICE_ON(fd), SLUICE_ON())
SLUICE_INTERPOSE(pwritev, Write, ssize_t, (int fd, const iovec* data, int count, off_t at),
                 (fd, data, count, at), SLUICE_ON(fd), SLUICE_ON())
SLUICE_INTERPOSE(pwritev64, Write, ssize_t, (int fd, const iovec* data, int count, off_t at),
                 (fd, data, count, at), SLUICE_ON(fd), SLUICE_ON())
SLUICE_INTERPOSE(pwritev2, Write, ssize_t,
                 (int fd, const iovec* data, int count, off_t at, int flags),
                 (fd, data, count, at, flags), SLUICE_ON(fd), SLUICE_ON())
SLUICE_INTERPOSE(pwritev64v2, Write, ssize_t,
                 (int fd, const iovec* data, int count, off_t at, int flags),
                 (fd, data, count, at, flags), SLUICE_ON(fd), SLUICE_ON())
SLUICE_INTERPOSE(copy_file_range, Write, ssize_t,
                 (int from, off_t* from_at, int to, off_t* to_at, size_t size, unsigned flags),
                 (from, from_at, to, to_at, size, flags), SLUICE_ON(to), SLUICE_ON(from))
SLUICE_INTERPOSE(sendfile, Write, ssize_t, (int to, int from, off_t* at, size_t size),
                 (to, from, at, size), SLUICE_ON(to), SLUICE_ON(from))
SLUICE_INTERPOSE(sendfile64, Write, ssize_t, (int to, int from, off_t* at, size_t size),
                 (to, from, at, size), SLUICE_ON(to), SLUICE_ON(from))

SLUICE_INTERPOSE(ftruncate, Resize, int, (int fd, off_t size), (fd, size), SLUICE_ON(fd),
                 SLUICE_ON())
SLUICE_INTERPOSE(ftruncate64, Resize, int, (int fd, off_t size), (fd, size), SLUICE_ON(fd),
                 SLUICE_ON())
SLUICE_INTERPOSE(fallocate, Resize, int, (int fd, int mode, off_t at, off_t size),
                 (fd, mode, at, size), SLUICE_ON(fd), SLUICE_ON())
SLUICE_INTERPOSE(fallocate64, Resize, int, (int fd, int mode, off_t at, off_t size),
                 (fd, mode, at, size), SLUICE_ON(fd), SLUICE_ON())

SLUICE_INTERPOSE(fsync, Sync, int, (int fd), (fd), SLUICE_ON(fd), SLUICE_ON())
SLUICE_INTERPOSE(fdatasync, Sync, int, (int fd), (fd), SLUICE_ON(fd), SLUICE_ON())
SLUICE_INTERPOSE(syncfs, Sync, int, (int fd), (fd), SLUICE_ON(fd), SLUICE_ON())
SLUICE_INTERPOSE(sync_file_range, Sync, int, (int fd, off_t at, off_t size, unsigned flags),
                 (fd, at, size, flags), SLUICE_ON(fd), SLUICE_ON())

SLUICE_INTERPOSE(rename, Rename, int, (const char* from, const char* to), (from, to),
                 SLUICE_ON(AT_FDCWD, to), SLUICE_ON(AT_FDCWD, from))
SLUICE_INTERPOSE(renameat, Rename, int, (int from_fd, const char* from, int to_fd, const char* to),
                 (from_fd, from, to_fd, to), SLUICE_ON(to_fd, to), SLUICE_ON(from_fd, from))
SLUICE_INTERPOSE(renameat2, Rename, int,
                 (int from_fd, const char* from, int to_fd, const char* to, unsigned flags),
                 (from_fd, from, to_fd, to, flags), SLUICE_ON(to_fd, to), SLUICE_ON(from_fd, from))
SLUICE_INTERPOSE(linkat, Link, int,
                 (int from_fd, const char* from, int to_fd, const char* to, int flags),
                 (from_fd, from, to_fd, to, flags), SLUICE_ON(to_fd, to), SLUICE_ON(from_fd, from))
SLUICE_INTERPOSE(unlink, Unlink, int, (const char* name), (name), SLUICE_ON(AT_FDCWD, name),
                 SLUICE_ON())
SLUICE_INTERPOSE(unlinkat, Unlink, int, (int fd, const char* name, int flags), (fd, name, flags),
                 SLUICE_ON(fd, name), SLUICE_ON())
SLUICE_INTERPOSE(mkdir, Mkdir, int, (const char* name, mode_t mode), (name, mode),
                 SLUICE_ON(AT_FDCWD, name), SLUICE_ON())
SLUICE_INTERPOSE(mkdirat, Mkdir, int, (int fd, const char* name, mode_t mode), (fd, name, mode),
                 SLUICE_ON(fd, name), SLUICE_ON())

SLUICE_INTERPOSE(fchown, Attribute, int, (int fd, uid_t uid, gid_t gid), (fd, uid, gid),
                 SLUICE_ON(fd), SLUICE_ON())
SLUICE_INTERPOSE(fchownat, Attribute, int,
                 (int fd, const char* name, uid_t uid, gid_t gid, int flags),
                 (fd, name, uid, gid, flags), SLUICE_ON(fd, name), SLUICE_ON())
SLUICE_INTERPOSE(fchmod, Attribute, int, (int fd, mode_t mode), (fd, mode), SLUICE_ON(fd),
                 SLUICE_ON())
SLUICE_INTERPOSE(fchmodat, Attribute, int, (int fd, const char* name, mode_t mode, int flags),
                 (fd, name, mode, flags), SLUICE_ON(fd, name), SLUICE_ON())
SLUICE_INTERPOSE(futimens, Attribute, int, (int fd, const timespec* times), (fd, times),
                 SLUICE_ON(fd), SLUICE_ON())
SLUICE_INTERPOSE(utimensat, Attribute, int,
                 (int fd, const char* name, const timespec* times, int flags),
                 (fd, name, times, flags), SLUICE_ON(fd, name), SLUICE_ON())
SLUICE_INTERPOSE(fsetxattr, Attribute, int,
                 (int fd, const char* key, const void* value, size_t size, int flags),
                 (fd, key, value, size, flags), SLUICE_ON(fd), SLUICE_ON())
SLUICE_INTERPOSE(fremovexattr, Attribute, int, (int fd, const char* key), (fd, key), SLUICE_ON(fd),
                 SLUICE_ON())
SLUICE_INTERPOSE(setxattr, Attribute, int,
                 (const char* name, const char* key, const void* value, size_t size, int flags),
                 (name, key, value, size, flags), SLUICE_ON(AT_FDCWD, name), SLUICE_ON())

SLUICE_INTERPOSE(fgetxattr, Look, ssize_t, (int fd, const char* key, void* value, size_t size),
                 (fd, key, value, size), SLUICE_ON(fd), SLUICE_ON())
SLUICE_INTERPOSE(flistxattr, Look, ssize_t, (int fd, char* list, size_t size), (fd, list, size),
                 SLUICE_ON(fd), SLUICE_ON())
SLUICE_INTERPOSE(lseek, Look, off_t, (int fd, off_t at, int whence), (fd, at, whence),
                 SLUICE_ON(fd), SLUICE_ON())
SLUICE_INTERPOSE(lseek64, Look, off_t, (int fd, off_t at, int whence), (fd, at, whence),
                 SLUICE_ON(fd), SLUICE_ON())
SLUICE_INTERPOSE(fstat, Look, int, (int fd, struct stat* out), (fd, out), SLUICE_ON(fd),
                 SLUICE_ON())
SLUICE_INTERPOSE(fstat64, Look, int, (int fd, struct stat* out), (fd, out), SLUICE_ON(fd),
                 SLUICE_ON())
SLUICE_INTERPOSE(fstatat, Look, int, (int fd, const char* name, struct stat* out, int flags),
                 (fd, name, out, flags), SLUICE_ON(fd, name), SLUICE_ON())
SLUICE_INTERPOSE(fstatat64, Look, int, (int fd, const char* name, struct stat* out, int flags),
                 (fd, name, out, flags), SLUICE_ON(fd, name), SLUICE_ON())
SLUICE_INTERPOSE(statx, Look, int,
                 (int fd, const char* name, int flags, unsigned mask, struct statx* out),
                 (fd, name, flags, mask, out), SLUICE_ON(fd, name), SLUICE_ON())

SLUICE_INTERPOSE(name_to_handle_at, Handle, int,
                 (int fd, const char* name, file_handle* handle, int* mount, int flags),
                 (fd, name, handle, mount, flags), SLUICE_ON(fd, name), SLUICE_ON())
SLUICE_INTERPOSE(open_by_handle_at, Handle, int, (int fd, file_handle* handle, int flags),
                 (fd, handle, flags), SLUICE_ON(fd), SLUICE_ON())

// Interposes the opens, which are variadic with an optional mode. The mode is always passed on, as
// libc itself does.
#define SLUICE_INTERPOSE_OPEN(symbol)                                          \
  extern "C" int shim_##symbol(const char* name, int flags, ...) asm(#symbol); \
  extern "C" int shim_##symbol(const char* name, int flags, ...) {             \
    static int (*real)(const char*, int, ...);                                 \
    resolve(real, #symbol);                                                    \
    va_list list;                                                              \
    va_start(list, flags);                                                     \
    const mode_t mode = va_arg(list, mode_t);                                  \
    va_end(list);                                                              \
    return pass(#symbol, kind_of_open(flags), Place{AT_FDCWD, name}, Place{},  \
                [&] { return real(name, flags, mode); });                      \
  }
#define SLUICE_INTERPOSE_OPENAT(symbol)                                                \
  extern "C" int shim_##symbol(int fd, const char* name, int flags, ...) asm(#symbol); \
  extern "C" int shim_##symbol(int fd, const char* name, int flags, ...) {             \
    static int (*real)(int, const char*, int, ...);                                    \
    resolve(real, #symbol);                                                            \
    va_list list;                                                                      \
    va_start(list, flags);                                                             \
    const mode_t mode = va_arg(list, mode_t);                                          \
    va_end(list);                                                                      \
    return pass(#symbol, kind_of_open(flags), Place{fd, name}, Place{},                \
                [&] { return real(fd, name, flags, mode); });                          \
  }
SLUICE_INTERPOSE_OPEN(open)
SLUICE_INTERPOSE_OPEN(open64)
SLUICE_INTERPOSE_OPENAT(openat)
SLUICE_INTERPOSE_OPENAT(openat64)
SLUICE_INTERPOSE(creat, Create, int, (const char* name, mode_t mode), (name, mode),
                 SLUICE_ON(AT_FDCWD, name), SLUICE_ON())
SLUICE_INTERPOSE(creat64, Create, int, (const char* name, mode_t mode), (name, mode),
                 SLUICE_ON(AT_FDCWD, name), SLUICE_ON())

// Only leases are counted; other commands pass.
#define SLUICE_INTERPOSE_FCNTL(symbol)                                    \
  extern "C" int shim_##symbol(int fd, int command, ...) asm(#symbol);    \
  extern "C" int shim_##symbol(int fd, int command, ...) {                \
    static int (*real)(int, int, ...);                                    \
    resolve(real, #symbol);                                               \
    va_list list;                                                         \
    va_start(list, command);                                              \
    const long argument = va_arg(list, long);                             \
    va_end(list);                                                         \
    if (command != F_SETLEASE || static_cast<int>(argument) == F_UNLCK) { \
      return real(fd, command, argument);                                 \
    }                                                                     \
    return pass("fcntl(F_SETLEASE)", CallKind::Lease, Place{fd}, Place{}, \
                [&] { return real(fd, command, argument); });             \
  }
SLUICE_INTERPOSE_FCNTL(fcntl)
SLUICE_INTERPOSE_FCNTL(fcntl64)

// Only requests that copy data or attributes are counted; others pass.
extern "C" int shim_ioctl(int fd, unsigned long request, ...) asm("ioctl");
extern "C" int shim_ioctl(int fd, unsigned long request, ...) {
  static int (*real)(int, unsigned long, ...);
  resolve(real, "ioctl");
  va_list list;
  va_start(list, request);
  const long argument = va_arg(list, long);
  va_end(list);
  const auto call = [&] { return real(fd, request, argument); };
  switch (request) {
    case FICLONE:
    case FICLONERANGE:
      return pass("ioctl(FICLONE)", CallKind::Write, Place{fd}, Place{}, call);
    case FS_IOC_SETFLAGS:
    case FS_IOC_FSSETXATTR:
      return pass("ioctl(set flags)", CallKind::Attribute, Place{fd}, Place{}, call);
    case FS_IOC_GETFLAGS:
    case FS_IOC_FSGETXATTR:
      return pass("ioctl(get flags)", CallKind::Look, Place{fd}, Place{}, call);
    default:
      return call();
  }
}

// System calls without a wrapper. Those that are not file calls (futex, gettid) pass.
extern "C" long shim_syscall(long number, ...) asm("syscall");
extern "C" long shim_syscall(long number, ...) {
  static long (*real)(long, ...);
  resolve(real, "syscall");
  va_list list;
  va_start(list, number);
  long a[6];
  for (long& each : a) each = va_arg(list, long);
  va_end(list);
  const auto call = [&] { return real(number, a[0], a[1], a[2], a[3], a[4], a[5]); };
  const auto fd = [&](int i) { return static_cast<int>(a[i]); };
  const auto text = [&](int i) { return reinterpret_cast<const char*>(a[i]); };
  switch (number) {
    case SYS_openat2: {
      std::uint64_t flags = 0;  // the first field of struct open_how
      std::memcpy(&flags, text(2), sizeof flags);
      return pass("openat2", kind_of_open(static_cast<int>(flags)), Place{fd(0), text(1)}, Place{},
                  call);
    }
    case SYS_renameat2:
      return pass("renameat2", CallKind::Rename, Place{fd(2), text(3)}, Place{fd(0), text(1)},
                  call);
    case SYS_copy_file_range:
      return pass("copy_file_range", CallKind::Write, Place{fd(2)}, Place{fd(0)}, call);
    case SYS_linkat:
      return pass("linkat", CallKind::Link, Place{fd(2), text(3)}, Place{fd(0), text(1)}, call);
    case SYS_unlinkat:
      return pass("unlinkat", CallKind::Unlink, Place{fd(0), text(1)}, Place{}, call);
    case SYS_statx:
      return pass("statx", CallKind::Look, Place{fd(0), text(1)}, Place{}, call);
    case SYS_name_to_handle_at:
      return pass("name_to_handle_at", CallKind::Handle, Place{fd(0), text(1)}, Place{}, call);
    case SYS_open_by_handle_at:
      return pass("open_by_handle_at", CallKind::Handle, Place{fd(0)}, Place{}, call);
#ifdef SYS_fchmodat2
    case SYS_fchmodat2:
#else
    case 452:
#endif
      return pass("fchmodat2", CallKind::Attribute, Place{fd(0), text(1)}, Place{}, call);
    default:
      return call();
  }
}
