// SPDX-License-Identifier: BSD-2-Clause
// What a machine may lack: skipped with a reason, unless SLUICE_REQUIRE (a comma-separated list of
// labels, as CI sets it) names the label; then the lack is a failure.
#pragma once

#include <string>

namespace sluice::test {

// Returns `present`. When false, the running test has been marked skipped or failed: return from
// it. In SetUp() marking is enough, gtest then leaves the body out.
[[nodiscard]] bool require(const std::string& label, bool present, const std::string& reason);

// require() for what every mount test needs: root, /dev/fuse and a `sluice` to run.
[[nodiscard]] bool require_mounts(const std::string& label);

// require() for loop devices and mkfs of `type`.
[[nodiscard]] bool require_loop(const std::string& label, const std::string& type);

}  // namespace sluice::test
