// SPDX-License-Identifier: BSD-2-Clause
// The verbs of `sluice-lab`.
#pragma once

#include "tools/common/verbs.hpp"

namespace sluice::tools::lab {

int command_simulate(int argc, char** argv);
int command_tracegen(int argc, char** argv);
int command_gpu_bench(int argc, char** argv);

namespace bench {
int command_fsbench(int argc, char** argv);
}  // namespace bench

}  // namespace sluice::tools::lab
