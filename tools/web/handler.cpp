// SPDX-License-Identifier: BSD-2-Clause
#include "tools/web/handler.hpp"

#include <fcntl.h>
#include <sys/random.h>
#include <unistd.h>

#include <array>
#include <chrono>
#include <cstring>
#include <system_error>

#include "base/clock.hpp"
#include "base/file_at.hpp"
#include "base/log.hpp"
#include "tools/common/explanation.hpp"
#include "tools/common/mount_status.hpp"
#include "tools/common/move_summary.hpp"
#include "tools/web/page_files.hpp"

namespace sluice::tools::web {
namespace {

using Json = nlohmann::ordered_json;
using std::chrono::steady_clock;

constexpr std::chrono::seconds kDaemonTimeout{5};
constexpr std::int64_t kScanInterval = 5;  // seconds between two requests to scan the files
constexpr std::size_t kMostReceipts = 50;
constexpr std::size_t kMostSummed = 2000;  // bursts of small moves are summed up

constexpr const char* kNoToken =
    "the token is missing or wrong; open the whole address that 'sluice web' printed";

HttpResponse json_response(const Json& body, std::string_view status = "200 OK") {
  return {.status = std::string(status),
          .type = "application/json",
          .body = body.dump(-1, ' ', false, Json::error_handler_t::replace)};
}

HttpResponse problem(std::string_view status, const std::string& sentence) {
  return json_response({{"error", sentence}}, status);
}

HttpResponse gone(const std::string& sentence) {
  return problem("503 Service Unavailable", sentence);
}

// Compares in constant time.
bool is_same(std::string_view a, std::string_view b) {
  unsigned char difference = a.size() == b.size() ? 0 : 1;
  for (std::size_t i = 0; i < a.size() && i < b.size(); ++i)
    difference |= static_cast<unsigned char>(a[i] ^ b[i]);
  return difference == 0;
}

// Reads an attribute of `path` below the mount. Refuses links and "..", which could leave it.
Result<std::string> attribute_beneath(const std::string& mount, const std::string& path,
                                      const char* attribute) {
  const UniqueFd root(::open(mount.c_str(), O_PATH | O_DIRECTORY | O_CLOEXEC));
  if (!root) return Error::last("open mount");
  const auto slash = path.rfind('/');
  const std::string name = path.substr(slash == std::string::npos ? 0 : slash + 1);
  if (name == "." || name == "..") return Error(EXDEV, "open beneath the mount");
  if (name.size() > 255) return Error(ENAMETOOLONG, "open beneath the mount");
  const UniqueFd directory =
      SLUICE_TRY(open_beneath(root.get(), slash == std::string::npos ? "" : path.substr(0, slash)));
  std::string value(64 << 10, '\0');
  const ssize_t size =
      getxattr_at(directory.get(), name.c_str(), attribute, value.data(), value.size());
  if (size < 0) return Error::last("read attribute");
  value.resize(static_cast<std::size_t>(size));
  return value;
}

HttpResponse explain_problem(const Error& error, const std::string& path) {
  const std::string where = log::escaped(path) + ": ";
  switch (error.code) {
    case ENOENT:
    case ENOTDIR:
      return problem("404 Not Found", where + "no such file");
    case EXDEV:
    case ELOOP:
      return problem("403 Forbidden", where + "symbolic links and '..' are not allowed");
    case ENODATA:
    case EOPNOTSUPP:
    case EPERM:
      return problem("404 Not Found", where + "not a file or directory");
    default:
      return problem("404 Not Found", where + std::strerror(error.code));
  }
}

}  // namespace

std::string make_token() {
  std::array<unsigned char, 16> bytes{};
  // Never short for so few bytes; blocks until there is entropy.
  while (::getrandom(bytes.data(), bytes.size(), 0) != static_cast<ssize_t>(bytes.size())) {
  }
  std::string out;
  for (const unsigned char byte : bytes) {
    constexpr char kHex[] = "0123456789abcdef";
    out += {kHex[byte >> 4], kHex[byte & 15]};
  }
  return out;
}

HttpResponse WebHandler::answer(const HttpRequest& request) {
  HttpResponse response = dispatch(request);
  response.headers = {
      {"Content-Security-Policy",
       "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src "
       "'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'; "
       "require-trusted-types-for 'script'; trusted-types 'none'"},
      {"X-Content-Type-Options", "nosniff"},
      {"X-Frame-Options", "DENY"},
      {"Referrer-Policy", "no-referrer"},
      {"Cross-Origin-Opener-Policy", "same-origin"},
      {"Cross-Origin-Resource-Policy", "same-origin"},
      {"Cache-Control", "no-store"}};
  return response;
}

HttpResponse WebHandler::dispatch(const HttpRequest& request) {
  const std::string_view host = request.header("host"), origin = request.header("origin");
  if (!request.is_for_loopback()) {
    return problem(
        "403 Forbidden",
        "use the address 127.0.0.1 or localhost; from another machine use a tunnel, such as "
        "'ssh -L 9465:127.0.0.1:9465 HOST'");
  }
  if (!origin.empty() && origin != "http://" + std::string(host))
    return problem("403 Forbidden", "requests from other origins are refused");
  for (const WebFile& file : web_files()) {
    if (request.path == file.path)
      return {.type = std::string(file.type), .body = std::string(file.content)};
  }
  if (!request.path.starts_with("/api/")) return HttpResponse::error("404 Not Found");
  constexpr std::string_view kScheme = "Bearer ";
  const std::string_view given = request.header("authorization");
  if (!given.starts_with(kScheme) || !is_same(given.substr(kScheme.size()), token_))
    return problem("401 Unauthorized", kNoToken);
  struct Place {
    explicit Place(std::atomic<int>& counter) : count(counter), number(++counter) {}
    ~Place() { --count; }
    Place(const Place&) = delete;
    Place& operator=(const Place&) = delete;
    std::atomic<int>& count;
    const int number;
  } place(at_work_);
  if (place.number > kMostAtOnce) {
    return gone(log::escaped(mount_) + ": the daemon does not answer, and " +
                std::to_string(kMostAtOnce) +
                " requests are waiting; see 'sluice status' and the daemon's log");
  }
  return api(request);
}

HttpResponse WebHandler::api(const HttpRequest& request) {
  const std::string_view what = std::string_view(request.path).substr(std::strlen("/api/"));
  if (what == "activity") return activity();
  if (what == "moves") return moves();
  if (what == "prices") return prices();
  if (what != "explain" && what != "tree") return HttpResponse::error("404 Not Found");
  const auto path = request.parameter("path");
  if (!path || path->find('\0') != std::string::npos)
    return problem("400 Bad Request", "the request needs a percent-encoded path: ?path=/a/b");
  return what == "tree" ? tree(*path) : explain(*path);
}

Result<ControlAnswer> WebHandler::ask(const Json& request,
                                      std::function<bool(const Json&)> line) const {
  const auto deadline = steady_clock::now() + kDaemonTimeout;
  ControlListener listener;
  listener.line = std::move(line);
  listener.tick = [&] { return steady_clock::now() < deadline; };
  auto answer = ask_daemon(mount_, request, listener);
  if (answer && answer->was_ended) {
    return Error{ETIMEDOUT, "ask the daemon",
                 log::escaped(mount_) + ": the daemon does not answer in time"};
  }
  return answer;
}

HttpResponse WebHandler::activity() const {
  auto answer = ask({{"verb", "activity"}});
  if (!answer) return gone(answer.error().text());
  answer->last["now"] = real_clock().seconds();
  return json_response(answer->last);
}

HttpResponse WebHandler::moves() const {
  Json out{{"pending", Json::array()}, {"receipts", Json::array()}, {"rows", Json::array()}};
  MoveSummary summary;
  const auto answer =
      ask({{"verb", "moves"}, {"most", kMostSummed}, {"most_pending", kMostReceipts}},
          [&](const Json& line) {
            if (const Json& pending = member_of(line, "pending"); pending.is_object()) {
              if (out["pending"].size() < kMostReceipts) out["pending"].push_back(pending);
            } else if (const Json& receipt = member_of(line, "receipt"); receipt.is_object()) {
              if (out["receipts"].size() < kMostReceipts) out["receipts"].push_back(receipt);
              summary.add(receipt);
            }
            return true;
          });
  if (!answer) return gone(answer.error().text());
  for (const MoveRow& row : summary.rows()) {
    if (out["rows"].size() == kMostReceipts) break;
    out["rows"].push_back({{"files", row.files},
                           {"time", row.time},
                           {"tiers", row.tiers},
                           {"bytes", row.bytes},
                           {"ms", row.milliseconds},
                           {"result", row.result},
                           {"reason", row.reason},
                           {"path", row.path}});
  }
  return json_response(out);
}

HttpResponse WebHandler::prices() const {
  const auto answer = ask({{"verb", "prices"}});
  if (answer) return json_response(answer->last);
  const std::string text = answer.error().text();
  return failed_with(answer, EREMOTEIO) ? problem("404 Not Found", text) : gone(text);
}

HttpResponse WebHandler::explain(const std::string& path) const {
  if (const auto status = mount_status(mount_); !status)
    return gone(describe_status_error(status.error(), mount_));
  Json lines = Json::array();
  const auto add = [&](const std::string& label, const std::string& text) {
    lines.push_back({{"label", label}, {"text", text}});
  };
  const auto text = attribute_beneath(mount_, path, "user.sluice.explain");
  if (text) {
    const Json explanation = Json::parse(*text, nullptr, /*allow_exceptions=*/false);
    for (const auto& line : explanation_lines(explanation, real_clock().seconds()))
      add(line.label, line.text);
  } else {
    // A directory has no explanation, but tiers and maybe a pin.
    const auto tiers = attribute_beneath(mount_, path, "user.sluice.tier");
    if (!failed_with(text, ENODATA) || !tiers) return explain_problem(text.error(), path);
    add("is", "a directory, on " + *tiers);
    if (const auto pin = attribute_beneath(mount_, path, "user.sluice.pin"))
      add("pin", *pin + ", for everything below it, too");
  }
  return json_response({{"path", path}, {"lines", lines}});
}

HttpResponse WebHandler::tree(const std::string& path) {
  const auto answer = ask({{"verb", "tree"}, {"path", percent_encoded(path)}});
  if (!answer) {
    const std::string text = answer.error().text();
    return failed_with(answer, EREMOTEIO) ? problem("404 Not Found", text) : gone(text);
  }
  if (number_of(answer->last, "time") == 0) scan_files();
  return json_response(answer->last);
}

// The daemon has no tree until its first pass, which may be hours away. Requesting a plan makes it
// scan the files now.
void WebHandler::scan_files() {
  const MutexLock lock(mutex_);
  const std::int64_t now = real_clock().seconds();
  if (is_scanning_ || now < last_scan_ + kScanInterval) return;
  is_scanning_ = true;
  last_scan_ = now;
  try {
    looking_ = std::jthread([this](const std::stop_token& stop) {
      ControlListener listener;
      listener.tick = [&] { return !stop.stop_requested(); };
      static_cast<void>(ask_daemon(mount_, {{"verb", "plan"}}, listener));
      is_scanning_ = false;
    });
  } catch (const std::system_error&) {
    is_scanning_ = false;  // cannot create a thread; the page retries
  }
}

}  // namespace sluice::tools::web
