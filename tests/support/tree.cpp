// SPDX-License-Identifier: BSD-2-Clause
#include "tests/support/tree.hpp"

#include <dirent.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <sys/xattr.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdint>
#include <cstdio>
#include <memory>
#include <string_view>
#include <vector>

#include "base/unique_fd.hpp"
#include "tests/support/files.hpp"

namespace sluice::test {
namespace {

using Digest = std::map<std::string, std::string>;

std::vector<std::string> names_at(int directory) {
  std::vector<std::string> names;
  UniqueFd fd(::openat(directory, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (!fd) return names;
  const std::unique_ptr<DIR, int (*)(DIR*)> stream(::fdopendir(fd.release()), ::closedir);
  while (const dirent* entry = ::readdir(stream.get())) {
    const std::string name = entry->d_name;
    if (name != "." && name != "..") names.push_back(name);
  }
  std::ranges::sort(names);
  return names;
}

class Fnv {
 public:
  void add(std::string_view bytes) {
    for (const unsigned char byte : bytes) value_ = (value_ ^ byte) * 0x100000001b3u;
  }
  std::uint64_t value() const { return value_; }

 private:
  std::uint64_t value_ = 0xcbf29ce484222325u;
};

std::string hex(std::uint64_t value) {
  std::array<char, 20> out{};
  std::snprintf(out.data(), out.size(), "%016llx", static_cast<unsigned long long>(value));
  return out.data();
}

std::string content_hash(int fd) {
  Fnv hash;
  std::array<char, 65536> chunk;
  for (;;) {
    const ssize_t got = ::read(fd, chunk.data(), chunk.size());
    if (got < 0) return "unreadable:" + errno_name(errno);
    if (got == 0) return hex(hash.value());
    hash.add({chunk.data(), static_cast<std::size_t>(got)});
  }
}

// Through /proc, because xattrs of a symlink cannot be read by descriptor and a path may be too
// long.
std::string xattrs(int directory, const std::string& name) {
  const UniqueFd parent(::dup(directory));
  const std::string path = "/proc/self/fd/" + std::to_string(parent.get()) + "/" + name;
  std::string list(65536, '\0');
  const ssize_t size = ::llistxattr(path.c_str(), list.data(), list.size());
  if (size < 0) return errno == EOPNOTSUPP ? "" : " xattrs:" + errno_name(errno);
  list.resize(static_cast<std::size_t>(size));
  std::vector<std::string> found;
  for (std::size_t begin = 0; begin < list.size();) {
    const std::string key = list.c_str() + begin;
    begin += key.size() + 1;
    std::string value(65536, '\0');
    const ssize_t length = ::lgetxattr(path.c_str(), key.c_str(), value.data(), value.size());
    Fnv hash;
    if (length > 0) hash.add({value.data(), static_cast<std::size_t>(length)});
    found.push_back(key + "=" + (length < 0 ? errno_name(errno) : hex(hash.value())));
  }
  std::ranges::sort(found);
  std::string out;
  for (const std::string& item : found) out += " " + item;
  return out;
}

class Walker {
 public:
  Walker(DigestOptions options, Digest& out) : options_(options), out_(out) {}

  void walk(int directory, const std::string& prefix) {
    for (const std::string& name : names_at(directory)) describe(directory, name, prefix + name);
  }

 private:
  void describe(int directory, const std::string& name, const std::string& path) {
    struct stat st {};
    if (::fstatat(directory, name.c_str(), &st, AT_SYMLINK_NOFOLLOW) < 0) {
      out_[path] = "lstat:" + errno_name(errno);
      return;
    }
    std::array<char, 160> head{};
    std::snprintf(head.data(), head.size(), "mode=%o uid=%u gid=%u", st.st_mode, st.st_uid,
                  st.st_gid);
    std::string line = head.data();
    const bool is_directory = S_ISDIR(st.st_mode);
    if (!is_directory || options_.directory_links) {
      line += " nlink=" + std::to_string(st.st_nlink);
    }
    if (!is_directory) line += " size=" + std::to_string(st.st_size);
    if (S_ISCHR(st.st_mode) || S_ISBLK(st.st_mode)) line += " rdev=" + std::to_string(st.st_rdev);
    if (options_.times) {
      line +=
          " mtime=" + std::to_string(st.st_mtim.tv_sec) + "." + std::to_string(st.st_mtim.tv_nsec);
    }
    if (!is_directory && st.st_nlink > 1) {
      line += " same-as=" + first_names_.try_emplace(st.st_ino, path).first->second;
    }
    line += xattrs(directory, name);
    if (S_ISREG(st.st_mode)) {
      const UniqueFd fd(
          ::openat(directory, name.c_str(), O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC));
      line += " content=" + (fd ? content_hash(fd.get()) : errno_name(errno));
    } else if (S_ISLNK(st.st_mode)) {
      std::array<char, 4097> target{};
      const ssize_t size = ::readlinkat(directory, name.c_str(), target.data(), target.size());
      line += " target=" + (size < 0 ? errno_name(errno)
                                     : std::string(target.data(), static_cast<std::size_t>(size)));
    }
    out_[path] = line;
    if (!is_directory) return;
    const UniqueFd fd(
        ::openat(directory, name.c_str(), O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC));
    if (fd) {
      walk(fd.get(), path + "/");
    } else {
      out_[path] += " opendir:" + errno_name(errno);
    }
  }

  DigestOptions options_;
  Digest& out_;
  std::map<ino_t, std::string> first_names_;
};

void remove_contents(int directory, dev_t device) {
  for (const std::string& name : names_at(directory)) {
    if (::unlinkat(directory, name.c_str(), 0) == 0 || errno != EISDIR) continue;
    const UniqueFd child(
        ::openat(directory, name.c_str(), O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC));
    struct stat st {};
    if (!child || ::fstat(child.get(), &st) < 0 || st.st_dev != device) continue;
    remove_contents(child.get(), device);
    ::unlinkat(directory, name.c_str(), AT_REMOVEDIR);
  }
}

}  // namespace

Digest digest(const std::string& root, DigestOptions options) {
  Digest out;
  const UniqueFd fd(::open(root.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (!fd) {
    out["."] = "open:" + errno_name(errno);
    return out;
  }
  Walker(options, out).walk(fd.get(), "");
  return out;
}

std::string difference(const Digest& expected, const Digest& actual) {
  constexpr int kMost = 20;
  std::string out;
  int shown = 0;
  const auto compare = [&](const std::string& path) {
    const auto a = expected.find(path);
    const auto b = actual.find(path);
    const std::string left = a == expected.end() ? "(absent)" : a->second;
    const std::string right = b == actual.end() ? "(absent)" : b->second;
    if (left == right || ++shown > kMost) return;
    out += path + "\n    expected: " + left + "\n    actual:   " + right + "\n";
  };
  for (const auto& [path, line] : expected) compare(path);
  for (const auto& [path, line] : actual) {
    if (!expected.contains(path)) compare(path);
  }
  if (shown > kMost) out += "... and " + std::to_string(shown - kMost) + " more\n";
  return out;
}

void remove_tree(const std::string& path) {
  {
    const UniqueFd fd(::open(path.c_str(), O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC));
    struct stat st {};
    if (fd && ::fstat(fd.get(), &st) == 0) remove_contents(fd.get(), st.st_dev);
  }
  ::rmdir(path.c_str());
}

}  // namespace sluice::test
