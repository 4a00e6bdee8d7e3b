// SPDX-License-Identifier: BSD-2-Clause
#include "tiering/intent.hpp"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>

#include "base/file_at.hpp"
#include "base/log.hpp"
#include "tiering/relocate.hpp"
#include "tiering/steps.hpp"

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
  return store.begin_intents({encode_steps(steps)});
}

// What is done is done, whether or not it could be crossed off. An intent that stays is carried out
// again at the next mount, which changes nothing unless its names are used for something else until
// then.
void clear_finished(Store& store, const std::vector<std::uint64_t>& sequences) {
  if (sequences.empty()) return;
  if (const auto cleared = store.clear_intents(sequences); !cleared) {
    log::get().error(
        "finished operations can't be crossed off, unmount and run 'sluice fsck': count={} why={}",
        sequences.size(), std::strerror(cleared.error().code));
  }
}

Result<void> complete(Store& store, const Pool& pool, std::uint64_t sequence,
                      const std::vector<Step>& steps,
                      const std::function<void()>& before_removals) {
  Syncer before(pool);
  bool removing = false;
  const auto carry_on = [&](const Step& step) -> Result<void> {
    if (removes(step.kind) && !std::exchange(removing, true)) {
      for (const Step& other : steps) {
        if (can_be_undone(other.kind)) SLUICE_TRY(before.sync(other.to));
      }
      if (before_removals) before_removals();
    }
    return apply(pool, step);
  };
  for (std::size_t i = 0; i < steps.size(); ++i) {
    const auto done = carry_on(steps[i]);
    if (done) continue;
    while (i-- > 0) {
      if (const auto undone = undo(pool, steps[i]); !undone) {
        log::get().error("can't undo a rename, run 'sluice fsck': name={} why={}",
                         log::escaped(steps[i].from.name), std::strerror(undone.error().code));
      }
    }
    // What was taken back stays so, whether or not that can be synced.
    Syncer after(pool);
    for (const Step& step : steps) [[maybe_unused]] const auto synced = after.sync(step);
    clear_finished(store, {sequence});
    return done;
  }
  // Only what is on disk may be forgotten. If it can't be synced, the intent stays and is replayed.
  Syncer after(pool);
  for (const Step& step : steps) {
    const auto synced = after.sync(step);
    if (synced) continue;
    log::get().warn("an operation on several tiers could not be synced: why={}",
                    std::strerror(synced.error().code));
    return {};
  }
  clear_finished(store, {sequence});
  return {};
}

Result<void> carry_out(Store& store, const Pool& pool, const std::vector<Step>& steps,
                       const std::function<void()>& before_removals) {
  const std::uint64_t sequence = SLUICE_TRY(announce(store, steps));
  return complete(store, pool, sequence, steps, before_removals);
}

namespace {

// A move is not simply carried out to its end: somebody may have worked with either file since.
void replay_move(Store& store, const Pool& pool, std::uint64_t sequence,
                 const std::vector<Step>& steps, TierIndex returned) {
  Served served = Served::Neither;
  if (returned != kNoTier)
    served = pool[returned].member().slot == steps[0].to.slot ? Served::Original : Served::Copy;
  const auto settled = settle_move(pool, steps, served);
  if (settled || settled.error().code == EUCLEAN) return clear_finished(store, {sequence});
  log::get().warn("an unfinished move waits for better times: sequence={} step={} why={}", sequence,
                  settled.error().operation, std::strerror(settled.error().code));
}

// Something that was changed while the tier was away. Unlike other work, it is not taken back.
bool waited_for_tier(const std::vector<Step>& steps) {
  return steps.size() == 1 &&
         (steps[0].kind == Step::Kind::NameTaken ||
          (steps[0].kind == Step::Kind::MirrorDir && steps[0].subject != Identity{}));
}

// What was changed while a tier was away, applied. There may be very many of these, so they are
// synced and crossed off together.
class Told {
 public:
  Told(Store& store, const Pool& pool) : store_(store), pool_(pool) {}

  Result<void> tell(std::uint64_t sequence, Step step) {
    const auto told = apply(pool_, step);
    if (!told && !is_gone(told.error())) {
      log::get().error("a tier can't be told what changed while it was away: step={} why={}",
                       told.error().operation, std::strerror(told.error().code));
      return told;
    }
    sequences_.push_back(sequence);
    steps_.push_back(std::move(step));
    return {};
  }
  Result<void> cross_off() {
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
  Told told(store, pool);
  for (const StoredIntent& intent : stored) {
    if (std::ranges::find(replay.exclude, intent.sequence) != replay.exclude.end()) continue;
    const auto steps = decode_steps(intent.bytes);
    if (!steps) {
      log::get().error("an intent can't be read and is dropped: sequence={}", intent.sequence);
      SLUICE_TRY(store.clear_intents({intent.sequence}));
      continue;
    }
    if (!is_reachable(pool, *steps)) {
      ++waiting;
      continue;
    }
    if (waited_for_tier(*steps)) {
      SLUICE_TRY(told.tell(intent.sequence, (*steps)[0]));
      continue;
    }
    if (is_move(*steps)) {
      replay_move(store, pool, intent.sequence, *steps, replay.returned);
      continue;
    }
    // All of it or none of it, as in the first run. Where a directory is gone (ESTALE), a later
    // operation took the unfinished business with it.
    const auto done = complete(store, pool, intent.sequence, *steps, {});
    if (!done) {
      log::get().warn("an unfinished operation was taken back: step={} why={}",
                      done.error().operation, std::strerror(done.error().code));
    }
  }
  SLUICE_TRY(told.cross_off());
  if (waiting > 0) log::get().warn("changes wait for a tier that is offline: count={}", waiting);
  return stored.size();
}

}  // namespace sluice
