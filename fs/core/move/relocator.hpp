// SPDX-License-Identifier: BSD-2-Clause
// Relocator changes the tier of files: moves that the mover runs, spills of files that outgrow a
// full tier while they are written, and the emptying of a tier that is being retired.
//
// All three make a hidden, complete copy on the other tier, while users keep using the file, and
// give it and a HeldFile (held_inode.hpp) to the Switcher of tiering/, which does the rest.
//
// Threads: thread-safe.
#pragma once

#include <atomic>
#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "base/clock.hpp"
#include "base/mutex.hpp"
#include "base/occasion.hpp"
#include "base/result.hpp"
#include "fs/core/inodes/engine_link.hpp"
#include "fs/core/inodes/inode_table.hpp"
#include "fs/core/inodes/kernel_side.hpp"
#include "fs/core/inodes/names_lock.hpp"
#include "fs/core/inodes/shown_times.hpp"
#include "fs/core/tree/descriptors.hpp"
#include "fs/core/tree/directory_tree.hpp"
#include "metadata/store.hpp"
#include "tiering/move/move_host.hpp"
#include "tiering/move/relocate.hpp"
#include "tiering/move/switcher.hpp"
#include "tiering/pool/pool.hpp"

namespace sluice {

class Relocator final : public MoveHost {
 public:
  struct Parts {
    Pool& pool;
    Store& store;
    KernelSide& kernel;
    InodeTable& table;
    NamesLock& names_lock;
    DirectoryTree& tree;
    Descriptors& descriptors;
    ShownTimes& times;
    EngineLink& engine;
    const Clock& clock;
    // Called when a file that could not be moved may be movable now.
    std::function<void(InodeId)> file_is_free;
  };
  explicit Relocator(Parts parts)
      : parts_(std::move(parts)), switcher_(parts_.pool, parts_.store) {}

  // MoveHost
  Result<std::unique_ptr<HeldFile>> hold(Move& move) override;
  // Switches the files of all moves, also those that the mover makes.
  Switcher& switcher() { return switcher_; }

  // Moves a file that is open for writing to a tier with room for `more` bytes at `offset`. `full`
  // is the descriptor on which a write failed. Does nothing if the file has moved since. ENOSPC if
  // no tier has room; this is logged.
  Result<void> spill(const InodePtr& inode, const SharedFd& full, off_t offset, std::uint64_t more);

  // Moves everything from the tier that the mover does not move: directories, symlinks, special
  // files. Returns what is left: files that could not be moved.
  struct Left {
    InodeId id{};
    std::string path;
    std::uint64_t bytes = 0;
    std::uint64_t links = 1;
    std::string why;  // empty for a regular file, which the mover should have moved
  };
  struct Remainder {
    std::uint64_t files = 0, bytes = 0;
    std::vector<Left> first;  // at most kMostNamed of them
  };
  static constexpr std::size_t kMostNamed = 10;
  Result<Remainder> vacate(TierIndex tier);

  // Retries the switches that were interrupted. Called every second, and before the unmount.
  void finish_moves();
  // Executes the intents that waited for this tier. CHECKED: NamesLock::mutex is held exclusively.
  Result<void> replay_for(TierIndex tier);
  // Ends the intents and the interrupted moves that need a disk that was replaced. CHECKED:
  // NamesLock::mutex is held exclusively.
  Result<void> settle_lost();

 private:
  class Moving;
  class Spilling;
  class SpecialFile;

  // relocator.cpp: moves.
  Result<void> ensure_name(const InodePtr& file);
  void forget_in_engine(const InodePtr& file);

  // relocator_spill.cpp
  Result<void> try_spill(const InodePtr& inode, const SharedFd& full, off_t offset,
                         std::uint64_t more);
  Result<void> spill_from(const InodePtr& inode, const SharedFd& full, TierIndex from,
                          const struct stat& st, std::uint64_t needed);
  Result<HiddenCopy> copy_open_file(const InodePtr& inode, const SharedFd& source, Tier& to);
  Result<void> move_open_file(const InodePtr& inode, const SharedFd& source, TierIndex from,
                              const struct stat& st, Tier& to);
  bool wait_for_deleted();
  void log_no_room(const InodePtr& inode, const Error& why);

  // relocator_drain.cpp
  Result<void> move_special(const InodePtr& parent, const std::string& name, Tier& from, Tier& to)
      REQUIRES(parts_.names_lock.mutex);
  Result<void> vacate_directory(const InodePtr& directory, Tier& from, Tier& to, Remainder& left,
                                std::vector<std::string>& below);
  Result<void> vacate_tree(Tier& from, Tier& to, Remainder& left);

  const Parts parts_;
  Switcher switcher_;
  // Running spills. A spill that finds no room waits for another one to end, which may free some.
  struct Spills {
    Mutex mutex;
    CondVar wake;
    unsigned copying GUARDED_BY(mutex) = 0;
    std::uint64_t ended GUARDED_BY(mutex) = 0;
  } spills_;
  Occasion wait_for_deleted_{std::chrono::milliseconds(500)};
  Occasion say_no_room_{std::chrono::seconds(10)};
  std::atomic<std::uint64_t> no_room_unlogged_{0};  // since it was last logged
};

}  // namespace sluice
