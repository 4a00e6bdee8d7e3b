// SPDX-License-Identifier: BSD-2-Clause
// Runs that have nothing to do with each other, several at once. In processes, not threads: a fork
// in one thread, as every command is, would carry along what another has open for a moment, and
// its mount would be busy.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <string>

namespace sluice::test {

// Calls `work(i)` for each i from 0 to count-1 in one of `processes` children, and returns what
// they returned, without empty strings. An exception is its text; so is the death of a child. Ends
// early when `enough` answers are not empty. REQUIRES: no other thread.
std::map<std::uint64_t, std::string> in_parallel(
    int processes, std::uint64_t count, std::size_t enough,
    const std::function<std::string(std::uint64_t)>& work);

}  // namespace sluice::test
