// SPDX-License-Identifier: BSD-2-Clause
#include "tiering/move/intent.hpp"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>

#include "base/check.hpp"
#include "base/file_at.hpp"
#include "base/log.hpp"
#include "tiering/move/relocate.hpp"
#include "tiering/move/steps.hpp"

namespace sluice {

Result<Place> place_at(const Tier& tier, int dirfd, std::string name) {
  Place place;
  place.slot = tier.member().slot;
  place.name = std::move(name);
  int mount_id = 0;
  auto handle = handle_at(dirfd, "", &mount_id);
  if (handle && tier.open(*handle, O_RDONLY | O_DIRECTORY)) {
    place.directory = *std::move(handle);
    return place;
  }
  const SharedFd root = SLUICE_TRY(tier.root());
  const std::string base = SLUICE_TRY(current_path(root->get()));
  const std::string there = SLUICE_TRY(current_path(dirfd));
  std::string_view full = there;
  if (!full.starts_with(base)) return Error(EIO, "path of a step");
  full.remove_prefix(base.size());
  while (full.starts_with('/')) full.remove_prefix(1);
  place.path = full;
  return place;
}

Result<std::uint64_t> announce(Store& store, const std::vector<Step>& steps) {
  const bool in_order = std::is_partitioned(steps.begin(), steps.end(), [](const Step& step) {
    return !removes(step.kind) && step.kind != Step::Kind::MirrorDir;
  });
  SLUICE_CHECK(in_order, "steps that cannot be undone come last");
  return store.begin_intents({encode_steps(steps)});
}

// An intent that cannot be cleared is executed again at the next mount. That changes nothing unless
// its names belong to other files by then.
void clear_finished(Store& store, const std::vector<std::uint64_t>& sequences) {
  if (sequences.empty()) return;
  if (const auto cleared = store.clear_intents(sequences); !cleared) {
    log::get().error(
        "cannot clear finished operations, unmount and run 'sluice fsck': count={} why={}",
        sequences.size(), std::strerror(cleared.error().code));
  }
}

Result<void> complete(Store& store, const Pool& pool, std::uint64_t sequence,
                      const std::vector<Step>& steps,
                      const std::function<void()>& before_removals) {
  Syncer before(pool);
  bool removing = false;
  const auto apply_step = [&](const Step& step) -> Result<void> {
    if (removes(step.kind) && !std::exchange(removing, true)) {
      for (const Step& other : steps) {
        if (can_be_undone(other.kind)) SLUICE_TRY(before.sync(other.to));
      }
      if (before_removals) before_removals();
    }
    return apply(pool, step);
  };
  for (std::size_t i = 0; i < steps.size(); ++i) {
    const auto done = apply_step(steps[i]);
    if (done) continue;
    while (i-- > 0) {
      if (const auto undone = undo(pool, steps[i]); !undone) {
        log::get().error("cannot undo a rename, run 'sluice fsck': name={} why={}",
                         log::escaped(steps[i].from.name), std::strerror(undone.error().code));
      }
    }
    // The undoing counts even if it cannot be synced.
    Syncer after(pool);
    for (const Step& step : steps) [[maybe_unused]] const auto synced = after.sync(step);
    clear_finished(store, {sequence});
    return done;
  }
  // An intent may be cleared only when its steps are durable; otherwise it stays and is replayed.
  Syncer after(pool);
  for (const Step& step : steps) {
    const auto synced = after.sync(step);
    if (synced) continue;
    log::get().warn("cannot sync an operation on several tiers: why={}",
                    std::strerror(synced.error().code));
    return {};
  }
  clear_finished(store, {sequence});
  return {};
}

Result<void> execute(Store& store, const Pool& pool, const std::vector<Step>& steps,
                     const std::function<void()>& before_removals) {
  const std::uint64_t sequence = SLUICE_TRY(announce(store, steps));
  return complete(store, pool, sequence, steps, before_removals);
}

namespace {

// Stores the times of the file that the steps move, if its copy has the name and the store has no
// times for it yet: the daemon died before. Users must not have changed the copy since. Returns the
// copy's ctime, or kNoTime.
std::int64_t keep_times_of_move(Store& store, const Pool& pool, const std::vector<Step>& steps) {
  const Step& first = steps.front();
  const ShownBefore& before = steps.back().original.shown;
  if (before == ShownBefore{}) return kNoTime;
  const auto there = is_there(pool, first.to, first.subject);
  const auto stored = store.times(first.subject.id);
  if (!there || !*there || (stored && find_copy(*stored, first.to.slot) != nullptr)) return kNoTime;
  const auto target = open_place(pool, first.to);
  if (!target) return kNoTime;
  const UniqueFd file(::openat(target->dir.get(), target->name, O_PATH | O_NOFOLLOW | O_CLOEXEC));
  if (!file) return kNoTime;
  const KeptTimes times = times_of_moved(first.to.slot, file.get(), before);
  keep_times(store, {{first.subject.id, times}});
  return times.copies[0].ctime;
}

// A move cannot simply be completed: a user may have changed either of the two files since.
void replay_move(Store& store, const Pool& pool, std::uint64_t sequence,
                 const std::vector<Step>& steps, TierIndex returned) {
  Served served = Served::Neither;
  if (returned != kNoTier)
    served = pool[returned].member().slot == steps[0].to.slot ? Served::Original : Served::Copy;
  const AroundStep around = [&](std::size_t, std::size_t i, const auto& act) -> Result<void> {
    const OpenPlace directory =
        SLUICE_TRY(open_place(pool, can_be_undone(steps[i].kind) ? steps[i].to : steps[i].from));
    if (returned == kNoTier) return change_hidden(store, *directory.tier, directory.dir.get(), act);
    // The daemon has the directory's times in memory, where this cannot hide the new ctime.
    KeptTimes times;
    begin_change(times, directory.tier->member().slot, directory.dir.get());
    auto done = act();
    end_change(times, directory.tier->member().slot, directory.dir.get());
    return done;
  };
  const auto finished = finish_move(pool, steps, around, served);
  if (finished || finished.error().code == EUCLEAN) {
    if (returned == kNoTier && finished && *finished)
      wait_until_past(keep_times_of_move(store, pool, steps));
    return clear_finished(store, {sequence});
  }
  log::get().warn("cannot finish a move yet, will be retried: sequence={} step={} why={}", sequence,
                  finished.error().operation, std::strerror(finished.error().code));
}

// Whether the steps record a change made while their tier was away. Such steps are never undone.
bool is_from_absence(const std::vector<Step>& steps) {
  return steps.size() == 1 &&
         (steps[0].kind == Step::Kind::NameTaken ||
          (steps[0].kind == Step::Kind::MirrorDir && steps[0].subject != Identity{}));
}

// Applies changes that were made while a tier was away. There may be very many, so they are synced
// and cleared together.
class AbsenceReplay {
 public:
  AbsenceReplay(Store& store, const Pool& pool) : store_(store), pool_(pool) {}

  Result<void> apply_to_tier(std::uint64_t sequence, Step step) {
    const auto applied = apply(pool_, step);
    if (!applied && !is_gone(applied.error())) {
      log::get().error("cannot apply a change made while the tier was away: step={} why={}",
                       applied.error().operation, std::strerror(applied.error().code));
      return applied;
    }
    sequences_.push_back(sequence);
    steps_.push_back(std::move(step));
    return {};
  }
  Result<void> sync_and_clear() {
    if (sequences_.empty()) return {};
    Syncer syncer(pool_);
    for (const Step& step : steps_) SLUICE_TRY(syncer.sync(step));
    return store_.clear_intents(sequences_);
  }

 private:
  Store& store_;
  const Pool& pool_;
  std::vector<std::uint64_t> sequences_;
  std::vector<Step> steps_;
};

}  // namespace

Result<std::size_t> replay_intents(Store& store, const Pool& pool, const Replay& replay) {
  const auto stored = SLUICE_TRY(store.intents());
  std::size_t waiting = 0;
  AbsenceReplay absence(store, pool);
  for (const StoredIntent& intent : stored) {
    if (std::ranges::find(replay.exclude, intent.sequence) != replay.exclude.end()) continue;
    const auto steps = decode_steps(intent.bytes);
    if (!steps) {
      log::get().error("cannot decode an intent, it is dropped: sequence={}", intent.sequence);
      SLUICE_TRY(store.clear_intents({intent.sequence}));
      continue;
    }
    if (!is_reachable(pool, *steps)) {
      // Users may change the copy before the move is finished.
      if (is_move(*steps) && replay.returned == kNoTier)
        wait_until_past(keep_times_of_move(store, pool, *steps));
      ++waiting;
      continue;
    }
    if (is_from_absence(*steps)) {
      SLUICE_TRY(absence.apply_to_tier(intent.sequence, (*steps)[0]));
      continue;
    }
    if (is_move(*steps)) {
      replay_move(store, pool, intent.sequence, *steps, replay.returned);
      continue;
    }
    // All or nothing, as in the first execution. ESTALE: a later operation removed the directory,
    // so there is nothing left to do.
    const auto done = complete(store, pool, intent.sequence, *steps, {});
    if (!done) {
      log::get().warn("undid an unfinished operation: step={} why={}", done.error().operation,
                      std::strerror(done.error().code));
    }
  }
  SLUICE_TRY(absence.sync_and_clear());
  if (waiting > 0) log::get().warn("changes are waiting for an offline tier: count={}", waiting);
  return stored.size();
}

namespace {

bool needs_lost_disk(const Pool& pool, const Step& step) {
  return pool.is_lost(step.from.slot) || (has_target(step.kind) && pool.is_lost(step.to.slot));
}

// The steps that still make sense without the lost disks.
std::vector<Step> without_lost(const Pool& pool, const std::vector<Step>& steps) {
  const auto removes_something = [](const Step& step) {
    return removes(step.kind) || step.kind == Step::Kind::Keep;
  };
  std::vector<Step> rest;
  bool keep_all = false;
  for (const Step& step : steps) {
    const bool is_lost = needs_lost_disk(pool, step);
    keep_all = keep_all || (is_lost && !removes_something(step));
    if (!is_lost) rest.push_back(step);
  }
  if (keep_all) std::erase_if(rest, removes_something);
  return rest;
}

}  // namespace

bool needs_lost_disk(const Pool& pool, const std::vector<Step>& steps) {
  return std::any_of(steps.begin(), steps.end(),
                     [&](const Step& step) { return needs_lost_disk(pool, step); });
}

namespace {

// Whether a tier has a file at this place, on whatever tier the place is.
Result<bool> is_taken(const Pool& pool, const Place& place) {
  const OpenPlace target = SLUICE_TRY(open_place(pool, place));
  const SharedFd root = SLUICE_TRY(target.tier->root());
  const std::string base = SLUICE_TRY(current_path(root->get()));
  std::string path = SLUICE_TRY(current_path(target.dir.get()));
  if (!path.starts_with(base)) return Error(EIO, "path of a step");
  path = "." + path.substr(base.size()) + "/" + place.name;
  for (const auto& tier : pool) {
    const auto other = tier->root();
    struct stat st {};
    if (other && ::fstatat((*other)->get(), path.c_str(), &st, AT_SYMLINK_NOFOLLOW) == 0)
      return true;
  }
  return false;
}

// Gives the hidden copy of a lost file its names. Never undone: it is all that is left of the file.
Result<void> name_copy(const Pool& pool, std::uint64_t sequence, std::vector<Step> steps) {
  Syncer syncer(pool);
  for (Step& step : steps) {
    if (step.kind != Step::Kind::Rename && step.kind != Step::Kind::Link) continue;
    if (SLUICE_TRY(is_there(pool, step.to, step.subject))) continue;
    if (SLUICE_TRY(is_taken(pool, step.to))) {
      step.to.name += ".recovered-" + std::to_string(sequence);
      log::get().warn("the name of a recovered file is taken, so the file is named {}",
                      log::escaped(step.to.name));
    }
    SLUICE_TRY(apply(pool, step));
    SLUICE_TRY(syncer.sync(step));
  }
  return {};
}

}  // namespace

Result<Pool::TemporaryNames> names_in_intents(const Store& store) {
  Pool::TemporaryNames names;
  for (const StoredIntent& intent : SLUICE_TRY(store.intents())) {
    const auto steps = decode_steps(intent.bytes);
    if (!steps) continue;
    for (const Step& step : *steps) names.insert({step.from.slot, step.from.name});
  }
  return names;
}

Result<void> settle_lost(Store& store, const Pool& pool) {
  std::vector<std::uint64_t> pointless;
  for (const StoredIntent& intent : SLUICE_TRY(store.intents())) {
    const auto steps = decode_steps(intent.bytes);
    if (!steps || !needs_lost_disk(pool, *steps)) continue;
    const std::vector<Step> rest = without_lost(pool, *steps);
    if (rest.empty()) {
      pointless.push_back(intent.sequence);
    } else if (is_move(*steps) && is_reachable(pool, rest)) {
      if (const auto named = name_copy(pool, intent.sequence, rest); named) {
        clear_finished(store, {intent.sequence});
      } else {
        log::get().error("cannot name the copy of a lost file yet: step={} why={}",
                         named.error().operation, std::strerror(named.error().code));
      }
    } else if (is_reachable(pool, rest)) {
      const auto done = complete(store, pool, intent.sequence, rest, {});
      if (!done) {
        log::get().warn("undid an operation that needed a lost disk: step={} why={}",
                        done.error().operation, std::strerror(done.error().code));
      }
    }
  }
  if (pointless.empty()) return {};
  log::get().info("dropped changes that were waiting for a lost disk: count={}", pointless.size());
  return store.clear_intents(pointless);
}

}  // namespace sluice
