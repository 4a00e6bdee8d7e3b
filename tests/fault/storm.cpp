// SPDX-License-Identifier: BSD-2-Clause
#include "tests/fault/storm.hpp"

#include <dirent.h>
#include <fcntl.h>
#include <linux/falloc.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/xattr.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdio>
#include <exception>
#include <iterator>
#include <random>
#include <thread>

#include "base/unique_fd.hpp"
#include "tests/support/files.hpp"

namespace sluice::test {
namespace {

std::uint64_t hash_of(const std::string& bytes) {
  std::uint64_t hash = 0xcbf29ce484222325u;
  for (const unsigned char byte : bytes) hash = (hash ^ byte) * 0x100000001b3u;
  return hash;
}

// One thread of the storm. It makes all its choices with its own generator, in the same order
// whatever the results are.
class Plan {
 public:
  Plan(const std::string& root, int thread, const StormOptions& options)
      : own_(root + "/own" + std::to_string(thread)),
        shared_(root + "/shared"),
        fight_(root + "/fight"),
        thread_(thread),
        options_(options),
        random_(options.seed * 1000 + static_cast<std::uint64_t>(thread)) {}

  std::vector<std::string> run() {
    for (int step = 0; step < options_.steps; ++step) {
      const Action action = kActions[random_() % std::size(kActions)];
      (this->*action)();
    }
    return std::move(log_);
  }

 private:
  using Action = void (Plan::*)();

  std::uint64_t below(std::uint64_t limit) { return random_() % limit; }

  // A random name that only this thread uses: in its directory, in one of the subdirectories there,
  // or in the shared directory.
  std::string any_path() {
    const std::uint64_t where = below(8);
    const std::string name = "n" + std::to_string(below(12));
    if (where < 4) return own_ + "/" + name;
    if (where < 7) return own_ + "/d" + std::to_string(below(4)) + "/" + name;
    return shared_ + "/t" + std::to_string(thread_) + "-" + name;
  }
  std::string any_directory() {
    return own_ + "/d" + std::to_string(below(4)) +
           (below(3) == 0 ? "/e" + std::to_string(below(2)) : "");
  }

  void record(const char* what, const std::string& path, long result) {
    const int code = errno;
    const std::size_t cut =
        path.find("/own") != std::string::npos ? path.find("/own") : path.find("/shared");
    log_.push_back(std::string(what) + " " + path.substr(cut) + " = " +
                   (result < 0 ? errno_name(code) : std::to_string(result)));
  }
  void outcome(const char* what, const std::string& path, long result) {
    record(what, path, result < 0 ? -1 : 0);
  }

  UniqueFd open(const char* what, const std::string& path, int flags) {
    UniqueFd fd(
        ::open(path.c_str(), flags | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK, 0600 + below(64)));
    outcome(what, path, fd.get());
    return fd;
  }

  std::string bytes() { return pattern(1 + below(48 << 10), random_()); }

  void create() { open("create", any_path(), O_CREAT | O_RDWR | (below(2) ? O_EXCL : 0)); }

  void write() {
    const std::string path = any_path();
    const UniqueFd fd = open("open for writing", path, O_WRONLY | O_CREAT);
    const off_t offset = static_cast<off_t>(below(200 << 10));
    const std::string data = bytes();
    if (fd) record("write", path, ::pwrite(fd.get(), data.data(), data.size(), offset));
  }

  void append() {
    const std::string path = any_path();
    const UniqueFd fd = open("open for appending", path, O_WRONLY | O_APPEND);
    const std::string data = bytes();
    if (fd) record("append", path, ::write(fd.get(), data.data(), data.size()));
  }

  void read() {
    const std::string path = any_path();
    const UniqueFd fd = open("open for reading", path, O_RDONLY);
    const off_t offset = static_cast<off_t>(below(200 << 10));
    std::string data(64 << 10, '\0');
    if (!fd) return;
    const ssize_t got = ::pread(fd.get(), data.data(), data.size(), offset);
    record("read", path, got);
    if (got < 0) return;
    data.resize(static_cast<std::size_t>(got));
    log_.push_back("  hash " + std::to_string(hash_of(data)));
  }

  void truncate() {
    const std::string path = any_path();
    const auto size = static_cast<off_t>(below(300 << 10));
    outcome("truncate", path, ::truncate(path.c_str(), size));
  }

  void fallocate() {
    constexpr std::array kModes{0, FALLOC_FL_KEEP_SIZE, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE,
                                FALLOC_FL_ZERO_RANGE};
    const std::string path = any_path();
    const int mode = kModes[below(kModes.size())];
    const auto offset = static_cast<off_t>(below(200 << 10));
    const auto length = static_cast<off_t>(1 + below(64 << 10));
    const UniqueFd fd = open("open for fallocate", path, O_WRONLY);
    if (fd) outcome("fallocate", path, ::fallocate(fd.get(), mode, offset, length));
  }

  void store_through_a_mapping() {
    const std::string path = any_path();
    const std::uint64_t where = random_();
    const UniqueFd fd = open("open for mmap", path, O_RDWR);
    struct stat st {};
    if (!fd || ::fstat(fd.get(), &st) < 0 || !S_ISREG(st.st_mode) || st.st_size == 0) return;
    const auto size = static_cast<std::size_t>(st.st_size);
    void* map = ::mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_SHARED, fd.get(), 0);
    outcome("mmap", path, map == MAP_FAILED ? -1 : 0);
    if (map == MAP_FAILED) return;
    static_cast<char*>(map)[where % size] = static_cast<char>(where >> 32);
    ::munmap(map, size);
  }

  void copy() {
    const std::string from = any_path();
    const std::string to = any_path();
    const UniqueFd in = open("open to copy from", from, O_RDONLY);
    const UniqueFd out = open("open to copy to", to, O_WRONLY);
    off_t source = static_cast<off_t>(below(50 << 10));
    off_t target = source + (100 << 10);
    if (!in || !out || from == to) return;
    // Short copies are allowed, so only their sum is compared.
    long copied = 0;
    long count = 0;
    do {
      count = ::copy_file_range(in.get(), &source, out.get(), &target,
                                static_cast<std::size_t>((16 << 10) - copied), 0);
      copied += std::max(count, 0L);
    } while (count > 0 && copied < 16 << 10);
    record("copy", to, count < 0 ? count : copied);
  }

  void write_unlinked() {
    const std::string path = any_path();
    const std::string data = bytes();
    const UniqueFd fd = open("open to unlink", path, O_RDWR);
    outcome("unlink", path, ::unlink(path.c_str()));
    if (!fd) return;
    record("write unlinked", path, ::pwrite(fd.get(), data.data(), data.size(), 0));
    struct stat st {};
    record("fstat unlinked", path, ::fstat(fd.get(), &st));
    log_.push_back("  links " + std::to_string(st.st_nlink));
  }

  void unlink() {
    const std::string path = any_path();
    outcome("unlink", path, ::unlink(path.c_str()));
  }

  void mkdir() {
    const std::string path = any_directory();
    outcome("mkdir", path, ::mkdir(path.c_str(), 0700 + below(64)));
  }

  void rmdir() {
    const std::string path = any_directory();
    outcome("rmdir", path, ::rmdir(path.c_str()));
  }

  void rename() {
    constexpr std::array<unsigned, 4> kFlags{0, 0, RENAME_NOREPLACE, RENAME_EXCHANGE};
    const bool directories = below(3) == 0;
    const std::string from = directories ? any_directory() : any_path();
    const std::string to = directories && below(4) != 0 ? any_directory() : any_path();
    const unsigned flags = kFlags[below(kFlags.size())];
    outcome("rename from", from, ::renameat2(AT_FDCWD, from.c_str(), AT_FDCWD, to.c_str(), flags));
    outcome("  rename to", to, 0);
  }

  void link() {
    const std::string from = any_path();
    const std::string to = any_path();
    if (options_.roomy) outcome("link", to, ::link(from.c_str(), to.c_str()));
  }

  void symlink() {
    const std::string path = any_path();
    const std::string target(1 + below(200), 'x');
    outcome("symlink", path, ::symlink(target.c_str(), path.c_str()));
  }

  void change() {
    const std::string path = below(3) == 0 ? any_directory() : any_path();
    const mode_t mode = 0600 + below(64);
    const std::array<timespec, 2> times{
        {{static_cast<time_t>(below(1'000'000)), 1}, {static_cast<time_t>(below(1'000'000)), 2}}};
    const std::string key = "user.k" + std::to_string(below(3));
    const std::string value(below(100), 'v');
    switch (below(5)) {
      case 0:  // not followed: the target of a symlink may belong to another thread
        outcome("chmod", path,
                ::fchmodat(AT_FDCWD, path.c_str(), mode | 0100, AT_SYMLINK_NOFOLLOW));
        break;
      case 1:
        outcome("utimens", path,
                ::utimensat(AT_FDCWD, path.c_str(), times.data(), AT_SYMLINK_NOFOLLOW));
        break;
      case 2:
        if (!options_.roomy) break;
        outcome("setxattr", path,
                ::lsetxattr(path.c_str(), key.c_str(), value.data(), value.size(), 0));
        break;
      case 3:
        outcome("removexattr", path, ::lremovexattr(path.c_str(), key.c_str()));
        break;
      default:
        outcome("chown", path, ::lchown(path.c_str(), static_cast<uid_t>(below(5)), 3));
    }
  }

  void stat() {
    const std::string path = below(3) == 0 ? any_directory() : any_path();
    struct stat st {};
    const int result = ::lstat(path.c_str(), &st);
    record("lstat", path, result);
    if (result < 0) return;
    const bool counted = !S_ISDIR(st.st_mode);  // directories on several tiers may not count links
    char line[120];
    std::snprintf(line, sizeof line, "  mode %o nlink %ld uid %u gid %u size %ld", st.st_mode,
                  counted ? static_cast<long>(st.st_nlink) : 0, st.st_uid, st.st_gid,
                  counted ? static_cast<long>(st.st_size) : 0);
    log_.push_back(line);
  }

  void list() {
    const std::string path = below(2) ? own_ : any_directory();
    std::string text;
    try {
      for (const std::string& name : names_in(path)) text += name + " ";
    } catch (const std::exception&) {
      record("list", path, -1);
      return;
    }
    log_.push_back("list " + path.substr(path.find("/own")) + ": " + text);
  }

  void sync() {
    const std::string path = any_path();
    const UniqueFd fd = open("open to sync", path, O_RDONLY);
    if (fd && below(4) == 0) outcome("fsync", path, ::fsync(fd.get()));
  }

  // Results here depend on the other threads, so they are not recorded.
  void fight() {
    const std::string a = fight_ + "/x" + std::to_string(below(6));
    const std::string b = fight_ + "/x" + std::to_string(below(6));
    const std::string inside = b + "/" + std::to_string(below(3));
    switch (below(8)) {
      case 0:
        ::mkdir(a.c_str(), 0755);
        break;
      case 1:
        ::rmdir(a.c_str());
        break;
      case 2:
        ::unlink(a.c_str());
        break;
      case 3:
        ::rename(a.c_str(), b.c_str());
        break;
      case 4:
        ::renameat2(AT_FDCWD, a.c_str(), AT_FDCWD, b.c_str(), RENAME_EXCHANGE);
        break;
      case 5:
        ::rename(a.c_str(), inside.c_str());
        break;
      case 6:
        if (options_.roomy) ::link(a.c_str(), inside.c_str());
        break;
      default: {
        const UniqueFd fd(
            ::open((below(2) ? a : inside).c_str(), O_CREAT | O_RDWR | O_CLOEXEC, 0644));
        if (fd && ::write(fd.get(), "fight", 5) < 0) return;
      }
    }
  }

  static constexpr Action kActions[] = {
      &Plan::create,        &Plan::create,  &Plan::write,
      &Plan::write,         &Plan::write,   &Plan::append,
      &Plan::append,        &Plan::read,    &Plan::read,
      &Plan::read,          &Plan::unlink,  &Plan::truncate,
      &Plan::fallocate,     &Plan::rename,  &Plan::rename,
      &Plan::link,          &Plan::symlink, &Plan::mkdir,
      &Plan::mkdir,         &Plan::rmdir,   &Plan::change,
      &Plan::change,        &Plan::stat,    &Plan::stat,
      &Plan::list,          &Plan::copy,    &Plan::sync,
      &Plan::fight,         &Plan::fight,   &Plan::store_through_a_mapping,
      &Plan::write_unlinked};

  std::string own_;
  std::string shared_;
  std::string fight_;
  int thread_;
  StormOptions options_;
  std::mt19937_64 random_;
  std::vector<std::string> log_;
};

}  // namespace

std::vector<std::vector<std::string>> run_storm(const std::string& root,
                                                const StormOptions& options) {
  for (const char* name : {"/shared", "/fight"}) ::mkdir((root + name).c_str(), 0755);
  for (int thread = 0; thread < options.threads; ++thread) {
    ::mkdir((root + "/own" + std::to_string(thread)).c_str(), 0755);
  }
  std::vector<std::vector<std::string>> logs(static_cast<std::size_t>(options.threads));
  std::vector<std::jthread> threads;
  for (int thread = 0; thread < options.threads; ++thread) {
    threads.emplace_back([&, thread] {
      logs[static_cast<std::size_t>(thread)] = Plan(root, thread, options).run();
    });
  }
  threads.clear();
  return logs;
}

}  // namespace sluice::test
