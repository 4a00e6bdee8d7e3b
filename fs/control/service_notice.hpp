// SPDX-License-Identifier: BSD-2-Clause
// Reports the daemon's state to the service manager that started it. This is sd_notify(3) without
// its library: it sends one datagram.
#pragma once

#include <string_view>

#include "base/result.hpp"

namespace sluice {

// Sends lines such as "READY=1\nSTATUS=mounted" to the socket that $NOTIFY_SOCKET names: a path, or
// an abstract name that begins with '@'. Without that variable it does nothing and succeeds.
// REQUIRES: no thread changes the environment meanwhile.
//
// Threads: thread-safe.
Result<void> tell_service_manager(std::string_view lines);

}  // namespace sluice
