// SPDX-License-Identifier: BSD-2-Clause
#include "tiering/move/relocate.hpp"

#include <fcntl.h>
#include <sys/xattr.h>
#include <unistd.h>

#include <algorithm>

#include "base/file_at.hpp"
#include "base/log.hpp"
#include "tiering/move/steps.hpp"
#include "tiering/pool/twin.hpp"

namespace sluice {

Result<std::vector<Step>> relocation_steps(const HiddenCopy& copy, const Tier& from, const Tier& to,
                                           const std::vector<NamePlaces>& names, Original original,
                                           const ShownBefore& shown) {
  const SharedFd hidden = SLUICE_TRY(copy.is_twin ? to.twins_directory() : to.temp_directory());
  std::vector<Step> steps, removals;
  for (const NamePlaces& each : names) {
    Step step;
    step.subject = copy.located.identity;
    step.to = SLUICE_TRY(place_at(to, each.to_dir, each.name));
    if (steps.empty()) {
      step.kind = Step::Kind::Rename;
      step.from = SLUICE_TRY(place_at(to, hidden->get(), copy.name));
    } else {
      step.kind = Step::Kind::Link;
      step.from = steps[0].to;
    }
    steps.push_back(std::move(step));
    Step removal;
    removal.kind = Step::Kind::Unlink;
    if (original == Original::KeepAsTwin && removals.empty()) {
      removal.kind = Step::Kind::Keep;
      const SharedFd twins = SLUICE_TRY(from.twins_directory());
      removal.to = SLUICE_TRY(place_at(from, twins->get(), twin_name(copy.original)));
    }
    removal.from = SLUICE_TRY(place_at(from, each.from_dir, each.name));
    removal.subject = copy.original;
    // The copy has the original's.
    removal.original = {copy.located.st.st_size, nanoseconds(copy.located.st.st_mtim), shown};
    removals.push_back(std::move(removal));
  }
  steps.insert(steps.end(), removals.begin(), removals.end());
  return steps;
}

namespace {

constexpr int kAttempts = 3;  // many disk errors are transient

bool removes_original(const Step& step) {
  return (step.kind == Step::Kind::Unlink || step.kind == Step::Kind::Keep) &&
         step.original.size >= 0;
}

std::size_t first_removal(const std::vector<Step>& steps) {
  const auto at = std::find_if(steps.begin(), steps.end(), removes_original);
  return static_cast<std::size_t>(at - steps.begin());
}

Result<bool> is_unchanged(const Pool& pool, const Place& place, const Step::Original& original) {
  const OpenPlace target = SLUICE_TRY(open_place(pool, place));
  struct stat st {};
  if (::fstatat(target.dir.get(), target.name, &st, AT_SYMLINK_NOFOLLOW) < 0)
    return Error::last("stat");
  return st.st_size == original.size &&
         st.st_mtim.tv_sec * 1'000'000'000 + st.st_mtim.tv_nsec == original.mtime;
}

// Executes step i.
using Apply = std::function<Result<void>(std::size_t i)>;

Apply applying(const Pool& pool, const std::vector<Step>& steps, const AroundStep& around,
               std::size_t move) {
  return [&, move](std::size_t i) -> Result<void> {
    if (!around) return apply(pool, steps[i]);
    return around(move, i, [&] { return apply(pool, steps[i]); });
  };
}

// A twin that has become the file needs no note any more. A note that is left does no harm, but it
// would confuse whoever finds it.
void remove_note(const Pool& pool, const Place& place) {
  const auto target = open_place(pool, place);
  if (!target) return;
  const UniqueFd file(::openat(target->dir.get(), target->name, O_PATH | O_NOFOLLOW | O_CLOEXEC));
  if (file) ::removexattr(proc_path(file.get()).c_str(), kTwinXattr);
}

Result<void> place_copy(const Pool& pool, const std::vector<Step>& steps, const Apply& apply_step) {
  for (std::size_t i = 0; i < first_removal(steps); ++i) SLUICE_TRY(apply_step(i));
  // Before the names are synced: then the ctime that it causes is on the disk, too.
  if (identity_in_twin_name(steps[0].from.name)) remove_note(pool, steps[0].to);
  return {};
}

Result<void> sync_names(Syncer& syncer, const std::vector<Step>& steps) {
  for (std::size_t i = 0; i < first_removal(steps); ++i) SLUICE_TRY(syncer.sync(steps[i].to));
  return {};
}

// `removed` counts the names that were removed.
Result<void> remove_originals(const Pool& pool, const std::vector<Step>& steps,
                              const Apply& apply_step, std::size_t& removed) {
  for (std::size_t i = first_removal(steps); i < steps.size(); ++i) {
    if (!SLUICE_TRY(is_there(pool, steps[i].from, steps[i].subject))) continue;
    if (!SLUICE_TRY(is_unchanged(pool, steps[i].from, steps[i].original)))
      return Error(EUCLEAN, "the original was changed on its tier");
    SLUICE_TRY(apply_step(i));
    ++removed;
  }
  return {};
}

Result<void> sync_all(Syncer& syncer, const std::vector<Step>& steps) {
  for (const Step& step : steps) SLUICE_TRY(syncer.sync(step));
  return {};
}

// Ends a move that failed with `why`: the original stays, and the copy is removed.
MoveEnd give_up(const Pool& pool, const std::vector<Step>& steps, const Error& why) {
  MoveEnd end;
  end.result = why;
  for (int attempt = 0; attempt < kAttempts; ++attempt) {
    end.is_finished = undo_move(pool, steps).has_value();
    if (end.is_finished) break;
  }
  return end;
}

}  // namespace

bool is_move(const std::vector<Step>& steps) {
  return std::any_of(steps.begin(), steps.end(), removes_original);
}

Result<void> undo_move(const Pool& pool, const std::vector<Step>& steps) {
  for (const Step& step : steps) {
    if (removes_original(step) && !SLUICE_TRY(is_there(pool, step.from, step.subject)))
      return Error(ESTALE, "an original is gone");
  }
  Syncer syncer(pool);
  for (std::size_t i = first_removal(steps); i-- > 0;) {
    SLUICE_TRY(undo(pool, steps[i]));
    SLUICE_TRY(syncer.sync(steps[i].to));
  }
  return {};
}

Result<bool> finish_move(const Pool& pool, const std::vector<Step>& steps, const AroundStep& around,
                         Served served) {
  bool all = true, any = false, unchanged = true;  // of the originals
  for (const Step& step : steps) {
    if (!removes_original(step)) continue;
    const bool there = SLUICE_TRY(is_there(pool, step.from, step.subject));
    all = all && there;
    any = any || there;
    if (there) unchanged = SLUICE_TRY(is_unchanged(pool, step.from, step.original)) && unchanged;
  }
  const Step& first = steps[0];
  const bool placed = SLUICE_TRY(is_there(pool, first.to, first.subject));
  const bool hidden = !placed && SLUICE_TRY(is_there(pool, first.from, first.subject));
  if (placed && !any) {
    // Sync: the removal may not be durable yet.
    Syncer syncer(pool);
    SLUICE_TRY(sync_all(syncer, steps));
    return true;
  }
  if (!placed && !hidden) {
    // There is no copy: the move was undone, or the file was deleted. Other names may still exist.
    if (all) SLUICE_TRY(undo_move(pool, steps));
    return false;
  }
  // A user may have the original open.
  const bool original_counts = served == Served::Original || (served == Served::Copy && hidden);
  if (!unchanged || (all && original_counts)) {
    const Place& copy = placed ? first.to : first.from;
    if (all && SLUICE_TRY(is_unchanged(pool, copy, steps.back().original))) {
      SLUICE_TRY(undo_move(pool, steps));
      return false;
    }
    log::get().error(
        "two different files have the same name, both are kept; run 'sluice fsck': name={}",
        log::escaped(first.to.name));
    return Error(EUCLEAN, "finish a move");
  }
  Syncer before(pool), after(pool);
  std::size_t removed = 0;
  const Apply apply_step = applying(pool, steps, around, 0);
  const auto go_on = [&]() -> Result<void> {
    SLUICE_TRY(place_copy(pool, steps, apply_step));
    return sync_names(before, steps);
  };
  if (const auto gone_on = go_on(); !gone_on) {
    if (!all) return gone_on.error();
    SLUICE_TRY(undo_move(pool, steps));
    return false;
  }
  SLUICE_TRY(remove_originals(pool, steps, apply_step, removed));
  SLUICE_TRY(sync_all(after, steps));
  return true;
}

Result<std::vector<MoveEnd>> execute_moves(Store& store, const Pool& pool,
                                           const std::vector<std::vector<Step>>& moves,
                                           const BeforeRemovals& before_removals,
                                           const AroundStep& around) {
  std::vector<std::string> records;
  for (const auto& steps : moves) records.push_back(encode_steps(steps));
  const std::uint64_t sequence = SLUICE_TRY(store.begin_intents(records));

  std::vector<MoveEnd> ends(moves.size());
  for (std::size_t i = 0; i < moves.size(); ++i) {
    const auto placed = place_copy(pool, moves[i], applying(pool, moves[i], around, i));
    if (!placed) ends[i] = give_up(pool, moves[i], placed.error());
    ends[i].sequence = sequence + i;
  }
  Syncer before(pool), after(pool);
  for (std::size_t i = 0; i < moves.size(); ++i) {
    const auto synced = ends[i].result ? sync_names(before, moves[i]) : Result<void>();
    if (!synced) ends[i] = give_up(pool, moves[i], synced.error());
  }
  std::vector<KeptTimes> times(moves.size());
  for (std::size_t i = 0; i < moves.size(); ++i) {
    if (!ends[i].result) continue;
    times[i] = before_removals(i);
    std::size_t removed = 0;
    Result<void> done = Error(EIO, "remove the original");
    for (int attempt = 0; attempt < kAttempts && !done && !failed_with(done, EUCLEAN); ++attempt)
      done = remove_originals(pool, moves[i], applying(pool, moves[i], around, i), removed);
    if (done) continue;
    // If an original was removed, or the copy could not be, the copy is the file.
    if (removed == 0) ends[i] = give_up(pool, moves[i], done.error());
    if (removed > 0 || !ends[i].is_finished) ends[i] = {.result = {}, .is_finished = false};
  }
  std::vector<std::uint64_t> settled;
  std::vector<std::pair<InodeId, KeptTimes>> kept;
  for (std::size_t i = 0; i < moves.size(); ++i) {
    ends[i].sequence = sequence + i;
    if (ends[i].result && !times[i].copies.empty())
      kept.emplace_back(moves[i].front().subject.id, times[i]);
    // An intent may be cleared only when its steps are durable.
    if (ends[i].result && ends[i].is_finished)
      ends[i].is_finished = sync_all(after, moves[i]).has_value();
    if (ends[i].is_finished) settled.push_back(sequence + i);
  }
  // Until here, the intents had the times. Clearing them syncs these.
  keep_times(store, kept);
  clear_finished(store, settled);
  return ends;
}

}  // namespace sluice
