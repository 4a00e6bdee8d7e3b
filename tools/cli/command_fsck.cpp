// SPDX-License-Identifier: BSD-2-Clause
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <nlohmann/json.hpp>

#include "base/path.hpp"
#include "base/units.hpp"
#include "fs/control/options.hpp"
#include "fs/daemon.hpp"
#include "metadata/rocks_store.hpp"
#include "tiering/move/checker.hpp"
#include "tools/cli/commands.hpp"
#include "tools/common/output.hpp"

namespace sluice::tools::cli {
namespace {

constexpr HelpText kHelp{
    .usage = "sluice fsck [--repair] [--json] [--config FILE] [--tier NAME=PATH]... [--state DIR]",
    .options = R"(  -c, --config FILE     read tiers and state from this TOML file
      --tier NAME=PATH  a tier, fastest first; these replace the file's tiers
      --state DIR       database (default /var/lib/sluice/<pool id>)
      --repair          repair what needs no decision from you
      --degraded        check even if a tier is missing
      --json            one JSON object; its members are stable
      --color WHEN      auto (default), always, never
  -h, --help            short help (-h) or full help (--help)
)",
    .details = R"(
Checks a pool that is not mounted: each path must be on one tier only, the copies of
a directory must agree and have the same path, and no operation may be unfinished.

  same-file-twice       the same path on two tiers with equal bytes; --repair removes
                        the file on the slower tier
  two-files             the same path on two tiers with different bytes; the mount
                        shows the file on the faster tier; not repaired: remove or
                        rename one of them
  type-clash            a path is a directory on one tier and a file on another; not
                        repaired
  directory-attributes  copies of a directory differ; --repair copies the attributes
                        from the fastest tier
  shared-identity       two files or directories with different paths have the same
                        inode number; --repair gives the second file, or an empty
                        directory, a new number. For a directory with entries you must
                        decide which path is right; the line says what to do
  acl-alias             an ACL in the format of XFS (trusted.SGI_ACL_FILE,
                        trusted.SGI_ACL_DEFAULT) on another filesystem, where it has
                        no effect; --repair removes it
  left-over             unfinished copies in .sluice/tmp; --repair removes them
  unfinished            operations that a crash interrupted; --repair completes them
  unreadable            something could not be checked

Examples:
  sluice fsck --config /etc/sluice/pool.toml
  sluice fsck --repair --tier nvme=/nvme --tier hdd=/hdd

Exit status: 0 no problems, or all were repaired; 1 problems remain, or the check
failed; 2 wrong usage.
)"};

struct Request {
  std::string config;
  std::vector<std::string> tiers;
  std::string state;
  std::string color = "auto";
  bool repair = false;
  bool json = false;
  bool degraded = false;
};

Result<void> read_options(const Request& request, MountOptions& options) {
  if (!request.config.empty()) {
    SLUICE_TRY(apply_config_file(request.config, options));
  }
  SLUICE_TRY(apply_environment([](const char* name) { return std::getenv(name); }, options));
  if (!request.state.empty()) options.state = absolute_path(request.state);
  if (!request.tiers.empty()) options.tiers.clear();
  for (const std::string& tier : request.tiers) {
    SLUICE_TRY(append_tier("--tier", tier, options));
  }
  if (options.tiers.empty())
    return Error{EINVAL, "read options", "no tiers given; use --config or --tier"};
  return {};
}

void print_for_people(const Style& style, const CheckReport& report, bool repaired) {
  std::string out;
  for (const Finding& f : report.findings) {
    out += style.paint(f.repaired ? Color::Green : Color::Red, name_of(f.kind)) + "  " +
           safe_name(style, f.path) + "\n    " + safe_name(style, f.detail) +
           (f.repaired ? " (repaired)" : "") + "\n";
  }
  const auto found = report.findings.size();
  const auto mended = std::count_if(report.findings.begin(), report.findings.end(),
                                    [](const Finding& f) { return f.repaired; });
  out += format_files(report.files) + " in " + format_count(report.directories) +
         (report.directories == 1 ? " directory: " : " directories: ") +
         (found == 0 ? "clean" : format_count(found) + (found == 1 ? " finding" : " findings")) +
         (mended > 0 ? ", " + format_count(static_cast<std::uint64_t>(mended)) + " repaired" : "") +
         "\n";
  if (report.twins > 0)
    out += format_count(report.twins) + (report.twins == 1 ? " twin, " : " twins, ") +
           format_size(report.twin_bytes) + "\n";
  if (report.stale_twins > 0)
    out += format_count(report.stale_twins) +
           (report.stale_twins == 1 ? " twin is of no use, " : " twins are of no use, ") +
           format_size(report.stale_twin_bytes) +
           (repaired ? " (removed)\n" : " (a mount or --repair removes such twins)\n");
  std::fputs(out.c_str(), stdout);
}

void print_json(const CheckReport& report) {
  nlohmann::ordered_json findings = nlohmann::ordered_json::array();
  for (const Finding& f : report.findings) {
    findings.push_back({{"kind", name_of(f.kind)},
                        {"path", f.path},
                        {"detail", f.detail},
                        {"repaired", f.repaired}});
  }
  const nlohmann::ordered_json j = {{"clean", report.clean()},
                                    {"files", report.files},
                                    {"directories", report.directories},
                                    {"twins", report.twins},
                                    {"twin_bytes", report.twin_bytes},
                                    {"stale_twins", report.stale_twins},
                                    {"stale_twin_bytes", report.stale_twin_bytes},
                                    {"findings", findings}};
  // File names may not be valid UTF-8, but JSON must be.
  std::puts(j.dump(2, ' ', false, nlohmann::ordered_json::error_handler_t::replace).c_str());
}

// Tiers and the database belong to root, and what is wrong then is rarely the disk.
int refuse(const Error& error, std::string text) {
  if ((error.code == EACCES || error.code == EPERM) && ::geteuid() != 0)
    text += "; only root can check a pool: try sudo";
  return fail("fsck", text);
}

}  // namespace

int command_fsck(int argc, char** argv) {
  Arguments arguments;
  Request request;
  arguments.option("-c,--config", request.config);
  arguments.option("--tier", request.tiers);
  arguments.option("--state", request.state);
  arguments.option("--color", request.color);
  arguments.flag("--repair", request.repair);
  arguments.flag("--json", request.json);
  arguments.flag("--degraded", request.degraded);
  if (const auto code = arguments.parse(argc, argv, kHelp)) return *code;
  const auto style = Style::create(request.color);
  if (!style) {
    std::fputs("sluice: fsck: --color must be auto, always or never\n", stderr);
    return kUsage;
  }
  MountOptions options;
  if (const auto read = read_options(request, options); !read)
    return fail("fsck", read.error().text());

  const auto missing = request.degraded ? Pool::Missing::Tolerate : Pool::Missing::Refuse;
  const auto pool =
      Pool::open(tier_settings(options), missing, Pool::NewTiers::Refuse, "checked by sluice fsck");
  if (!pool) return refuse(pool.error(), pool.error().text());
  const auto state = state_directory(options.state, (*pool)->id());
  if (!state) return refuse(state.error(), state.error().text());
  auto store = RocksStore::open(*state + "/db", std::chrono::seconds(0));
  if (!store) {
    return refuse(store.error(),
                  "cannot open the database " + *state + "/db: " + ::strerror(store.error().code));
  }

  const bool show = ::isatty(STDERR_FILENO) == 1;
  const auto report = check_pool(
      **pool, store->get(), request.repair ? Repair::Yes : Repair::No, [&](std::uint64_t files) {
        if (show) std::fprintf(stderr, "\rchecked %s files\033[K", format_count(files).c_str());
      });
  if (show) std::fputs("\r\033[K", stderr);
  request.json ? print_json(report) : print_for_people(*style, report, request.repair);
  return report.clean() ? kDone : kFailed;
}

}  // namespace sluice::tools::cli
