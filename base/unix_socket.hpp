// SPDX-License-Identifier: BSD-2-Clause
// Unix-domain sockets by path. A socket address has room for 107 bytes, and paths may be longer: so
// the socket's directory is addressed through /proc/self/fd. Thread-safe.
#pragma once

#include <string>

#include "base/result.hpp"
#include "base/unique_fd.hpp"

namespace sluice {

// A stream socket connected to the server at `path`.
Result<UniqueFd> connect_unix(const std::string& path);

// A stream socket that listens at `path` and replaces any file there. Only the owner and root may
// connect, whatever the umask is. `flags`: SOCK_NONBLOCK or 0.
Result<UniqueFd> listen_unix(const std::string& path, int backlog, int flags = 0);

}  // namespace sluice
