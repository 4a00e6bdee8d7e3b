// SPDX-License-Identifier: BSD-2-Clause
// sluice origin check, scan.
#include <array>

#include "tools/cli/commands.hpp"

namespace sluice::tools::cli {
namespace {

constexpr std::array kSubverbs{
    Verb{"check", "check whether machines can share a filesystem safely", command_origin_check},
    Verb{"scan", "stamp files that were written without Sluice", command_origin_scan},
};

}  // namespace

int command_origin(int argc, char** argv) { return run_subverb(argc, argv, kSubverbs); }

}  // namespace sluice::tools::cli
