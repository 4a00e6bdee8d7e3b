// SPDX-License-Identifier: BSD-2-Clause
#pragma once

namespace sluice::dropin {

// True if the descriptor refers to a file on a Sluice mount.
bool is_on_mount(int fd);

}  // namespace sluice::dropin
