// SPDX-License-Identifier: BSD-2-Clause
// FaultShim makes one file call of a daemon suffer: the nth that matches is failed, held up, or the
// last thing that the daemon does. For a loop: the 1st, the 2nd, ... until a run that met none.
//
//   FaultShim shim(base / "faults");
//   pool.environment = shim.environment();
//   Mount mount(pool);
//   shim.arm({.at = n, .action = FaultAction::KillBefore, .thread = "sluice-move"});
//
// Threads: any member from any thread; arm() only while nothing that could match is under way.
#pragma once

#include <cerrno>
#include <cstdint>
#include <string>
#include <vector>

#include "tests/support/fault_control.hpp"

namespace sluice::test {

constexpr std::uint32_t kEffects = 0x0000ffff;   // kinds of calls that change something
constexpr std::uint32_t kAllCalls = 0xffffffff;  // and those that only look

struct Fault {
  std::uint64_t at = 1;  // 0: count only
  FaultAction action = FaultAction::Fail;
  int error = EIO;  // of FaultAction::Fail
  bool for_good = false;
  std::uint32_t kinds = kEffects;  // CallKinds
  std::string thread = "";         // what the name of the thread begins with; empty: any
  std::string path = "";           // the directory that the file lies in; empty: any
};

class FaultShim {
 public:
  // Makes the file at `path` through which test and daemon talk. Throws std::system_error.
  explicit FaultShim(const std::string& path);
  ~FaultShim();
  FaultShim(const FaultShim&) = delete;
  FaultShim& operator=(const FaultShim&) = delete;

  // What the daemon must have in its environment.
  std::vector<std::string> environment() const;

  // Counts from zero, from now on. disarm() lets calls go that are held, and goes on counting.
  void arm(const Fault& fault);
  void disarm();

  std::uint64_t calls() const { return control_->calls; }
  // Whether a call has suffered since arm(), whether one is held now, and which was the first.
  bool reached() const { return control_->faults > 0; }
  bool holds() const { return control_->held > 0; }
  std::string where() const { return reached() ? control_->where : "nowhere"; }

 private:
  std::string path_;
  FaultControl* control_;
};

}  // namespace sluice::test
