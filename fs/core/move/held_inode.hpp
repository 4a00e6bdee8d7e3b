// SPDX-License-Identifier: BSD-2-Clause
// HeldInode is a HeldFile of the core: a file that moves, spills or leaves a tier that is emptied.
// It has what these have in common; each of the three says when a file may be switched.
//
// Threads: as HeldFile.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "fs/core/move/relocator.hpp"

namespace sluice {

class HeldInode : public HeldFile {
 public:
  using Parts = Relocator::Parts;

  ~HeldInode() override;
  HeldInode(const HeldInode&) = delete;
  HeldInode& operator=(const HeldInode&) = delete;

  Result<void> change_hidden(std::size_t name, unsigned slot,
                             const std::function<Result<void>()>& act) override;
  KeptTimes place_changed(const HiddenCopy& copy) override;
  std::unique_ptr<SwitchedFile> keep_both(Holder holder) override;
  void release(Holder holder) override;

 protected:
  struct Name {
    InodePtr parent;
    std::string text;
    OpenCopy from, to;  // the parent on both tiers; open_all() opens them
  };

  // `lock`: whether the caller holds NamesLock::mutex, as long as this is used.
  HeldInode(const Parts& parts, InodePtr file, TierIndex to, NamesHeld lock);

  // Registers the move with the inode.
  void start(InodeState& state, std::shared_ptr<FileMove> move);
  // Opens the directories of all names, and makes those that are missing on the new tier.
  Result<Names> open_all();
  Result<void> check_names() const;
  // Tells a successor of both places: it finishes the move and looks which file is left. Nothing
  // may fail between this and release().
  void record(const HiddenCopy& copy);
  void end();

  const Parts& parts_;
  const InodePtr file_;
  const TierIndex to_;
  NamesHeld lock_;
  Copy original_;                    // where the file is before the switch
  std::vector<Name> names_;          // empty: the file has none, and only the inode changes
  std::vector<InodeId> references_;  // lookups that keep the inodes in the table
  // For a file that is being written: the writers' descriptor of the original, and descriptors of
  // the copy, with which they continue. Opened before the switch.
  SharedFd original_writer_, reader_, writer_;

 private:
  class Doubled;

  Result<void> check_not_hidden(const Name& name) const;
  Result<void> check_name(const Name& name) const;

  ShownBefore shown_;  // what users see of the file
  PlaceRecord* record_ = nullptr;
  bool is_recorded_ = false;  // record() was called
  bool is_at_copy_ = false;   // place_changed() was called
  bool keeps_both_ = false;   // keep_both() was called
  bool has_ended_ = false;
};

}  // namespace sluice
