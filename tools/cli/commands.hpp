// SPDX-License-Identifier: BSD-2-Clause
// The verbs of `sluice`, one file each (command_<name>.cpp).
#pragma once

#include "tools/common/verbs.hpp"

namespace sluice::tools::cli {

int command_budget(int argc, char** argv);
int command_bundle(int argc, char** argv);
int command_doctor(int argc, char** argv);
int command_explain(int argc, char** argv);
int command_fsck(int argc, char** argv);
int command_gpu(int argc, char** argv);
int command_init(int argc, char** argv);
int command_mount(int argc, char** argv);
int command_move(int argc, char** argv);
int command_moves(int argc, char** argv);
int command_origin(int argc, char** argv);
int command_origin_check(int argc, char** argv);
int command_origin_scan(int argc, char** argv);
int command_pin(int argc, char** argv);
int command_plan(int argc, char** argv);
int command_reload(int argc, char** argv);
int command_restart(int argc, char** argv);
int command_set(int argc, char** argv);
int command_status(int argc, char** argv);
int command_tier(int argc, char** argv);
int command_top(int argc, char** argv);
int command_trace(int argc, char** argv);
int command_umount(int argc, char** argv);
int command_unpin(int argc, char** argv);
int command_usage(int argc, char** argv);
int command_web(int argc, char** argv);

}  // namespace sluice::tools::cli
