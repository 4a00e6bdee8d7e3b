// SPDX-License-Identifier: BSD-2-Clause
// sluice origin scan.
#include <fcntl.h>
#include <unistd.h>

#include <cstdio>
#include <cstring>
#include <vector>

#include "base/clock.hpp"
#include "base/log.hpp"
#include "base/unique_fd.hpp"
#include "tiering/origin/version.hpp"
#include "tools/cli/commands.hpp"
#include "tools/common/attributes.hpp"
#include "tools/common/interrupt.hpp"
#include "tools/common/progress.hpp"

namespace sluice::tools::cli {
namespace {

constexpr const char* kVerb = "origin scan";

constexpr HelpText kHelp{.usage = "sluice origin scan PATH...",
                         .options = R"(  -h, --help  short help (-h) or full help (--help)
)",
                         .details = R"(
Stamps files that other programs have written without Sluice, so that copies of them can
be told from what is there now: each regular file below PATH that has no stamp, or whose
inode, size or modification time differs from when it was stamped. Run it after such a
program has ended. Running it again takes one look at each file.

Files that are being written are left out, and counted: those that changed in the last 5
seconds, and those with the flag of a writer. A flag is removed a day after the last
change of the file, because its writer must have died.

The stamp is the attribute trusted.sluice.v (user.sluice.v on filesystems that have no
trusted.* attributes).

Examples:
  sudo sluice origin scan /mnt/shared
  sudo sluice origin scan /mnt/shared/models /mnt/shared/datasets

Exit status: 0 done, 1 failed for at least one file, 2 wrong usage.
)"};

struct Counts {
  std::uint64_t stamped = 0, unchanged = 0, written = 0, recent = 0, failed = 0;

  std::uint64_t all() const { return stamped + unchanged + written + recent + failed; }
};

// The descriptor is O_PATH, because opening a file could wait or have effects.
Result<Quiet> stamp_one(const std::string& path) {
  const UniqueFd fd(::open(path.c_str(), O_PATH | O_NOFOLLOW | O_CLOEXEC));
  if (!fd) return Error::last("open");
  const AttributeSpace space = SLUICE_TRY(attribute_space(fd.get()));
  OriginFd file(fd.get(), space);
  return stamp_quiet_file(file, real_clock().seconds());
}

std::string describe(const std::string& path, const Error& error) {
  std::string text = log::escaped(path) + ": " + std::strerror(error.code);
  if ((error.code == EPERM || error.code == EACCES) && ::geteuid() != 0)
    text += "; only root can stamp files here: try sudo";
  if (error.code == EOPNOTSUPP)
    text += "; this filesystem has no extended attributes: see 'sluice origin check'";
  return text;
}

class Scan {
 public:
  void run(const std::string& path) {
    each_file(
        path, [this](const FoundFile& file) { stamp(file.path); },
        [this](const std::string& problem) { report(problem); });
  }
  const Counts& counts() const { return counts_; }

 private:
  [[noreturn]] void end() {
    progress_.clear();
    interrupt_.end(kVerb, "stamped " + format_files(counts_.stamped) + "; run it again to go on");
  }
  void stamp(const std::string& path) {
    if (interrupt_.came()) end();
    if (path.find("/.sluice/") != std::string::npos) return;  // Sluice's own
    const auto found = stamp_one(path);
    // It was removed since the directory was listed.
    if (failed_with(found, ENOENT)) return;
    if (!found) return report(describe(path, found.error()));
    count(*found);
    if (progress_.is_terminal() && progress_.is_due())
      progress_.show("examined " + format_files(counts_.all()) + ", stamped " +
                     format_count(counts_.stamped));
  }
  void report(const std::string& problem) {
    progress_.clear();
    fail(kVerb, problem);
    ++counts_.failed;
  }
  void count(Quiet found) {
    switch (found) {
      case Quiet::Stamped:
        ++counts_.stamped;
        break;
      case Quiet::Unchanged:
        ++counts_.unchanged;
        break;
      case Quiet::Written:
        ++counts_.written;
        break;
      case Quiet::Recent:
        ++counts_.recent;
        break;
    }
  }

  Interrupt interrupt_;
  ProgressLine progress_;
  Counts counts_;
};

std::string summary(const Counts& counts) {
  std::string out = "stamped " + format_files(counts.stamped) + ", " +
                    format_count(counts.unchanged) + " had a stamp\n";
  if (counts.written > 0)
    out += "left out " + format_files(counts.written) + " with the flag of a writer\n";
  if (counts.recent > 0)
    out += "left out " + format_files(counts.recent) +
           " that changed in the last 5 s; run this again when their programs have ended\n";
  return out;
}

}  // namespace

int command_origin_scan(int argc, char** argv) {
  Arguments arguments;
  std::vector<std::string> paths;
  arguments.option("PATH", paths, Arguments::Need::Required);
  if (const auto code = arguments.parse(argc, argv, kHelp)) return *code;
  Scan scan;
  for (const std::string& path : paths) scan.run(path);
  std::fputs(summary(scan.counts()).c_str(), stdout);
  return scan.counts().failed == 0 ? kDone : kFailed;
}

}  // namespace sluice::tools::cli
