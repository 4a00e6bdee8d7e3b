// SPDX-License-Identifier: BSD-2-Clause
// Resolves the conflict when a tier returns with a file whose name was given to another file while
// the tier was away. Threads: pure functions; nothing else may change these names meanwhile.
#pragma once

#include "tiering/move/intent.hpp"

namespace sluice {

// A directory in a tier's .sluice for files that lost their name to a newer file. Each is in its
// own directory there, at its old path. The daemon never deletes anything in it.
inline constexpr const char* kAsideDirectory = "aside";

// Applies a step of the kind NameTaken. Nothing happens if the tier has no such name, or if the
// newer file is gone again. Otherwise:
// - The newer file keeps the name and the older one is set aside, if the owner of the newer one
//   could have replaced the older: the directory is not sticky, or they own it or the older file.
// - Two directories of one owner become one, with the permissions that both of them grant.
// - In all other cases the older one keeps the name, and the newer one is set aside.
Result<void> apply_name_taken(const Pool& pool, const Step& step);

}  // namespace sluice
