// SPDX-License-Identifier: BSD-2-Clause
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "base/http_server.hpp"
#include "base/log.hpp"
#include "base/path.hpp"
#include "tools/cli/commands.hpp"
#include "tools/common/control_client.hpp"
#include "tools/common/mount_status.hpp"
#include "tools/web/handler.hpp"

namespace sluice {
namespace {

constexpr HelpText kHelp{
    .usage = "sluice web [--port N] [--trace FILE] [MOUNT]",
    .options = R"(      --port N      listen on this port (9465); 0 is any that is free
      --trace FILE  compare policies on this trace, and show the chart
  -h, --help        this list; the whole description
)",
    .details = R"(
Serves a page to watch the mount in a browser: how full the tiers are and what they
do, moves as they happen, reads into GPUs by route, the hottest files, what takes the
room and how hot it is, and the story of any file, as 'sluice explain' tells it.

It prints the page's address and serves it until Ctrl-C. It listens on 127.0.0.1
only. The address ends with a token, new each time, without which nothing is told;
the page can look and change nothing. From another machine use a tunnel:

  ssh -L 9465:127.0.0.1:9465 HOST     and open the same address here

With a trace that 'sluice trace record' wrote, the page also shows how much a larger
or smaller fastest tier would serve, by Sluice's policy and others (docs/simulator.md).

MOUNT may be left out inside a mount, or where there is only one. docs/web.md says more.

Examples:
  sluice web
  sluice web --port 0 --trace week.csv /mnt/pool

Exit status: 0 ended, 1 failed (the port is taken), 2 wrong usage.
)"};

std::string describe_listen(int code, unsigned port) {
  const std::string where = "127.0.0.1:" + std::to_string(port) + ": ";
  if (code == EADDRINUSE)
    return where + "somebody listens there already; '--port 0' takes a free one";
  if (code == EACCES) return where + "not permitted; ports below 1024 are root's";
  return where + std::strerror(code);
}

}  // namespace

int command_web(int argc, char** argv) {
  Arguments arguments;
  std::string given, trace;
  unsigned port = 9465;
  arguments.option("--port", port);
  arguments.option("--trace", trace);
  arguments.option("MOUNT", given);
  if (const auto code = arguments.parse(argc, argv, kHelp)) return *code;
  if (port > 65535) return misuse("web", "--port must be a number from 0 to 65535");
  const auto mount = mount_for("web", given);
  if (!mount) return kFailed;
  // Who may not ask should hear it now, and not from a page.
  const auto answer = ask_daemon(*mount, {{"verb", "activity"}});
  if (!answer) return fail("web", answer.error().text());
  const auto& tiers = member_of(answer->last, "tiers");
  const std::string fastest = tiers.is_array() && !tiers.empty() ? text_of(tiers[0], "name") : "";
  if (!trace.empty() && ::access(trace.c_str(), R_OK) < 0)
    return fail("web", "--trace " + log::escaped(trace) + ": " + std::strerror(errno));
  if (!trace.empty()) trace = real_path(trace);
  // A mount that is somebody's current directory can't be unmounted.
  if (::chdir("/") < 0) return fail("web", std::string("/: ") + std::strerror(errno));

  // Before there are threads, which inherit it: the signals that end this wait for sigwait(). It
  // would take those that nohup had ignored, too.
  sigset_t ends;
  ::sigemptyset(&ends);
  for (const int number : {SIGINT, SIGTERM, SIGHUP}) {
    struct sigaction current {};
    ::sigaction(number, nullptr, &current);
    if (current.sa_handler != SIG_IGN) ::sigaddset(&ends, number);
  }
  ::pthread_sigmask(SIG_BLOCK, &ends, nullptr);

  const std::string token = make_token();
  const WebReplay replay(trace, fastest);
  WebHandler handler(*mount, token, replay);
  const auto server =
      HttpServer::listen_on(loopback_address(static_cast<std::uint16_t>(port)), "sluice-web",
                            [&](const HttpRequest& request) { return handler.answer(request); });
  // Here, too, at once: the replay's end would wait for all of a large trace to be read.
  if (!server) std::_Exit(fail("web", describe_listen(server.error().code, port)));
  std::fprintf(stderr, "sluice: web: watching %s; open this in a browser, Ctrl-C ends it\n",
               log::escaped(*mount).c_str());
  std::printf("http://127.0.0.1:%u/#%s\n", unsigned{(*server)->port()}, token.c_str());
  std::fflush(stdout);
  int number = 0;
  ::sigwait(&ends, &number);
  // At once: a thread may be waiting for a mount that hangs, and nothing here needs an end in
  // order.
  std::_Exit(kDone);
}

}  // namespace sluice
