// SPDX-License-Identifier: BSD-2-Clause
// Relocator changes the tier of files: moves that the mover asks for, files that outgrow a full
// tier while they are written (spills), and what is left on a tier that is being emptied.
//
// A file changes tiers in three phases. It is copied, out of sight, while everybody may use it. It
// is switched: an intent is stored, the copy gets the file's names, the old names go. It is
// settled: the intent is removed. A switch that an error interrupts is tried again every second.
//
// Threads: every member may be called from any thread at once. Lock order: OpenFile::moving before
// Namespace::lock before intents_.
#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "base/clock.hpp"
#include "base/mutex.hpp"
#include "base/result.hpp"
#include "fs/core/descriptors.hpp"
#include "fs/core/directory_tree.hpp"
#include "fs/core/engine_link.hpp"
#include "fs/core/inode_table.hpp"
#include "fs/core/kernel_side.hpp"
#include "fs/core/namespace.hpp"
#include "fs/core/shown_times.hpp"
#include "metadata/store.hpp"
#include "tiering/intent.hpp"
#include "tiering/mover.hpp"
#include "tiering/pool.hpp"

namespace sluice {

class Relocator final : public MoveHost {
 public:
  struct Parts {
    Pool& pool;
    Store& store;
    KernelSide& kernel;
    InodeTable& table;
    Namespace& names;
    DirectoryTree& tree;
    Descriptors& descriptors;
    ShownTimes& times;
    EngineLink& engine;
    const Clock& clock;
    // A file can be moved again that was in use.
    std::function<void(InodeId)> file_is_free;
  };
  explicit Relocator(Parts parts) : parts_(std::move(parts)) {}

  // For the mover.
  Result<std::unique_ptr<MovingFile>> begin_move(const Move& move) override;
  std::vector<Result<void>> switch_files(const std::vector<ReadyCopy>& copies) override;

  // Moves a file that is open for writing to a tier with room for `more` bytes at `offset`. `full`
  // is the descriptor on which there was no room: if the file has moved since, there is nothing to
  // do. ENOSPC if no tier has room, which is logged.
  Result<void> spill(const InodePtr& inode, const SharedFd& full, off_t offset, std::uint64_t more);

  // Empties the tier of what the mover does not move: directories, symlinks, special files. Returns
  // what is left there: files that could not be moved.
  struct Remainder {
    std::uint64_t files = 0, bytes = 0;
  };
  Result<Remainder> vacate(TierIndex tier);

  // Tries again to end moves that stopped half-way. Called every second, and at the end.
  void finish_moves();
  // Carries out the intents that waited for this tier. REQUIRES: Namespace::lock is held
  // exclusively.
  Result<void> replay_for(TierIndex tier);

 private:
  class Held;
  struct KnownName {
    InodePtr parent;
    std::string name;
  };
  // A move that stopped half-way for an error that may pass.
  struct UnfinishedMove {
    InodePtr file;
    std::vector<Step> steps;
    std::uint64_t sequence;  // of the intent
    bool moved;              // the copy is the file
    Copy original;           // where the file is if the move is taken back
    std::vector<InodeId> references;
  };

  // relocator.cpp: moves that the mover asks for.
  Result<void> ensure_name(const InodePtr& file);
  Result<std::vector<std::string>> all_names(const Move& move, const Held& held);
  Result<void> take_hold(Held& held, const Move& move);
  Result<std::vector<Step>> prepare(const ReadyCopy& arrival);
  Result<void> begin_switch(Held& held);
  void set_place(const InodePtr& file, const Copy& copy);
  void remember_unfinished(const InodePtr& file, const MoveEnd& end, const std::vector<Step>& steps,
                           const Copy& original);
  void forget_in_engine(const InodePtr& file);

  // relocator_spill.cpp
  Result<void> try_spill(const InodePtr& inode, const SharedFd& full, off_t offset,
                         std::uint64_t more);
  Result<void> spill_from(const InodePtr& inode, const SharedFd& full, TierIndex from,
                          const struct stat& st, std::uint64_t needed);
  Result<void> move_open_file(const InodePtr& inode, const SharedFd& source, bool named, Tier& to);
  bool wait_for_deleted();
  void log_that_there_is_no_room(const InodePtr& inode, const Error& why);

  // relocator_drain.cpp
  Result<void> relocate_special(const InodePtr& parent, const std::string& name, Tier& from,
                                Tier& to);
  Result<void> vacate_directory(const InodePtr& directory, Tier& from, Tier& to, Remainder& left,
                                std::vector<std::string>& below);
  Result<void> vacate_tree(Tier& from, Tier& to, Remainder& left);

  const Parts parts_;
  // Shared while intents of moves are carried out, exclusive to replay those of an earlier time.
  SharedMutex intents_;
  Mutex unfinished_mutex_;
  std::vector<UnfinishedMove> unfinished_ GUARDED_BY(unfinished_mutex_);
  // Spills that copy. One that finds no room waits for the end of another, which may leave some.
  struct Spills {
    Mutex mutex;
    CondVar wake;
    unsigned copying GUARDED_BY(mutex) = 0;
    std::uint64_t ended GUARDED_BY(mutex) = 0;
  } spills_;
  std::atomic<std::int64_t> waited_for_deleted_{0};  // when, in nanoseconds
  std::atomic<std::int64_t> room_complaint_{0};      // when the last one was logged, in nanoseconds
  std::atomic<std::uint64_t> room_complaints_{0};    // since then
};

}  // namespace sluice
