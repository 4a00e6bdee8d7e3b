// SPDX-License-Identifier: BSD-2-Clause
#include "base/service_notice.hpp"

#include <fcntl.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstddef>
#include <cstdlib>
#include <cstring>
#include <sstream>

#include "base/unique_fd.hpp"

namespace sluice {

Result<void> tell_service_manager(std::string_view lines, int fd) {
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
  // The kernel does not write to what it sends.
  iovec data{const_cast<char*>(lines.data()), lines.size()};
  alignas(cmsghdr) std::array<char, CMSG_SPACE(sizeof fd)> control{};
  msghdr header{};
  header.msg_name = &address;
  header.msg_namelen = size;
  header.msg_iov = &data;
  header.msg_iovlen = 1;
  if (fd >= 0) {
    header.msg_control = control.data();
    header.msg_controllen = control.size();
    cmsghdr* const part = CMSG_FIRSTHDR(&header);
    part->cmsg_level = SOL_SOCKET;
    part->cmsg_type = SCM_RIGHTS;
    part->cmsg_len = CMSG_LEN(sizeof fd);
    std::memcpy(CMSG_DATA(part), &fd, sizeof fd);
  }
  if (::sendmsg(socket.get(), &header, MSG_NOSIGNAL) < 0) {
    return Error::last("send to the service manager");
  }
  return {};
}

void wait_for_service_manager() {
  constexpr int kLimitMs = 5000;
  std::array<int, 2> ends{};
  if (std::getenv("NOTIFY_SOCKET") == nullptr || ::pipe2(ends.data(), O_CLOEXEC) < 0) return;
  const UniqueFd reader(ends[0]);
  UniqueFd writer(ends[1]);
  const auto told = tell_service_manager("BARRIER=1", writer.get());
  writer.reset();
  // The manager closes its copy once it has read up to here.
  pollfd closed{reader.get(), 0, 0};
  if (told) ::poll(&closed, 1, kLimitMs);
}

NamedDescriptors take_stored_descriptors() {
  const auto take = [](const char* name) {
    const char* value = std::getenv(name);
    std::string text = value != nullptr ? value : "";
    ::unsetenv(name);
    return text;
  };
  const bool are_ours = take("LISTEN_PID") == std::to_string(::getpid());
  const int count = std::atoi(take("LISTEN_FDS").c_str());
  std::istringstream names(take("LISTEN_FDNAMES"));
  NamedDescriptors out;
  for (int fd = 3; are_ours && fd < 3 + count; ++fd) {
    std::string name;
    std::getline(names, name, ':');
    if (::fcntl(fd, F_SETFD, FD_CLOEXEC) == 0) out[name] = UniqueFd(fd);
  }
  return out;
}

}  // namespace sluice
