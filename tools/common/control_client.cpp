// SPDX-License-Identifier: BSD-2-Clause
#include "tools/common/control_client.hpp"

#include <poll.h>
#include <sys/socket.h>

#include <array>
#include <cerrno>
#include <cstring>
#include <optional>
#include <utility>

#include "base/log.hpp"
#include "base/unix_socket.hpp"
#include "tools/common/mount_status.hpp"

namespace sluice::tools {
namespace {

using Json = nlohmann::ordered_json;

constexpr int kTickMilliseconds = 200;
constexpr std::size_t kLongestLine = 1 << 20;  // far more than two paths, each byte escaped

std::string describe_connect(int code, const std::string& who) {
  switch (code) {
    case ENOENT:
      return who + ": the daemon has no control socket; is it an older version?";
    case ECONNREFUSED:
      return who + ": the daemon has ended or is ending; see 'sluice status'";
    case EACCES:
    case EPERM:
      return who + ": only root may do this; try sudo";
    default:
      return who + ": cannot connect to the daemon: " + std::strerror(code);
  }
}

bool send_all(const UniqueFd& socket, std::string_view text) {
  while (!text.empty()) {
    const ssize_t sent = ::send(socket.get(), text.data(), text.size(), MSG_NOSIGNAL);
    if (sent < 0 && errno != EINTR) return false;
    if (sent > 0) text.remove_prefix(static_cast<std::size_t>(sent));
  }
  return true;
}

// Reads one answer to its end.
class AnswerReader {
 public:
  AnswerReader(const UniqueFd& socket, const std::string& who, const ControlListener& listener)
      : socket_(socket), who_(who), listener_(listener) {}

  Result<ControlAnswer> read() {
    pollfd readable{.fd = socket_.get(), .events = POLLIN, .revents = 0};
    for (;;) {
      if (listener_.tick && !listener_.tick()) return ended();
      const int ready = ::poll(&readable, 1, kTickMilliseconds);
      if (ready == 0 || (ready < 0 && errno == EINTR)) continue;
      std::array<char, 65536> piece{};
      const ssize_t got =
          ready < 0 ? -1 : ::recv(socket_.get(), piece.data(), piece.size(), MSG_DONTWAIT);
      if (got < 0 && (errno == EINTR || errno == EAGAIN)) continue;
      if (got <= 0) {
        return Error{ECONNRESET, "ask the daemon",
                     who_ + ": the daemon ended before it answered; see its log"};
      }
      if (auto answer = take({piece.data(), static_cast<std::size_t>(got)})) return *answer;
    }
  }

 private:
  // Adds bytes and handles each complete line.
  std::optional<Result<ControlAnswer>> take(std::string_view bytes) {
    while (!bytes.empty()) {
      const auto end = bytes.find('\n');
      pending_.append(bytes.substr(0, end));
      if (pending_.size() > kLongestLine) return misunderstood();
      if (end == std::string_view::npos) return std::nullopt;
      bytes.remove_prefix(end + 1);
      const std::string line = std::exchange(pending_, {});
      Json json = Json::parse(line, nullptr, /*allow_exceptions=*/false);
      if (!json.is_object()) return misunderstood();
      if (flag_of(json, "done")) {
        const std::string problem = text_of(json, "error");
        if (problem.empty()) return ControlAnswer{std::move(json), false};
        return Error{EREMOTEIO, "ask the daemon", log::escaped(problem)};
      }
      if (listener_.line && !listener_.line(json)) return ended();
    }
    return std::nullopt;
  }

  static ControlAnswer ended() { return {Json::object(), true}; }
  Error failed(const std::string& why) const {
    return {EPROTO, "ask the daemon", who_ + ": " + why};
  }
  Error misunderstood() const {
    return failed("cannot parse the daemon's answer; is it another version of sluice?");
  }

  const UniqueFd& socket_;
  const std::string& who_;
  const ControlListener& listener_;
  std::string pending_;  // the beginning of a line
};

}  // namespace

Result<ControlAnswer> ask_socket(const std::string& directory, const std::string& who,
                                 const Json& request, const ControlListener& listener) {
  const auto socket = connect_unix(directory + "/control.sock");
  if (!socket) {
    const int code = socket.error().code;
    return Error{code, "ask the daemon", describe_connect(code, who)};
  }
  // File names may not be valid UTF-8. A request cannot contain such a name.
  const std::string line = request.dump(-1, ' ', false, Json::error_handler_t::replace) + "\n";
  // Ignored: a daemon that refuses a client may answer and close before it reads the request.
  send_all(*socket, line);
  return AnswerReader(*socket, who, listener).read();
}

Result<ControlAnswer> ask_daemon(const std::string& mountpoint, const Json& request,
                                 const ControlListener& listener) {
  const auto status = mount_status(mountpoint);
  if (!status) {
    return Error{status.error().code, "ask the daemon",
                 describe_status_error(status.error(), mountpoint)};
  }
  return ask_socket(text_of(*status, "state"), log::escaped(mountpoint), request, listener);
}

}  // namespace sluice::tools
