// SPDX-License-Identifier: BSD-2-Clause
// The client side of the control socket: sends one request and reads the lines of the answer.
// docs/control.md describes the protocol. Threads: thread-safe; each call is its own connection.
#pragma once

#include <functional>
#include <nlohmann/json.hpp>
#include <string>

#include "base/result.hpp"

namespace sluice::tools {

// Callbacks while an answer arrives. If one returns false, the connection is closed, which ends the
// request.
struct ControlListener {
  // Each line but the last.
  std::function<bool(const nlohmann::ordered_json& line)> line = nullptr;
  // Several times a second, whether lines arrive or not, and after a signal.
  std::function<bool()> tick = nullptr;
};

struct ControlAnswer {
  nlohmann::ordered_json last = nlohmann::ordered_json::object();  // the line that ended it
  bool was_ended = false;  // by the listener: there is no last line then
};

// Asks the daemon of the mount at `mountpoint`. The error's text is one line for a person. Its code
// is EREMOTEIO if the daemon refused the request, ECONNRESET if it ended before it answered.
Result<ControlAnswer> ask_daemon(const std::string& mountpoint,
                                 const nlohmann::ordered_json& request,
                                 const ControlListener& listener = {});

// Asks the process that listens at `directory`/control.sock; errors name it as `who`.
Result<ControlAnswer> ask_socket(const std::string& directory, const std::string& who,
                                 const nlohmann::ordered_json& request,
                                 const ControlListener& listener = {});

}  // namespace sluice::tools
