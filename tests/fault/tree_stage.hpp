// SPDX-License-Identifier: BSD-2-Clause
// The stage of the tree storms: three tiers, and a daemon whose syncs do nothing. No power is cut
// here, and without waiting for the disk a storm does ten times as much. Threads: caller locks.
#pragma once

#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <vector>

#include "tests/fault/move_stage.hpp"
#include "tests/support/fault_shim.hpp"
#include "tests/support/mount.hpp"
#include "tests/support/temp_dir.hpp"

namespace sluice::test {

// Fails with the whole text, unlike a comparison with "", which shows it twice and escaped.
inline testing::AssertionResult no_problem(const std::string& text) {
  if (text.empty()) return testing::AssertionSuccess();
  return testing::AssertionFailure() << text;
}

class TreeStage {
 public:
  explicit TreeStage(std::vector<std::string> flags = {})
      : stage_(base_.path()), pool_(stage_.pool()) {
    pool_.flags = std::move(flags);
#ifndef __SANITIZE_THREAD__  // whose runtime must be loaded before anything else
    shim_ = std::make_unique<FaultShim>(base_ / "faults");
    for (const std::string& each : shim_->environment()) pool_.environment.push_back(each);
    shim_->arm({.action = FaultAction::Skip,
                .for_good = true,
                .kinds = static_cast<std::uint32_t>(CallKind::Sync)});
#endif
  }

  const Pool& pool() const { return pool_; }
  // The tiers' own directories.
  std::vector<std::string> directories() const {
    std::vector<std::string> out;
    for (const std::string& tier : MoveStage::tiers()) out.push_back(stage_.on(tier));
    return out;
  }

 private:
  TempDir base_;
  MoveStage stage_;
  Pool pool_;
  std::unique_ptr<FaultShim> shim_;
};

}  // namespace sluice::test
