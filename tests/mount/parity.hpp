// SPDX-License-Identifier: BSD-2-Clause
// Parity tests do the same work in a directory of the mount and in a native directory, and expect
// the same results, the same errnos and the same tree afterwards.
//
// SLUICE_TEST_MOUNT=DIR uses DIR instead of a mount: a bind mount, another filesystem or a plain
// directory. Threads: caller locks.
#pragma once

#include <gtest/gtest.h>
#include <sys/stat.h>

#include <functional>
#include <initializer_list>
#include <ostream>
#include <string>
#include <string_view>

#include "base/unique_fd.hpp"
#include "tests/support/mount.hpp"
#include "tests/support/tree.hpp"
#include "tests/support/user.hpp"

namespace sluice::test {

// One of the two directories and a transcript of the calls made there. Every wrapper takes names
// relative to the directory and writes one line: the call and its result or errno.
class Side {
 public:
  explicit Side(std::string directory) : directory_(std::move(directory)) {}

  const std::string& directory() const { return directory_; }
  std::string operator/(std::string_view name) const;
  const std::string& transcript() const { return transcript_; }

  void note(std::string_view what, const std::string& value);
  void note(std::string_view what, long value) { note(what, std::to_string(value)); }
  // Records `result`, or the errno if it is negative, and returns it. Calls whose results differ
  // but whose success can be compared (open) use done().
  long call(std::string_view what, long result);
  bool done(std::string_view what, long result);

  UniqueFd open(std::string_view name, int flags, mode_t mode = 0644);
  void mkdir(std::string_view name, mode_t mode = 0755);
  void rmdir(std::string_view name);
  void unlink(std::string_view name);
  void rename(std::string_view from, std::string_view to, unsigned flags = 0);
  void link(std::string_view from, std::string_view to);
  void symlink(const std::string& target, std::string_view name);
  void readlink(std::string_view name);
  void mknod(std::string_view name, mode_t mode, dev_t device = 0);
  void chmod(std::string_view name, mode_t mode);
  void chown(std::string_view name, uid_t uid, gid_t gid);
  void truncate(std::string_view name, off_t size);
  void access(std::string_view name, int mode);
  void set_xattr(std::string_view name, const char* key, std::string_view value, int flags = 0);
  void get_xattr(std::string_view name, const char* key);
  void remove_xattr(std::string_view name, const char* key);
  void list_xattrs(std::string_view name);

  void write(std::string_view name, std::string_view content);  // creates or replaces
  void read(std::string_view name);                             // records the content
  void list(std::string_view name);                             // records the sorted names
  void look(std::string_view name);  // records lstat, without inode, device and times
  void look(std::string_view what, const struct stat& st);

  // Runs `work` and records which of mtime and ctime it changed, for each name ("." is the
  // directory itself).
  void moves_times(std::string_view what, std::initializer_list<std::string_view> names,
                   const std::function<void()>& work);

  // Runs `work` in a child process of `user`.
  void as(const User& user, const std::function<void(Side&)>& work);

 private:
  std::string directory_;
  std::string transcript_;
};

// How the mount under test serves data.
enum class Mode { Default, PassthroughAlways, DaemonServed };

class ParityTest : public testing::Test {
 protected:
  void SetUp() override;

  // Runs `work` natively and on the mount in fresh directories (mode 0777) and expects no
  // difference.
  void same(const std::function<void(Side&)>& work, DigestOptions options = {});

  // The running mount; null if SLUICE_TEST_MOUNT is set.
  Mount* mount() const;

  virtual Mode mode() const { return Mode::Default; }
};

// For tests that depend on how data is served: each runs in every mode.
class DataParityTest : public ParityTest, public testing::WithParamInterface<Mode> {
 protected:
  Mode mode() const override { return GetParam(); }
};

std::string mode_name(const testing::TestParamInfo<Mode>& info);
void PrintTo(Mode mode, std::ostream* out);  // gtest's name for it

#define SLUICE_IN_EVERY_MODE(suite)                                                         \
  INSTANTIATE_TEST_SUITE_P(                                                                 \
      , suite, testing::Values(Mode::Default, Mode::PassthroughAlways, Mode::DaemonServed), \
      mode_name)

}  // namespace sluice::test
