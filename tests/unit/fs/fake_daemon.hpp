// SPDX-License-Identifier: BSD-2-Clause
// The socket between fake_daemon and its test.
#pragma once

#include <sys/socket.h>
#include <sys/un.h>

#include <string>

#include "base/unique_fd.hpp"

namespace sluice::test {

inline sockaddr_un address_of(const std::string& path) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  path.copy(address.sun_path, sizeof address.sun_path - 1);
  return address;
}

inline UniqueFd connect_test(const std::string& path) {
  UniqueFd socket(::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0));
  const sockaddr_un address = address_of(path);
  if (::connect(socket.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address) < 0)
    socket.reset();
  return socket;
}

inline UniqueFd listen_for_daemons(const std::string& path) {
  UniqueFd socket(::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0));
  const sockaddr_un address = address_of(path);
  if (::bind(socket.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address) < 0 ||
      ::listen(socket.get(), 16) < 0)
    socket.reset();
  return socket;
}

}  // namespace sluice::test
