// SPDX-License-Identifier: BSD-2-Clause
// sluice tier run, pause, resume, drain, add, replace, lost, close.
#include <unistd.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstdio>
#include <functional>
#include <variant>
#include <vector>

#include "base/log.hpp"
#include "base/path.hpp"
#include "base/units.hpp"
#include "fs/control/options.hpp"
#include "tools/cli/commands.hpp"
#include "tools/cli/init_config.hpp"
#include "tools/cli/subprocess.hpp"
#include "tools/cli/tier_access.hpp"
#include "tools/common/attributes.hpp"
#include "tools/common/control_client.hpp"
#include "tools/common/interrupt.hpp"
#include "tools/common/mount_status.hpp"
#include "tools/common/progress.hpp"

namespace sluice::tools::cli {
namespace {

using Json = nlohmann::ordered_json;
using std::chrono::steady_clock;

constexpr HelpText kRunHelp{.usage = "sluice tier run [--verbose] [MOUNT]",
                            .options = R"(  -v, --verbose     print a line for each file that moves
      --color WHEN  auto (default), always, never
  -h, --help        short help (-h) or full help (--help)
)",
                            .details = R"(
Runs one pass now, even outside of the configured hours: examines every file and
moves those that belong on another tier. If interrupted, the pass ends after the moves
in progress. 'sluice plan' shows in advance what it would move.

MOUNT can be omitted if the current directory is in a mount, or if there is only one
mount.

Exit status: 0 done, 1 the pass or some of its moves failed, 2 wrong usage.
)"};

constexpr HelpText kPauseHelp{.usage = "sluice tier pause [MOUNT]",
                              .options = R"(  -h, --help  short help (-h) or full help (--help)
)",
                              .details = R"(
Stops automatic migration until 'sluice tier resume'. Moves in progress are finished,
and 'sluice move' still works.

Exit status: 0 done, 1 failed, 2 wrong usage.
)"};

constexpr HelpText kResumeHelp{.usage = "sluice tier resume [MOUNT]",
                               .options = R"(  -h, --help  short help (-h) or full help (--help)
)",
                               .details = R"(
Resumes automatic migration after 'sluice tier pause'.

Exit status: 0 done, 1 failed, 2 wrong usage.
)"};

constexpr HelpText kDrainHelp{
    .usage = "sluice tier drain NAME [--cancel|--lost] [--verbose] [MOUNT]",
    .options = R"(      --cancel      end a drain, and allow new files on the tier again
      --lost        give up a tier that is gone for good, and the files on it
  -v, --verbose     print a line for each file that moves
      --color WHEN  auto (default), always, never
  -h, --help        short help (-h) or full help (--help)
)",
    .details = R"(
Moves every file off the tier and puts no new files there, so that the tier can be
removed from the configuration. At the end it says that the tier is empty, or which files
are left and why, such as files that are open for writing, and what to do. The tier gets
no new files until --cancel, even if this command is interrupted. --cancel also ends a
drain that is running; files that it has moved stay where they are.

A tier whose disk has failed cannot be emptied. With --lost the pool continues without
it, and the next mount does not require it. Files of that tier that have a twin on
another tier come back as they were when they were moved; each is listed with that
time, because nobody can know whether it was changed since. If the disk works again
later, add the tier to the configuration again, and its files are back; files that came
back from twins keep their names. 'sluice tier lost' lists the files that were on it,
before and after. 'sluice tier replace' puts a new disk in its place instead.

Examples:
  sluice tier drain ssd
  sluice tier drain ssd --cancel

Exit status: 0 the tier is empty, 1 failed or files are left, 2 wrong usage.
)"};

constexpr HelpText kAddHelp{.usage = "sluice tier add NAME=PATH[,KEY=VALUE]... [MOUNT]",
                            .options = R"(  -h, --help  short help (-h) or full help (--help)
)",
                            .details = R"(
Adds a tier to a running mount. The keys are those of 'sluice mount --tier'. Prints the
lines to add to the configuration, so that the next mount has the tier, too.

PATH is a directory that is new to Sluice, or a disk of this pool that was given up or
replaced and works again: then its files are back. A disk that was replaced needs a new
name, because another one has its old name. Files that are in the directory become files
of the pool. PATH must be apart from the mount and the other tiers: neither inside them
nor above them.

Example:
  sluice tier add archive=/archive,capacity=8T >> /etc/sluice/pool.toml

Exit status: 0 added, 1 failed, 2 wrong usage.
)"};

constexpr HelpText kReplaceHelp{.usage = "sluice tier replace NAME=PATH[,KEY=VALUE]... [MOUNT]",
                                .options = R"(  -h, --help  short help (-h) or full help (--help)
)",
                                .details = R"(
Puts a new disk in the place of a dead one, on a running mount: it gets the name, and
its rank among the tiers, so that pins, rules and dashboards stay valid. It keeps the
settings of the old one; if any KEY is given, all others are the defaults. If the pool
is not mounted, mount it with --degraded first.

The old disk must be gone: unplugged, failed or unmounted. 'sluice tier drain' empties a
disk that still works. Files that have a twin on another tier come back, as with 'sluice
tier drain --lost'; 'sluice tier lost NAME' lists the others. If the old disk works again
later, 'sluice tier add OTHERNAME=PATH' brings its files back.

If PATH differs from the old path, prints the lines for the configuration.

Examples:
  sluice tier lost ssd > lost.txt
  sluice tier replace ssd=/mnt/newdisk

Exit status: 0 replaced, 1 failed, 2 wrong usage.
)"};

constexpr HelpText kLostHelp{
    .usage = "sluice tier lost [--null] NAME [MOUNT]",
    .options = R"(  -0, --null  end each path with a zero byte instead of a newline
  -h, --help  short help (-h) or full help (--help)
)",
    .details = R"(
Lists the files that were on a tier whose disk is gone, one path a line, below the mount.
Works while the tier is offline, after 'sluice tier drain --lost', and after 'sluice tier
replace': then NAME means the previous disk, and NAME#SLOT an earlier one.

The list is what was recorded: the files that the last pass or plan found on the disk,
those in memory when it went away, and the moves since. It says on stderr how old it is. Files
that were made or renamed since may be missing, and files that were deleted since may be
listed. Files that have a file of the same name on another tier are left out.

Example:
  sluice tier lost -0 ssd | rsync -a --from0 --files-from=- /backup/ /mnt/pool/

Exit status: 0 done, 1 failed, 2 wrong usage.
)"};

constexpr HelpText kCloseHelp{.usage = "sluice tier close [--dry-run] PATH...",
                              .options = R"(      --dry-run   show the commands without running them
  -h, --help      short help (-h) or full help (--help)
)",
                              .details = R"(
Makes the given tier directories accessible to root only, so that users cannot change
files without Sluice noticing. Works whether the pool is mounted or not; a mounted pool
is not disturbed. Prints each command, then runs it:

  - If the parent directory contains nothing but tiers, it gets mode 0700.
  - Otherwise the tier is moved into a new directory beside it, PATH.private, that
    only root can enter, and a symbolic link replaces it, so that configuration and
    fstab stay valid. A tier that is a whole filesystem is mounted there instead.

The tier directory itself keeps its mode, because that is the mode of the mount's root.

Examples:
  sluice tier close /nvme /hdd
  sluice tier close --dry-run /srv/tiers/nvme

Exit status: 0 only root can enter them now, 1 failed, 2 wrong usage.
)"};

struct Request {
  std::string tier;
  std::string mount;
  std::string color = "auto";
  bool verbose = false;
  bool cancel = false;
  bool lost = false;
};

// Shows a pass while it runs: progress and failures.
class PassView {
 public:
  PassView(const Style& style, std::string_view verb, bool verbose)
      : style_(style), verb_(verb), verbose_(verbose) {}

  void take(const Json& line) {
    if (const Json& progress = member_of(line, "progress"); progress.is_object()) {
      take_progress(progress);
    }
    if (const Json& receipt = member_of(line, "receipt"); receipt.is_object()) {
      take_receipt(receipt);
    }
  }
  void end() { line_.clear(); }

 private:
  void take_progress(const Json& progress) {
    const bool is_moving = text_of(progress, "phase") == "move";
    const auto bytes = number_of(progress, "bytes");
    if (is_moving) meter_.add(steady_clock::now(), bytes);
    if (!line_.is_due()) return;
    if (!is_moving) {
      line_.show("examining files: " + format_count(number_of(progress, "files")));
      return;
    }
    std::string text =
        transfer_text(bytes, number_of(progress, "total_bytes"), number_of(progress, "moved"),
                      number_of(progress, "total"), meter_, line_.is_terminal());
    if (const std::string path = text_of(progress, "path"); !path.empty()) text += "  " + path;
    line_.show(text);
  }

  void take_receipt(const Json& receipt) {
    const std::string result = text_of(receipt, "result");
    if (result == "failed" || ((result == "yielded" || result == "cancelled") && verbose_)) {
      line_.clear();
      fail(verb_, log::escaped(text_of(receipt, "path")) + ": cannot move to " +
                      text_of(receipt, "to") + ": " + log::escaped(text_of(receipt, "reason")));
    } else if (verbose_ && result == "moved") {
      line_.clear();
      std::printf("%s -> %s  %s  %s\n", text_of(receipt, "from").c_str(),
                  text_of(receipt, "to").c_str(), format_size(number_of(receipt, "bytes")).c_str(),
                  safe_name(style_, text_of(receipt, "path")).c_str());
    }
  }

  const Style& style_;
  const std::string_view verb_;
  const bool verbose_;
  RateMeter meter_;
  ProgressLine line_;
};

std::string summary(const Json& last, steady_clock::duration took) {
  const auto bytes = number_of(last, "bytes");
  const auto elapsed = std::chrono::duration<double>(took).count();
  const auto seconds = std::chrono::duration_cast<std::chrono::seconds>(took);
  std::string text = "moved " + format_files(number_of(last, "moved")) + ", " + format_size(bytes) +
                     ", in " + format_duration(seconds);
  if (bytes > 0 && elapsed >= 1) {
    text += " (" + format_size(static_cast<std::uint64_t>(static_cast<double>(bytes) / elapsed)) +
            "/s)";
  }
  if (const auto failed = number_of(last, "failed"); failed > 0) {
    text += "; " + format_count(failed) + " failed";
  }
  if (const auto pending = number_of(last, "pending"); pending > 0) {
    text += "; " + format_count(pending) + " waiting, see 'sluice moves'";
  }
  return text;
}

// Sends `message`, shows the pass that it starts, and prints the result. If Ctrl-C ends that, it
// says `goes_on`.
Result<ControlAnswer> make_pass(const Style& style, const Request& request, std::string_view verb,
                                const Json& message, const std::string& goes_on,
                                const std::function<void(const Json& line)>& also = {}) {
  const auto began = steady_clock::now();
  const Interrupt interrupt;
  PassView view(style, verb, request.verbose);
  ControlListener listener;
  listener.line = [&](const Json& line) {
    view.take(line);
    if (also) also(line);
    return true;
  };
  listener.tick = [&] { return !interrupt.came(); };
  auto answer = ask_daemon(request.mount, message, listener);
  view.end();
  if (interrupt.came()) interrupt.end(std::string(verb), goes_on);
  if (answer) {
    std::puts(summary(answer->last, steady_clock::now() - began).c_str());
  }
  return answer;
}

int tier_run(int argc, char** argv) {
  Arguments arguments;
  Request request;
  arguments.flag("-v,--verbose", request.verbose);
  arguments.option("--color", request.color);
  arguments.option("MOUNT", request.mount);
  if (const auto code = arguments.parse(argc, argv, kRunHelp)) return *code;
  const auto style = style_for("tier run", request.color);
  if (!style) return kUsage;
  const auto mount = mount_for("tier run", request.mount);
  if (!mount) return kFailed;
  request.mount = *mount;

  const auto answer = make_pass(*style, request, "tier run", {{"verb", "run"}},
                                "the moves in progress are finished, and then the pass ends");
  if (!answer) return fail("tier run", answer.error().text());
  return number_of(answer->last, "failed") > 0 ? kFailed : kDone;
}

int pause_or_resume(int argc, char** argv, const HelpText& help, const char* verb,
                    const char* said) {
  Arguments arguments;
  std::string given;
  arguments.option("MOUNT", given);
  if (const auto code = arguments.parse(argc, argv, help)) return *code;
  const std::string name = argv[0];
  const auto mount = mount_for(name, given);
  if (!mount) return kFailed;
  const auto answer = ask_daemon(*mount, {{"verb", verb}});
  if (!answer) return fail(name, answer.error().text());
  std::fprintf(stderr, "%s: %s\n", log::escaped(*mount).c_str(), said);
  return kDone;
}

int tier_pause(int argc, char** argv) {
  return pause_or_resume(argc, argv, kPauseHelp, "pause",
                         "automatic migration is paused; continue with 'sluice tier resume'");
}

int tier_resume(int argc, char** argv) {
  return pause_or_resume(argc, argv, kResumeHelp, "resume", "automatic migration continues");
}

// What a drain has left on the tier.
struct Leftovers {
  std::vector<Json> first;
  void take(const Json& line) {
    if (const Json& left = member_of(line, "left"); left.is_object()) first.push_back(left);
  }
};

// Says what a drain has left, why, and what to do.
int report_leftovers(const Style& style, const std::string& tier, const Json& last,
                     const Leftovers& leftovers) {
  const auto left = number_of(last, "left");
  bool is_full = false;
  std::string list;
  for (const Json& each : leftovers.first) {
    is_full = is_full || flag_of(each, "full");
    list += "  " + safe_name(style, text_of(each, "path")) + ": " +
            safe_name(style, text_of(each, "why")) + "\n";
  }
  if (left > leftovers.first.size())
    list += "  and " + format_count(left - leftovers.first.size()) + " more\n";
  std::fflush(stdout);
  fail("tier drain",
       format_files(left) + ", " + format_size(number_of(last, "left_bytes")) + ", " +
           (left == 1 ? "is" : "are") + " left on " + tier +
           (is_full ? "; delete files on other tiers or add a tier ('sluice tier add'), then run "
                      "it again, or give up ('sluice tier drain " +
                          tier + " --cancel'):"
            : left == 1 ? "; run it again when it can move:"
                        : "; run it again when they can move:"));
  std::fputs(list.c_str(), stdout);
  return kFailed;
}

// Where the mount has the tier now; empty if it has none of that name.
std::string path_of_tier(const std::string& mount, const std::string& name) {
  const auto status = mount_status(mount);
  if (!status) return {};
  for (const auto& each : member_of(*status, "tiers")) {
    if (text_of(each, "name") == name) return text_of(each, "path");
  }
  return {};
}

// Lines for the configuration, which the user may append to it. The change of the tier cannot be
// made again to see them once more, so they go to stderr if stdout cannot take them.
void print_lines(const std::string& text) {
  std::fputs(text.c_str(), stdout);
  if (std::fflush(stdout) != 0) std::fputs(text.c_str(), stderr);
}

void print_removal_steps(const std::string& mount, const std::string& name, const char* how) {
  std::fprintf(stderr,
               "tier %s is %s. Before the next mount, remove these lines from the configuration:\n",
               name.c_str(), how);
  TierOptions tier;
  tier.name = name;
  tier.path = path_of_tier(mount, name);
  print_lines(tier_text(tier, ""));
}

// Prints the files that came back from twins, and those that could not.
ControlListener twin_printer(const Style& style) {
  ControlListener listener;
  listener.line = [&style](const Json& line) {
    const Json& twin = member_of(line, "twin");
    if (!twin.is_object()) return true;
    const std::string path = safe_name(style, text_of(twin, "path"));
    const std::string error = text_of(twin, "error");
    const std::string as_of = format_time(static_cast<std::int64_t>(number_of(twin, "as_of")));
    if (error.empty()) {
      std::printf("recovered from its twin on %s, as of %s: %s\n",
                  safe_name(style, text_of(twin, "tier")).c_str(), as_of.c_str(), path.c_str());
    } else {
      std::printf("not recovered, as of %s: %s: %s\n", as_of.c_str(), path.c_str(),
                  safe_name(style, error).c_str());
    }
    return true;
  };
  return listener;
}

// What goes on if somebody stops waiting for a drain.
std::string drain_goes_on(const Request& request) {
  const auto status = mount_status(request.mount);
  const bool is_automatic = status && flag_of(member_of(*status, "migration"), "automatic");
  return "tier " + request.tier + " stays draining: it gets no new files" +
         (is_automatic ? ", and later passes move the others off it" : "") +
         ". Run it again to go on waiting; 'sluice tier drain " + request.tier +
         " --cancel' ends the drain";
}

int tier_drain(int argc, char** argv) {
  Arguments arguments;
  Request request;
  arguments.flag("--cancel", request.cancel);
  arguments.flag("--lost", request.lost);
  arguments.flag("-v,--verbose", request.verbose);
  arguments.option("--color", request.color);
  arguments.option("NAME", request.tier, Arguments::Need::Required);
  arguments.option("MOUNT", request.mount);
  if (const auto code = arguments.parse(argc, argv, kDrainHelp)) return *code;
  const auto style = style_for("tier drain", request.color);
  if (!style) return kUsage;
  if (request.cancel && request.lost)
    return misuse("tier drain", "--cancel and --lost cannot be used together");
  const auto mount = mount_for("tier drain", request.mount);
  if (!mount) return kFailed;
  request.mount = *mount;
  if (const auto problem = unknown_tier(*mount, request.tier); !problem.empty()) {
    return fail("tier drain", problem);
  }

  const Json message = {{"verb", request.lost ? "give-up" : "drain"},
                        {"tier", request.tier},
                        {"cancel", request.cancel}};
  if (request.cancel || request.lost) {
    const auto answer = ask_daemon(*mount, message, twin_printer(*style));
    if (!answer) return fail("tier drain", answer.error().text());
    if (request.lost) {
      print_removal_steps(*mount, request.tier, "given up, with the files on it");
      std::fprintf(stderr, "'sluice tier lost %s' lists the files that were on it\n",
                   request.tier.c_str());
      return kDone;
    }
    const Json& was_draining = member_of(answer->last, "was_draining");
    std::fprintf(stderr, "tier %s %s\n", request.tier.c_str(),
                 was_draining.is_boolean() && !was_draining.get<bool>() ? "was not being drained"
                                                                        : "is in use again");
    return kDone;
  }
  Leftovers leftovers;
  const auto answer = make_pass(*style, request, "tier drain", message, drain_goes_on(request),
                                [&](const Json& line) { leftovers.take(line); });
  if (!answer) return fail("tier drain", answer.error().text());
  if (flag_of(answer->last, "empty")) {
    print_removal_steps(*mount, request.tier, "empty");
    return kDone;
  }
  return report_leftovers(*style, request.tier, answer->last, leftovers);
}

// A tier as the user gave it.
struct GivenTier {
  std::string text;  // NAME=PATH,..., with an absolute path
  TierOptions options;
  std::string mount;
};

// Reads the arguments of a verb that takes a tier, or returns its exit code.
std::variant<GivenTier, int> given_tier(int argc, char** argv, const HelpText& help,
                                        std::string_view verb) {
  Arguments arguments;
  GivenTier out;
  arguments.option("NAME=PATH", out.text, Arguments::Need::Required);
  arguments.option("MOUNT", out.mount);
  if (const auto code = arguments.parse(argc, argv, help)) return *code;
  // The daemon checks it again; this reports mistakes before the daemon is asked.
  MountOptions options;
  if (const auto read = append_tier("NAME=PATH", out.text, options); !read) {
    return misuse(verb, read.error().text());
  }
  out.options = options.tiers[0];
  // The daemon's current directory is not ours.
  if (const auto path = out.text.find('=') + 1; out.text[path] != '/') {
    out.text.insert(path, absolute_path(".") + "/");
    out.options.path = absolute_path(out.options.path);
  }
  const auto mount = mount_for(std::string(verb), out.mount);
  if (!mount) return kFailed;
  out.mount = *mount;
  return out;
}

void warn_if_open(const std::string& verb, const TierOptions& tier) {
  if (const auto warning = open_tiers_warning({{tier.name, tier.path}}); !warning.empty())
    std::fprintf(stderr, "sluice: %s: warning: %s\n", verb.c_str(), warning.c_str());
}

int tier_add(int argc, char** argv) {
  const auto given = given_tier(argc, argv, kAddHelp, "tier add");
  if (const int* code = std::get_if<int>(&given)) return *code;
  const auto& [text, added, mount] = std::get<GivenTier>(given);
  const auto answer = ask_daemon(mount, {{"verb", "add"}, {"tier", text}});
  if (!answer) return fail("tier add", answer.error().text());
  std::fprintf(stderr,
               "tier %s is in use; for the next mount, add these lines to the configuration:\n",
               added.name.c_str());
  print_lines(tier_text(added, text));
  warn_if_open("tier add", added);
  return kDone;
}

int tier_replace(int argc, char** argv) {
  const auto given = given_tier(argc, argv, kReplaceHelp, "tier replace");
  if (const int* code = std::get_if<int>(&given)) return *code;
  const auto& [text, tier, mount] = std::get<GivenTier>(given);
  const auto style = style_for("tier replace", "auto");
  if (!style) return kUsage;
  const std::string before = path_of_tier(mount, tier.name);
  const auto answer =
      ask_daemon(mount, {{"verb", "replace"}, {"tier", text}}, twin_printer(*style));
  if (!answer) return fail("tier replace", answer.error().text());
  std::fprintf(stderr,
               "tier %s is now %s (%s, %s); 'sluice tier lost %s' lists the files that were on the "
               "old disk\n",
               tier.name.c_str(), log::escaped(tier.path).c_str(),
               text_of(answer->last, "filesystem").c_str(),
               format_size(number_of(answer->last, "total")).c_str(), tier.name.c_str());
  if (before.empty()) {
    std::fputs("for the next mount, add these lines to the configuration:\n", stderr);
    print_lines(tier_text(tier, text));
  } else if (before != tier.path) {
    std::fprintf(stderr, "for the next mount, change its path in the configuration from %s to:\n",
                 log::escaped(before).c_str());
    print_lines(tier_text(tier, text));
  }
  warn_if_open("tier replace", tier);
  return kDone;
}

// How complete the list of lost files is.
std::string completeness(const Json& last, const std::string& name) {
  const auto elsewhere = number_of(last, "elsewhere");
  const auto nameless = number_of(last, "nameless");
  const auto census = static_cast<std::int64_t>(number_of(last, "census"));
  std::string text = format_files(number_of(last, "files")) + ", " +
                     format_size(number_of(last, "bytes")) +
                     (number_of(last, "files") == 1 ? ", was on " : ", were on ") + name;
  text += census == 0
              ? "; no pass has listed its files, so only those that were in memory or moved "
                "there are known"
              : "; its files were last listed completely at " + format_time(census) +
                    ", later ones may be missing";
  if (nameless > 0)
    text += "; " + format_files(nameless) + " more " + (nameless == 1 ? "was" : "were") +
            " used there, but the names are not known";
  if (elsewhere > 0)
    text += "; " + format_files(elsewhere) +
            " left out, because other tiers have files of the same names";
  return text;
}

int tier_lost(int argc, char** argv) {
  Arguments arguments;
  std::string name, given;
  bool is_null = false;
  arguments.flag("-0,--null", is_null);
  arguments.option("NAME", name, Arguments::Need::Required);
  arguments.option("MOUNT", given);
  if (const auto code = arguments.parse(argc, argv, kLostHelp)) return *code;
  const auto style = style_for("tier lost", "auto");
  if (!style) return kUsage;
  const auto mount = mount_for("tier lost", given);
  if (!mount) return kFailed;
  ControlListener listener;
  listener.line = [&](const Json& line) {
    const Json& lost = member_of(line, "lost");
    if (!lost.is_object()) return true;
    const std::string path = text_of(lost, "path");
    std::fputs((is_null ? path : safe_name(*style, path)).c_str(), stdout);
    std::fputc(is_null ? '\0' : '\n', stdout);
    return true;
  };
  const auto answer = ask_daemon(*mount, {{"verb", "lost"}, {"tier", name}}, listener);
  if (!answer) return fail("tier lost", answer.error().text());
  std::fflush(stdout);
  std::fprintf(stderr, "%s\n", completeness(answer->last, name).c_str());
  return kDone;
}

int tier_close(int argc, char** argv) {
  Arguments arguments;
  std::vector<std::string> paths;
  bool dry_run = false;
  arguments.flag("--dry-run", dry_run);
  arguments.option("PATH", paths, Arguments::Need::Required);
  if (const auto code = arguments.parse(argc, argv, kCloseHelp)) return *code;
  constexpr std::string_view kName = "tier close";
  if (!dry_run && ::geteuid() != 0)
    return fail(kName, "only root can do this; try: sudo sluice " + std::string(kName) + " ...");
  for (std::string& path : paths) {
    path = absolute_path(path);
    if (::access((path + "/.sluice").c_str(), F_OK) < 0) {
      return fail(kName,
                  log::escaped(path) +
                      " is not a tier: it has no .sluice directory; was its pool ever mounted?");
    }
  }
  for (const std::string& path : paths) {
    const auto command = closing_command(path, paths);
    if (!command) {
      std::fprintf(stderr, "%s: only root can enter it\n", log::escaped(path).c_str());
      continue;
    }
    std::puts(command->c_str());
    if (dry_run) continue;
    std::fflush(stdout);
    const auto ran = run_program({"/bin/sh", "-c", *command}, std::chrono::seconds(60));
    if (ran.code != 0) return fail(kName, log::escaped(path) + ": " + ran.err);
    if (closing_command(path, paths))
      return fail(kName, log::escaped(path) + " is still accessible to users");
  }
  return kDone;
}

constexpr std::array kSubverbs{
    Verb{"run", "run one pass of automatic migration now", tier_run},
    Verb{"pause", "pause automatic migration", tier_pause},
    Verb{"resume", "resume automatic migration", tier_resume},
    Verb{"drain", "empty a tier, so that it can be removed", tier_drain},
    Verb{"add", "add a tier to a running mount", tier_add},
    Verb{"replace", "put a new disk in the place of a dead one", tier_replace},
    Verb{"lost", "list the files that were on a disk that is gone", tier_lost},
    Verb{"close", "keep users from bypassing the mount", tier_close},
};

}  // namespace

int command_tier(int argc, char** argv) { return run_subverb(argc, argv, kSubverbs); }

}  // namespace sluice::tools::cli
