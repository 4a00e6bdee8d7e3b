// SPDX-License-Identifier: BSD-2-Clause
// sluice origin check.
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <vector>

#include "base/log.hpp"
#include "base/mount_lines.hpp"
#include "base/path.hpp"
#include "tiering/origin/check.hpp"
#include "tools/cli/commands.hpp"
#include "tools/cli/partner.hpp"
#include "tools/common/interrupt.hpp"
#include "tools/common/progress.hpp"

namespace sluice::tools::cli {
namespace {

using Json = nlohmann::ordered_json;
using std::chrono::steady_clock;
using State = Ability::State;

constexpr const char* kVerb = "origin check";
constexpr int kUnknown = 3;  // exit status: nothing fails, but no other machine was looked at
constexpr std::chrono::seconds kRaceTime{5};

constexpr HelpText kHelp{
    .usage = "sluice origin check [--with [HOST:]DIR] [--races N] [--json] DIR",
    .options =
        R"(      --with DIR    another mount of the filesystem: on this machine, or HOST:DIR by ssh
      --races N     the number of races (default: as many as take 5 s)
      --json        one JSON object; its members are stable
      --color WHEN  auto (default), always, never
  -h, --help        short help (-h) or full help (--help)
)",
    .details = R"(
Checks whether several machines can share the filesystem of DIR safely, and what they
can do there: each line begins with 'ok', 'weak' (less than on a local filesystem) or
'fail' (Sluice can't do without it). It works in a directory DIR/.sluice-check.XXXXXX,
which it makes and removes. Only root may use it.

The last line says whether an open sees what another machine closed before
(close-to-open). Only --with can tell. Then two machines race: one changes a file, stamps
it and closes it; the other one keeps a copy of the file, judges it by the stamp, and
opens it at once. An open that uses an old copy is stale, and one is enough to fail. A
second file shows how many opens would be stale if they were judged by inode, size and
times alone.

With HOST:DIR, the other machine is asked by 'ssh HOST sluice origin check --partner DIR'.
It needs the same version of Sluice, and root.

docs/origin.md lists filesystems and the mount options that they need.

Examples:
  sluice origin check /mnt/shared
  sluice origin check --with node2:/mnt/shared /mnt/shared
  sluice origin check --with /mnt/second --races 20000 --json /mnt/shared

Exit status: 0 machines can share it; 1 they can't, or the check failed; 2 wrong usage;
3 nothing fails, but it was checked without --with.
)"};

struct Request {
  std::string directory;
  std::string with;
  std::string color = "auto";
  std::uint64_t races = 0;  // 0: kRaceTime
  bool json = false;
};

struct Report {
  std::string type, source;  // of the filesystem
  std::vector<Ability> abilities;
  RaceSight race;
  double seconds = 0;  // of the race

  CloseToOpen close_to_open() const { return judge(abilities, race); }
  std::uint64_t opens() const { return 2 * race.rounds; }
};

// ---- the check ----

int fail_at(const std::string& place, const Error& error) {
  return fail(kVerb,
              log::escaped(place) + ": " + error.operation + ": " + std::strerror(error.code));
}

std::string describe_other(const Error& error, const Request& request) {
  const std::string with = log::escaped(request.with);
  const bool is_remote = !parse_partner_place(request.with).host.empty();
  switch (error.code) {
    case ENOENT:
      return with + " does not show what was just made in " + log::escaped(request.directory) +
             ": both must be the same directory of one filesystem, and names must be seen at once";
    case EPIPE:
      return with + ": the check there has ended; " +
             (is_remote ? "does 'ssh' work, and is sluice installed there?"
                        : "see the message above");
    case EPROTONOSUPPORT:
      return with + ": another version of sluice; install the same one on both machines";
    case ETIMEDOUT:
      return with + ": no answer for a minute; does the filesystem hang there?";
    default:
      return with + ": " + error.operation + ": " + std::strerror(error.code);
  }
}

// The other machine, if there is one, and the questions to it.
struct Other {
  Partner partner;
  RemoteSide side;
};

Result<std::unique_ptr<Other>> reach(const Request& request, const Interrupt& interrupt) {
  const auto place = parse_partner_place(request.with);
  const auto command = partner_command(place, real_path("/proc/self/exe"));
  Partner partner = SLUICE_TRY(Partner::start(command));
  RemoteSide side(partner.in(), partner.out(), [&interrupt] { return interrupt.came(); });
  return std::unique_ptr<Other>(new Other{std::move(partner), std::move(side)});
}

Result<void> race(const Request& request, const ScratchDirectory& scratch, AttributeSpace space,
                  CheckSide& other, Report& report) {
  ProgressLine line;
  const auto start = steady_clock::now();
  report.race = SLUICE_TRY(run_race(scratch.fd(), space, other, [&](const RaceSight& so_far) {
    if (line.is_terminal() && line.is_due())
      line.show(format_count(so_far.rounds) + " races, " + format_count(so_far.stale) +
                " stale opens");
    return request.races == 0 ? steady_clock::now() - start < kRaceTime
                              : so_far.rounds < request.races;
  }));
  report.seconds = std::chrono::duration<double>(steady_clock::now() - start).count();
  return {};
}

bool has_stamps(const std::vector<Ability>& abilities) {
  return std::ranges::none_of(abilities,
                              [](const Ability& each) { return each.state == State::Missing; });
}

// A filesystem that is mounted once has one cache.
void note_same_mount(const Request& request, std::vector<Ability>& abilities) {
  const auto place = parse_partner_place(request.with);
  struct stat one {
  }, other{};
  if (!place.host.empty() || ::stat(request.directory.c_str(), &one) < 0 ||
      ::stat(place.directory.c_str(), &other) < 0 || one.st_dev != other.st_dev)
    return;
  abilities.push_back({"mounts", State::Weaker,
                       "both directories are in one mount: the races say nothing about others"});
}

Result<void> look_with(const Request& request, const ScratchDirectory& scratch,
                       AttributeSpace space, RemoteSide& other, Report& report) {
  SLUICE_TRY(other.greet());
  SLUICE_TRY(other.enter(scratch.name(), space));
  report.abilities = SLUICE_TRY(try_abilities(scratch.fd(), space, &other));
  note_same_mount(request, report.abilities);
  // Without stamps there is nothing to race for.
  if (!has_stamps(report.abilities)) return {};
  return race(request, scratch, space, other, report);
}

// An error has a detail if the other machine is to blame.
Result<void> look(const Request& request, const ScratchDirectory& scratch, AttributeSpace space,
                  const Interrupt& interrupt, Report& report) {
  if (request.with.empty()) {
    report.abilities = SLUICE_TRY(try_abilities(scratch.fd(), space, nullptr));
    return {};
  }
  const auto other = SLUICE_TRY(reach(request, interrupt));
  const auto looked = look_with(request, scratch, space, other->side, report);
  if (looked || !other->side.has_failed()) return looked;
  return Error(looked.error().code, "check", describe_other(looked.error(), request));
}

// ---- what is said ----

// Colours and words of a line.
struct Mark {
  Color color;
  const char* word;
};
Mark mark_of(State state) {
  switch (state) {
    case State::Ok:
      return {Color::Green, "ok"};
    case State::Weaker:
      return {Color::Yellow, "weak"};
    case State::Missing:
      break;
  }
  return {Color::Red, "fail"};
}
Mark mark_of(CloseToOpen verdict) {
  switch (verdict) {
    case CloseToOpen::Yes:
      return {Color::Green, "yes"};
    case CloseToOpen::Unknown:
      return {Color::Yellow, "unknown"};
    case CloseToOpen::No:
      break;
  }
  return {Color::Red, "no"};
}

std::string why(const Report& report) {
  for (const Ability& each : report.abilities) {
    if (each.state == State::Missing) return each.words;
  }
  if (report.race.rounds == 0) return "no other machine was looked at; --with names one";
  if (report.race.stale == 0) return "no open was stale";
  return format_count(report.race.stale) + (report.race.stale == 1 ? " open" : " opens") +
         " used an old copy";
}

std::string advice(const Report& report) {
  if (report.close_to_open() == CloseToOpen::Yes) return "";
  const std::string known = mount_advice(report.type, report.source);
  if (!known.empty() || report.close_to_open() == CloseToOpen::Unknown) return known;
  return "switch the client's caches of attributes and data off, or use another filesystem; see "
         "docs/origin.md";
}

std::string race_line(const Report& report) {
  const RaceSight& race = report.race;
  char seconds[32];
  std::snprintf(seconds, sizeof seconds, "%.1f", report.seconds);
  return format_count(race.rounds) + " races in " + seconds + " s: of " +
         format_count(report.opens()) + " opens, " + format_count(race.stale) + " stale; " +
         format_count(race.stale_by_stat) + " by inode, size and times alone";
}

void print_line(std::string& out, const Style& style, Mark mark, const std::string& name,
                const std::string& words) {
  const std::string word = mark.word;
  out += "  " + style.paint(mark.color, word) + std::string(6 - word.size(), ' ') + name +
         std::string(name.size() < 15 ? 15 - name.size() : 1, ' ') + words + "\n";
}

void print_for_people(const Style& style, const Request& request, const Report& report) {
  std::string out = style.paint(Color::Bold, safe_name(style, request.directory)) + ", " +
                    safe_name(style, report.type + " (" + report.source + ")") +
                    (request.with.empty() ? "" : ", with " + safe_name(style, request.with)) + "\n";
  for (const Ability& each : report.abilities)
    print_line(out, style, mark_of(each.state), each.name, each.words);
  if (report.race.rounds > 0) {
    const State state = report.race.stale == 0 ? State::Ok : State::Missing;
    print_line(out, style, mark_of(state), "races", race_line(report));
  }
  const Mark mark = mark_of(report.close_to_open());
  out += "close-to-open: " + style.paint(mark.color, mark.word) + ", " + why(report) + "\n";
  if (const std::string next = advice(report); !next.empty()) out += "  -> " + next + "\n";
  std::fputs(out.c_str(), stdout);
}

Json to_json(const Request& request, const Report& report) {
  Json abilities = Json::array();
  for (const Ability& each : report.abilities) {
    abilities.push_back(
        {{"name", each.name}, {"verdict", mark_of(each.state).word}, {"words", each.words}});
  }
  Json race;
  if (report.race.rounds > 0) {
    race = {{"rounds", report.race.rounds}, {"opens", report.opens()},
            {"stale", report.race.stale},   {"stale_by_stat", report.race.stale_by_stat},
            {"hits", report.race.hits},     {"seconds", report.seconds}};
  }
  const std::string next = advice(report);
  return {{"directory", request.directory},
          {"with", request.with.empty() ? Json() : Json(request.with)},
          {"filesystem", {{"type", report.type}, {"source", report.source}}},
          {"abilities", std::move(abilities)},
          {"race", std::move(race)},
          {"close_to_open", mark_of(report.close_to_open()).word},
          {"why", why(report)},
          {"advice", next.empty() ? Json() : Json(next)}};
}

int exit_code(const Report& report) {
  switch (report.close_to_open()) {
    case CloseToOpen::Yes:
      return kDone;
    case CloseToOpen::Unknown:
      return kUnknown;
    case CloseToOpen::No:
      break;
  }
  return kFailed;
}

// ---- the verb ----

void name_filesystem(const std::string& directory, Report& report) {
  const auto mounted = mount_holding(mount_lines(), real_path(directory));
  report.type = mounted ? mounted->type : "unknown";
  report.source = mounted ? mounted->source : "unknown";
}

// What the other machine runs. Its stdin and stdout are the conversation.
int serve(const std::string& directory) {
  if (::geteuid() != 0) return fail(kVerb, "only root can check a filesystem");
  const auto served = serve_check(directory, STDIN_FILENO, STDOUT_FILENO);
  return served ? kDone : fail_at(directory, served.error());
}

int check(const Request& request, const Style& style) {
  const UniqueFd directory(::open(request.directory.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (!directory)
    return fail(kVerb, log::escaped(request.directory) + ": " + std::strerror(errno) +
                           "; name a directory of the shared filesystem");
  const auto found = attribute_space(directory.get());
  const auto space = found ? *found : AttributeSpace::User;  // the abilities say that there is none
  Report report;
  name_filesystem(request.directory, report);
  const Interrupt interrupt;
  std::optional<ScratchDirectory> scratch;
  {
    auto made = ScratchDirectory::make_in(request.directory);
    if (!made) return fail_at(request.directory, made.error());
    scratch.emplace(*std::move(made));
  }
  const auto looked = look(request, *scratch, space, interrupt, report);
  scratch.reset();
  if (interrupt.came()) interrupt.end(kVerb, "what it had made was removed");
  if (!looked && looked.error().detail) return fail(kVerb, *looked.error().detail);
  if (!looked) return fail_at(request.directory, looked.error());
  if (request.json) {
    std::puts(to_json(request, report).dump(2, ' ', false, Json::error_handler_t::replace).c_str());
  } else {
    print_for_people(style, request, report);
  }
  return exit_code(report);
}

}  // namespace

int command_origin_check(int argc, char** argv) {
  Arguments arguments;
  Request request;
  std::string partner;
  arguments.option("--with", request.with);
  arguments.option("--races", request.races);
  arguments.flag("--json", request.json);
  arguments.option("--color", request.color);
  arguments.option("--partner", partner);  // what --with HOST:DIR starts there
  arguments.option("DIR", request.directory);
  if (const auto code = arguments.parse(argc, argv, kHelp)) return *code;
  if (!partner.empty()) return serve(partner);
  if (request.directory.empty()) return misuse(kVerb, "missing DIR");
  if (parse_partner_place(request.with).host.starts_with('-'))
    return misuse(kVerb, "--with: the name of a machine can't begin with '-'");
  const auto style = style_for(kVerb, request.color);
  if (!style) return kUsage;
  if (::geteuid() != 0)
    return fail(kVerb, "only root can check a filesystem; try: sudo sluice origin check ...");
  return check(request, *style);
}

}  // namespace sluice::tools::cli
