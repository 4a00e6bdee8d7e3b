// SPDX-License-Identifier: BSD-2-Clause
// ScanDetector tells accesses by applications from scans: backups, indexers and searches open every
// file once and would make all of them hot.
//
// There are two criteria. One is the opener's identity: a list of command names and cgroups. The
// other is its behaviour: a process that opens file after file and reopens few of them is scanning.
// The detector remembers 1024 openers in fixed memory; an opener that was not seen for a minute is
// forgotten.
// Threads: every member may be called from any thread at once.
#pragma once

#include <sys/types.h>

#include <array>
#include <chrono>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/clock.hpp"
#include "base/mutex.hpp"

namespace sluice {

// Command names of backups, indexers and scanners.
inline constexpr auto kUsualScanners = std::to_array<std::string_view>({
    // locate
    "updatedb",
    "updatedb.mlocate",
    "updatedb.plocate",
    "updatedb.findutils",
    "plocate-build",
    // backups
    "restic",
    "borg",
    "borgmatic",
    "duplicity",
    "duplicati",
    "rclone",
    "rsnapshot",
    "rdiff-backup",
    "kopia",
    "bup",
    "snapraid",
    "bacula-fd",
    "bareos-fd",
    "amandad",
    "dsmc",
    "bpbkar",
    "veeamagent",
    // scanners for malware and changes
    "clamscan",
    "clamdscan",
    "clamd",
    "clamonacc",
    "rkhunter",
    "chkrootkit",
    "aide",
    "tripwire",
    // desktop search
    "tracker-miner-fs",
    "tracker-extract",
    "localsearch-3",
    "baloo_file",
    "baloo_file_extractor",
    "recollindex",
    // duplicate finders
    "fdupes",
    "jdupes",
    "rmlint",
});

class ScanDetector {
 public:
  using TimePoint = std::chrono::steady_clock::time_point;

  struct Settings {
    // The openers whose opens never count: names of commands, or, if an entry begins with a slash,
    // beginnings of cgroup paths, as in /proc/PID/comm and /proc/PID/cgroup. The kernel keeps 15
    // bytes of a command name, so only these are compared.
    std::vector<std::string> ignored{kUsualScanners.begin(), kUsualScanners.end()};

    std::string proc = "/proc";  // tests use their own
  };

  explicit ScanDetector(Settings settings, const Clock& clock = real_clock());

  // Whether an open by `opener` counts as an access; the open is remembered in both cases.
  // `opened_by_it_before` says whether the same opener was the last one to open that file. Opens by
  // unknown openers (0, from outside our PID namespace) always count.
  bool counts(pid_t opener, bool opened_by_it_before);

  // The process that `thread` belongs to, or `thread` itself if that is unknown. FUSE reports the
  // thread that opens a file, but the threads of a process share its work: call this first and pass
  // the process as the opener. The answer is cached like an opener.
  pid_t process_of(pid_t thread);

 private:
  // What is known of a thread or a process.
  struct Opener {
    pid_t pid = 0;  // 0: free
    TimePoint last_seen = TimePoint::min();
    std::uint32_t new_files = 0;  // opens of files that it had not opened before
    std::uint32_t known_files = 0;
    // From /proc, with the time of reading; never read: the minimum time.
    bool ignored = false;
    TimePoint ignored_at = TimePoint::min();
    pid_t process = 0;
    TimePoint process_at = TimePoint::min();

    void add(bool opened_by_it_before);
    bool is_walking() const;
  };

  // The table is set-associative: small sets, each with its own lock and searched linearly.
  static constexpr std::size_t kWays = 8;
  static constexpr std::size_t kSets = 128;
  struct Set {
    Mutex mutex;
    std::array<Opener, kWays> openers GUARDED_BY(mutex);
  };

  Set& set_of(pid_t pid) { return sets_[static_cast<std::size_t>(pid) % kSets]; }

  // The entry of `pid`; if there is none, a new one in place of the least recently seen.
  static Opener& find(Set& set, pid_t pid, TimePoint now) REQUIRES(set.mutex);

  bool is_ignored(pid_t pid) const;
  pid_t look_up_process(pid_t thread) const;
  std::string read_proc(pid_t pid, const char* file) const;

  const std::string proc_;
  const Clock& clock_;
  std::vector<std::string> names_;    // truncated to what the kernel keeps, sorted
  std::vector<std::string> cgroups_;  // path prefixes
  std::array<Set, kSets> sets_;
};

}  // namespace sluice
