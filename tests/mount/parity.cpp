// SPDX-License-Identifier: BSD-2-Clause
#include "tests/mount/parity.hpp"

#include <fcntl.h>
#include <sys/xattr.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <map>
#include <memory>
#include <sstream>
#include <vector>

#include "tests/support/files.hpp"
#include "tests/support/requirement.hpp"
#include "tests/support/temp_dir.hpp"
#include "tests/support/wait.hpp"

namespace sluice::test {
namespace {

constexpr const char* kLabel = "mount";

const char* stand_in() { return std::getenv("SLUICE_TEST_MOUNT"); }

std::vector<std::string> flags_of(Mode mode) {
  switch (mode) {
    case Mode::Default:
      return {};
    case Mode::PassthroughAlways:
      return {"--small-file", "0"};
    case Mode::DaemonServed:
      return {"--debug=passthrough=off"};
  }
  return {};
}

// The mount of a mode, its tiers, and the native directory on the same filesystem.
struct Stage {
  explicit Stage(Mode mode) {
    native = base.make_dir("native");
    if (stand_in()) {
      mounted = stand_in();
      return;
    }
    Pool pool{{}, base.make_dir("state"), base / "mnt", flags_of(mode)};
    for (const char* tier : {"nvme", "ssd", "hdd"}) {
      pool.tiers.push_back(std::string(tier) + "=" + base.make_dir(tier));
    }
    mount = std::make_unique<Mount>(pool);
    mounted = mount->path();
  }

  TempDir base;
  std::string native;
  std::string mounted;
  std::unique_ptr<Mount> mount;
};

// Mounting takes longer than most tests, so each mode has one mount for the whole binary, made on
// first use.
class Stages : public testing::Environment {
 public:
  Stage& at(Mode mode) {
    std::unique_ptr<Stage>& stage = stages_[mode];
    if (!stage) stage = std::make_unique<Stage>(mode);
    return *stage;
  }
  void TearDown() override { stages_.clear(); }

 private:
  std::map<Mode, std::unique_ptr<Stage>> stages_;
};

// gtest owns and deletes it.
Stages* const stages = static_cast<Stages*>(testing::AddGlobalTestEnvironment(new Stages));

std::string without(std::string text, const std::string& directory) {
  for (std::size_t at; (at = text.find(directory)) != std::string::npos;) {
    text.replace(at, directory.size(), "DIR");
  }
  return text;
}

std::string shown(std::string_view bytes) {
  constexpr std::size_t kMost = 80;
  std::string out;
  for (const unsigned char c : bytes.substr(0, kMost)) {
    char escaped[8];
    std::snprintf(escaped, sizeof escaped, c < 0x20 || c > 0x7e ? "\\x%02x" : "%c", c);
    out += escaped;
  }
  if (bytes.size() > kMost) {
    std::uint64_t hash = 0;
    for (const unsigned char c : bytes) hash = hash * 0x100000001b3u + c;
    out += "... " + std::to_string(bytes.size()) + " bytes, hash " + std::to_string(hash);
  }
  return out;
}

std::string label(const char* call, std::string_view name) {
  return std::string(call) + " " + shown(name);
}

std::string difference_of_lines(const std::string& native, const std::string& mounted) {
  std::istringstream a(native), b(mounted);
  std::string out, left, right, last;
  for (;;) {
    const bool more_left = static_cast<bool>(std::getline(a, left));
    const bool more_right = static_cast<bool>(std::getline(b, right));
    if (!more_left && !more_right) return out;
    if (!more_left) left = "(nothing)";
    if (!more_right) right = "(nothing)";
    if (left != right) {
      out += "  after:  " + last + "\n  native: " + left + "\n  mount:  " + right + "\n";
    }
    last = left;
  }
}

bool later(const timespec& a, const timespec& b) {
  return a.tv_sec != b.tv_sec ? a.tv_sec > b.tv_sec : a.tv_nsec > b.tv_nsec;
}

}  // namespace

std::string Side::operator/(std::string_view name) const {
  return directory_ + "/" + std::string(name);
}

void Side::note(std::string_view what, const std::string& value) {
  transcript_ += std::string(what) + " = " + value + "\n";
}

long Side::call(std::string_view what, long result) {
  const int code = errno;
  note(what, result < 0 ? errno_name(code) : std::to_string(result));
  return result;
}

bool Side::done(std::string_view what, long result) {
  const int code = errno;
  note(what, result < 0 ? errno_name(code) : "ok");
  return result >= 0;
}

UniqueFd Side::open(std::string_view name, int flags, mode_t mode) {
  UniqueFd fd(::open((*this / name).c_str(), flags | O_CLOEXEC, mode));
  char text[32];
  std::snprintf(text, sizeof text, " flags %#o", static_cast<unsigned>(flags));
  done(label("open", name) + text, fd.get());
  return fd;
}

void Side::mkdir(std::string_view name, mode_t mode) {
  done(label("mkdir", name), ::mkdir((*this / name).c_str(), mode));
}

void Side::rmdir(std::string_view name) {
  done(label("rmdir", name), ::rmdir((*this / name).c_str()));
}

void Side::unlink(std::string_view name) {
  done(label("unlink", name), ::unlink((*this / name).c_str()));
}

void Side::rename(std::string_view from, std::string_view to, unsigned flags) {
  const int result =
      ::renameat2(AT_FDCWD, (*this / from).c_str(), AT_FDCWD, (*this / to).c_str(), flags);
  done(label("rename", from) + " -> " + shown(to) + " flags " + std::to_string(flags), result);
}

void Side::link(std::string_view from, std::string_view to) {
  done(label("link", from) + " -> " + shown(to),
       ::link((*this / from).c_str(), (*this / to).c_str()));
}

void Side::symlink(const std::string& target, std::string_view name) {
  done(label("symlink", name), ::symlink(target.c_str(), (*this / name).c_str()));
}

void Side::readlink(std::string_view name) {
  std::string target(5000, '\0');
  const ssize_t size = ::readlink((*this / name).c_str(), target.data(), target.size());
  const int code = errno;
  note(label("readlink", name),
       size < 0 ? errno_name(code) : shown({target.data(), static_cast<std::size_t>(size)}));
}

void Side::mknod(std::string_view name, mode_t mode, dev_t device) {
  done(label("mknod", name), ::mknod((*this / name).c_str(), mode, device));
}

void Side::chmod(std::string_view name, mode_t mode) {
  done(label("chmod", name), ::chmod((*this / name).c_str(), mode));
}

void Side::chown(std::string_view name, uid_t uid, gid_t gid) {
  done(label("chown", name), ::lchown((*this / name).c_str(), uid, gid));
}

void Side::truncate(std::string_view name, off_t size) {
  done(label("truncate", name) + " to " + std::to_string(size),
       ::truncate((*this / name).c_str(), size));
}

void Side::access(std::string_view name, int mode) {
  done(label("access", name) + " " + std::to_string(mode), ::access((*this / name).c_str(), mode));
}

void Side::set_xattr(std::string_view name, const char* key, std::string_view value, int flags) {
  done(label("setxattr", name) + " " + key,
       ::lsetxattr((*this / name).c_str(), key, value.data(), value.size(), flags));
}

void Side::get_xattr(std::string_view name, const char* key) {
  std::string value(65536, '\0');
  const ssize_t size = ::lgetxattr((*this / name).c_str(), key, value.data(), value.size());
  const int code = errno;
  note(label("getxattr", name) + " " + key,
       size < 0 ? errno_name(code) : shown({value.data(), static_cast<std::size_t>(size)}));
}

void Side::remove_xattr(std::string_view name, const char* key) {
  done(label("removexattr", name) + " " + key, ::lremovexattr((*this / name).c_str(), key));
}

void Side::list_xattrs(std::string_view name) {
  std::string list(65536, '\0');
  const ssize_t size = ::llistxattr((*this / name).c_str(), list.data(), list.size());
  if (size < 0) {
    call(label("listxattr", name), size);
    return;
  }
  std::vector<std::string> keys;
  for (const char* key = list.data(); key < list.data() + size; key += keys.back().size() + 1) {
    keys.emplace_back(key);
  }
  std::ranges::sort(keys);
  std::string text;
  for (const std::string& key : keys) text += key + " ";
  note(label("listxattr", name), text);
}

void Side::write(std::string_view name, std::string_view content) {
  const UniqueFd fd = open(name, O_WRONLY | O_CREAT | O_TRUNC);
  if (fd) call(label("write", name), ::write(fd.get(), content.data(), content.size()));
}

void Side::read(std::string_view name) {
  try {
    note(label("content of", name), shown(read_file(*this / name)));
  } catch (const std::exception& error) {
    note(label("content of", name), without(error.what(), directory_));
  }
}

void Side::list(std::string_view name) {
  std::string text;
  try {
    for (const std::string& entry : names_in(*this / name)) text += entry + "\n";
  } catch (const std::exception& error) {
    text = without(error.what(), directory_);
  }
  note(label("names in", name), shown(text));
}

void Side::look(std::string_view name) {
  struct stat st {};
  if (done(label("lstat", name), ::lstat((*this / name).c_str(), &st))) look(name, st);
}

void Side::look(std::string_view what, const struct stat& st) {
  char text[160];
  std::snprintf(text, sizeof text, "mode %o nlink %lu uid %u gid %u size %ld rdev %lx", st.st_mode,
                static_cast<unsigned long>(st.st_nlink), st.st_uid, st.st_gid,
                S_ISDIR(st.st_mode) ? 0L : static_cast<long>(st.st_size),
                static_cast<unsigned long>(st.st_rdev));
  note(label("stat of", what), text);
}

void Side::moves_times(std::string_view what, std::initializer_list<std::string_view> names,
                       const std::function<void()>& work) {
  std::map<std::string_view, struct stat> before;
  timespec newest{};
  for (const std::string_view name : names) {
    const struct stat st = lstat_of(*this / name);
    before[name] = st;
    for (const timespec& time : {st.st_mtim, st.st_ctim}) {
      if (later(time, newest)) newest = time;
    }
  }
  // File times come from the coarse clock: wait for its next tick.
  eventually([&] {
    timespec now{};
    ::clock_gettime(CLOCK_REALTIME_COARSE, &now);
    return later(now, newest);
  });
  work();
  for (const auto& [name, st] : before) {
    struct stat after {};
    if (::lstat((*this / name).c_str(), &after) < 0) continue;
    const std::string moved = std::string(later(after.st_mtim, st.st_mtim) ? "mtime " : "") +
                              (later(after.st_ctim, st.st_ctim) ? "ctime" : "");
    note(std::string(what) + " moves of " + std::string(name), moved);
  }
}

void Side::as(const User& user, const std::function<void(Side&)>& work) {
  transcript_ += "as uid " + std::to_string(user.uid) + ":\n" + as_user(user, [&] {
                   Side child(directory_);
                   work(child);
                   return child.transcript();
                 });
}

void ParityTest::SetUp() {
  if (!require(kLabel, ::geteuid() == 0, "needs root")) return;
  if (!stand_in() && !require_mounts(kLabel)) return;
  ::umask(022);
}

Mount* ParityTest::mount() const { return stages->at(mode()).mount.get(); }

void ParityTest::same(const std::function<void(Side&)>& work, DigestOptions options) {
  const Stage& stage = stages->at(mode());
  const auto perform = [&](const std::string& root) {
    Side side(root + "/case");
    remove_tree(side.directory());
    if (::mkdir(side.directory().c_str(), 0777) < 0) {
      ADD_FAILURE() << "mkdir " << side.directory() << ": " << errno_name(errno);
    }
    ::chmod(side.directory().c_str(), 0777);
    try {
      work(side);
    } catch (const std::exception& error) {
      side.note("threw", without(error.what(), side.directory()));
    }
    return side;
  };
  const Side native = perform(stage.native);
  const Side mounted = perform(stage.mounted);

  const std::string calls = difference_of_lines(native.transcript(), mounted.transcript());
  EXPECT_TRUE(calls.empty()) << "the calls differ:\n" << calls;
  const std::string trees =
      difference(digest(native.directory(), options), digest(mounted.directory(), options));
  EXPECT_TRUE(trees.empty()) << "the trees differ (expected is native):\n" << trees;
  remove_tree(native.directory());
  remove_tree(mounted.directory());
  EXPECT_FALSE(exists(mounted.directory())) << "what the case made can't be removed again";
}

std::string mode_name(const testing::TestParamInfo<Mode>& info) {
  return testing::PrintToString(info.param);
}

void PrintTo(Mode mode, std::ostream* out) {
  switch (mode) {
    case Mode::Default:
      *out << "Default";
      break;
    case Mode::PassthroughAlways:
      *out << "PassthroughAlways";
      break;
    case Mode::DaemonServed:
      *out << "DaemonServed";
  }
}

}  // namespace sluice::test
