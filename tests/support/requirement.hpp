// SPDX-License-Identifier: BSD-2-Clause
// Requirements that a machine may lack. The test is skipped with a reason, or fails if
// SLUICE_REQUIRE (a comma-separated list of labels, set by CI) contains the label.
#pragma once

#include <string>

namespace sluice::test {

// Returns `present`. If that is false, the running test has been marked as skipped or failed:
// return from it. In SetUp(), marking is enough, because gtest then skips the body.
[[nodiscard]] bool require(const std::string& label, bool present, const std::string& reason);

// require() for mount tests: root, /dev/fuse and a `sluice` binary.
[[nodiscard]] bool require_mounts(const std::string& label);

// require() for loop devices and mkfs of `type`.
[[nodiscard]] bool require_loop(const std::string& label, const std::string& type);

}  // namespace sluice::test
