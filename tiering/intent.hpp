// SPDX-License-Identifier: BSD-2-Clause
// An intent is a list of steps on several tiers that must all happen or none: a directory rename, a
// rename over a file on another tier, a directory's new mode, the last act of moving a file. It is
// written to the store before the first step and cleared after the last is on disk; whatever is
// found at mount is carried out to its end.
//
// Each step names its subject by identity, so applying one that is already done changes nothing:
// replay after a crash and the first run are the same code.
//
// Threads: plain values; the functions may run at once on intents that touch different names.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "metadata/store.hpp"
#include "tiering/pool.hpp"

namespace sluice {

// A name in a directory of one tier, or the directory itself if `name` is empty. The directory is
// given by its handle, which a rename of any ancestor leaves valid, or by its path below the tier's
// root where the filesystem has no handles.
struct Place {
  unsigned slot = 0;
  FileHandle directory;
  std::string path;
  std::string name;

  bool operator==(const Place&) const = default;
};

struct Step {
  // On disk: never renumber.
  enum class Kind : std::uint8_t {
    Rename = 1,     // `from` to `to`, where nothing is
    Replace = 2,    // `from` to `to`, over what is there
    Exchange = 3,   // `from` with `to`
    Unlink = 4,     // the file `from`
    Rmdir = 5,      // the empty directory `from`
    MirrorDir = 6,  // the attributes of directory `from` to its copy `to`
    Link = 7,       // another name `to` for the file `from`
    NameTaken = 8,  // `from` was given to another file while its tier was away; taken_name.hpp
  };
  Kind kind{};
  Place from, to;
  // What is at `from` before the step. MirrorDir: what `to` must be, or nothing happens; if none is
  // given, it is not looked at. Not used by NameTaken.
  Identity subject;
  // Of an Unlink that takes away the original of a file that moved to another tier: what it was
  // when it was copied. If it is anything else by then, somebody changed it on its tier, and it
  // stays.
  struct Original {
    std::int64_t size = -1;  // -1: no such step
    std::int64_t mtime = 0;  // nanoseconds

    bool operator==(const Original&) const = default;
  };
  Original original = {};

  bool operator==(const Step&) const = default;
};

std::string encode_steps(const std::vector<Step>& steps);
Result<std::vector<Step>> decode_steps(std::string_view bytes);

// The place `name` in the directory open as `dirfd` on `tier`.
Result<Place> place_at(const Tier& tier, int dirfd, std::string name);

// Writes the intent, applies every step, syncs the directories, clears the intent. If a step fails,
// those before it are undone and its error is returned: as if nothing had happened. Nothing is
// removed before what was put in its place is on disk; `before_removals`, if any, is called then.
// REQUIRES: Unlink, Rmdir and MirrorDir, which can't be undone, come last.
Result<void> carry_out(Store& store, const Pool& pool, const std::vector<Step>& steps,
                       const std::function<void()>& before_removals = {});

// The two halves of carry_out(), for when the caller has work of its own between them.
Result<std::uint64_t> announce(Store& store, const std::vector<Step>& steps);
Result<void> complete(Store& store, const Pool& pool, std::uint64_t sequence,
                      const std::vector<Step>& steps,
                      const std::function<void()>& before_removals = {});

// Crosses off intents that are finished. A failure is logged: they are then replayed.
void clear_finished(Store& store, const std::vector<std::uint64_t>& sequences);

// Finishes what an earlier daemon left, or takes it back where it can't be finished, and applies
// what was changed while a tier was away. Intents that need a tier that is not present stay for
// another day. Returns how many were found. Fails if a tier can't be told what changed in its
// absence: it must not be used then. REQUIRES: no intent is being carried out meanwhile.
struct Replay {
  TierIndex returned = kNoTier;        // not at mount, but when this tier is back
  std::vector<std::uint64_t> exclude;  // sequences that somebody else looks after
};
Result<std::size_t> replay_intents(Store& store, const Pool& pool, const Replay& replay = {});

}  // namespace sluice
