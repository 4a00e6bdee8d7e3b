// SPDX-License-Identifier: BSD-2-Clause
// sluice-lab <verb> [options]: the table of verbs. The lab is for people who choose a policy or
// measure Sluice; it is not needed to run a pool.
#include <array>

#include "gpu/cufile_api.hpp"
#include "tools/lab/commands.hpp"

namespace sluice::tools::lab {
namespace {

constexpr std::array kVerbs{
    Verb{"simulate", "replay a trace against policies", command_simulate},
    Verb{"tracegen", "generate a trace for the simulator", command_tracegen},
    Verb{"gpu-bench", "measure every route to GPU memory, side by side", command_gpu_bench},
    Verb{"fsbench", "measure filesystem operations, side by side", bench::command_fsbench},
};

}  // namespace
}  // namespace sluice::tools::lab

const std::string_view sluice::tools::kProgramName = "sluice-lab";

int main(int argc, char** argv) {
  sluice::keep_cufile_log_away();  // before threads start
  return sluice::tools::run_program(
      {sluice::tools::kProgramName, "sluice-lab <verb> [options]", sluice::tools::lab::kVerbs},
      argc, argv);
}
