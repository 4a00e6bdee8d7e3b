// SPDX-License-Identifier: BSD-2-Clause
// The loads that use extended attributes and locks.
#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <sys/xattr.h>
#include <unistd.h>

#include <map>

#include "base/unique_fd.hpp"
#include "tests/fault/handover_loads.hpp"
#include "tests/support/files.hpp"

namespace sluice::test {
namespace {

void expect_code(long result, int expected, const std::string& what) {
  const int code = result < 0 ? errno : 0;
  Load::expect(code == expected,
               what + " = " + errno_name(code) + " instead of " + errno_name(expected));
}

}  // namespace

void change_xattrs(Load& load) {
  constexpr std::size_t kNames = 6;
  const std::string path = load.directory + "/file";
  write_file(path, "x");
  std::map<std::string, std::string> model;
  mode_t mode = 0644;
  while (load.next()) {
    const std::string name = "user.n" + std::to_string(load.below(kNames));
    const bool is_there = model.contains(name);
    switch (load.below(6)) {
      case 0:
      case 1: {
        constexpr int kFlags[] = {0, XATTR_CREATE, XATTR_REPLACE};
        const int flags = kFlags[load.below(3)];
        const std::string value = pattern(load.below(200), load.random());
        const int expected = flags == XATTR_CREATE && is_there     ? EEXIST
                             : flags == XATTR_REPLACE && !is_there ? ENODATA
                                                                   : 0;
        expect_code(::setxattr(path.c_str(), name.c_str(), value.data(), value.size(), flags),
                    expected, "setxattr " + name + ", flags " + std::to_string(flags));
        if (expected == 0) model[name] = value;
        break;
      }
      case 2:
        expect_code(::removexattr(path.c_str(), name.c_str()), is_there ? 0 : ENODATA,
                    "removexattr " + name);
        model.erase(name);
        break;
      case 3:
        mode = static_cast<mode_t>(load.below(0777) | 0600);
        Load::check(::chmod(path.c_str(), mode), "chmod");
        break;
      case 4:
        Load::expect((lstat_of(path).st_mode & 07777) == mode, "the mode is wrong");
        break;
      default: {
        const auto got = xattr_of(path, name);
        Load::expect(got.has_value() == is_there && (!is_there || *got == model[name]),
                     name + " is wrong");
      }
    }
  }
}

namespace {

// Whether another process can lock the file now, with flock(2) or fcntl(2).
void expect_locked(const std::string& path) {
  const pid_t child = ::fork();
  if (child == 0) {
    const UniqueFd fd(::open(path.c_str(), O_RDWR | O_CLOEXEC));
    if (!fd) ::_exit(errno);
    if (::flock(fd.get(), LOCK_EX | LOCK_NB) == 0) ::_exit(254);
    if (errno != EWOULDBLOCK) ::_exit(errno);
    struct flock range {};
    range.l_type = F_WRLCK;
    range.l_start = 10;
    range.l_len = 5;
    if (::fcntl(fd.get(), F_SETLK, &range) == 0) ::_exit(255);
    ::_exit(errno == EAGAIN || errno == EACCES ? 0 : errno);
  }
  int status = 0;
  ::waitpid(child, &status, 0);
  const int code = WEXITSTATUS(status);
  Load::expect(code != 254, path + ": its flock is lost");
  Load::expect(code != 255, path + ": its fcntl lock is lost");
  Load::expect(status == 0, "lock " + path + " = " + errno_name(code));
}

}  // namespace

void hold_locks(Load& load) {
  const std::string path = load.directory + "/locked";
  write_file(path, std::string(100, 'x'));
  while (load.next()) {
    const UniqueFd fd(::open(path.c_str(), O_RDWR | O_CLOEXEC));
    Load::check(fd.get(), "open " + path);
    Load::check(::flock(fd.get(), LOCK_EX), "flock " + path);
    struct flock range {};
    range.l_type = F_WRLCK;
    range.l_len = 50;
    Load::check(::fcntl(fd.get(), F_SETLKW, &range), "fcntl lock of " + path);
    for (int i = 0; i < 30 && load.next(); ++i) {
      expect_locked(path);
      ::usleep(10'000);
    }
  }
}

}  // namespace sluice::test
