// SPDX-License-Identifier: BSD-2-Clause
// Tells the service manager that started us how we are: sd_notify(3) without its library, which is
// one datagram.
#pragma once

#include <string_view>

#include "base/result.hpp"

namespace sluice {

// Sends lines such as "READY=1\nSTATUS=mounted" to the socket that $NOTIFY_SOCKET names: a path, or
// an abstract name that begins with '@'. Without that variable there is nobody to tell, and it
// succeeds. REQUIRES: nobody changes the environment meanwhile. Thread-safe.
Result<void> tell_service_manager(std::string_view lines);

}  // namespace sluice
