// SPDX-License-Identifier: BSD-2-Clause
// The environment of the tree storms: three tiers, and a daemon whose syncs do nothing. These tests
// cut no power, and without waiting for the disk a storm does ten times as much. Threads: caller
// locks.
#pragma once

#include <gtest/gtest.h>

#include <memory>
#include <ostream>
#include <string>
#include <vector>

#include "tests/fault/move_stage.hpp"
#include "tests/support/fault_shim.hpp"
#include "tests/support/files.hpp"
#include "tests/support/mount.hpp"
#include "tests/support/temp_dir.hpp"

namespace sluice::test {

// Fails with the whole text. A comparison with "" would show it twice and escaped.
inline testing::AssertionResult no_problem(const std::string& text) {
  if (text.empty()) return testing::AssertionSuccess();
  return testing::AssertionFailure() << text;
}

// How the mount of a storm serves its files.
struct TreeCase {
  const char* name;
  std::vector<std::string> flags;
};

inline void PrintTo(const TreeCase& given, std::ostream* out) { *out << given.name; }

inline auto tree_cases() {
  return testing::Values(TreeCase{"Defaults", {}},
                         TreeCase{"EveryFileServed", {"--debug=passthrough=off"}});
}

class TreeStage {
 public:
  explicit TreeStage(
      std::vector<std::string> flags = {},
      [[maybe_unused]] FaultShim::Afterwards afterwards = FaultShim::Afterwards::DeadMount)
      : stage_(base_.path()), pool_(stage_.pool()) {
    pool_.flags = std::move(flags);
#ifndef __SANITIZE_THREAD__  // its runtime must be loaded before the shim
    shim_ = std::make_unique<FaultShim>(base_ / "faults");
    for (const std::string& each : shim_->environment(afterwards))
      pool_.environment.push_back(each);
    shim_->arm({.action = FaultAction::Skip,
                .for_good = true,
                .kinds = static_cast<std::uint32_t>(CallKind::Sync)});
#endif
  }

  const Pool& pool() const { return pool_; }
  // The directories of the tiers.
  std::vector<std::string> directories() const {
    std::vector<std::string> out;
    for (const std::string& tier : MoveStage::tiers()) out.push_back(stage_.on(tier));
    return out;
  }

  // What is wrong with the unmounted pool: temporaries that movers left, and findings of fsck.
  std::string problems_unmounted() const {
    std::string out;
    for (const std::string& directory : directories()) {
      const std::string temporary = directory + "/.sluice/tmp";
      if (!exists(temporary)) continue;
      for (const std::string& name : names_in(temporary))
        out += temporary + "/" + name + " is left\n";
    }
    const CommandResult report = fsck(pool_);
    return report.ok() ? out : out + "fsck: " + report.out + report.err;
  }

 private:
  TempDir base_;
  MoveStage stage_;
  Pool pool_;
  std::unique_ptr<FaultShim> shim_;
};

}  // namespace sluice::test
