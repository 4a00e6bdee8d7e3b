// SPDX-License-Identifier: BSD-2-Clause
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "base/http_server.hpp"
#include "base/log.hpp"
#include "tools/cli/commands.hpp"
#include "tools/common/control_client.hpp"
#include "tools/web/handler.hpp"

namespace sluice::tools::cli {
namespace {

constexpr HelpText kHelp{.usage = "sluice web [--port N] [MOUNT]",
                         .options = R"(      --port N  listen on this port (9465); 0: any free port
  -h, --help    short help (-h) or full help (--help)
)",
                         .details = R"(
Serves a web page that shows the mount: how full the tiers are and their activity,
moves as they happen, GPU reads by route, the hottest files, which directories use the
space and how hot they are, and for any file what 'sluice explain' says.

It prints the address of the page and serves it until Ctrl-C. It listens on 127.0.0.1
only. The address contains a new random token, without which no data is sent. The page
is read-only. From another machine use a tunnel, then open the same address there:

  ssh -L 9465:127.0.0.1:9465 HOST

MOUNT can be omitted if the current directory is in a mount, or if there is only one
mount. docs/web.md has details.

Examples:
  sluice web
  sluice web --port 0 /mnt/pool

Exit status: 0 ended, 1 failed (port in use), 2 wrong usage.
)"};

std::string describe_listen(int code, unsigned port) {
  const std::string where = "127.0.0.1:" + std::to_string(port) + ": ";
  if (code == EADDRINUSE) return where + "the port is in use; '--port 0' takes a free one";
  if (code == EACCES) return where + "not permitted; ports below 1024 need root";
  return where + std::strerror(code);
}

}  // namespace

int command_web(int argc, char** argv) {
  Arguments arguments;
  std::string given;
  unsigned port = 9465;
  arguments.option("--port", port);
  arguments.option("MOUNT", given);
  if (const auto code = arguments.parse(argc, argv, kHelp)) return *code;
  if (port > 65535) return misuse("web", "--port must be a number from 0 to 65535");
  const auto mount = mount_for("web", given);
  if (!mount) return kFailed;
  // A user without permission gets the error now, and not on the page.
  const auto answer = ask_daemon(*mount, {{"verb", "activity"}});
  if (!answer) return fail("web", answer.error().text());
  // A mount that contains the current directory of a process cannot be unmounted.
  if (::chdir("/") < 0) return fail("web", std::string("/: ") + std::strerror(errno));

  // Block the signals for sigwait() before threads are created, which inherit the mask. Signals
  // that nohup ignores are not blocked, because sigwait() would receive them.
  sigset_t ends;
  ::sigemptyset(&ends);
  for (const int number : {SIGINT, SIGTERM, SIGHUP}) {
    struct sigaction current {};
    ::sigaction(number, nullptr, &current);
    if (current.sa_handler != SIG_IGN) ::sigaddset(&ends, number);
  }
  ::pthread_sigmask(SIG_BLOCK, &ends, nullptr);

  const std::string token = web::make_token();
  web::WebHandler handler(*mount, token);
  const auto server =
      HttpServer::listen_on(loopback_address(static_cast<std::uint16_t>(port)), "sluice-web",
                            [&](const HttpRequest& request) { return handler.answer(request); });
  if (!server) return fail("web", describe_listen(server.error().code, port));
  std::fprintf(stderr,
               "sluice: web: serving %s; open this address in a browser, press Ctrl-C to end\n",
               log::escaped(*mount).c_str());
  std::printf("http://127.0.0.1:%u/#%s\n", unsigned{(*server)->port()}, token.c_str());
  if (std::fflush(stdout) != 0) {
    std::_Exit(fail("web", std::string("cannot write the address: ") + std::strerror(errno)));
  }
  int number = 0;
  ::sigwait(&ends, &number);
  // Without destructors: a thread may be blocked by a mount that hangs, and nothing here needs
  // cleanup.
  std::_Exit(kDone);
}

}  // namespace sluice::tools::cli
