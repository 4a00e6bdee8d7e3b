// SPDX-License-Identifier: BSD-2-Clause
// Executes and undoes the steps of an intent, one by one. Used only by intent.cpp and relocate.cpp.
// Threads: pure functions; nothing else may change the places meanwhile.
#pragma once

#include <optional>
#include <set>
#include <string>
#include <vector>

#include "tiering/move/intent.hpp"

namespace sluice {

// A place with its directory open.
struct OpenPlace {
  const Tier* tier = nullptr;
  UniqueFd dir;
  const char* name = nullptr;

  // Empty if the name does not exist.
  Result<std::optional<Identity>> identity() const {
    auto found = tier->identity_of(dir.get(), name);
    if (found) return std::optional<Identity>(*found);
    if (found.error().code == ENOENT) return std::optional<Identity>{};
    return found.error();
  }
};

Result<OpenPlace> open_place(const Pool& pool, const Place& place);

// Whether an error means that the directory of a place does not exist, nor any name in it: a power
// cut may have undone its creation.
inline bool is_gone(const Error& error) { return error.code == ESTALE || error.code == ENOENT; }

// Whether the subject has that name. Fails if that cannot be determined.
Result<bool> is_there(const Pool& pool, const Place& place, const Identity& subject);

inline bool renames(Step::Kind kind) {
  return kind == Step::Kind::Rename || kind == Step::Kind::Replace || kind == Step::Kind::Exchange;
}
inline bool removes(Step::Kind kind) {
  return kind == Step::Kind::Unlink || kind == Step::Kind::Rmdir;
}
inline bool has_target(Step::Kind kind) { return !removes(kind) && kind != Step::Kind::NameTaken; }
inline bool can_be_undone(Step::Kind kind) { return renames(kind) || kind == Step::Kind::Link; }

// Executes one step, or finds that it was executed already. After an error the step is not done,
// and no later step may be executed, least of all a removal.
Result<void> apply(const Pool& pool, const Step& step);

// Undoes one step, or finds nothing to undo. After an error the step may still be in effect.
Result<void> undo(const Pool& pool, const Step& step);

// Whether every tier that the steps use is reachable.
bool is_reachable(const Pool& pool, const std::vector<Step>& steps);

// Syncs directories, each only once.
class Syncer {
 public:
  explicit Syncer(const Pool& pool) : pool_(pool) {}
  Result<void> sync(const Place& place);
  Result<void> sync(const Step& step);  // all directories of the step

 private:
  const Pool& pool_;
  std::set<std::string> done_;
};

}  // namespace sluice
