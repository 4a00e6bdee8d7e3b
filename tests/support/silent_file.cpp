// SPDX-License-Identifier: BSD-2-Clause
#include "tests/support/silent_file.hpp"

#include <fcntl.h>
#include <linux/fuse.h>
#include <sys/mount.h>
#include <sys/uio.h>

#include <array>
#include <cerrno>
#include <cstring>
#include <system_error>

#include "tests/support/files.hpp"
#include "tests/support/janitor.hpp"

namespace sluice::test {
namespace {

template <typename Body>
void reply(int fuse, std::uint64_t request, Body body) {
  fuse_out_header header{sizeof header + sizeof body, 0, request};
  const std::array<iovec, 2> parts{{{&header, sizeof header}, {&body, sizeof body}}};
  ::writev(fuse, parts.data(), parts.size());
}

}  // namespace

SilentFile::SilentFile(const std::string& path)
    : path_(path), fuse_(::open("/dev/fuse", O_RDWR | O_CLOEXEC)) {
  write_file(path_, "");
  // The root of the mount is the file itself, so no lookup is needed.
  const std::string options =
      "fd=" + std::to_string(fuse_.get()) + ",rootmode=100666,user_id=0,group_id=0,allow_other";
  if (::mount("silent", path_.c_str(), "fuse", 0, options.c_str()) < 0) {
    throw std::system_error(errno, std::generic_category(), "mount");
  }
  janitor::watch_mount(path_);
  server_ = std::thread([this] { serve(); });
}

void SilentFile::end() {
  if (!server_.joinable()) return;
  ::umount2(path_.c_str(), MNT_FORCE);  // the mount stays busy, but all requests end
  ::umount2(path_.c_str(), MNT_DETACH);
  server_.join();
  janitor::forget(path_);
}

void SilentFile::serve() const {
  alignas(fuse_in_header) std::array<char, 128 << 10> buffer;
  for (;;) {
    const ssize_t got = ::read(fuse_.get(), buffer.data(), buffer.size());
    if (got < 0 && (errno == EINTR || errno == ENOENT)) continue;
    if (got <= 0) return;
    fuse_in_header request;
    std::memcpy(&request, buffer.data(), sizeof request);
    if (request.opcode == FUSE_INIT) {
      fuse_init_out answer{};
      answer.major = FUSE_KERNEL_VERSION;
      answer.minor = FUSE_KERNEL_MINOR_VERSION;
      answer.max_write = 4096;
      reply(fuse_.get(), request.unique, answer);
    } else if (request.opcode == FUSE_OPEN) {
      reply(fuse_.get(), request.unique, fuse_open_out{});
    }
  }
}

}  // namespace sluice::test
