// SPDX-License-Identifier: BSD-2-Clause
#include "tools/lab/bench/syscalls.hpp"

#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <utility>

namespace sluice::tools::lab::bench {
namespace {

constexpr const char* kDropCaches = "/proc/sys/vm/drop_caches";

}  // namespace

void throw_failure(const char* operation, const std::string& path) {
  const int code = errno;
  const char* name = strerrorname_np(code);
  throw Failure(std::string(operation) + " " + path + ": " + std::strerror(code) + " (" +
                (name ? name : std::to_string(code)) + ")");
}

void expect(bool correct, const char* what, const std::string& path) {
  if (!correct) throw Failure(path + ": " + what);
}

UniqueFd open_file(const std::string& path, int flags, mode_t mode) {
  UniqueFd fd(::open(path.c_str(), flags | O_CLOEXEC, mode));
  if (!fd) throw_failure("open", path);
  return fd;
}

UniqueFd open_directory(const std::string& path) { return open_file(path, O_RDONLY | O_DIRECTORY); }

UniqueFd open_at(const UniqueFd& directory, const std::string& name, int flags, mode_t mode) {
  UniqueFd fd(::openat(directory.get(), name.c_str(), flags | O_CLOEXEC, mode));
  if (!fd) throw_failure("open", name);
  return fd;
}

void close_file(UniqueFd fd, const std::string& path) {
  if (::close(fd.release()) < 0) throw_failure("close", path);
}

void make_directory(const std::string& path) {
  if (::mkdir(path.c_str(), 0755) < 0) throw_failure("mkdir", path);
}

std::string make_temp_directory(const std::string& parent, const char* prefix) {
  std::string path = parent + "/" + prefix + "XXXXXX";
  if (!::mkdtemp(path.data())) throw_failure("mkdtemp", path);
  return path;
}

void write_all(const UniqueFd& fd, std::span<const std::byte> data, const std::string& path) {
  while (!data.empty()) {
    const ssize_t count = ::write(fd.get(), data.data(), data.size());
    if (count < 0) throw_failure("write", path);
    data = data.subspan(static_cast<std::size_t>(count));
  }
}

void write_at(const UniqueFd& fd, std::span<const std::byte> data, off_t offset,
              const std::string& path) {
  const ssize_t count = ::pwrite(fd.get(), data.data(), data.size(), offset);
  if (count < 0) throw_failure("pwrite", path);
  expect(static_cast<std::size_t>(count) == data.size(), "short write", path);
}

void read_at(const UniqueFd& fd, std::span<std::byte> out, off_t offset, const std::string& path) {
  const ssize_t count = ::pread(fd.get(), out.data(), out.size(), offset);
  if (count < 0) throw_failure("pread", path);
  expect(static_cast<std::size_t>(count) == out.size(), "short read", path);
}

void sync_machine() { ::sync(); }

void sync_filesystem(const std::string& path) {
  if (::syncfs(open_directory(path).get()) < 0) throw_failure("syncfs", path);
}

bool can_drop_caches() { return ::access(kDropCaches, W_OK) == 0; }

void drop_names() {
  const UniqueFd fd = open_file(kDropCaches, O_WRONLY);
  if (::write(fd.get(), "2", 1) != 1) throw_failure("write", kDropCaches);
}

}  // namespace sluice::tools::lab::bench
