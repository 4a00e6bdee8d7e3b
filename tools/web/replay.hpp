// SPDX-License-Identifier: BSD-2-Clause
// WebReplay compares policies on a trace, as `sluice-lab simulate --sizes` does, in its own thread.
// The page shows its progress. Threads: state() may be called from any thread.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <thread>

#include "base/mutex.hpp"

namespace sluice::tools::web {

class WebReplay {
 public:
  // Starts at once; with an empty name there is nothing to replay. `fast_tier` is what the page
  // calls the fastest tier.
  WebReplay(std::string trace_file, std::string fast_tier);

  // "state": "none", "running" (with "done" and "total" replays), "failed" (with "error") or
  // "done", with "tier", "trace" and "results".
  nlohmann::ordered_json state() const;

 private:
  void run(const std::stop_token& stop);
  void set_state(nlohmann::ordered_json state);

  const std::string trace_file_;
  const std::string fast_tier_;
  mutable Mutex mutex_;
  nlohmann::ordered_json state_ GUARDED_BY(mutex_);
  std::jthread thread_;
};

}  // namespace sluice::tools::web
