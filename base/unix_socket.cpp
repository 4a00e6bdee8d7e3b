// SPDX-License-Identifier: BSD-2-Clause
#include "base/unix_socket.hpp"

#include <fcntl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <cstdio>

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

Result<UniqueFd> connect_unix(const std::string& path) {
  const Address address = SLUICE_TRY(address_of(path));
  UniqueFd socket(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
  if (!socket) return Error::last("create a socket");
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

}  // namespace sluice
