// SPDX-License-Identifier: BSD-2-Clause
// Unix-domain sockets by path. An address holds 107 bytes, and state directories may be longer: the
// folder of the socket is named through /proc. Thread-safe.
#pragma once

#include <string>

#include "base/result.hpp"
#include "base/unique_fd.hpp"

namespace sluice {

// A stream socket that is connected to whoever listens at `path`.
Result<UniqueFd> connect_unix(const std::string& path);

// A stream socket that listens at `path`, in the place of whatever was there. Nobody but the owner
// and root may connect, whatever the umask. `flags`: SOCK_NONBLOCK or 0.
Result<UniqueFd> listen_unix(const std::string& path, int backlog, int flags = 0);

}  // namespace sluice
