// SPDX-License-Identifier: BSD-2-Clause
// The switch: a file's copy on another tier gets the file's names, and the original loses them.
// Moves, spills and the emptying of a tier all end here.
#include <algorithm>
#include <optional>

#include "base/log.hpp"
#include "fs/core/caller.hpp"
#include "fs/core/relocator.hpp"
#include "tiering/relocate.hpp"
#include "tiering/twins.hpp"

namespace sluice {

// Opens the directories of all names on both tiers, and makes those that are missing on the new
// one.
Result<void> Relocator::prepare(Switch& change) {
  const Tier& from = parts_.pool[change.original.tier];
  Tier& to = parts_.pool[change.to];
  std::vector<NamePlaces> places;
  for (Switch::Name& name : change.names) {
    name.from = SLUICE_TRY(parts_.tree.open_copy(name.parent, from.index()));
    SLUICE_TRY(check_not_hidden(change, name));
    auto opened = parts_.tree.open_copy(name.parent, to.index());
    if (failed_with(opened, ENOENT)) {
      // The new directory gets the name that the parent has now, so no rename may run meanwhile.
      std::optional<ExclusiveLock> no_renames;
      if (change.lock == NamesHeld::No) no_renames.emplace(parts_.names_lock.mutex);
      const CurrentCaller nobody({.uid = kNobody, .gid = kNobody});  // see NobodysRoom
      opened = parts_.tree.ensure_copy(name.parent, to.index());
    }
    if (!opened) return opened.error();
    name.to = *std::move(opened);
    places.push_back({name.from.get(), name.to.get(), name.text});
  }
  if (S_ISREG(change.file->type)) {
    change.shown = parts_.times.before_move(*change.file, from.index(), change.source->get());
    if (change.writer) change.shown.ctime = kNoTime;
  }
  change.steps =
      SLUICE_TRY(relocation_steps(*change.copy, from, to, places, change.keep, change.shown));
  return {};
}

// EEXIST if the file would be behind another one of its name.
Result<void> Relocator::check_not_hidden(const Switch& change, const Switch::Name& name) {
  const auto check = [&] {
    return parts_.tree.check_not_hidden(name.parent, name.text, change.original.tier, change.to);
  };
  if (const auto checked = check(); !failed_with(checked, EEXIST)) return checked;
  // A user may just have renamed the file away, or be renaming another one over it.
  std::optional<ExclusiveLock> no_renames;
  if (change.lock == NamesHeld::No) no_renames.emplace(parts_.names_lock.mutex);
  SLUICE_TRY(check_name(change, name));
  return check();
}

// ECANCELED if the file no longer has the name.
Result<void> Relocator::check_name(const Switch& change, const Switch::Name& name) {
  const auto there =
      parts_.pool[change.original.tier].identity_of(name.from.get(), name.text.c_str());
  if (!there && there.error().code != ENOENT) return there.error();
  if (!there || *there != change.copy->original) return Error(ECANCELED, "the file was renamed");
  return {};
}

Result<void> Relocator::check_names(const Switch& change) {
  for (const Switch::Name& name : change.names) SLUICE_TRY(check_name(change, name));
  return {};
}

// Updates the inode after its file changed places. `reader` and `writer` replace the descriptors of
// an open file; those that are absent are opened again when they are needed.
void Relocator::set_place(Inode& file, const Copy& place, SharedFd reader, SharedFd writer) {
  Inode::Locked state(file);
  state->copies[0] = place;
  if (!state->open) return;
  parts_.descriptors.drop_reader(*state->open);
  if (reader) parts_.descriptors.keep_reader(*state->open, std::move(reader));
  state->open->writer = std::move(writer);
}

// Switches the files to their copies. Returns one result for each; if it is an error, the original
// is still the file. REQUIRES: prepare() succeeded, and operations that change the files or their
// names wait until this returns.
std::vector<Result<void>> Relocator::switch_all(const std::vector<Switch*>& changes) {
  std::vector<std::vector<Step>> intents;
  for (const Switch* change : changes) intents.push_back(change->steps);
  // A successor must know both places: it finishes the move and looks which file is left.
  std::vector<PlaceRecord*> records;
  for (const Switch* change : changes) {
    const Located& there = change->copy->located;
    records.push_back(
        parts_.table.record_place(change->file->id(), {change->to, there.handle, {}}));
  }
  const SharedLock no_replay(intents_);
  std::int64_t last_ctime = 0;
  const auto copy_has_names = [&](std::size_t i) -> KeptTimes {
    Switch& change = *changes[i];
    const Located& there = change.copy->located;
    KeptTimes times;
    if (S_ISREG(change.file->type)) {
      times = parts_.times.moved(*change.file, change.original.tier, change.to,
                                 change.copy->fd.get(), change.shown);
      last_ctime = std::max(last_ctime, times.copies[0].ctime);
    }
    set_place(*change.file, Copy{change.to, there.handle, there.pinned, records[i]}, change.reader,
              change.writer);
    parts_.names_lock.note_switch();
    return times;
  };
  // First come the steps that make each name on the new tier, then those that remove each name from
  // the old one.
  const auto without_new_times = [&](std::size_t i, std::size_t step, const auto& act) {
    const Switch& change = *changes[i];
    const bool makes = step < change.names.size();
    const Switch::Name& name = change.names[makes ? step : step - change.names.size()];
    const OpenCopy& directory = makes ? name.to : name.from;
    return parts_.times.change_with_old_times(*name.parent, directory.tier->index(),
                                              directory.get(), act);
  };
  const auto ends =
      execute_moves(parts_.store, parts_.pool, intents, copy_has_names, without_new_times);
  // A change of one of the files after this gets a later ctime.
  wait_until_past(last_ctime);
  std::vector<Result<void>> results;
  for (std::size_t i = 0; i < changes.size(); ++i) {
    const Switch& change = *changes[i];
    results.push_back(ends ? (*ends)[i].result : ends.error());
    if (results[i] && (*ends)[i].is_finished && change.keep == Original::KeepAsTwin)
      note_twin(change);
    if (results[i])
      parts_.pool.twins().forget(change.file->id(), {change.original.tier, change.to});
    if (!results[i]) set_place(*change.file, change.original, nullptr, change.original_writer);
    if (ends && !(*ends)[i].is_finished) {
      remember_unfinished(change, (*ends)[i]);
    } else {
      parts_.table.remove_record(results[i] ? change.original.record : records[i]);
    }
    parts_.names_lock.note_switch();
  }
  return results;
}

// REQUIRES: users still cannot change the file, and its next change gets another ctime. If the
// daemon dies before this, the twin has no note, and is dropped.
void Relocator::note_twin(const Switch& change) {
  Twins::Departed file{.from = parts_.pool[change.original.tier],
                       .to = parts_.pool[change.to],
                       .file = change.file->identity,
                       .original = change.source->get(),
                       .copy = change.copy->fd.get(),
                       .hash = change.copy->copied.hash,
                       .names = {}};
  for (const Switch::Name& name : change.names) file.names.push_back({name.from.get(), name.text});
  parts_.pool.twins().note(file);
}

// Both files have the name until the move is finished. Until then the inode stays in the table, and
// the place that it has is right.
void Relocator::remember_unfinished(const Switch& change, const MoveEnd& end) {
  const std::string path = parts_.tree.path_of(change.file);
  log::get().error("cannot finish a move, will be retried every second: path={}",
                   log::escaped(path));
  std::vector<InodeId> references;
  [[maybe_unused]] const auto walked = parts_.tree.walk(path, references, change.lock);
  {
    Inode::Locked state(*change.file);
    state->has_duplicate = true;
  }
  parts_.names_lock.begin_move();  // so that operations that change names look for it
  MutexLock lock(unfinished_mutex_);
  UnfinishedMove& move = unfinished_.emplace_back();
  move = {change.file,     change.steps, end.sequence, end.result.has_value(),
          change.original, {},           references};
  for (const Switch::Name& name : change.names) move.parents.push_back(name.parent);
}

// Hides the steps of a move from the times of directories, as switch_all() does.
AroundStep Relocator::hiding_steps(const UnfinishedMove& move) {
  return [this, &move](std::size_t, std::size_t step, const auto& act) -> Result<void> {
    const bool makes = step < move.parents.size();
    const InodePtr& parent = move.parents[makes ? step : step - move.parents.size()];
    const unsigned slot = makes ? move.steps[step].to.slot : move.steps[step].from.slot;
    const Tier* tier = parts_.pool.by_slot(slot);
    if (tier == nullptr) return act();
    const OpenCopy directory = SLUICE_TRY(parts_.tree.open_copy(parent, tier->index()));
    return parts_.times.change_with_old_times(*parent, tier->index(), directory.get(), act);
  };
}

void Relocator::finish_moves() {
  {
    MutexLock lock(unfinished_mutex_);
    if (unfinished_.empty()) return;
  }
  ExclusiveLock no_names(parts_.names_lock.mutex);
  ExclusiveLock no_moves(intents_);
  std::vector<UnfinishedMove> tries;
  {
    MutexLock lock(unfinished_mutex_);
    tries.swap(unfinished_);
  }
  for (UnfinishedMove& each : tries) {
    // If the original is the file, a user may have it open for writing: the switch must be undone.
    const auto is_copy = [&]() -> Result<bool> {
      if (each.moved) return finish_move(parts_.pool, each.steps, hiding_steps(each));
      SLUICE_TRY(undo_move(parts_.pool, each.steps));
      return false;
    }();
    if (!is_copy && is_copy.error().code != EUCLEAN) {
      MutexLock lock(unfinished_mutex_);
      unfinished_.push_back(std::move(each));
      continue;
    }
    clear_finished(parts_.store, {each.sequence});
    if (is_copy && each.moved && !*is_copy) set_place(*each.file, each.original, nullptr, nullptr);
    end_unfinished(each);
  }
}

void Relocator::end_unfinished(const UnfinishedMove& move) {
  {
    Inode::Locked state(*move.file);
    state->has_duplicate = false;
  }
  parts_.names_lock.note_switch();
  parts_.names_lock.end_move();
  for (const InodeId id : move.references) parts_.table.forget(id, 1);
  parts_.file_is_free(move.file->id());
}

Result<void> Relocator::settle_lost() {
  parts_.names_lock.mutex.assert_held();
  ExclusiveLock no_moves(intents_);
  std::vector<UnfinishedMove> ended;
  {
    MutexLock lock(unfinished_mutex_);
    std::erase_if(unfinished_, [&](UnfinishedMove& each) {
      const bool is_lost = needs_lost_disk(parts_.pool, each.steps);
      if (is_lost) ended.push_back(std::move(each));
      return is_lost;
    });
  }
  for (const UnfinishedMove& each : ended) {
    // The copy was the file, and is gone. The original was not removed yet.
    if (each.moved && parts_.pool.is_lost(each.steps[0].to.slot))
      set_place(*each.file, each.original, nullptr, nullptr);
    end_unfinished(each);
  }
  return sluice::settle_lost(parts_.store, parts_.pool);
}

Result<void> Relocator::replay_for(TierIndex tier) {
  parts_.names_lock.mutex.assert_held();
  ExclusiveLock no_moves(intents_);
  // Some waited for this tier and for one that is lost.
  SLUICE_TRY(sluice::settle_lost(parts_.store, parts_.pool));
  // finish_moves() finishes the interrupted moves of this daemon, because it updates the inodes.
  Replay replay{.returned = tier, .exclude = {}};
  {
    MutexLock lock(unfinished_mutex_);
    for (const UnfinishedMove& each : unfinished_) replay.exclude.push_back(each.sequence);
  }
  const auto replayed = replay_intents(parts_.store, parts_.pool, replay);
  if (!replayed) return replayed.error();
  return {};
}

}  // namespace sluice
