// SPDX-License-Identifier: BSD-2-Clause
#include "base/unix_socket.hpp"

#include <fcntl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/time.h>
#include <sys/un.h>
#include <unistd.h>

#include <array>
#include <cstdio>
#include <cstring>

namespace sluice {
namespace {

// An address that is valid while `folder` is open.
struct Address {
  UniqueFd folder;
  sockaddr_un name{};

  const sockaddr* get() const { return reinterpret_cast<const sockaddr*>(&name); }
};

Result<Address> address_of(const std::string& path) {
  const auto slash = path.rfind('/');
  const std::string folder = slash == std::string::npos ? "." : path.substr(0, slash + 1);
  Address out;
  out.folder.reset(::open(folder.c_str(), O_PATH | O_DIRECTORY | O_CLOEXEC));
  if (!out.folder) return Error::last("open the directory of a socket");
  out.name.sun_family = AF_UNIX;
  const int length =
      std::snprintf(out.name.sun_path, sizeof out.name.sun_path, "/proc/self/fd/%d/%s",
                    out.folder.get(), path.c_str() + (slash == std::string::npos ? 0 : slash + 1));
  if (length >= static_cast<int>(sizeof out.name.sun_path))
    return Error(ENAMETOOLONG, "make the address of a socket");
  return out;
}

}  // namespace

Result<UniqueFd> connect_unix(const std::string& path, unsigned patience) {
  const Address address = SLUICE_TRY(address_of(path));
  UniqueFd socket(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
  if (!socket) return Error::last("create a socket");
  if (patience > 0) {
    const timeval limit{.tv_sec = patience, .tv_usec = 0};
    for (const int which : {SO_RCVTIMEO, SO_SNDTIMEO})
      ::setsockopt(socket.get(), SOL_SOCKET, which, &limit, sizeof limit);
  }
  while (::connect(socket.get(), address.get(), sizeof address.name) < 0) {
    if (errno != EINTR) return Error::last("connect");
  }
  return socket;
}

Result<UniqueFd> listen_unix(const std::string& path, int backlog, int flags) {
  UniqueFd socket(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | flags, 0));
  if (!socket) return Error::last("create a socket");
  const Address address = SLUICE_TRY(address_of(path));
  ::unlink(path.c_str());
  // Before bind() makes it visible. The umask cannot be used: it belongs to all threads.
  if (::fchmod(socket.get(), 0600) < 0) return Error::last("set the mode of a socket");
  if (::bind(socket.get(), address.get(), sizeof address.name) < 0)
    return Error::last("bind a socket");
  if (::listen(socket.get(), backlog) < 0) return Error::last("listen");
  return socket;
}

Result<std::size_t> send_with_fds(int socket, std::span<const std::byte> bytes,
                                  std::span<const int> fds, int flags) {
  if (fds.size() > kMostDescriptors) return Error{E2BIG, "send descriptors"};
  // The kernel does not write to what it sends.
  iovec data{const_cast<std::byte*>(bytes.data()), bytes.size()};
  alignas(cmsghdr) std::array<char, CMSG_SPACE(kMostDescriptors * sizeof(int))> control{};
  msghdr header{};
  header.msg_iov = &data;
  header.msg_iovlen = 1;
  if (!fds.empty()) {
    header.msg_control = control.data();
    header.msg_controllen = CMSG_SPACE(fds.size_bytes());
    cmsghdr* const part = CMSG_FIRSTHDR(&header);
    part->cmsg_level = SOL_SOCKET;
    part->cmsg_type = SCM_RIGHTS;
    part->cmsg_len = CMSG_LEN(fds.size_bytes());
    std::memcpy(CMSG_DATA(part), fds.data(), fds.size_bytes());
  }
  ssize_t sent = 0;
  do {
    sent = ::sendmsg(socket, &header, MSG_NOSIGNAL | flags);
  } while (sent < 0 && errno == EINTR);
  if (sent < 0) return Error::last("send to a socket");
  return static_cast<std::size_t>(sent);
}

Result<std::size_t> receive_with_fds(int socket, std::span<std::byte> bytes,
                                     std::vector<UniqueFd>& fds, int flags) {
  iovec data{bytes.data(), bytes.size()};
  alignas(cmsghdr) std::array<char, CMSG_SPACE(kMostDescriptors * sizeof(int))> control{};
  msghdr header{};
  header.msg_iov = &data;
  header.msg_iovlen = 1;
  header.msg_control = control.data();
  header.msg_controllen = control.size();
  ssize_t got = 0;
  do {
    got = ::recvmsg(socket, &header, MSG_CMSG_CLOEXEC | flags);
  } while (got < 0 && errno == EINTR);
  if (got < 0) return Error::last("receive from a socket");
  for (cmsghdr* part = CMSG_FIRSTHDR(&header); part != nullptr; part = CMSG_NXTHDR(&header, part)) {
    if (part->cmsg_level != SOL_SOCKET || part->cmsg_type != SCM_RIGHTS) continue;
    for (std::size_t at = 0; CMSG_LEN(at + sizeof(int)) <= part->cmsg_len; at += sizeof(int)) {
      int fd = -1;
      std::memcpy(&fd, CMSG_DATA(part) + at, sizeof fd);
      fds.emplace_back(fd);
    }
  }
  return static_cast<std::size_t>(got);
}

}  // namespace sluice
