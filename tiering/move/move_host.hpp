// SPDX-License-Identifier: BSD-2-Clause
// What a move needs of the core, which knows who uses a file. Tiering makes the whole move: the
// copy, the switch, and what follows if an error interrupts it. It calls the core at six points:
//
//   1. MoveHost::hold            the file cannot change any more without the move's knowing
//   2. HeldFile::open_names      the directories of its names, on both tiers
//   3. HeldFile::begin_switch    from here on users wait
//   4. HeldFile::change_hidden   around each step, for the times of directories
//   5. HeldFile::place_changed   the copy is the file
//   6. HeldFile::release         users continue
//
// The core calls FileMove::cancel() when a user wants to change the file. The users of this header
// are Mover, Switcher, and those who implement it.
//
// Threads: one thread at a time calls the members of a HeldFile.
#pragma once

#include <sys/stat.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "base/result.hpp"
#include "tiering/move/file_move.hpp"
#include "tiering/move/move_queue.hpp"
#include "tiering/move/relocate.hpp"
#include "tiering/pool/identity.hpp"
#include "tiering/pool/kept_times.hpp"

namespace sluice {

// Which of the two files has the names.
enum class Holder { Original, Copy };

// A file whose names are switched.
class SwitchedFile {
 public:
  virtual ~SwitchedFile() = default;
  // Runs `act`, which makes or removes name number `name` of the file on the tier with this slot,
  // and hides that from the times of its directory.
  virtual Result<void> change_hidden(std::size_t name, unsigned slot,
                                     const std::function<Result<void>()>& act) = 0;
  // The switch has ended, and users continue with the file that has the names. If they had the
  // copy, and it could not stay, they get the original again.
  virtual void release(Holder holder) = 0;
};

// A file that is about to move. Users can read it as before. Destroying this ends the move.
class HeldFile : public SwitchedFile {
 public:
  TierIndex tier() const { return tier_; }  // its present one
  // O_RDONLY | O_NOATIME, or the descriptor of those who are writing; -1 if the file has no bytes.
  int source() const { return move_ ? move_->source() : -1; }
  const Identity& identity() const { return identity_; }
  // Whether the kernel shows that nobody could write to it, not even on its tier.
  bool is_leased() const { return move_ && move_->is_leased(); }
  const struct stat& before() const { return before_; }  // when the move began
  // True once a user has changed the file or is about to: the copy is useless. Tests override it.
  virtual bool is_cancelled() const {
    return move_ && (move_->is_cancelled() || move_->is_lease_broken());
  }

  // Opens the directories of all names on both tiers, and makes those that are missing on the new
  // one. Returns when no listing can miss the file. EBUSY if one goes on for too long, EEXIST if
  // the file would be behind another one of its name.
  struct Names {
    std::vector<NamePlaces> places;  // open until the file is released
    ShownBefore shown;               // what users see of the file
  };
  virtual Result<Names> open_names() = 0;
  // From here on, operations that change the file or its names wait until release(). ECANCELED if
  // one came first, or the file is not as it was. A successor learns of both places.
  virtual Result<void> begin_switch(const HiddenCopy& copy) = 0;
  // The copy durably has all names: users get it from here on. Returns the times to keep.
  virtual KeptTimes place_changed(const HiddenCopy& copy) = 0;
  // Called before release() if an error interrupted the switch and both files have the name. Until
  // the result is released, users cannot change the file's names.
  virtual std::unique_ptr<SwitchedFile> keep_both(Holder holder) = 0;

 protected:
  // The host sets them before anybody else gets the file.
  TierIndex tier_ = kNoTier;
  Identity identity_;
  struct stat before_ {};
  std::shared_ptr<FileMove> move_;
};

class MoveHost {
 public:
  virtual ~MoveHost() = default;
  // Opens the file for its move and starts watching for changes. EBUSY if the file is in use in a
  // way that forbids a move; the host calls Mover::file_closed() when that may have changed. ESTALE
  // if the file is gone, EALREADY if it is on the wanted tier, ECANCELED if it is being renamed.
  // Any other error is permanent. If a requested file is not at move.paths, they become its names.
  // The size of the move becomes what the file has now.
  virtual Result<std::unique_ptr<HeldFile>> hold(Move& move) = 0;
};

}  // namespace sluice
