// SPDX-License-Identifier: BSD-2-Clause
// sluice trace record.
#include <array>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstring>
#include <memory>
#include <optional>

#include "base/log.hpp"
#include "base/units.hpp"
#include "tools/cli/commands.hpp"
#include "tools/common/control_client.hpp"
#include "tools/common/mount_status.hpp"
#include "tools/common/progress.hpp"

namespace sluice::tools::cli {
namespace {

using Json = nlohmann::ordered_json;
using std::chrono::seconds;
using std::chrono::steady_clock;

constexpr HelpText kRecordHelp{.usage = "sluice trace record -o FILE [--for DURATION] [MOUNT]",
                               .options = R"(  -o, --output FILE   write to this file; - is stdout
      --for DURATION  end after this time: 30s, 15min, 12h, 7d
  -h, --help          short help (-h) or full help (--help)
)",
                               .details = R"(
Writes a line for each access to a file of the mount, until it is interrupted or the
time is over. The file is CSV with a header:

  time,id,size,path
  1763186848.123456,281474976710657,1048576,/models/llama.bin

The time is in seconds since the epoch and the size in bytes. A file keeps its id when
it is moved or renamed. 'sluice-lab simulate' replays a trace to show what would have
moved with other settings.

MOUNT can be omitted if the current directory is in a mount, or if there is only one
mount.

Examples:
  sluice trace record -o week.csv --for 7d /mnt/pool
  sluice trace record -o - | cut -d, -f4

Exit status: 0 recorded, 1 failed, 2 wrong usage.
)"};

// The handler only sets a flag, because recorded lines must still be written to the file.
volatile std::sig_atomic_t g_interrupted = 0;

void end_on_signals() {
  struct sigaction action {};
  action.sa_handler = [](int) { g_interrupted = 1; };
  for (const int signal : {SIGINT, SIGTERM, SIGHUP}) ::sigaction(signal, &action, nullptr);
}

struct FileCloser {
  void operator()(std::FILE* file) const {
    if (file != stdout) std::fclose(file);
  }
};

// RFC 4180: quoted where needed, quotes inside are doubled.
std::string csv_text(const std::string& text) {
  if (text.find_first_of(",\"\r\n") == std::string::npos) return text;
  std::string out = "\"";
  for (const char c : text) {
    if (c == '"') out += '"';
    out += c;
  }
  return out + '"';
}

bool write_access(std::FILE* file, const Json& access) {
  return std::fprintf(file, "%.6f,%llu,%llu,%s\n", real_of(access, "time"),
                      static_cast<unsigned long long>(number_of(access, "id")),
                      static_cast<unsigned long long>(number_of(access, "size")),
                      csv_text(text_of(access, "path")).c_str()) >= 0;
}

int trace_record(int argc, char** argv) {
  constexpr std::string_view kVerb = "trace record";
  Arguments arguments;
  std::string given;
  std::string output;
  std::string for_how_long;
  arguments.option("-o,--output", output, Arguments::Need::Required);
  arguments.option("--for", for_how_long);
  arguments.option("MOUNT", given);
  if (const auto code = arguments.parse(argc, argv, kRecordHelp)) return *code;
  std::optional<seconds> limit;
  if (!for_how_long.empty()) {
    limit = parse_duration(for_how_long);
    if (!limit) {
      return misuse(kVerb,
                    "--for must be a number with its unit (s, min, h, d or w), like 90s or "
                    "7d, not " +
                        log::escaped(for_how_long));
    }
  }
  const auto mount = mount_for(kVerb, given);
  if (!mount) return kFailed;

  const std::unique_ptr<std::FILE, FileCloser> file(
      output == "-" ? stdout : std::fopen(output.c_str(), "we"));
  if (!file) return fail(kVerb, log::escaped(output) + ": " + std::strerror(errno));
  std::fputs("time,id,size,path\n", file.get());
  end_on_signals();

  const auto began = steady_clock::now();
  std::uint64_t accesses = 0;
  int write_error = 0;  // of the first failure; later calls would overwrite errno
  const auto note = [&](bool was_written) {
    if (!was_written && write_error == 0) write_error = errno;
  };
  const auto elapsed = [&] {
    return std::chrono::duration_cast<seconds>(steady_clock::now() - began);
  };
  ProgressLine line;
  ControlListener listener;
  listener.line = [&](const Json& each) {
    const Json& access = member_of(each, "access");
    if (access.is_object()) {
      note(write_access(file.get(), access));
      ++accesses;
    }
    return g_interrupted == 0 && write_error == 0;
  };
  listener.tick = [&] {
    if (line.is_terminal() && line.is_due()) {
      line.show("recorded " + format_count(accesses) + " accesses in " +
                format_duration(elapsed()) + "; press Ctrl-C to end");
    }
    // Flush, so that readers of the file or pipe see the lines at once.
    note(std::fflush(file.get()) == 0);
    return g_interrupted == 0 && write_error == 0 && !(limit && elapsed() >= *limit);
  };
  const auto answer = ask_daemon(*mount, {{"verb", "trace"}}, listener);
  line.clear();

  note(std::fflush(file.get()) == 0);
  std::fprintf(stderr, "recorded %s accesses in %s\n", format_count(accesses).c_str(),
               format_duration(elapsed()).c_str());
  if (!answer) return fail(kVerb, answer.error().text());
  if (write_error != 0 && output != "-") {  // run_program() reports what stdout could not take
    return fail(kVerb, "cannot write " + log::escaped(output) + ": " + std::strerror(write_error));
  }
  return kDone;
}

constexpr std::array kSubverbs{
    Verb{"record", "write accesses to a trace file as they happen", trace_record},
};

}  // namespace

int command_trace(int argc, char** argv) { return run_subverb(argc, argv, kSubverbs); }

}  // namespace sluice::tools::cli
