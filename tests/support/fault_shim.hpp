// SPDX-License-Identifier: BSD-2-Clause
// FaultShim affects one file call of a daemon: the nth call that matches fails, blocks, crashes, or
// is interrupted by SIGKILL. Use it in a loop over n until a run makes fewer than n calls.
//
//     FaultShim shim(base / "faults");
//     pool.environment = shim.environment();
//     Mount mount(pool);
//     shim.arm({.at = n, .action = FaultAction::KillBefore, .thread = "sluice-move"});
//
// Threads: any member may be called from any thread; arm() only while no matching call can be in
// progress.
#pragma once

#include <cerrno>
#include <cstdint>
#include <string>
#include <vector>

#include "tests/support/fault_control.hpp"

namespace sluice::test {

constexpr std::uint32_t kEffects = 0x0000ffff;   // calls that change something
constexpr std::uint32_t kAllCalls = 0xffffffff;  // also calls that only read

struct Fault {
  std::uint64_t at = 1;  // 0: only count
  FaultAction action = FaultAction::Fail;
  int error = EIO;  // for FaultAction::Fail
  bool for_good = false;
  std::uint32_t kinds = kEffects;  // bits of CallKind
  std::string thread = "";         // beginning of the thread's name; "" means any
  std::string path = "";           // directory that contains the file; "" means any
};

class FaultShim {
 public:
  // Creates the file at `path` that test and daemon share. Throws std::system_error.
  explicit FaultShim(const std::string& path);
  ~FaultShim();
  FaultShim(const FaultShim&) = delete;
  FaultShim& operator=(const FaultShim&) = delete;

  // What a killed daemon leaves: a dead mount, or one that its keeper starts another daemon for.
  enum class Afterwards { DeadMount, Successor };
  // The environment variables that `sluice mount` needs.
  std::vector<std::string> environment(Afterwards afterwards = Afterwards::DeadMount) const;

  // arm() starts to count from zero. disarm() lets blocked calls continue and keeps counting.
  void arm(const Fault& fault);
  void disarm();

  std::uint64_t calls() const { return control_->calls; }
  // Whether a call was affected since arm(), whether one is blocked now, and which was affected
  // first.
  bool reached() const { return control_->faults > 0; }
  bool blocks() const { return control_->blocked > 0; }
  std::string where() const { return reached() ? control_->where : "nowhere"; }

 private:
  std::string path_;
  FaultControl* control_;
};

}  // namespace sluice::test
