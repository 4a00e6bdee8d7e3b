// SPDX-License-Identifier: BSD-2-Clause
// How the steps of an intent are carried out and taken back, one by one. Used by intent.cpp and
// relocate.cpp alone. Threads: pure functions over places that nobody else changes meanwhile.
#pragma once

#include <optional>
#include <set>
#include <string>
#include <vector>

#include "tiering/intent.hpp"

namespace sluice {

// A place with its directory open.
struct Target {
  const Tier* tier = nullptr;
  UniqueFd dir;
  const char* name = nullptr;

  // Nothing if there is no such name.
  Result<std::optional<Identity>> identity() const {
    auto found = tier->identity_of(dir.get(), name);
    if (found) return std::optional<Identity>(*found);
    if (found.error().code == ENOENT) return std::optional<Identity>{};
    return found.error();
  }
};

Result<Target> open_target(const Pool& pool, const Place& place);

// Whether an error says that the directory of a place is no more, and all names in it: a power cut
// may have taken back its creation.
inline bool is_gone(const Error& error) { return error.code == ESTALE || error.code == ENOENT; }

// Whether the subject has that name. An error: it can't be told.
Result<bool> is_there(const Pool& pool, const Place& place, const Identity& subject);

inline bool renames(Step::Kind kind) {
  return kind == Step::Kind::Rename || kind == Step::Kind::Replace || kind == Step::Kind::Exchange;
}
inline bool removes(Step::Kind kind) {
  return kind == Step::Kind::Unlink || kind == Step::Kind::Rmdir;
}
inline bool has_target(Step::Kind kind) { return !removes(kind) && kind != Step::Kind::NameTaken; }
inline bool can_be_undone(Step::Kind kind) { return renames(kind) || kind == Step::Kind::Link; }

// Carries out one step, or finds it done. An error means that it is not done: nothing after it may
// happen, least of all a removal.
enum class DirectoryTimes { Change, Keep };  // Keep: as far as users can tell, nothing happened
Result<void> apply(const Pool& pool, const Step& step,
                   DirectoryTimes times = DirectoryTimes::Change);

// Takes one back, or finds nothing to take back. An error means that it may still stand.
Result<void> undo(const Pool& pool, const Step& step);

// Whether every tier that the steps touch can be reached.
bool is_reachable(const Pool& pool, const std::vector<Step>& steps);

// Syncs directories, each once.
class Syncer {
 public:
  explicit Syncer(const Pool& pool) : pool_(pool) {}
  Result<void> sync(const Place& place);
  Result<void> sync(const Step& step);  // all its directories

 private:
  const Pool& pool_;
  std::set<std::string> done_;
};

}  // namespace sluice
