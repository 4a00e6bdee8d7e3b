// SPDX-License-Identifier: BSD-2-Clause
// Messages between the process and the service manager that started it: sd_notify(3) and
// sd_listen_fds(3) without their library.
#pragma once

#include <map>
#include <string>
#include <string_view>

#include "base/result.hpp"
#include "base/unique_fd.hpp"

namespace sluice {

// Sends lines such as "READY=1\nSTATUS=mounted" to the socket that $NOTIFY_SOCKET names: a path, or
// an abstract name that begins with '@'. Without that variable it does nothing and succeeds. If
// `fd` is not negative, the descriptor goes with them ("FDSTORE=1").
// REQUIRES: no thread changes the environment meanwhile.
//
// Threads: thread-safe.
Result<void> tell_service_manager(std::string_view lines, int fd = -1);

// Waits until the service manager has read what it was told, for a few seconds at most. It ignores
// messages of a process that has ended meanwhile.
void wait_for_service_manager();

using NamedDescriptors = std::map<std::string, UniqueFd>;

// The descriptors that the service manager stored for an earlier process of this service. Removes
// them from the environment. REQUIRES: the process has no other threads.
NamedDescriptors take_stored_descriptors();

}  // namespace sluice
