// SPDX-License-Identifier: BSD-2-Clause
#include "tools/commands.hpp"
namespace sluice { int command_fsck(int, char**) { return fail("fsck", "not built yet"); } }
