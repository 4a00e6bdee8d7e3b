// SPDX-License-Identifier: BSD-2-Clause
// Runs independent tasks in parallel. It uses processes, not threads: every command forks, and a
// fork in one thread would copy descriptors that another thread has open, so that its mount would
// be busy.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <string>

namespace sluice::test {

// Calls `work(i)` for each i from 0 to count-1 in one of `processes` children, and returns the
// results that are not empty. An exception or the death of a child becomes a text. Stops early
// after `enough` results. REQUIRES: no other thread.
std::map<std::uint64_t, std::string> in_parallel(
    int processes, std::uint64_t count, std::size_t enough,
    const std::function<std::string(std::uint64_t)>& work);

}  // namespace sluice::test
