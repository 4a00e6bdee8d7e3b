// SPDX-License-Identifier: BSD-2-Clause
#include <fcntl.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <sys/utsname.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <filesystem>
#include <fstream>
#include <functional>
#include <nlohmann/json.hpp>
#include <utility>
#include <vector>

#include "base/clock.hpp"
#include "base/http_server.hpp"
#include "base/log.hpp"
#include "base/path.hpp"
#include "base/unique_fd.hpp"
#include "base/units.hpp"
#include "fs/control/options.hpp"
#include "tiering/pool/marker.hpp"
#include "tools/cli/commands.hpp"
#include "tools/cli/machine.hpp"
#include "tools/cli/redaction.hpp"
#include "tools/cli/subprocess.hpp"
#include "tools/common/mount_status.hpp"
#include "tools/common/mounts.hpp"

namespace sluice::tools::cli {
namespace {

using Json = nlohmann::ordered_json;

constexpr std::string_view kVerb = "bundle";
constexpr std::size_t kLogBytes = 1 << 20;
constexpr std::size_t kLogLines = 2000;
constexpr std::chrono::seconds kVerbTimeout{15};  // a mount that hangs never answers

constexpr HelpText kHelp{
    .usage = "sluice bundle [--names] [-o FILE] [MOUNT]",
    .options = R"(  -o, --output FILE  default: ./sluice-bundle-DATE.tar; must not exist yet
      --names        do not replace file names by hashes
  -h, --help         short help (-h) or full help (--help)
)",
    .details = R"(
Collects the data that a problem report needs into one tar file, readable by its
owner only: versions, 'sluice doctor', 'status', 'moves' and 'top' as JSON, metrics,
the configuration, the last 2,000 lines of the log, and how the tiers are mounted. It
never reads the content of files in the pool.

Names of files and directories below the mount point and the tiers are replaced by
keyed hashes. The key is not stored: the same name has the same hash within the
bundle, but the name cannot be recovered. Common extensions like .bin are kept.
Comments and rule patterns of the configuration are removed. Paths of tiers and mount
point, names of tiers, sizes of files, and the programs in heat_ignore are kept.
--names keeps everything.

It also works without root, without a mount, and for a mount whose daemon has died.
The output and README.txt in the bundle list what could not be collected. Check the
bundle before you send it:  tar -xOf FILE | less

MOUNT can be omitted if the current directory is in a mount, or if there is only one
mount.

Examples:
  sudo sluice bundle
  sudo sluice bundle -o /tmp/report.tar /mnt/pool

Exit status: 0 written, 1 failed, 2 wrong usage.
)"};

// What is known about the pool; unknown members are empty.
struct Subject {
  std::string point;   // the mount point
  std::string config;  // the file
  std::string state;
  std::optional<std::string> log_file;                     // empty: there is none; nothing: unknown
  std::string metrics;                                     // as in the configuration
  std::vector<std::pair<std::string, std::string>> tiers;  // name and path
};

struct Bundle {
  std::vector<std::pair<std::string, std::string>> files;
  std::vector<std::string> left_out;
  std::string notes;  // lines for README.txt

  void add(const std::string& name, std::string text) { files.emplace_back(name, std::move(text)); }
  void leave_out(const std::string& name, const std::string& why) {
    left_out.push_back(name + ": " + why);
  }
};

// The default state directory of the pool that the tier belongs to.
std::string usual_state(const std::string& tier_path) {
  const UniqueFd root(::open(tier_path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (!root) return {};
  const auto marker = read_marker(root.get());
  return marker && *marker ? "/var/lib/sluice/" + (*marker)->pool : std::string();
}

// Whether 'sluice status' waited for an answer of the daemon in vain. It may have found out why;
// its sentence then says who waits (tools/cli/stuck_mount.cpp). A dead mount fails at once instead.
bool is_silent(const ProgramOutput& status) {
  return status.code < 0 ||
         (status.code == kFailed && status.err.find(" waits") != std::string::npos);
}

// Asks the daemon if it answers; otherwise reads the configuration that the mount table names.
Subject find_subject(const std::string& point, const std::vector<MountLine>& lines,
                     const Json& status) {
  Subject subject;
  subject.point = point;
  const auto mounted = mount_holding(lines, point);
  MountOptions options;
  if (mounted && mounted->source.starts_with('/')) {
    subject.config = mounted->source;
    if (apply_config_file(subject.config, options)) {
      if (!options.log_file.empty()) subject.log_file = options.log_file;
      subject.metrics = options.metrics;
      subject.state = options.state;
      for (const auto& tier : options.tiers) subject.tiers.emplace_back(tier.name, tier.path);
    }
  }
  if (status.is_object()) {
    subject.state = text_of(status, "state");
    if (status.contains("log")) subject.log_file = text_of(status, "log");
    subject.tiers.clear();
    for (const auto& tier : member_of(status, "tiers")) {
      subject.tiers.emplace_back(text_of(tier, "name"), text_of(tier, "path"));
    }
  }
  for (const auto& tier : subject.tiers) {
    if (subject.state.empty()) subject.state = usual_state(tier.second);
  }
  return subject;
}

std::string system_text(const MachineView& machine) {
  utsname name{};
  ::uname(&name);
  // Without the nodename, which may be confidential.
  return std::string("sluice " SLUICE_VERSION "\n") + name.sysname + " " + name.release + " " +
         name.version + " " + name.machine + "\n\n" +
         machine.text("/etc/os-release").value_or("no /etc/os-release") + "\n";
}

// The lines of the mount table for the tiers and the mount.
std::string mounts_text(const MachineView& machine, const std::vector<MountLine>& lines,
                        const Subject& subject, const Redactor* redactor) {
  std::vector<MountLine> wanted;
  const auto want = [&](const std::string& path) {
    if (const auto mounted = mount_holding(lines, path)) wanted.push_back(*mounted);
  };
  want(subject.point);
  for (const auto& tier : subject.tiers) want(real_path(tier.second));
  std::string out;
  for (const auto& line : parts_of(machine.text("/proc/self/mountinfo").value_or(""), '\n')) {
    const auto parsed = parse_mount_lines(line);
    if (!parsed.empty() && std::find(wanted.begin(), wanted.end(), parsed[0]) != wanted.end()) {
      out += (redactor == nullptr ? line : redactor->mount_line(line)) + "\n";
    }
  }
  return out;
}

// The last kLogBytes of a file, starting at a line. Sets `written` to the time of the last write.
std::optional<std::string> end_of_file(const std::string& path, std::int64_t& written) {
  const UniqueFd file(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  struct stat status {};
  if (!file || ::fstat(file.get(), &status) < 0) return std::nullopt;
  errno = EINVAL;
  if (!S_ISREG(status.st_mode)) return std::nullopt;
  written = status.st_mtim.tv_sec;
  const auto size = static_cast<std::size_t>(status.st_size);
  const std::size_t skipped = size > kLogBytes ? size - kLogBytes : 0;
  std::string text(size - skipped, '\0');
  const ssize_t got = ::pread(file.get(), text.data(), text.size(), static_cast<off_t>(skipped));
  if (got < 0) return std::nullopt;
  text.resize(static_cast<std::size_t>(got));
  if (skipped > 0) text.erase(0, std::min(text.find('\n'), text.size() - 1) + 1);
  return text;
}

// "/etc/sluice/pool.toml" is mounted by sluice@pool.
std::string unit_of(const std::string& config) {
  constexpr std::string_view kBefore = "/etc/sluice/", kBehind = ".toml";
  if (!config.starts_with(kBefore) || !config.ends_with(kBehind)) return {};
  return "sluice@" + config.substr(kBefore.size(), config.size() - kBefore.size() - kBehind.size());
}

void add_log(const Subject& subject, const std::function<std::string(std::string_view)>& redacted,
             Bundle& bundle) {
  const auto add = [&](const std::string& name, const std::string& text) {
    auto lines = parts_of(text, '\n');
    if (lines.size() > kLogLines) {
      lines.erase(lines.begin(), lines.end() - static_cast<std::ptrdiff_t>(kLogLines));
    }
    std::string out;
    for (const auto& line : lines) out += redacted(line) + "\n";
    bundle.add(name, std::move(out));
  };
  const std::string file =
      subject.log_file.value_or(subject.state.empty() ? "" : subject.state + "/sluice.log");
  std::int64_t written = 0;
  if (file.empty()) {
    bundle.leave_out("log.txt",
                     subject.log_file ? "the daemon logs to no file" : "its location is unknown");
  } else if (const auto text = end_of_file(file, written)) {
    add("log.txt", *text);
    bundle.notes +=
        "log.txt is the end of " + file + ", last written " + format_time(written) + "\n";
  } else {
    bundle.leave_out("log.txt", file + ": " + std::strerror(errno));
  }
  // A mount made by hand logs to the file, one made by the unit to the journal. The pool may have
  // been mounted both ways.
  const std::string unit = unit_of(subject.config);
  if (unit.empty()) return;
  const auto journal =
      run_program({"journalctl", "--unit", unit, "--lines", std::to_string(kLogLines), "--output",
                   "short-iso", "--no-hostname", "--no-pager"},
                  kVerbTimeout);
  if (journal.code == 0) add("journal.txt", journal.out);
}

// The answer of a metrics server; nothing if there is none.
std::optional<std::string> fetch_metrics(const sockaddr* address, socklen_t size) {
  const UniqueFd socket(::socket(address->sa_family, SOCK_STREAM | SOCK_CLOEXEC, 0));
  const timeval timeout{.tv_sec = 5, .tv_usec = 0};
  constexpr std::string_view kRequest = "GET /metrics HTTP/1.0\r\nHost: localhost\r\n\r\n";
  if (!socket ||
      ::setsockopt(socket.get(), SOL_SOCKET, SO_RCVTIMEO, &timeout, sizeof timeout) < 0 ||
      ::connect(socket.get(), address, size) < 0 ||
      ::send(socket.get(), kRequest.data(), kRequest.size(), MSG_NOSIGNAL) < 0) {
    return std::nullopt;
  }
  std::string text;
  char piece[16384];
  for (ssize_t got; (got = ::recv(socket.get(), piece, sizeof piece, 0)) > 0;) {
    text.append(piece, static_cast<std::size_t>(got));
  }
  const auto body = text.find("\r\n\r\n");
  if (body == std::string::npos || !text.starts_with("HTTP/1.1 200 ")) return std::nullopt;
  return text.substr(body + 4);
}

void add_metrics(const Subject& subject, Bundle& bundle) {
  std::optional<std::string> text;
  sockaddr_un local{.sun_family = AF_UNIX, .sun_path = {}};
  const std::string socket = subject.state + "/metrics.sock";
  if (const auto port = loopback_address(subject.metrics)) {
    text = fetch_metrics(reinterpret_cast<const sockaddr*>(&port->storage), port->size);
  } else if (!subject.state.empty() && socket.size() < sizeof local.sun_path) {
    std::memcpy(local.sun_path, socket.c_str(), socket.size() + 1);
    text = fetch_metrics(reinterpret_cast<const sockaddr*>(&local), sizeof local);
  }
  if (text) return bundle.add("metrics.txt", *text);
  bundle.leave_out("metrics.txt", "metrics are off, or this user may not read them");
}

// Runs a verb in its own process, because it may hang or crash.
ProgramOutput run_verb(std::vector<std::string> arguments) {
  arguments.insert(arguments.begin(), "/proc/self/exe");
  return run_program(arguments, kVerbTimeout);
}

Json parsed(const ProgramOutput& said) {
  return Json::parse(said.out, nullptr, /*allow_exceptions=*/false);
}

void add_answer(const std::string& name, const ProgramOutput& said, const Redactor* redactor,
                Bundle& bundle) {
  Json answer = parsed(said);
  if (answer.is_discarded()) {
    std::string why = said.code < 0 ? "no answer" : said.err.substr(0, said.err.find('\n'));
    if (redactor != nullptr) why = redactor->text(why);
    return bundle.leave_out(name, why);
  }
  if (redactor != nullptr) answer = redactor->json(std::move(answer));
  bundle.add(name, answer.dump(2, ' ', false, Json::error_handler_t::replace) + "\n");
}

// `key` hashes the names; without a key names are kept.
Bundle collect(const Result<std::string>& mount, const ProgramOutput& status,
               const std::optional<SipKey>& key) {
  const std::string point = mount ? *mount : "";
  const MachineView machine;
  const auto lines = parse_mount_lines(machine.text("/proc/self/mountinfo").value_or(""));
  const bool is_stuck = !point.empty() && is_silent(status);
  const Subject subject = point.empty() ? Subject{} : find_subject(point, lines, parsed(status));
  Redactor::Pool pool;
  if (!point.empty()) pool.roots.push_back(point);
  // Bind mounts of the pool show the same names.
  const auto whole = mount_holding(lines, point);
  for (const auto& line : lines) {
    const bool is_part = whole && line.major == whole->major && line.minor == whole->minor;
    if (!point.empty() && is_part && line.point != point) pool.roots.push_back(line.point);
  }
  for (const auto& [name, path] : subject.tiers) {
    pool.tiers.push_back(name);
    pool.roots.push_back(path);
    if (const std::string real = real_path(path); real != path) pool.roots.push_back(real);
  }
  const Redactor hiding(key.value_or(SipKey{}), pool);
  const Redactor* redactor = key ? &hiding : nullptr;

  Bundle bundle;
  bundle.add("system.txt", system_text(machine));
  std::vector<std::string> doctor{"doctor", "--json"};
  // With "/" doctor checks the machine only: it would block on a daemon that does not answer.
  if (!point.empty()) doctor.push_back(is_stuck ? "/" : point);
  add_answer("doctor.json", run_verb(doctor), redactor, bundle);
  if (point.empty()) {
    bundle.leave_out("everything about a mount", mount.error().text());
    return bundle;
  }
  add_answer("status.json", status, redactor, bundle);
  if (is_stuck) {
    bundle.leave_out("activity.json, moves.json, metrics.txt", "the daemon does not answer");
  } else {
    add_answer("activity.json", run_verb({"top", "--once", "--json", "--interval", "0.1", point}),
               redactor, bundle);
    add_answer("moves.json", run_verb({"moves", "--json", "--limit", "10000", point}), redactor,
               bundle);
    add_metrics(subject, bundle);
  }
  bundle.add("mounts.txt", mounts_text(machine, lines, subject, redactor));
  if (subject.config.empty()) {
    bundle.leave_out("config.toml",
                     "the pool was mounted with options, without a configuration file");
  } else if (const auto text = machine.text(subject.config)) {
    bundle.add("config.toml", redactor == nullptr ? *text : redactor->config(*text));
  } else {
    bundle.leave_out("config.toml", subject.config + ": " + std::strerror(errno));
  }
  add_log(
      subject,
      [&](std::string_view line) {
        return redactor == nullptr ? std::string(line) : redactor->log_line(line);
      },
      bundle);
  return bundle;
}

std::string readme(const Bundle& bundle, bool keeps_names) {
  std::string out = "Made by 'sluice bundle' for a problem report. It contains no file contents.\n";
  out += keeps_names
             ? "File names were kept (--names).\n"
             : "Names of files and directories in the pool were replaced by keyed hashes in <>.\n"
               "The same name has the same hash in this bundle only; the key was not stored.\n";
  out += bundle.notes;
  if (!bundle.left_out.empty()) out += "\nLeft out:\n";
  for (const auto& each : bundle.left_out) out += "  " + each + "\n";
  return out;
}

// Under sudo the bundle belongs to the user who ran sudo.
void give_to_caller(int file) {
  const auto id = [](const char* name) {
    const char* text = ::getenv(name);
    return text == nullptr ? std::nullopt : parse_size(text);
  };
  const auto user = id("SUDO_UID"), group = id("SUDO_GID");
  if (::geteuid() != 0 || !user || !group) return;
  // If this fails, root owns the file.
  [[maybe_unused]] const int ignored =
      ::fchown(file, static_cast<uid_t>(*user), static_cast<gid_t>(*group));
}

std::string usual_name() {
  const std::time_t now = real_clock().seconds();
  std::tm local{};
  char name[64] = "sluice-bundle.tar";
  if (::localtime_r(&now, &local) != nullptr) {
    std::strftime(name, sizeof name, "sluice-bundle-%Y%m%d-%H%M%S.tar", &local);
  }
  return name;
}

// A tar archive of the files. Empty if it could not be made.
std::string archive_of(const std::vector<std::pair<std::string, std::string>>& files) {
  char folder[] = "/tmp/sluice-bundle.XXXXXX";
  if (::mkdtemp(folder) == nullptr) return {};
  // With a plain owner, because the caller's name is not part of the report.
  std::vector<std::string> words{
      "tar", "-C", folder, "--owner=0", "--group=0", "--numeric-owner", "--mode=600", "-cf", "-"};
  bool is_written = true;
  for (const auto& [name, text] : files) {
    std::ofstream out(std::string(folder) + "/" + name, std::ios::binary);
    is_written = is_written && (out << text).flush();
    words.push_back(name);
  }
  ProgramOutput said;
  if (is_written) said = run_program(words, kVerbTimeout);
  std::error_code ignored;
  std::filesystem::remove_all(folder, ignored);
  return said.code == 0 ? said.out : "";
}

}  // namespace

int command_bundle(int argc, char** argv) {
  Arguments arguments;
  std::string given, output;
  bool keeps_names = false;
  arguments.option("-o,--output", output);
  arguments.flag("--names", keeps_names);
  arguments.option("MOUNT", given);
  if (const auto code = arguments.parse(argc, argv, kHelp)) return *code;
  const auto mount = choose_mount(given);
  if (!given.empty() && !mount) return fail(kVerb, mount.error().text());

  std::optional<SipKey> key;
  if (!keeps_names) {
    key.emplace();
    if (::getrandom(key->data(), sizeof *key, 0) != static_cast<ssize_t>(sizeof *key)) {
      return fail(kVerb,
                  std::string("cannot create a key to hash names with: ") + std::strerror(errno));
    }
  }
  if (output.empty()) output = usual_name();
  ProgramOutput status;
  if (mount) status = run_verb({"status", "--json", *mount});
  if (mount && is_silent(status) && sluice_mount_of(mount_table(), absolute_path(output))) {
    return fail(kVerb, "the daemon of " + log::escaped(*mount) +
                           " does not answer, and the bundle would be written to this mount; "
                           "choose another directory with --output");
  }
  // First, so that a bundle that cannot be written fails at once.
  UniqueFd file(::open(output.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600));
  if (!file) {
    return fail(kVerb, log::escaped(output) + ": " + std::strerror(errno) +
                           "; choose another file with --output");
  }
  give_to_caller(file.get());
  Bundle bundle = collect(mount, status, key);
  bundle.files.insert(bundle.files.begin(), {"README.txt", readme(bundle, keeps_names)});
  const std::string archive = archive_of(bundle.files);
  if (archive.empty()) {
    ::unlink(output.c_str());
    return fail(kVerb, "cannot make an archive with tar in /tmp");
  }
  if (::write(file.get(), archive.data(), archive.size()) != static_cast<ssize_t>(archive.size()) ||
      ::fsync(file.get()) < 0) {
    const int code = errno;
    ::unlink(output.c_str());
    return fail(kVerb, log::escaped(output) + ": " + std::strerror(code));
  }

  const auto style = *Style::create("auto");
  Table table({{"SIZE", Table::Align::Right}, {"FILE"}});
  for (const auto& [name, text] : bundle.files) table.add({format_size(text.size()), name});
  std::string out = table.text(style);
  for (const auto& each : bundle.left_out) out += safe_name(style, "left out: " + each) + "\n";
  const std::string shown = log::escaped(output);
  out += "\nwrote " + shown + " (" + format_size(archive.size()) + "), readable by you only. " +
         (keeps_names ? "It contains file names.\n" : "File names were replaced by hashes.\n") +
         "Check it before you send it: tar -xOf " + shell_word(output) + " | less\n";
  std::fputs(out.c_str(), stdout);
  return kDone;
}

}  // namespace sluice::tools::cli
