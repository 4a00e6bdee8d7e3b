// SPDX-License-Identifier: BSD-2-Clause
#include "fs/core/move/held_inode.hpp"

#include <algorithm>
#include <optional>
#include <utility>

#include "base/log.hpp"
#include "fs/core/inodes/caller.hpp"

namespace sluice {
namespace {

// Updates the inode after its file changed places. `reader` and `writer` replace the descriptors of
// an open file; those that are absent are opened again when they are needed.
void set_place(const Relocator::Parts& parts, Inode& file, const Copy& place, SharedFd reader,
               SharedFd writer) {
  Inode::Locked state(file);
  state->copies[0] = place;
  if (!state->open) return;
  parts.descriptors.drop_reader(*state->open);
  if (reader) parts.descriptors.keep_reader(*state->open, std::move(reader));
  state->open->writer = std::move(writer);
}

}  // namespace

// Until it is released, the inode stays in the table, and the place that it has is right.
class HeldInode::Doubled final : public SwitchedFile {
 public:
  Doubled(const Parts& parts, InodePtr file, Holder holder, Copy original,
          const std::vector<Name>& names, std::vector<InodeId> references, NamesHeld lock)
      : parts_(parts),
        file_(std::move(file)),
        holder_(holder),
        original_(std::move(original)),
        references_(std::move(references)) {
    const std::string path = parts_.tree.path_of(file_);
    log::get().error("cannot finish a move, will be retried every second: path={}",
                     log::escaped(path));
    // Without the lock, the file has them: taking it here could deadlock with finish_moves().
    if (lock == NamesHeld::Yes) {
      [[maybe_unused]] const auto walked = parts_.tree.walk(path, references_, lock);
    }
    {
      Inode::Locked state(*file_);
      state->has_duplicate = true;
    }
    parts_.names_lock.begin_move();  // so that operations that change names look for it
    for (const Name& name : names) parents_.push_back(name.parent);
  }

  Result<void> change_hidden(std::size_t name, unsigned slot,
                             const std::function<Result<void>()>& act) override {
    const Tier* tier = parts_.pool.by_slot(slot);
    if (tier == nullptr) return act();
    const InodePtr& parent = parents_[name];
    const OpenCopy directory = SLUICE_TRY(parts_.tree.open_copy(parent, tier->index()));
    return parts_.times.change_with_old_times(*parent, tier->index(), directory.get(), act);
  }
  void release(Holder holder) override {
    if (holder == Holder::Original && holder_ == Holder::Copy)
      set_place(parts_, *file_, original_, nullptr, nullptr);
    {
      Inode::Locked state(*file_);
      state->has_duplicate = false;
    }
    parts_.names_lock.note_switch();
    parts_.names_lock.end_move();
    for (const InodeId id : references_) parts_.table.forget(id, 1);
    parts_.file_is_free(file_->id());
  }

 private:
  const Parts& parts_;
  const InodePtr file_;
  const Holder holder_;
  const Copy original_;
  std::vector<InodePtr> parents_;  // of its names
  std::vector<InodeId> references_;
};

HeldInode::HeldInode(const Parts& parts, InodePtr file, TierIndex to, NamesHeld lock)
    : parts_(parts), file_(std::move(file)), to_(to), lock_(lock) {
  identity_ = file_->identity;
  parts_.names_lock.begin_move();
}

HeldInode::~HeldInode() {
  end();
  parts_.names_lock.end_move();
  for (const InodeId id : references_) parts_.table.forget(id, 1);
}

void HeldInode::start(InodeState& state, std::shared_ptr<FileMove> move) {
  move_ = std::move(move);
  state.start_move(move_);
}

Result<HeldFile::Names> HeldInode::open_all() {
  Names opened;
  for (Name& name : names_) {
    name.from = SLUICE_TRY(parts_.tree.open_copy(name.parent, tier_));
    SLUICE_TRY(check_not_hidden(name));
    auto to = parts_.tree.open_copy(name.parent, to_);
    if (failed_with(to, ENOENT)) {
      // The new directory gets the name that the parent has now, so no rename may run meanwhile.
      std::optional<ExclusiveLock> no_renames;
      if (lock_ == NamesHeld::No) no_renames.emplace(parts_.names_lock.mutex);
      const CurrentCaller nobody({.uid = kNobody, .gid = kNobody});  // see NobodysRoom
      to = parts_.tree.ensure_copy(name.parent, to_);
    }
    if (!to) return to.error();
    name.to = *std::move(to);
    opened.places.push_back({name.from.get(), name.to.get(), name.text});
  }
  if (S_ISREG(file_->type)) {
    shown_ = parts_.times.before_move(*file_, tier_, source());
    if (writer_) shown_.ctime = kNoTime;
  }
  opened.shown = shown_;
  return opened;
}

// EEXIST if the file would be behind another one of its name.
Result<void> HeldInode::check_not_hidden(const Name& name) const {
  const auto check = [&] {
    return parts_.tree.check_not_hidden(name.parent, name.text, tier_, to_);
  };
  if (const auto checked = check(); !failed_with(checked, EEXIST)) return checked;
  // A user may just have renamed the file away, or be renaming another one over it.
  std::optional<ExclusiveLock> no_renames;
  if (lock_ == NamesHeld::No) no_renames.emplace(parts_.names_lock.mutex);
  SLUICE_TRY(check_name(name));
  return check();
}

// ECANCELED if the file no longer has the name.
Result<void> HeldInode::check_name(const Name& name) const {
  const auto there = parts_.pool[tier_].identity_of(name.from.get(), name.text.c_str());
  if (!there && there.error().code != ENOENT) return there.error();
  if (!there || *there != identity_) return Error(ECANCELED, "the file was renamed");
  return {};
}

Result<void> HeldInode::check_names() const {
  for (const Name& name : names_) SLUICE_TRY(check_name(name));
  return {};
}

void HeldInode::record(const HiddenCopy& copy) {
  record_ = parts_.table.record_place(file_->id(), {to_, copy.located.handle, {}});
  is_recorded_ = true;
}

Result<void> HeldInode::change_hidden(std::size_t name, unsigned slot,
                                      const std::function<Result<void>()>& act) {
  const Name& changed = names_[name];
  const OpenCopy& directory = changed.to.tier->member().slot == slot ? changed.to : changed.from;
  return parts_.times.change_with_old_times(*changed.parent, directory.tier->index(),
                                            directory.get(), act);
}

KeptTimes HeldInode::place_changed(const HiddenCopy& copy) {
  KeptTimes times;
  if (S_ISREG(file_->type)) times = parts_.times.moved(*file_, tier_, to_, copy.fd.get(), shown_);
  const Located& there = copy.located;
  set_place(parts_, *file_, Copy{to_, there.handle, there.pinned, record_}, reader_, writer_);
  is_at_copy_ = true;
  parts_.names_lock.note_switch();
  return times;
}

std::unique_ptr<SwitchedFile> HeldInode::keep_both(Holder holder) {
  keeps_both_ = true;
  return std::make_unique<Doubled>(parts_, file_, holder, original_, names_,
                                   std::exchange(references_, {}), lock_);
}

void HeldInode::release(Holder holder) {
  if (is_recorded_) {
    if (holder == Holder::Original && is_at_copy_)
      set_place(parts_, *file_, original_, nullptr, original_writer_);
    if (!keeps_both_)
      parts_.table.remove_record(holder == Holder::Copy ? original_.record : record_);
    parts_.names_lock.note_switch();
  }
  end();
  // The engine may have read the original while it was copied.
  if (holder == Holder::Copy && source() >= 0) parts_.engine.forget(source());
}

// Threads that wait for the end of the move continue.
void HeldInode::end() {
  if (!move_ || std::exchange(has_ended_, true)) return;
  move_->end_lease();
  {
    Inode::Locked state(*file_);
    state->end_move(*move_);
  }
  move_->end();
}

}  // namespace sluice
