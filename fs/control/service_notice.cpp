// SPDX-License-Identifier: BSD-2-Clause
#include "fs/control/service_notice.hpp"

#include <sys/socket.h>
#include <sys/un.h>

#include <cerrno>
#include <cstddef>
#include <cstdlib>
#include <cstring>

#include "base/unique_fd.hpp"

namespace sluice {

Result<void> tell_service_manager(std::string_view lines) {
  const char* name = std::getenv("NOTIFY_SOCKET");
  if (name == nullptr || *name == '\0') return {};
  const std::size_t length = std::strlen(name);
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  if ((name[0] != '/' && name[0] != '@') || length >= sizeof address.sun_path) {
    return Error{EINVAL, "parse NOTIFY_SOCKET"};
  }
  std::memcpy(address.sun_path, name, length);
  if (name[0] == '@') address.sun_path[0] = '\0';  // marks an abstract name

  const UniqueFd socket(::socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0));
  if (!socket) return Error::last("open a socket to the service manager");
  const auto size = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + length);
  if (::sendto(socket.get(), lines.data(), lines.size(), MSG_NOSIGNAL,
               reinterpret_cast<const sockaddr*>(&address), size) < 0) {
    return Error::last("send to the service manager");
  }
  return {};
}

}  // namespace sluice
