// SPDX-License-Identifier: BSD-2-Clause
// ScanDetector tells use from upkeep: whether an open says that a file is wanted, or only that a
// backup, an indexer or a search came by. Those open everything once, and would make all of it hot.
//
// Two signs: who it is (a list of names and cgroups), and what it does (a process that opens file
// after file and comes back to few of them is walking). It knows 1024 openers at a time, in fixed
// memory; who was not seen for a minute starts anew.
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

// Backups, indexers and scanners, by their command names.
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
    // looking for malware and changes
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
    // looking for duplicates
    "fdupes",
    "jdupes",
    "rmlint",
});

class ScanDetector {
 public:
  using TimePoint = std::chrono::steady_clock::time_point;

  struct Settings {
    // Whose opens never count: the name of a command, or if it begins with a slash, the beginning
    // of a cgroup's path, as /proc/PID/comm and /proc/PID/cgroup have them. The kernel keeps 15
    // bytes of a name, so no more are compared.
    std::vector<std::string> ignored{kUsualScanners.begin(), kUsualScanners.end()};

    std::string proc = "/proc";  // tests have their own
  };

  explicit ScanDetector(Settings settings, const Clock& clock = real_clock());

  // Whether an open of a file by `opener` counts as use; it is remembered either way.
  // `opened_by_it_before`: whether the same opener was the last to open that file. An opener that
  // is not known (0, from outside of our PID namespace) always counts.
  bool counts(pid_t opener, bool opened_by_it_before);

  // The process that `thread` belongs to; `thread` itself if that can't be learned. FUSE names the
  // thread that opens a file, but threads of one process share its work: ask this first, and call
  // the process the opener. Remembered like an opener.
  pid_t process_of(pid_t thread);

 private:
  // What is known of a thread or a process.
  struct Opener {
    pid_t pid = 0;  // 0: free
    TimePoint last_seen = TimePoint::min();
    std::uint32_t new_files = 0;  // opens of files that it had not opened before
    std::uint32_t known_files = 0;
    // From /proc, and when they were read; never: the beginning of time.
    bool ignored = false;
    TimePoint ignored_at = TimePoint::min();
    pid_t process = 0;
    TimePoint process_at = TimePoint::min();

    void add(bool opened_by_it_before);
    bool is_walking() const;
  };

  // The table is in small sets, each searched from end to end under a lock of its own.
  static constexpr std::size_t kWays = 8;
  static constexpr std::size_t kSets = 128;
  struct Set {
    Mutex mutex;
    std::array<Opener, kWays> openers GUARDED_BY(mutex);
  };

  Set& set_of(pid_t pid) { return sets_[static_cast<std::size_t>(pid) % kSets]; }

  // The entry of `pid`; if there is none, a new one in the place of that not seen for longest.
  static Opener& find(Set& set, pid_t pid, TimePoint now) REQUIRES(set.mutex);

  bool is_ignored(pid_t pid) const;
  pid_t look_up_process(pid_t thread) const;
  std::string read_proc(pid_t pid, const char* file) const;

  const std::string proc_;
  const Clock& clock_;
  std::vector<std::string> names_;    // cut to what the kernel keeps, sorted
  std::vector<std::string> cgroups_;  // beginnings of paths
  std::array<Set, kSets> sets_;
};

}  // namespace sluice
