// SPDX-License-Identifier: BSD-2-Clause
// Relocator changes the tier of files: moves that the mover runs, spills of files that outgrow a
// full tier while they are written, and the emptying of a tier that is being retired.
//
// All three go through the same phases:
//   1. Copy. A hidden, complete copy is made on the other tier. Users keep using the file.
//   2. Prepare. The directories of the file's names are opened on both tiers (prepare).
//   3. Switch. An intent is stored, the copy gets the names, the original loses them (switch_all).
//      Operations that change the file block meanwhile.
// A switch that an error interrupts is remembered and retried every second (finish_moves).
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
#include "fs/core/descriptors.hpp"
#include "fs/core/directory_tree.hpp"
#include "fs/core/engine_link.hpp"
#include "fs/core/inode_table.hpp"
#include "fs/core/kernel_side.hpp"
#include "fs/core/lock_order.hpp"
#include "fs/core/names_lock.hpp"
#include "fs/core/shown_times.hpp"
#include "metadata/store.hpp"
#include "tiering/intent.hpp"
#include "tiering/mover.hpp"
#include "tiering/pool.hpp"
#include "tiering/relocate.hpp"

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
  explicit Relocator(Parts parts) : parts_(std::move(parts)) {}

  // MoveHost
  Result<std::unique_ptr<MovingFile>> begin_move(Move& move) override;
  std::vector<Result<void>> switch_files(const std::vector<ReadyCopy>& copies) override;

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

  // One file that changes its tier.
  struct Switch {
    struct Name {
      InodePtr parent;
      std::string text;
      OpenCopy from, to;  // the parent on both tiers; prepare() opens them
    };
    InodePtr file;
    Copy original;  // where the file is before the switch
    TierIndex to = kNoTier;
    const HiddenCopy* copy = nullptr;
    SharedFd source;                   // the original, open
    std::vector<Name> names;           // empty: the file has none, and only the inode changes
    std::vector<Step> steps;           // prepare() computes them
    ShownBefore shown;                 // what users see of the file
    Original keep = Original::Remove;  // whether the original stays as a twin
    NamesHeld lock = NamesHeld::No;    // whether the caller holds NamesLock::mutex
    // For a file that is being written: the writers' descriptor of the original, and descriptors of
    // the copy, with which they continue. Opened before the switch, after which nothing may fail.
    SharedFd original_writer, reader, writer;
  };
  // A switch that was interrupted by an error that may be transient.
  struct UnfinishedMove {
    InodePtr file;
    std::vector<Step> steps;
    std::uint64_t sequence;         // of the intent
    bool moved;                     // the copy is the file
    Copy original;                  // where the file is if the switch is undone
    std::vector<InodePtr> parents;  // of its names
    std::vector<InodeId> references;
  };

  // relocator_switch.cpp: the switch, which moves, spills and drains share.
  Result<void> prepare(Switch& change);
  Result<void> check_not_hidden(const Switch& change, const Switch::Name& name);
  Result<void> check_name(const Switch& change, const Switch::Name& name);
  Result<void> check_names(const Switch& change);
  std::vector<Result<void>> switch_all(const std::vector<Switch*>& changes);
  void set_place(Inode& file, const Copy& place, SharedFd reader, SharedFd writer);
  AroundStep hiding_steps(const UnfinishedMove& move);
  void end_unfinished(const UnfinishedMove& move);
  void note_twin(const Switch& change);
  void remember_unfinished(const Switch& change, const MoveEnd& end);

  // relocator.cpp: moves.
  Result<void> ensure_name(const InodePtr& file);
  Result<std::vector<std::string>> all_names(const Move& move, const Moving& moving);
  Result<void> open_for_move(Moving& moving, const Move& move);
  Result<void> begin_switch(Moving& moving);
  void consider_twin(Moving& moving);
  void forget_in_engine(const InodePtr& file);

  // relocator_spill.cpp
  Result<void> try_spill(const InodePtr& inode, const SharedFd& full, off_t offset,
                         std::uint64_t more);
  Result<void> spill_from(const InodePtr& inode, const SharedFd& full, TierIndex from,
                          const struct stat& st, std::uint64_t needed);
  Result<HiddenCopy> copy_open_file(const InodePtr& inode, const SharedFd& source, Tier& to);
  Result<void> move_open_file(const InodePtr& inode, const SharedFd& source, bool named, Tier& to);
  Result<void> switch_open_file(Switch& change, bool named);
  bool wait_for_deleted();
  void log_no_room(const InodePtr& inode, const Error& why);

  // relocator_drain.cpp
  Result<void> move_special(const InodePtr& parent, const std::string& name, Tier& from, Tier& to)
      REQUIRES(parts_.names_lock.mutex);
  Result<void> vacate_directory(const InodePtr& directory, Tier& from, Tier& to, Remainder& left,
                                std::vector<std::string>& below);
  Result<void> vacate_tree(Tier& from, Tier& to, Remainder& left);

  const Parts parts_;
  // Shared while switches execute their intents, exclusive to replay intents of an earlier time.
  SharedMutex intents_ ACQUIRED_AFTER(lock_order::intents) ACQUIRED_BEFORE(lock_order::copies);
  Mutex unfinished_mutex_;
  std::vector<UnfinishedMove> unfinished_ GUARDED_BY(unfinished_mutex_);
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
