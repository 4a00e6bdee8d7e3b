// SPDX-License-Identifier: BSD-2-Clause
// SpeedMeter knows how fast each tier reads. It begins with the usual speed of the kind of disk,
// measures a tier that was never measured (speed_probe.hpp), stores what it found on the tier, and
// corrects it by the counters of the disk while the mount runs. The planner compares tiers by these
// numbers; nothing else depends on them.
//
// On the tier: .sluice/speed.json, with the version, an id of the filesystem (a copy of the tier on
// another disk is measured again), latency_us, bytes_per_s and source. A file that cannot be read
// counts as missing.
//
// Ownership: it owns its thread ("sluice-speed"). Threads: every member may be called from any
// thread at once.
#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <thread>
#include <vector>

#include "base/disk_counters.hpp"
#include "base/mutex.hpp"
#include "tiering/choose/tier_speed.hpp"
#include "tiering/pool/pool.hpp"

namespace sluice {

class SpeedMeter {
 public:
  enum class Source : std::uint8_t {
    Kind,   // what is usual for the kind of disk
    Probe,  // measured once
    Disk,   // corrected by the disk's counters
  };
  struct Reading {
    TierSpeed speed;
    Source source = Source::Kind;
    bool operator==(const Reading&) const = default;
  };

  // Loads what is stored on the tiers. Observe: measures and corrects in the background.
  enum class Mode { Load, Observe };
  SpeedMeter(const Pool& pool, Mode mode);
  ~SpeedMeter();

  // As it was measured.
  Reading reading(TierIndex tier) const;
  // Of all tiers of the pool, in the order that the user gave them (obey_order).
  std::vector<TierSpeed> speeds() const;

 private:
  struct Known {
    unsigned slot = 0;  // of the disk that it is about
    Reading now, stored;
    bool is_settled = false;  // loaded or measured, or it cannot be measured
    std::optional<DiskCounters> counters;
  };

  void observe(const std::stop_token& stop);
  void settle(TierIndex tier, const std::stop_token& stop);
  void correct(TierIndex tier);
  void save(TierIndex tier);
  Known& known(TierIndex tier) REQUIRES(mutex_);

  const Pool& pool_;
  mutable Mutex mutex_;
  StopCondVar wake_;
  std::vector<Known> known_ GUARDED_BY(mutex_);  // by tier; may be shorter than the pool
  std::jthread thread_;
};
const char* name_of(SpeedMeter::Source source);  // "kind", "probe", "disk": stable, for programs

// `now` corrected by what a disk did between two readings of its counters. Small reads tell the
// latency if few waited in the queue, large ones the bandwidth. One call changes little: counters
// cannot tell random reads from sequential ones.
TierSpeed corrected(const TierSpeed& now, const DiskCounters& before, const DiskCounters& after);

}  // namespace sluice
