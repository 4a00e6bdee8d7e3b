// SPDX-License-Identifier: BSD-2-Clause
// LiveOptions owns the options that are in force. While the pool is mounted, those that the table
// marks as live change in two ways: a reload takes them from the configuration again, and a trial
// sets one of them until the next reload.
//
// Threads: thread-safe. One change is made at a time.
#pragma once

#include <functional>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "base/mutex.hpp"
#include "base/result.hpp"
#include "fs/control/options.hpp"

namespace sluice {

class LiveOptions {
 public:
  // Reads the configuration again: file, environment and flags, checked.
  using Read = std::function<Result<MountOptions>()>;
  // Makes the mount use these options. Only live ones differ from those before.
  using Apply = std::function<void(const MountOptions& options)>;
  // `read` is null if the mount has no configuration file.
  LiveOptions(MountOptions options, Read read, Apply apply);

  MountOptions now() const;
  // Must be called after a tier was added to the mount, or got a new disk.
  void tier_put(const TierOptions& tier);

  struct Change {
    std::string name, from, to;  // "nvme.high_watermark", "90", "80"
  };
  struct Outcome {
    std::vector<Change> changed;
    std::vector<std::string> later;  // what differs and needs another mount, one sentence each
  };
  // Takes the live options from the configuration and ends all trials. If the configuration is
  // invalid, nothing changes. Logs the result.
  Result<Outcome> reload();

  // The names are those of the configuration; an option of a tier is TIER.NAME. ENODATA if there is
  // no such option.
  Result<std::string> value(std::string_view name) const;
  // Sets one option until the next reload. EPERM if it cannot change while the pool is mounted.
  Result<Change> try_out(const std::string& name, const std::string& value);
  // Sets it back to the configured value. ENODATA if it is not tried out.
  Result<Change> end_trial(const std::string& name);
  std::map<std::string, std::string> trials() const;

 private:
  Result<Outcome> take_configuration();
  void install(MountOptions options) REQUIRES(changing_);

  const Read read_;
  const Apply apply_;
  Mutex changing_ ACQUIRED_BEFORE(mutex_);  // held while a change is made
  mutable Mutex mutex_;
  MountOptions now_ GUARDED_BY(mutex_);
  MountOptions configured_ GUARDED_BY(changing_);  // without trials
  std::map<std::string, std::string> trials_ GUARDED_BY(mutex_);
};

}  // namespace sluice
