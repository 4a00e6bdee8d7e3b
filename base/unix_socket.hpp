// SPDX-License-Identifier: BSD-2-Clause
// Unix-domain sockets by path. A socket address has room for 107 bytes, and paths may be longer: so
// the socket's directory is addressed through /proc/self/fd. Descriptors can go with the bytes.
// Thread-safe.
#pragma once

#include <sys/types.h>

#include <cstddef>
#include <span>
#include <string>
#include <vector>

#include "base/result.hpp"
#include "base/unique_fd.hpp"

namespace sluice {

// A stream socket connected to the server at `path`. If `patience` is not 0, connecting, sending
// and receiving fail with EAGAIN after so many seconds.
Result<UniqueFd> connect_unix(const std::string& path, unsigned patience = 0);

// A stream socket that listens at `path` and replaces any file there. Only the owner and root may
// connect, whatever the umask is. `flags`: SOCK_NONBLOCK or 0.
Result<UniqueFd> listen_unix(const std::string& path, int backlog, int flags = 0);

// The most descriptors that go with one message.
inline constexpr std::size_t kMostDescriptors = 64;

// sendmsg(2), with descriptors. E2BIG: too many. `flags`: MSG_DONTWAIT or 0.
Result<std::size_t> send_with_fds(int socket, std::span<const std::byte> bytes,
                                  std::span<const int> fds, int flags = 0);

// recvmsg(2). Appends the received descriptors to `fds`, even if fewer bytes than wanted came. 0:
// the other side has ended. `flags`: MSG_DONTWAIT, MSG_WAITALL or 0.
Result<std::size_t> receive_with_fds(int socket, std::span<std::byte> bytes,
                                     std::vector<UniqueFd>& fds, int flags = 0);

}  // namespace sluice
