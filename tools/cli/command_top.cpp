// SPDX-License-Identifier: BSD-2-Clause
#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <thread>

#include "base/clock.hpp"
#include "tools/cli/commands.hpp"
#include "tools/cli/screen.hpp"
#include "tools/cli/top_view.hpp"
#include "tools/common/control_client.hpp"
#include "tools/common/mount_status.hpp"

namespace sluice::tools::cli {
namespace {

using Json = nlohmann::ordered_json;
using std::chrono::duration;
using std::chrono::steady_clock;

constexpr HelpText kHelp{
    .usage = "sluice top [--once] [--json] [--interval SECONDS] [MOUNT]",
    .options = R"(      --interval SECONDS  time between two frames (1); at least 0.1
      --once              print one frame, after one interval, and end
      --json              print one JSON object per interval, each on a line
      --color WHEN        auto (default), always, never
  -h, --help              short help (-h) or full help (--help)
)",
    .details = R"(
Shows the activity of the mount, updated every second: how full each tier is, what its
disk reads and writes (including passthrough; without disk statistics, what the daemon
reads and writes), requests by kind, GPU reads by route, moves in progress with their
rate and remaining time, and the hottest files. Press q to quit.

--json prints the daemon's answer to the request "activity" (docs/control.md). Counts
are totals since the daemon started: for a rate, divide the difference of two counts by the
difference of "uptime_s".

MOUNT can be omitted if the current directory is in a mount, or if there is only one
mount.

Examples:
  sluice top
  sluice top --once /mnt/pool
  sluice top --json | jq -c '.moves[] | {path, bytes, total}'

Exit status: 0 ended or shown, 1 failed, 2 wrong usage.
)"};

constexpr double kShortest = 0.1, kLongest = 3600;

// Frame size if the output is not a terminal: width from the environment, unlimited height.
FrameSize paper_size() {
  FrameSize size{80, 1000};
  if (const auto terminal = terminal_size(STDOUT_FILENO)) {
    size.columns = terminal->columns;
  } else if (const char* columns = std::getenv("COLUMNS")) {
    if (const int number = std::atoi(columns); number > 0 && number < 10'000)
      size.columns = static_cast<std::size_t>(number);
  }
  return size;
}

struct Watched {
  std::string mount;
  std::string state;  // the directory with its socket

  Result<ControlAnswer> ask(const ControlListener& listener = {}) const {
    return ask_socket(state, mount, {{"verb", "activity"}}, listener);
  }
};

int stream_json(const Watched& watched, duration<double> interval, bool once) {
  for (;;) {
    auto answer = watched.ask();
    if (!answer) return fail("top", answer.error().text());
    answer->last.erase("done");
    std::puts(answer->last.dump(-1, ' ', false, Json::error_handler_t::replace).c_str());
    // This usually ends when the reader of the pipe closes it; see run_program(). A write that has
    // failed may leave nothing to flush.
    if (std::fflush(stdout) != 0 || std::ferror(stdout) != 0 || once) return kDone;
    std::this_thread::sleep_for(interval);
  }
}

int print_once(const Watched& watched, duration<double> interval, const Style& style) {
  const auto before = watched.ask();
  if (!before) return fail("top", before.error().text());
  std::this_thread::sleep_for(interval);
  const auto now = watched.ask();
  if (!now) return fail("top", now.error().text());
  for (const std::string& line :
       top_frame(before->last, now->last, real_clock().seconds(), paper_size(), style)) {
    std::puts(line.c_str());
  }
  return kDone;
}

// Runs until the user quits. Returns the problem, if any, after it has restored the terminal.
std::string watch(const Watched& watched, duration<double> interval, const Style& style) {
  Screen screen;
  const auto step = std::chrono::duration_cast<steady_clock::duration>(interval);
  ControlListener listener;
  listener.tick = [&] { return !screen.is_over(); };
  Json before, now;
  for (auto next = steady_clock::now();; next = std::max(next + step, steady_clock::now())) {
    auto answer = watched.ask(listener);
    if (!answer) return answer.error().text();
    if (answer->was_ended) return "";
    before = std::exchange(now, std::move(answer->last));
    for (auto event = Screen::Event::Resize; event != Screen::Event::Time;) {
      screen.draw(top_screen(before, now, real_clock().seconds(), screen.size(), style));
      const auto waited = screen.wait(next + step);
      const bool quits =
          waited.event == Screen::Event::Key && (waited.key == 'q' || waited.key == 'Q');
      if (waited.event == Screen::Event::End || quits) return "";
      event = waited.event;
    }
  }
}

}  // namespace

int command_top(int argc, char** argv) {
  Arguments arguments;
  std::string given;
  std::string color = "auto";
  double interval = 1;
  bool once = false, as_json = false;
  arguments.option("--interval", interval);
  arguments.flag("--once", once);
  arguments.flag("--json", as_json);
  arguments.option("--color", color);
  arguments.option("MOUNT", given);
  if (const auto code = arguments.parse(argc, argv, kHelp)) return *code;
  const auto style = style_for("top", color);
  if (!style) return kUsage;
  if (!(interval >= kShortest && interval <= kLongest))
    return misuse("top", "--interval must be a number of seconds from 0.1 to 3600");
  if (!once && !as_json && ::isatty(STDOUT_FILENO) != 1)
    return misuse("top", "the output is not a terminal; use --once or --json");
  const auto mount = mount_for("top", given);
  if (!mount) return kFailed;
  const auto status = mount_status(*mount);
  if (!status) return fail("top", describe_status_error(status.error(), *mount));

  const Watched watched{*mount, text_of(*status, "state")};
  const duration<double> pause(interval);
  if (as_json) return stream_json(watched, pause, once);
  if (once) return print_once(watched, pause, *style);
  const std::string problem = watch(watched, pause, *style);
  return problem.empty() ? kDone : fail("top", problem);
}

}  // namespace sluice::tools::cli
