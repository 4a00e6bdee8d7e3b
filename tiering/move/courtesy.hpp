// SPDX-License-Identifier: BSD-2-Clause
// Courtesy says in which share of the time moves may work while others use the disks of the tiers,
// so that moves do not slow them down.
//
// Others are at work if users send requests to the mount, or if a tier's disk does more than moves
// caused. The share of moves on that tier then shrinks as long as somebody waits for a disk or a
// processor (pressure stall information), and grows if nobody does. Without others it returns to 1.
// It reacts within half a second.
//
// Threads: all members are thread-safe.
#pragma once

#include <sys/types.h>

#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string_view>
#include <vector>

#include "base/clock.hpp"
#include "base/disk_counters.hpp"
#include "base/mutex.hpp"
#include "tiering/pool/pool.hpp"

namespace sluice {

class Courtesy {
 public:
  // What is known at one moment. The counters only grow.
  struct Reading {
    struct Disk {
      dev_t device = 0;  // tiers may share one
      std::optional<DiskCounters> counters;
    };
    std::uint64_t requests = 0;               // of the users of the mount
    std::chrono::microseconds waited_disk{};  // time in which some thread waited for a disk
    std::chrono::microseconds waited_cpu{};   // ... for a processor
    std::vector<Disk> disks;                  // by tier
  };
  using Look = std::function<Reading()>;
  explicit Courtesy(Look look, const Clock& clock = real_clock())
      : look_(std::move(look)), clock_(clock) {}

  // The share of the time in which moves between these tiers may work, from kLeast to 1.
  static constexpr double kLeast = 1.0 / 16;
  double share(TierIndex from, TierIndex to);
  // The least share of any tier, as it was when moves last asked.
  double least_share() const;

  // Report what moves do, so that it is not counted as the work of others.
  void began_file(TierIndex from, TierIndex to);
  void has_read(TierIndex tier, std::uint64_t bytes);
  void has_written(TierIndex tier, std::uint64_t bytes);

 private:
  // What moves did on a disk that its counters do not show yet.
  struct Own {
    double read = 0, written = 0;  // bytes
    double requests = 0;
  };
  using Time = std::chrono::steady_clock::time_point;
  void take(Reading reading, Time now) REQUIRES(mutex_);
  bool is_used_by_others(TierIndex tier, const Reading& now, double seconds) REQUIRES(mutex_);
  Own& own(TierIndex tier) REQUIRES(mutex_);

  const Look look_;
  const Clock& clock_;
  mutable Mutex mutex_;
  bool is_looking_ GUARDED_BY(mutex_) = false;
  Time looked_ GUARDED_BY(mutex_);
  std::optional<Reading> last_ GUARDED_BY(mutex_);
  std::map<dev_t, Own> own_ GUARDED_BY(mutex_);
  std::vector<double> shares_ GUARDED_BY(mutex_);  // by tier
};

// Reads the system's counters. `requests` counts those of the users of the mount.
Courtesy::Reading look_at_system(const Pool& pool, std::uint64_t requests);

// The total of the line "some" in a file of /proc/pressure. Empty if the text is something else.
std::optional<std::chrono::microseconds> parse_pressure(std::string_view text);

}  // namespace sluice
