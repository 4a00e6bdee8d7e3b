// SPDX-License-Identifier: BSD-2-Clause
#include "tiering/move/switcher.hpp"

#include <unistd.h>

#include <algorithm>
#include <utility>

#include "tiering/pool/copier.hpp"
#include "tiering/pool/twins.hpp"

namespace sluice {
namespace {

// Hides step number `step` of a move from the times of directories. First come the steps that make
// each name on the new tier, then those that remove each name from the old one.
Result<void> execute_hidden(SwitchedFile& file, const std::vector<Step>& steps, std::size_t step,
                            const std::function<Result<void>()>& act) {
  const std::size_t names = steps.size() / 2;
  if (step < names) return file.change_hidden(step, steps[step].to.slot, act);
  return file.change_hidden(step - names, steps[step].from.slot, act);
}

}  // namespace

// Whether the original stays as a twin. Its bytes may have been written a moment ago, so they must
// be on the disk before anybody relies on them. Without a lease, a process that uses the tier
// directly might still write to it.
void Switcher::consider_twin(Switch& change) const {
  const HeldFile& file = *change.file;
  const bool may_stay = file.is_leased() && !change.copy->is_twin &&
                        pool_.twins().may_keep(pool_[file.tier()], pool_[change.to], file.before());
  if (may_stay && ::fsync(file.source()) == 0) change.keep = Original::KeepAsTwin;
}

Result<void> Switcher::prepare(Switch& change) const {
  consider_twin(change);
  HeldFile::Names names = SLUICE_TRY(change.file->open_names());
  change.names = std::move(names.places);
  change.steps =
      SLUICE_TRY(relocation_steps(*change.copy, pool_[change.file->tier()], pool_[change.to],
                                  change.names, change.keep, names.shown));
  return {};
}

std::vector<Result<void>> Switcher::switch_files(const std::vector<ReadyCopy>& copies) {
  std::vector<Switch> changes;
  for (const ReadyCopy& ready : copies)
    changes.push_back({.file = ready.file, .copy = ready.copy, .to = ready.to});
  for (Switch& change : changes) change.result = prepare(change);
  std::vector<Switch*> begun;
  for (Switch& change : changes) {
    if (change.result) change.result = change.file->begin_switch(*change.copy);
    if (!change.result) {
      change.file->release(Holder::Original);
      continue;
    }
    // The file may have been read since its times were copied.
    if (change.file->source() >= 0) copy_atime(change.file->source(), change.copy->fd.get());
    begun.push_back(&change);
  }
  if (!begun.empty()) switch_all(begun);
  for (const Switch* change : begun)
    change->file->release(change->result ? Holder::Copy : Holder::Original);
  std::vector<Result<void>> results;
  for (const Switch& change : changes) results.push_back(change.result);
  return results;
}

// REQUIRES: HeldFile::begin_switch() succeeded for each.
void Switcher::switch_all(const std::vector<Switch*>& changes) {
  std::vector<std::vector<Step>> intents;
  for (const Switch* change : changes) intents.push_back(change->steps);
  const SharedLock no_replay(intents_);
  std::int64_t last_ctime = 0;
  const auto copy_has_names = [&](std::size_t i) -> KeptTimes {
    KeptTimes times = changes[i]->file->place_changed(*changes[i]->copy);
    if (!times.copies.empty()) last_ctime = std::max(last_ctime, times.copies[0].ctime);
    return times;
  };
  const auto without_new_times = [&](std::size_t i, std::size_t step, const auto& act) {
    return execute_hidden(*changes[i]->file, changes[i]->steps, step, act);
  };
  const auto ends = execute_moves(store_, pool_, intents, copy_has_names, without_new_times);
  // A change of one of the files after this gets a later ctime.
  wait_until_past(last_ctime);
  for (std::size_t i = 0; i < changes.size(); ++i) {
    Switch& change = *changes[i];
    change.result = ends ? (*ends)[i].result : ends.error();
    const bool is_finished = !ends || (*ends)[i].is_finished;
    if (change.result) {
      if (is_finished && change.keep == Original::KeepAsTwin) note_twin(change);
      pool_.twins().forget(change.file->identity().id, {change.file->tier(), change.to});
    }
    if (is_finished) continue;
    // Both files have the name until finish() ends it.
    const Holder holder = change.result ? Holder::Copy : Holder::Original;
    Unfinished unfinished{change.file->keep_both(holder), change.steps, (*ends)[i].sequence,
                          holder};
    const MutexLock lock(unfinished_mutex_);
    unfinished_.push_back(std::move(unfinished));
  }
}

// REQUIRES: users still cannot change the file, and its next change gets another ctime. If the
// daemon dies before this, the twin has no note, and is dropped.
void Switcher::note_twin(const Switch& change) const {
  Twins::Departed file{.from = pool_[change.file->tier()],
                       .to = pool_[change.to],
                       .file = change.file->identity(),
                       .original = change.file->source(),
                       .copy = change.copy->fd.get(),
                       .hash = change.copy->copied.hash,
                       .names = {}};
  for (const NamePlaces& name : change.names) file.names.push_back({name.from_dir, name.name});
  pool_.twins().note(file);
}

Result<void> Switcher::change_place(const ReadyCopy& ready) {
  SLUICE_TRY(ready.file->open_names());
  SLUICE_TRY(ready.file->begin_switch(*ready.copy));
  ready.file->place_changed(*ready.copy);
  discard(*ready.copy, pool_[ready.to]);  // it stays open
  ready.file->release(Holder::Copy);
  return {};
}

Result<void> Switcher::switch_file(const ReadyCopy& ready) {
  const auto switch_it = [&]() -> Result<void> {
    const bool is_regular = ready.file->source() >= 0;
    if (is_regular && ready.file->before().st_nlink == 0) return change_place(ready);
    if (is_regular) SLUICE_TRY(sync_copy(*ready.copy));
    return switch_files({ready})[0];
  };
  auto switched = switch_it();
  if (!switched) discard(*ready.copy, pool_[ready.to]);
  return switched;
}

bool Switcher::has_unfinished() {
  const MutexLock lock(unfinished_mutex_);
  return !unfinished_.empty();
}

void Switcher::finish() {
  const ExclusiveLock no_switches(intents_);
  std::vector<Unfinished> tries;
  {
    const MutexLock lock(unfinished_mutex_);
    tries.swap(unfinished_);
  }
  for (Unfinished& each : tries) {
    const AroundStep around = [&](std::size_t, std::size_t step, const auto& act) {
      return execute_hidden(*each.file, each.steps, step, act);
    };
    // If the original is the file, a user may have it open for writing: the switch must be undone.
    const auto holder = [&]() -> Result<Holder> {
      if (each.holder == Holder::Copy) {
        return SLUICE_TRY(finish_move(pool_, each.steps, around)) ? Holder::Copy : Holder::Original;
      }
      SLUICE_TRY(undo_move(pool_, each.steps));
      return Holder::Original;
    }();
    if (!holder && holder.error().code != EUCLEAN) {
      const MutexLock lock(unfinished_mutex_);
      unfinished_.push_back(std::move(each));
      continue;
    }
    clear_finished(store_, {each.sequence});
    each.file->release(holder ? *holder : each.holder);
  }
}

Result<void> Switcher::settle_lost() {
  const ExclusiveLock no_switches(intents_);
  std::vector<Unfinished> ended;
  {
    const MutexLock lock(unfinished_mutex_);
    std::erase_if(unfinished_, [&](Unfinished& each) {
      const bool is_lost = needs_lost_disk(pool_, each.steps);
      if (is_lost) ended.push_back(std::move(each));
      return is_lost;
    });
  }
  for (Unfinished& each : ended) {
    // The copy was the file, and is gone. The original was not removed yet.
    const bool is_gone = pool_.is_lost(each.steps[0].to.slot);
    each.file->release(is_gone ? Holder::Original : each.holder);
  }
  return sluice::settle_lost(store_, pool_);
}

Result<void> Switcher::replay_for(TierIndex tier) {
  const ExclusiveLock no_switches(intents_);
  // Some waited for this tier and for one that is lost.
  SLUICE_TRY(sluice::settle_lost(store_, pool_));
  // finish() finishes the interrupted moves of this daemon, because it updates the inodes.
  Replay replay{.returned = tier, .exclude = {}};
  {
    const MutexLock lock(unfinished_mutex_);
    for (const Unfinished& each : unfinished_) replay.exclude.push_back(each.sequence);
  }
  const auto replayed = replay_intents(store_, pool_, replay);
  if (!replayed) return replayed.error();
  return {};
}

}  // namespace sluice
