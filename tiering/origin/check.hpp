// SPDX-License-Identifier: BSD-2-Clause
// What a filesystem can do of what Sluice needs of one that several machines share: abilities, each
// tried out in a scratch directory, and the race between two mounts.
//
// Threads: caller locks.
#pragma once

#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "base/result.hpp"
#include "base/unique_fd.hpp"
#include "tiering/origin/check_side.hpp"

namespace sluice {

// DIR/.sluice-check.XXXXXX. The destructor removes it with what is in it.
class ScratchDirectory {
 public:
  static Result<ScratchDirectory> make_in(const std::string& directory);
  ~ScratchDirectory();
  ScratchDirectory(ScratchDirectory&& other) noexcept = default;
  ScratchDirectory& operator=(ScratchDirectory&&) = delete;

  const std::string& name() const { return name_; }
  int fd() const { return fd_.get(); }

 private:
  ScratchDirectory(UniqueFd parent, std::string name, UniqueFd fd)
      : parent_(std::move(parent)), name_(std::move(name)), fd_(std::move(fd)) {}

  UniqueFd parent_;
  std::string name_;
  UniqueFd fd_;
};

struct Ability {
  // Weaker: less than on a local filesystem. Missing: Sluice can't do without it.
  enum class State { Ok, Weaker, Missing };

  std::string name;  // "flock"
  State state = State::Ok;
  std::string words;  // what was found, and what follows
};

// Tries everything out. `other` is another mount of the same filesystem, null if there is none; it
// must have entered the scratch directory. A failure is that of the other machine.
Result<std::vector<Ability>> try_abilities(int scratch, AttributeSpace space, CheckSide* other);

// Races until `go_on` says no, which is asked after each round.
Result<RaceSight> run_race(int scratch, AttributeSpace space, CheckSide& other,
                           const std::function<bool(const RaceSight&)>& go_on);

// Whether an open sees what was closed on another machine before it.
enum class CloseToOpen { Yes, No, Unknown };
CloseToOpen judge(const std::vector<Ability>& abilities, const RaceSight& race);

// What makes a filesystem pass; empty: nothing is known. `type` and `source` are those of
// /proc/self/mountinfo.
std::string mount_advice(const std::string& type, const std::string& source);

}  // namespace sluice
