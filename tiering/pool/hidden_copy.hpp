// SPDX-License-Identifier: BSD-2-Clause
// A complete copy of a file on another tier, which users do not see.
//
// Threads: functions without state. The caller prevents writes to the file.
#pragma once

#include <string>

#include "base/result.hpp"
#include "base/unique_fd.hpp"
#include "tiering/pool/copier.hpp"
#include "tiering/pool/identity.hpp"
#include "tiering/pool/tier.hpp"

namespace sluice {

// A copy of a file in a tier's .sluice/tmp, or the file's twin there.
struct HiddenCopy {
  std::string name;      // empty if the original has no name
  bool is_twin = false;  // it is in .sluice/twins, and nothing was copied
  Identity original;     // of the file that was copied
  UniqueFd fd;           // O_RDWR; O_PATH if it is not a regular file
  Located located;
  Copied copied;
};

// Copies the open file `source` with all its metadata and its identity. The copy is not synced yet.
// Leaves nothing behind on failure.
Result<HiddenCopy> make_hidden_copy(int source, const Identity& identity, Tier& to,
                                    const Pace& pace = {});

// Copies the symlink, FIFO, socket or device `name` in the directory `from_dir` of the tier `from`.
// The copy gets an identity of its own, because these files cannot have the xattr that keeps one.
Result<HiddenCopy> make_hidden_special(int from_dir, const char* name, const Tier& from,
                                       const Tier& to);

// Makes the copy durable. After an error the caller must discard the copy.
Result<void> sync_copy(const HiddenCopy& copy);

// Removes the copy. A twin stays what it was.
void discard(const HiddenCopy& copy, const Tier& tier);

}  // namespace sluice
